"""Tasks of Django with limits: how many of a key run at once, or start in a time."""

from __future__ import annotations

from typing import Any

import pytest

from .framework import work  # isort: skip - it skips this module where there are no tasks
from django_ojs_unique import InvalidRequest, Limit, chain
from django_ojs_unique.exceptions import HandlerError
from django_ojs_unique.handlers.registry import registry
from django_ojs_unique.models import Job, Slot
from django_ojs_unique.tasks import task
from django_ojs_unique.tasks.options import limits
from django_ojs_unique.tasks.running import type_of
from tests.app import tasks
from tests.support.refusals import refused

from .test_declare import problems
from .test_options import backend, of_others

pytestmark = pytest.mark.django_db

ONE = Limit(key=["args.a"], running=1)
TWO = Limit(key=["args.a"], running=2)
RATE = Limit(name="mails", per_minute=9)


def stored(result: Any) -> list[Limit]:
    return [Limit.of_stored(one) for one in Job.objects.get(pk=result.id).limits or ()]


def test_a_task_declares_limits_and_a_call_may_have_others(handlers):
    registry.unregister(type_of(tasks.add.func))
    add = task(limit=[ONE, RATE.to_dict()])(tasks.add.func)
    assert add.limit == (ONE, RATE)
    assert registry.get(type_of(tasks.add.func)).limits == (ONE, RATE)
    assert stored(add.enqueue(1, b=2)) == [ONE, RATE]
    assert Job.objects.get().limits[0]["key"] == {"args.a": 1}
    assert stored(add.using(limit=TWO).enqueue(1)) == [TWO]
    assert stored(add.using(priority=3).enqueue(1)) == [ONE, RATE]
    assert stored(add.using(limit=[]).enqueue(1)) == []
    assert stored(add.using(limit=None).enqueue(1)) == []
    assert stored(add.using(key="k").enqueue(1)) == [ONE, RATE]
    with refused(InvalidRequest, "limit[0].running"):
        add.using(limit=[{"key": ["type"], "running": 0}])


def test_a_task_whose_limit_names_no_parameter_is_refused_at_import(handlers):
    registry.unregister(type_of(tasks.add.func))
    with refused(HandlerError, option="limit", names="'args.c'"):
        task(limit=Limit(key=["args.c"], running=1))(tasks.add.func)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_items_and_members_of_workflows_have_the_limits_of_their_task():
    limited = tasks.add.using(limit=ONE)
    (result,) = Job.objects.enqueue_many([limited.item(1, b=2)])
    assert [Limit.of_stored(one) for one in result.job.limits] == [ONE]
    chain(limited.item(3), limited.using(limit=TWO).item(4)).enqueue()
    assert work().completed == 3
    found = {row.args["a"]: [Limit.of_stored(one) for one in row.limits] for row in Job.objects.all()}
    assert found == {1: [ONE], 3: [ONE], 4: [TWO]}


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_tasks_of_a_key_run_one_after_the_other():
    limited = tasks.add.using(limit=ONE)
    results = [limited.enqueue(1, b=n) for n in range(5)]
    assert work(concurrency=3).completed == 5
    for n, result in enumerate(results):
        result.refresh()
        assert result.return_value == 1 + n
    assert set(Slot.objects.values_list("weight", flat=True)) <= {1}


def test_a_task_of_another_package_gets_the_limits_of_its_path(handlers):
    registry.unregister(type_of(tasks.add.func))
    with backend(limit={"tests.app.*": [ONE, RATE], "*": TWO, "tests.app.tasks.aadd": None}):
        add = of_others(tasks.add)
        assert stored(add.enqueue(1, b=2)) == [ONE, RATE]
        assert registry.get(type_of(tasks.add.func)).limits == (ONE, RATE)
        assert stored(tasks.add.using(limit=TWO).enqueue(1)) == [TWO]
        assert stored(tasks.add.using(limit=[]).enqueue(1)) == []
        assert stored(of_others(tasks.aadd).enqueue(1)) == []
    assert stored(of_others(tasks.add).enqueue(1, b=2)) == []


def test_limits_by_path_are_found_like_policies():
    given = limits({"*": ONE, "wagtail.*": [TWO, RATE], "wagtail.ping": None})
    assert [given.of(path) for path in ("a", "wagtail.a", "wagtail.ping")] == [(ONE,), (TWO, RATE), ()]
    assert limits(None).of("a") is None


def test_a_limit_of_the_options_that_is_wrong_or_does_not_fit_names_its_place(handlers):
    registry.unregister(type_of(tasks.add.func))
    place = "TASKS['default']['OPTIONS']['limit']"
    with backend(limit={"tests.*": Limit(key=["args.pk"], running=1)}), refused(HandlerError, names=place) as caught:
        of_others(tasks.add)
    assert "'args.pk'" in caught.value.message
    place = "OPTIONS['limit']['tests.*']"
    with backend(limit={"tests.*": {"key": ["type"]}}), refused(InvalidRequest, "limit.running", names=place):
        of_others(tasks.add)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([ONE], " must be a dict of limits by paths of tasks (got"),
        ({"a.*": {"running": 0, "key": ["type"]}}, "['a.*']: limit.running: must be a whole number"),
        ({"a.*": ONE, "a.*.b": ONE}, " has 'a.*' and 'a.*.b', which begin with the same text"),
    ],
)
def test_the_check_finds_wrong_limits_in_the_options(given, said):
    ((id, message),) = problems(OPTIONS={"limit": given})
    assert id == "django_ojs_unique.E011"
    assert message.startswith(f"TASKS['default']['OPTIONS']['limit']{said}")
    assert problems(OPTIONS={"limit": {"a.*": ONE, "b": [ONE, RATE], "c": None}}) == []
