"""The script of the guide, on django-tasks-db itself."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.util import find_spec

import pytest
from django.db import transaction

if not find_spec("django_tasks_db"):
    pytest.skip("django-tasks-db is not installed", allow_module_level=True)

from django_tasks_db import DatabaseBackend
from django_tasks_db.models import DBTaskResult

from django_ojs_unique import InvalidRequest
from django_ojs_unique.models import Job, SuppressedEnqueue
from django_ojs_unique.tasks.framework import InvalidTask
from django_ojs_unique.testing import run_jobs
from tests.app import tasks as app_tasks

pytestmark = pytest.mark.django_db

LATER = datetime(2099, 1, 1, tzinfo=UTC)


@pytest.fixture
def shop(modules_of):
    return modules_of("migrate-from-django-tasks-db.md")


@pytest.fixture
def move(shop):
    return shop.moving.move


def old(task, *args, **kwargs):
    """Enqueue a task as the old settings did."""
    return DatabaseBackend("default", {"QUEUES": []}).enqueue(task, args, kwargs)


def test_a_waiting_task_becomes_a_job_under_its_id_with_its_options(move):
    task = app_tasks.echo.using(queue_name="mail", priority=7, run_after=LATER)
    before = old(task, 1, 2, 3, third=4, other=5)
    assert move() == 1
    after = task.get_result(before.id)
    assert (after.args, after.kwargs, str(after.status)) == ([1, 2, 3], {"third": 4, "other": 5}, "READY")
    assert (after.task.queue_name, after.task.priority, after.task.run_after) == ("mail", 7, LATER)
    assert not DBTaskResult.objects.exists()


def test_a_moved_task_runs_as_it_was_called(move):
    before = old(app_tasks.echo, 1, 2, 3, third=4)
    move()
    run_jobs()
    assert app_tasks.echo.get_result(before.id).return_value == [1, 2, [3], 4, {}]


def test_moved_tasks_keep_their_order(move):
    ids = [old(app_tasks.add, number).id for number in range(5)]
    move()
    assert [str(pk) for pk in Job.objects.order_by("enqueued_at", "id").values_list("pk", flat=True)] == ids


def test_a_second_run_moves_nothing_twice(move):
    for number in range(5):
        old(app_tasks.add, number)
    assert [move(limit=3), move(limit=3), move(limit=3)] == [3, 2, 0]
    assert Job.objects.count() == 5


def test_a_task_whose_job_is_there_already_is_only_taken_away(move):
    before = old(app_tasks.add, 1)
    row = DBTaskResult.objects.get()
    move()
    row.save(force_insert=True)  # as if the old row were in a database that failed to commit
    assert move() == 1
    assert [str(pk) for pk in Job.objects.values_list("pk", flat=True)] == [before.id]
    assert not DBTaskResult.objects.exists()


def test_a_run_that_is_rolled_back_has_moved_nothing(move):
    old(app_tasks.add, 1)
    with transaction.atomic():
        move()
        transaction.set_rollback(True)
    assert (DBTaskResult.objects.count(), Job.objects.count()) == (1, 0)


@pytest.mark.parametrize("on_conflict", ["reject", "ignore", "replace", "replace_except_schedule"])
def test_what_was_enqueued_here_meanwhile_stays_and_the_old_task_is_on_record(shop, monkeypatch, on_conflict):
    policy = {"keys": ["type", "args"], "args_keys": ["user_id"], "on_conflict": on_conflict}
    task = shop.tasks.send_welcome.using(unique=policy)
    monkeypatch.setattr(shop.tasks, "send_welcome", task)
    here = task.enqueue(1, locale="new")
    old(task, 1, locale="old")
    assert shop.moving.move() == 1
    assert str(Job.objects.get().pk) == here.id
    assert str(SuppressedEnqueue.objects.get().existing_job_id) == here.id


def test_what_runs_has_ended_or_is_another_backends_stays(move):
    for column, value in (
        ("status", "RUNNING"),
        ("status", "SUCCESSFUL"),
        ("status", "FAILED"),
        ("backend_name", "other"),
    ):
        DBTaskResult.objects.filter(pk=old(app_tasks.add, 1).id).update(**{column: value})
    assert move() == 0
    assert (DBTaskResult.objects.count(), Job.objects.count()) == (4, 0)


@pytest.mark.parametrize(
    ("column", "value", "error"),
    [
        ("args_kwargs", {"args": [], "kwargs": {"wrong": 1}}, InvalidRequest),
        ("queue_name", "High_Priority", InvalidTask),
        ("task_path", "tests.app.tasks.gone", ImportError),
    ],
)
def test_a_task_that_cannot_move_stops_the_batch_and_is_named(move, column, value, error):
    old(app_tasks.add, 1)
    pk = old(app_tasks.add, 2).id
    DBTaskResult.objects.filter(pk=pk).update(**{column: value})
    with pytest.raises(error) as refusal:
        move()
    assert f"task {pk} of" in refusal.value.__notes__[0]
    assert (DBTaskResult.objects.count(), Job.objects.count()) == (2, 0)
