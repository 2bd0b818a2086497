"""What a task becomes when it is enqueued, and how its result is found again."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.utils import timezone

from .framework import exceptions, listening  # isort: skip - it skips this module where there are no tasks
from django_ojs_unique import InvalidRequest, presets
from django_ojs_unique.models import Job
from django_ojs_unique.tasks import OJSBackend
from django_ojs_unique.testing import run_jobs
from tests.app import tasks
from tests.support.refusals import refused

pytestmark = [pytest.mark.django_db(databases=["default", "other"]), pytest.mark.every_database]


def job_of(result) -> Job:
    return Job.objects.get(pk=result.id)


def test_a_backend_says_that_it_can_do_everything():
    backend = tasks.add.get_backend()
    assert isinstance(backend, OJSBackend)
    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority


def test_an_enqueued_task_is_a_job():
    later = timezone.now() + timedelta(hours=1)
    with listening() as told:
        result = tasks.add.using(priority=7, queue_name="sums", run_after=later).enqueue(1, b=2)
    job = job_of(result)
    assert (job.type, job.queue, job.priority, job.state) == ("task.tests.app.tasks.add", "sums", 7, "scheduled")
    assert (job.args, job.scheduled_at, job.max_attempts) == ({"a": 1, "b": 2}, later, 1)
    assert told == [("enqueued", OJSBackend, result.id, "READY", 0)]


@pytest.mark.slow
def test_tasks_whose_time_has_come_run_by_priority_then_by_their_time():
    def ago(minutes):
        return timezone.now() - timedelta(minutes=minutes)

    calls = {"now": {}, "late": {"run_after": ago(1)}, "later": {"run_after": ago(9)}, "urgent": {"priority": 1}}
    names = {tasks.add.using(**options).enqueue(1).id: name for name, options in calls.items()}
    due = Job.objects.filter(pk__in=names).order_by("-priority", "enqueued_at", "id")
    assert [names[str(job.pk)] for job in due] == ["urgent", "later", "late", "now"]
    assert [names[str(ran.job.pk)] for ran in run_jobs()] == ["urgent", "later", "late", "now"]


def test_a_task_may_be_debounced():
    task = tasks.add.using(unique=presets.debounce("PT1H"))
    task.enqueue(1, b=2)
    job = job_of(task.enqueue(1, b=2))
    assert (job.state, job.scheduled_at - job.created_at > timedelta(minutes=59)) == ("scheduled", True)
    assert Job.objects.filter(state="cancelled").count() == 1


def test_the_result_says_what_was_enqueued():
    result = tasks.add.using(priority=7).enqueue(1, b=2)
    assert (result.status, result.args, result.kwargs, result.backend) == ("READY", [1], {"b": 2}, "default")
    assert (result.enqueued_at, result.started_at, result.finished_at) == (job_of(result).created_at, None, None)
    assert (result.task.func, result.task.priority, result.errors, result.worker_ids) == (tasks.add.func, 7, [], [])
    assert tasks.add.get_result(result.id) == result


@pytest.mark.parametrize(
    ("args", "kwargs", "stored"),
    [
        ((1,), {}, {"first": 1}),
        ((1, 2), {"third": 3}, {"first": 1, "second": 2, "third": 3}),
        ((1,), {"third": 3, "second": 2}, {"first": 1, "second": 2, "third": 3}),
        ((1, 2, 3, 4), {"extra": 5}, {"first": 1, "second": 2, "rest": [3, 4], "extra": 5}),
        (([1, (2,)], b"text"), {}, {"first": [1, [2]], "second": "text"}),
    ],
)
def test_arguments_are_stored_by_name_and_come_back_as_they_were_passed(args, kwargs, stored):
    result = tasks.echo.enqueue(*args, **kwargs)
    again = tasks.echo.get_result(result.id)
    assert job_of(result).args == stored
    assert (again.args, again.kwargs) == (result.args, result.kwargs)
    assert (len(again.args), again.kwargs) == (len(args), kwargs)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: tasks.add.enqueue(), refused(InvalidRequest, "args", names="'a'")),
        (lambda: tasks.add.enqueue(aa=1), refused(InvalidRequest, "args", names="'a'?")),
        (lambda: tasks.add.enqueue(1, c=2), refused(InvalidRequest, "args", names="'c'")),
        (lambda: tasks.echo.enqueue(1, first=2), refused(InvalidRequest, "args.first")),
        (lambda: tasks.add.enqueue(float("nan")), refused(InvalidRequest, "args.a", value="nan")),
        (lambda: tasks.add.enqueue(object()), pytest.raises(TypeError, match="object")),
        (lambda: tasks.add.enqueue(b"\xff"), pytest.raises(ValueError, match="bytes")),
    ],
)
def test_arguments_that_cannot_be_passed_are_refused(call, expected):
    with expected:
        call()
    assert not Job.objects.exists()


@pytest.mark.parametrize("bad", [0, "nonsense", "", None, "01890a5d-ac96-774b-bcce-b302099a8057"])
def test_an_id_that_is_none_has_no_result(bad):
    with pytest.raises(exceptions.TaskResultDoesNotExist):
        tasks.add.get_result(bad)


def test_a_job_that_is_no_task_has_no_result():
    job = Job.objects.enqueue("tests.add", {"a": 1}).job
    with pytest.raises(exceptions.TaskResultDoesNotExist):
        tasks.add.get_result(str(job.pk))


def test_a_job_that_was_pruned_has_no_result():
    result = tasks.add.enqueue(1)
    Job._base_manager.filter(pk=result.id).update(payload_pruned=True)
    with pytest.raises(exceptions.TaskResultDoesNotExist):
        result.refresh()


def test_a_task_that_is_not_known_here_has_no_result_and_is_not_imported():
    job = Job.objects.enqueue("task.antigravity.fly").job
    with pytest.raises(exceptions.TaskResultDoesNotExist):
        tasks.add.get_result(str(job.pk))
    assert "antigravity" not in sys.modules


def test_a_result_belongs_to_its_backend_and_its_task():
    result = tasks.add.using(backend="tries").enqueue(1)
    assert (result.backend, result.task.backend) == ("tries", "tries")
    assert tasks.add.using(backend="tries").get_result(result.id) == result
    with pytest.raises(exceptions.TaskResultDoesNotExist):
        tasks.add.get_result(result.id)
    with pytest.raises(exceptions.TaskResultMismatch):
        tasks.aadd.using(backend="tries").get_result(result.id)


def test_a_job_of_a_tasks_type_that_was_enqueued_otherwise_has_a_result():
    named = Job.objects.enqueue("task.tests.app.tasks.add", {"a": 1, "b": 2}, queue="moved").job
    listed = Job.objects.enqueue("task.tests.app.tasks.add", [1, 2]).job
    assert (tasks.add.get_result(named.pk).args, tasks.add.get_result(named.pk).kwargs) == ([], {"a": 1, "b": 2})
    assert tasks.add.get_result(listed.pk).args == [1, 2]
    assert named.max_attempts == 1


@pytest.mark.parametrize(
    "note",
    [7, {"positional": 7}, {"positional": ["x", 7], "backend": 7}, {"positional": ["a", 7]}, {"positional": ["*a"]}],
)
def test_a_note_that_somebody_made_up_harms_nothing(note):
    result = tasks.add.enqueue(1)
    Job.objects.filter(pk=result.id).update(extra={"django_task": note})
    again = tasks.add.get_result(result.id)
    assert (again.args, again.kwargs) in [([], {"a": 1}), ([1], {})]


def test_jobs_live_in_the_database_that_the_options_name():
    result = tasks.add.using(backend="other").enqueue(1)
    assert Job.objects.using("other").filter(pk=result.id).exists()
    assert not Job.objects.exists()
    result.refresh()
    assert result.status == "READY"


@pytest.mark.django_db(transaction=True)
def test_asynchronous_code_has_the_same_answers():
    async def whole() -> None:
        try:
            result = await tasks.add.aenqueue(1, b=2)
            assert await tasks.add.aget_result(result.id) == result
            with pytest.raises(exceptions.TaskResultDoesNotExist):
                await tasks.add.aget_result("nonsense")
            await result.arefresh()
        finally:
            await sync_to_async(connections.close_all)()

    asyncio.run(whole())
