"""Tasks in a worker: how they are called, what their results say, and whom the signals tell."""

from __future__ import annotations

import logging
import re
import sys

import pytest
from django.contrib.auth.models import Group
from django.test import override_settings

from .framework import listening, work  # isort: skip - it skips this module where there are no tasks
from django_ojs_unique import JobState, TimeLimitExceeded
from django_ojs_unique.exceptions import JobCancelled, OJSError
from django_ojs_unique.models import Job
from django_ojs_unique.ojs.states import WAITING
from django_ojs_unique.tasks import OJSBackend
from django_ojs_unique.tasks.framework import task_finished
from django_ojs_unique.tasks.results import STATUS
from django_ojs_unique.tasks.running import type_of
from tests.app import tasks
from tests.support.pages import table

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.every_database]


@pytest.mark.parametrize("task", [tasks.add, tasks.aadd], ids=["plain", "async"])
def test_a_task_runs_in_the_worker(task):
    result = task.enqueue(1, b=2)
    with listening() as told:
        assert work().completed == 1
    result.refresh()
    job = Job.objects.get(pk=result.id)
    assert (result.status, result.return_value, result.attempts, result.is_finished) == ("SUCCESSFUL", 3, 1, True)
    assert (result.started_at, result.last_attempted_at) == (job.started_at, job.started_at)
    assert (result.finished_at, result.worker_ids, result.errors) == (job.finished_at, [job.worker_id], [])
    assert told == [
        ("started", OJSBackend, result.id, "RUNNING", 1),
        ("finished", OJSBackend, result.id, "SUCCESSFUL", 1),
    ]


@pytest.mark.parametrize("task", [tasks.add, tasks.aadd], ids=["plain", "async"])
@override_settings(OJS_UNIQUE={"EAGER": True})
def test_in_eager_mode_a_task_has_run_when_its_enqueue_returns(task):
    with listening() as told:
        result = task.enqueue(1, b=2)
    assert (result.status, result.return_value) == ("SUCCESSFUL", 3)
    assert [name for name, *_ in told] == ["enqueued", "started", "finished"]


@override_settings(OJS_UNIQUE={"EAGER": True})
def test_in_eager_mode_a_task_that_fails_has_failed():
    result = tasks.fail.enqueue("no")
    assert (result.status, result.errors[0].exception_class) == ("FAILED", ValueError)


@pytest.mark.parametrize("fails", [False, True])
def test_what_an_atomic_task_writes_is_committed_with_its_completion_or_not_at_all(fails):
    result = tasks.book.enqueue("ada", fails=fails)
    work()
    result.refresh()
    assert Group.objects.filter(name="ada").exists() is not fails
    assert Job.objects.filter(type=type_of(tasks.add.func)).exists() is not fails
    if not fails:
        assert (result.status, result.return_value) == ("SUCCESSFUL", "ada")


def test_a_task_is_called_as_its_caller_wrote_it():
    result = tasks.echo.enqueue(1, 2, 3, third=4, fifth=5)
    named = Job.objects.enqueue("task.tests.app.tasks.add", {"b": 2, "a": 1}).job
    listed = Job.objects.enqueue("task.tests.app.tasks.add", [1, 2]).job
    work()
    result.refresh()
    assert result.return_value == [1, 2, [3], 4, {"fifth": 5}]
    assert tasks.add.get_result(named.pk).return_value == tasks.add.get_result(listed.pk).return_value == 3


def test_a_task_may_take_djangos_context():
    result = tasks.attempt_of.enqueue(word="now")
    work()
    result.refresh()
    assert result.return_value == ["now", 1, "RUNNING", {"word": "now"}, result.worker_ids]


@pytest.mark.parametrize(("kind", "returned"), [("tuple", [1, [2]]), ("bytes", "text")])
def test_what_a_task_returns_is_stored_as_json(kind, returned):
    result = tasks.give.enqueue(kind)
    work()
    result.refresh()
    assert result.return_value == returned


@pytest.mark.parametrize(("kind", "error"), [("object", TypeError), ("set", TypeError), ("nan", OJSError)])
def test_a_task_whose_result_is_no_json_has_failed(kind, error):
    result = tasks.give.enqueue(kind)
    work()
    result.refresh()
    assert result.status == "FAILED"
    assert issubclass(result.errors[0].exception_class, error)


def test_a_task_that_raises_has_failed_and_is_not_retried(caplog):
    result = tasks.fail.enqueue("no such thing")
    with listening() as told, caplog.at_level(logging.CRITICAL):
        assert work().discarded == 1
    result.refresh()
    (error,) = result.errors
    assert (result.status, error.exception_class, result.attempts) == ("FAILED", ValueError, 1)
    assert error.traceback.startswith("Traceback")
    assert error.traceback.endswith("ValueError: no such thing\n")
    assert [line[0] for line in told] == ["started", "finished"]
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


