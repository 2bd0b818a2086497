"""What the options of a backend say about tasks that somebody else wrote."""

from __future__ import annotations

from dataclasses import replace

import pytest
from django.test import override_settings

from .framework import OURS, work  # isort: skip - it skips this module where there are no tasks
from django_ojs_unique import DuplicateJob, InvalidPolicy, UniquePolicy
from django_ojs_unique.exceptions import HandlerError
from django_ojs_unique.handlers.registry import registry
from django_ojs_unique.models import Job
from django_ojs_unique.reporting.queues import in_code
from django_ojs_unique.tasks import framework
from django_ojs_unique.tasks.options import policies
from django_ojs_unique.tasks.running import type_of
from tests.app import tasks
from tests.support.refusals import refused

pytestmark = pytest.mark.django_db

REJECT = {"keys": ["type", "args"], "on_conflict": "reject"}
IGNORE = {"keys": ["type", "args"], "on_conflict": "ignore"}


def backend(queues=(), **options):
    return override_settings(TASKS={"default": {"BACKEND": OURS, "QUEUES": [*queues], "OPTIONS": options}})


def of_others(function):
    """Return a task as another package declares it: with Django's own class, and without options of ours."""
    return framework.Task(
        func=function.func, priority=0, backend="default", queue_name="default", run_after=None, takes_context=False
    )


@pytest.mark.parametrize(
    ("path", "most"),
    [
        ("wagtail.search.one", 1),
        ("wagtail.search.two", 2),
        ("wagtail.images.one", 3),
        ("mails.send", 4),
        ("wagtail", 4),
        ("wagtail.search.none", None),
    ],
)
def test_the_exact_path_counts_first_then_the_longest_beginning(path, most):
    def policy(days):
        return UniquePolicy(period=f"P{days}D")

    given = {
        "*": policy(4),
        "wagtail.*": policy(3),
        "wagtail.search.*": policy(2),
        "wagtail.search.one*": policy(5),
        "wagtail.search.one": policy(1),
        "wagtail.search.none": None,
    }
    for patterns in (given, dict(reversed(given.items()))):
        assert policies(patterns).of(path) == (None if most is None else policy(most))
    assert policies({"wagtail.*": policy(1)}).of("mails.wagtail.send") is None
    assert policies({"Wagtail.*": policy(1)}).of("wagtail.send") is None


def test_a_task_of_another_package_gets_the_policy_of_its_path(handlers):
    with backend(unique={"tests.app.*": IGNORE}):
        add = of_others(tasks.add)
        first = add.enqueue(1, b=2)
        assert add.enqueue(1, 2).id == first.id
        assert add.enqueue(1, b=3).id != first.id
        assert Job.objects.get(pk=first.id).unique["on_conflict"] == "ignore"
        assert registry.get(type_of(tasks.add.func)) is not None
    assert of_others(tasks.add).enqueue(1, b=2).id != first.id


def test_what_a_task_says_of_itself_counts_before_the_pattern():
    with backend(unique={"tests.*": REJECT}):
        tasks.add.enqueue(1)
        with pytest.raises(DuplicateJob):
            tasks.add.enqueue(1)
        own = tasks.add.using(unique=IGNORE)
        assert own.enqueue(1).id == own.enqueue(1).id
        keyed = tasks.add.using(key="one")
        assert keyed.enqueue(1).id == keyed.enqueue(2).id
        with pytest.raises(DuplicateJob):
            replace(tasks.add, unique=None).enqueue(1)


def test_a_policy_of_the_options_that_is_wrong_or_does_not_fit_names_its_place(handlers):
    registry.unregister(type_of(tasks.add.func))
    place = "TASKS['default']['OPTIONS']['unique']"
    with backend(unique={"tests.*": {**IGNORE, "args_keys": ["pk"]}}), refused(HandlerError, names=place) as caught:
        of_others(tasks.add)
    assert "'pk'" in caught.value.message
    place = "OPTIONS['unique']['tests.*']"
    wrong = {"tests.*": {"on_conflict": "raise"}}
    with backend(unique=wrong), refused(InvalidPolicy, "unique.on_conflict", names=place):
        of_others(tasks.add)


@pytest.mark.django_db(transaction=True)
def test_a_queue_with_an_alias_is_stored_under_it_and_shown_as_django_names_it():
    with backend(queues=["default", "high_priority"], queue_aliases={"high_priority": "high-priority"}):
        result = tasks.add.using(queue_name="high_priority").enqueue(1, b=2)
        assert Job.objects.get(pk=result.id).queue == "high-priority"
        assert result.task.queue_name == "high_priority"
        assert tasks.add.get_result(result.id).task.queue_name == "high_priority"
        assert {"high-priority", "default"} <= in_code()
        assert "high_priority" not in in_code()
        assert work(queues=["high-priority"]).completed == 1
        result.refresh()
        assert (result.return_value, result.task.queue_name) == (3, "high_priority")
        assert tasks.add.enqueue(1).task.queue_name == "default"


def test_a_queue_without_an_alias_is_refused_with_the_hint():
    with backend(), pytest.raises(framework.InvalidTask, match="queue_aliases"):
        tasks.add.using(queue_name="high_priority")


def test_an_alias_does_not_allow_a_queue_that_the_backend_has_not():
    aliases = {"high_priority": "high-priority"}
    named = pytest.raises(framework.InvalidTask, match="high_priority")
    with backend(queues=["default"], queue_aliases=aliases), named:
        tasks.add.using(queue_name="high_priority")
