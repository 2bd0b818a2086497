"""The script of the guide, on tables of the shape of Graphile Worker's."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from django.db import transaction

from django_ojs_unique import InvalidRequest, OnConflict, job
from django_ojs_unique.models import Job, SuppressedEnqueue
from tests.support.refusals import refused

from .tables import ON_POSTGRESQL, create, rows

pytestmark = [pytest.mark.django_db, ON_POSTGRESQL]

LATER = datetime(2099, 1, 1, tzinfo=UTC)
TASK = """
    WITH task AS (
        INSERT INTO graphile_worker._private_tasks (identifier) VALUES (%s)
        ON CONFLICT (identifier) DO UPDATE SET identifier = EXCLUDED.identifier RETURNING id
    )
    INSERT INTO graphile_worker._private_jobs (task_id, payload, priority, run_at, attempts, key, locked_at)
    SELECT id, %s, %s, coalesce(%s, now()), %s, %s, CASE WHEN %s THEN now() END FROM task RETURNING id
"""


@pytest.fixture
def move(modules_of):
    @job("email.welcome", queue="mail")
    def welcome(user_id): ...

    @job("process_events")
    def process(*events): ...

    create("graphile_worker")
    return modules_of("coming-from-graphile-worker.md").moving.move


def old(payload, task="send_welcome", *, priority=0, run_at=None, attempts=0, key=None, locked=False):
    return rows(TASK, task, json.dumps(payload), priority, run_at, attempts, key, locked)[0][0]


def left():
    return len(rows("SELECT id FROM graphile_worker.jobs"))


def test_what_waits_is_moved_with_its_options_and_in_its_order(move):
    first, second = old({"user_id": 1}, priority=-5), old([{"id": 1}], "process_events", run_at=LATER, key="batch")
    assert move() == 2
    found = Job.objects.order_by("created_at").values_list("type", "queue", "priority", "args", "key", "state", "meta")
    assert list(found) == [
        ("email.welcome", "mail", 5, {"user_id": 1}, None, "available", {"graphile_worker_id": first}),
        ("process_events", "default", 0, [{"id": 1}], "batch", "scheduled", {"graphile_worker_id": second}),
    ]
    assert (Job.objects.get(key="batch").scheduled_at, left()) == (LATER, 0)


def test_a_second_run_moves_nothing_twice(move):
    for user_id in range(5):
        old({"user_id": user_id})
    assert [move(limit=3), move(limit=3), move(limit=3)] == [3, 2, 0]
    assert Job.objects.count() == 5


def test_a_run_that_is_rolled_back_has_moved_nothing(move):
    old({"user_id": 1})
    with transaction.atomic():
        move()
        transaction.set_rollback(True)
    assert (left(), Job.objects.count()) == (1, 0)


def test_what_runs_has_failed_for_good_or_is_unknown_stays(move):
    old({"user_id": 1}, locked=True)
    old({"user_id": 1}, attempts=25)
    old({"user_id": 1}, "another")
    assert (move(), left()) == (0, 3)


def test_the_items_of_a_key_that_is_held_here_are_joined(move):
    Job.objects.enqueue("process_events", [{"id": 2}], key="batch", scheduled_at=LATER)
    old([{"id": 1}], "process_events", key="batch")
    assert move() == 1
    assert (Job.objects.get().args, Job.objects.get().scheduled_at) == ([{"id": 2}, {"id": 1}], LATER)


def test_an_object_under_a_key_that_is_held_here_changes_nothing(move):
    here = Job.objects.enqueue("email.welcome", {"user_id": 2}, key="one").job
    old({"user_id": 1}, key="one")
    assert move() == 1
    assert (Job.objects.get(), Job.objects.get().args) == (here, {"user_id": 2})


@pytest.mark.parametrize("on_conflict", OnConflict)
def test_what_was_enqueued_here_meanwhile_stays_and_the_old_job_is_on_record(move, handlers, on_conflict):
    handlers.unregister("email.welcome")

    @job("email.welcome", unique={"keys": ["args"], "on_conflict": on_conflict})
    def welcome(user_id): ...

    here = welcome.enqueue(user_id=1).job
    number = old({"user_id": 1})
    assert move() == 1
    assert Job.objects.get() == here
    assert SuppressedEnqueue.objects.get().meta == {"graphile_worker_id": number}


def test_a_job_that_cannot_be_enqueued_stops_the_batch_and_is_named(move):
    old({"user_id": 1})
    number = old("text")
    with refused(InvalidRequest, "args") as refusal:
        move()
    assert f"job {number};" in refusal.value.__notes__[0]
    assert (left(), Job.objects.count()) == (2, 0)