@pytest.mark.slow
def test_a_task_with_a_retry_policy_has_an_error_and_a_worker_for_each_attempt():
    later = {"max_attempts": 2, "initial_interval": "PT1M"}
    result = tasks.fail.using(retry=later).enqueue("again")
    with listening() as told:
        assert work().retried == 1
        result.refresh()
        assert (result.status, result.attempts, len(result.errors)) == ("READY", 1, 1)
        Job.objects.get(pk=result.id).retry()
        work()
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == ("FAILED", 2, 2)
    assert result.worker_ids == ["unknown", Job.objects.get(pk=result.id).worker_id]
    assert [(line[0], line[-1]) for line in told] == [("started", 1), ("started", 2), ("finished", 2)]


def test_a_result_has_the_start_of_the_first_attempt_and_that_of_the_last():
    result = tasks.fail.using(retry={"max_attempts": 3, "initial_interval": "PT1M"}).enqueue("again")
    began = []
    for _ in range(3):
        work()
        began.append(Job.objects.get(pk=result.id).started_at)
        result.refresh()
        assert (result.started_at, result.last_attempted_at) == (began[0], began[-1])
        Job.objects.filter(state="retryable").retry()
    assert len(set(began)) == 3
    Job.objects.get(pk=result.id).retry()
    result.refresh()
    assert (result.attempts, result.started_at, result.last_attempted_at) == (0, began[0], began[-1])


def test_the_backend_says_how_often_its_tasks_are_tried():
    assert Job.objects.get(pk=tasks.fail_twice.enqueue("x").id).max_attempts == 2
    assert Job.objects.get(pk=tasks.fail.enqueue("x").id).max_attempts == 1
    assert Job.objects.get(pk=tasks.fail_twice.using(retry={"max_attempts": 5}).enqueue("x").id).max_attempts == 5


def test_a_cancelled_task_has_failed_and_says_so():
    result = tasks.add.enqueue(1)
    with listening() as told:
        Job.objects.get(pk=result.id).cancel()
    result.refresh()
    assert (result.status, result.attempts) == ("FAILED", 0)
    assert [error.exception_class for error in result.errors] == [JobCancelled]
    assert told == [("finished", OJSBackend, result.id, "FAILED", 0)]


def test_what_the_worker_raises_in_a_task_has_its_class():
    late = tasks.wait_for_ever.enqueue()
    misfit = Job.objects.enqueue("task.tests.app.tasks.add", {"c": 1}).job
    assert work().discarded == 2
    late.refresh()
    assert late.errors[0].exception_class is TimeLimitExceeded
    assert tasks.add.get_result(misfit.pk).errors[0].exception_class is TypeError


def test_an_error_that_is_not_the_tasks_own_has_a_class_too():
    result = tasks.add.enqueue(1)
    records = [
        {"type": "lease_expired", "code": "lease_expired", "message": "not heard of again", "attempt": 1},
        {"type": "timeout", "code": "timeout", "message": "too long", "details": {"traceback": "Traceback ..."}},
        {"type": "Smtp.Refused", "message": "by a worker elsewhere"},
        {},
    ]
    Job.objects.filter(pk=result.id).update(errors=records)
    result.refresh()
    assert [error.exception_class_path for error in result.errors] == [
        "django_ojs_unique.exceptions.OJSError",
        "django_ojs_unique.handlers.control.TimeLimitExceeded",
        "django_ojs_unique.exceptions.OJSError",
        "django_ojs_unique.exceptions.OJSError",
    ]
    assert result.errors[0].traceback == "lease_expired: not heard of again"
    assert result.errors[1].traceback == "Traceback ..."


@pytest.mark.slow
def test_a_result_is_found_by_another_process(start):
    def enqueue(parent):
        return tasks.add.enqueue(20, b=3).id

    key = start(enqueue).result()
    work()
    assert tasks.add.get_result(key).return_value == 23


def test_every_state_has_a_status():
    assert set(STATUS) == set(JobState)
    assert {state for state, status in STATUS.items() if status == "READY"} == WAITING
    rows = table("docs/django-tasks.md", "state of the job")
    assert {state: status for states, status in rows for state in re.split("`, `", states)} == STATUS


def test_a_result_outlives_the_settings_of_its_queue():
    result = tasks.add.using(queue_name="gone").enqueue(1)
    with override_settings(TASKS={"default": {"BACKEND": "django_ojs_unique.tasks.OJSBackend"}}):
        assert tasks.add.get_result(result.id).task.queue_name == "default"


def test_a_failed_task_is_told_while_its_exception_is_handled():
    seen = []

    def receiver(task_result, **kwargs):
        seen.append((task_result.status, sys.exc_info()[0]))

    tasks.fail.enqueue("no")
    task_finished.connect(receiver)
    try:
        work()
    finally:
        task_finished.disconnect(receiver)
    assert seen == [("FAILED", ValueError)]
