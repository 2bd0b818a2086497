"""`@task`, the job types of tasks, and the system checks of the backend."""

from __future__ import annotations

import pickle
import runpy
import subprocess
import sys
from importlib import import_module

import django
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from .framework import IMMEDIATE, OURS, PACKAGE, exceptions  # isort: skip - it skips this module where there are no tasks
from django_ojs_unique import InvalidRetryPolicy, RetryPolicy, UniquePolicy
from django_ojs_unique.exceptions import HandlerError
from django_ojs_unique.handlers.registry import registry
from django_ojs_unique.ojs.names import job_type
from django_ojs_unique.tasks import OJSTask, framework, task
from django_ojs_unique.tasks.running import type_of
from tests.app import tasks

InvalidTask = framework.InvalidTask


def report(user_id, when="now"):
    """Do nothing."""


async def areport():
    """Do nothing."""


def generate():
    yield


LISTENING = f"""
from django.conf import settings
settings.configure(INSTALLED_APPS=["django_ojs_unique"], TASKS={{"default": {{"BACKEND": "{OURS}"}}}})
import django
django.setup()
from django_ojs_unique.signals import job_cancelled, job_completed, job_discarded
from django_ojs_unique.tasks import task
def receivers():
    return [len(signal.receivers) for signal in (job_cancelled, job_completed, job_discarded)]
def first(): pass
def second(): pass
before = receivers()
first.__module__ = second.__module__ = "shop.tasks"
task(first), task(second)
print(before, receivers())
"""


def function(path):
    """Return a function that says it is at a path."""

    def somewhere():
        """Do nothing."""

    somewhere.__module__, _, somewhere.__qualname__ = path.rpartition(".")
    return somewhere


@pytest.mark.skipif(django.VERSION[:2] == (6, 0), reason="the decorator of Django 6.0 passes no options on")
def test_djangos_decorator_takes_the_options_too(handlers):
    declared = import_module(PACKAGE).task(unique={"keys": ["type"]}, retry={"max_attempts": 4}, timeout="PT5S")(report)
    assert isinstance(declared, OJSTask)
    assert (declared.unique, declared.retry) == (UniquePolicy(keys=["type"]), RetryPolicy(max_attempts=4))
    assert handlers.get(type_of(report)).options["timeout"] == 5000


def test_a_task_is_a_handler_like_any_other():
    definition = registry.get("task.tests.app.tasks.welcome")
    assert (definition.place, definition.queue, definition.is_async) == ("tests.app.tasks.welcome", "default", False)
    assert definition.unique is tasks.welcome.unique
    assert len({tasks.welcome, tasks.welcome.using(priority=0), tasks.welcome.using(unique=None)}) == 2
    assert registry.get("task.tests.app.tasks.aadd").is_async
    assert registry.get(type_of(tasks.Shout.func)).place == "tests.app.tasks.Shout"


@pytest.mark.parametrize(
    ("path", "type"),
    [
        ("shop.tasks.send_welcome", "task.shop.tasks.send_welcome"),
        ("shop.v2.tasks.send", "task.shop.v2.tasks.send"),
        ("Shop.tasks.sendMail", "task.shop.tasks.sendmail-c7f320706a6d"),
        ("shop.tasks._private", "task.shop.tasks.private-f5ef81280d91"),
        ("shop.tasks.größe", "task.shop.tasks.gre-a0ae3e726157"),
        ("_._.__", "task.x.x.x-420020f30307"),
    ],
)
def test_a_path_becomes_a_job_type(path, type):
    assert type_of(function(path)) == type


def test_each_path_has_a_job_type_of_its_own():
    paths = [
        "a.b",
        "A.b",
        "a.B",
        "a._b",
        "a.__b",
        "a.b_",
        "_a.b",
        "a.ß",
        "a.ö",
        "1.2",
        f"a.{'b' * 300}",
        f"a.{'b' * 301}",
    ]
    types = [job_type(type_of(function(path))) for path in paths]
    assert len(set(types)) == len(paths)


@pytest.mark.parametrize(
    ("declare", "error", "message"),
    [
        (lambda: task(lambda: None), InvalidTask, "module level"),
        (lambda: task(takes_context=True)(report), InvalidTask, "'context'"),
        (lambda: task(function("__main__.report")), InvalidTask, "tasks.py"),
        (lambda: task(generate), HandlerError, "yield"),
        (lambda: task(priority=101)(report), InvalidTask, "priority"),
        (lambda: task(queue_name="b", backend="tries")(report), InvalidTask, "'b'"),
        (lambda: task(retry={"max_attempts": "two"})(report), InvalidRetryPolicy, "max_attempts"),
        (lambda: task(unique={"args_keys": ["usr_id"], "keys": ["type", "args"]})(report), HandlerError, "'user_id'"),
        (lambda: task(atomic=True)(areport), HandlerError, "async def"),
        (lambda: task(atomic=1)(report), HandlerError, "atomic=True"),
        (lambda: task(run_after=None)(report), TypeError, "run_after"),
    ],
)
def test_a_declaration_that_does_not_fit_is_refused_at_import(declare, error, message, handlers):
    with pytest.raises(error, match=message):
        declare()


def test_a_task_for_a_queue_whose_name_is_not_allowed_is_found_by_the_checks(handlers):
    declared = task(queue_name="High_Prio")(report)
    assert "Did you mean 'high-prio'?" in refusal(declared.enqueue)
    assert "Did you mean 'high-prio'?" in refusal(declared.using, priority=3)
    (found,) = problems()
    assert found[0] == "django_ojs_unique.E012"
    assert "tests.tasks.test_declare.report: queue: is not a valid name (got 'High_Prio'). Did you mean 'h" in found[1]
    assert problems(OPTIONS={"queue_aliases": {"High_Prio": "high"}}) == []
    with override_settings(TASKS={"default": {"BACKEND": OURS}, "tries": {"BACKEND": OURS}}):
        assert len(list(import_module(f"{PACKAGE}.checks").check_tasks())) == 1


def refusal(call, *args, **kwargs):
    with pytest.raises(InvalidTask) as caught:
        call(*args, **kwargs)
    return str(caught.value)


def test_nobody_listens_to_the_ends_of_jobs_before_there_is_a_task():
    assert subprocess.check_output([sys.executable, "-c", LISTENING], text=True) == "[0, 0, 0] [1, 1, 1]\n"


def test_a_task_for_another_backend_keeps_its_options_and_runs():
    with override_settings(TASKS={"default": {"BACKEND": IMMEDIATE}}):
        declared = task(unique={})(tasks.add.func)
        assert declared.using(unique=None, priority=1).enqueue(1, b=2).return_value == 3


@pytest.mark.skipif(django.VERSION < (6, 1), reason="tasks can be pickled since Django 6.1")
def test_a_task_is_pickled_with_its_options():
    assert pickle.loads(pickle.dumps(tasks.welcome)) == tasks.welcome


def test_a_missing_framework_names_the_extra(monkeypatch):
    monkeypatch.setattr(django, "VERSION", (5, 2))
    monkeypatch.setitem(sys.modules, "django_tasks", None)
    with pytest.raises(ImproperlyConfigured, match=r"django-ojs-unique\[tasks\]"):
        runpy.run_path(framework.__file__)


def problems(**params):
    with override_settings(TASKS={"default": {"BACKEND": OURS, **params}}):
        return [(message.id, message.msg) for message in import_module(f"{PACKAGE}.checks").check_tasks()]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"OPTIONS": {"databse": "other"}},
            "['OPTIONS']['databse'] is no option of OJSBackend. Did you mean 'database'?",
        ),
        ({"OPTIONS": {"database": "moon"}}, "['OPTIONS']['database'] is no alias in DATABASES (got 'moon')."),
        (
            {"OPTIONS": {"retry": {"max_attempts": -1}}},
            "['OPTIONS']['retry']: retry.max_attempts: must be a whole number from 0 to 2147483647 (got -1).",
        ),
        (
            {"QUEUES": ["High_Priority"]},
            "['QUEUES']: queue: is not a valid name (got 'High_Priority'). Did you mean 'high-priority'?",
        ),
        (
            {"OPTIONS": {"unique": "wagtail.*"}},
            "['OPTIONS']['unique'] must be a dict of policies by paths of tasks (got 'wagtail.*').",
        ),
        (
            {"OPTIONS": {"unique": {7: {}}}},
            "['OPTIONS']['unique'] has the key 7, which is no path of a task, such as 'wagtail.*'.",
        ),
        (
            {"OPTIONS": {"unique": {"wagtail.*": {"on_conflict": "raise"}}}},
            "['OPTIONS']['unique']['wagtail.*']: unique.on_conflict: is not a known strategy (got 'raise')."
            " Valid: 'reject', 'replace', 'replace_except_schedule', 'ignore', 'replace_in_place'.",
        ),
        (
            {"OPTIONS": {"unique": {"wagtail.*": {}, "wagtail.a": {}, "wagtail.*.b": {}}}},
            "['OPTIONS']['unique'] has 'wagtail.*' and 'wagtail.*.b', which begin with the same text:"
            " nothing says which goes first.",
        ),
        (
            {"OPTIONS": {"queue_aliases": ["high"]}},
            "['OPTIONS']['queue_aliases'] must be a dict of names of queues (got ['high']).",
        ),
        (
            {"OPTIONS": {"queue_aliases": {"high_priority": "High"}}},
            "['OPTIONS']['queue_aliases']['high_priority']: queue: is not a valid name (got 'High')."
            " Did you mean 'high'?",
        ),
        (
            {"OPTIONS": {"queue_aliases": {"high_priority": "high", "High": "high"}}},
            "['OPTIONS']['queue_aliases'] has 'high' for 'high_priority' and 'High': two would become one.",
        ),
        (
            {"QUEUES": ["high_priority", "high"], "OPTIONS": {"queue_aliases": {"high_priority": "high"}}},
            "['OPTIONS']['queue_aliases']['high_priority'] is 'high', which is another queue of this backend:"
            " two would become one.",
        ),
    ],
)
def test_wrong_settings_are_found(params, message):
    assert problems(**params) == [("django_ojs_unique.E011", f"TASKS['default']{message}")]


def test_right_settings_are_fine():
    options = {
        "database": "other",
        "retry": {"max_attempts": 3},
        "unique": {"wagtail.*": {"args_keys": None}, "wagtail.search.*": None, "wagtail.search.one": {}},
        "queue_aliases": {"High_Priority": "high-priority"},
    }
    assert problems(QUEUES=["a", "b.c", "High_Priority"], OPTIONS=options) == []


def test_a_backend_without_its_app_is_found():
    apps = ["django.contrib.contenttypes", "django.contrib.auth"]
    with override_settings(INSTALLED_APPS=apps):
        (message,) = tasks.add.get_backend().check()
    assert message.id == "django_ojs_unique.E010"


def test_an_unknown_result_is_djangos_error():
    assert framework.TaskResultDoesNotExist is exceptions.TaskResultDoesNotExist
