"""The script of the guide, on a table of the shape of River's."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from django_ojs_unique import InvalidRequest, OnConflict, job
from django_ojs_unique.models import Job, SuppressedEnqueue
from django_ojs_unique.unique.presets import river
from tests.support.refusals import refused

from .tables import ON_POSTGRESQL, create, insert, rows

pytestmark = [pytest.mark.django_db, ON_POSTGRESQL]

LATER = datetime(2099, 1, 1, tzinfo=UTC)


@pytest.fixture
def move(modules_of):
    @job("reconcile_account", unique=river(by_args=True, by_period="PT15M"))
    def reconcile(account_id): ...

    create("river")
    return modules_of("coming-from-river.md").moving.move


def old(account_id=None, **columns):
    columns = {"kind": "reconcile_account", "args": json.dumps({"account_id": account_id}), **columns}
    return insert("river_job", **columns)


def states():
    return [state for (state,) in rows("SELECT state FROM river_job ORDER BY id")]


def test_what_waits_is_moved_with_its_options_and_in_its_order(move):
    first = old(1, queue="very_slow", priority=4)
    second = old(2, state="scheduled", scheduled_at=LATER)
    third = old(3, state="retryable", scheduled_at=LATER, attempt=1)
    assert move() == 3
    found = Job.objects.order_by("created_at").values_list("queue", "priority", "args", "state", "meta")
    assert list(found) == [
        ("very-slow", -30, {"account_id": 1}, "available", {"river_id": first}),
        ("default", 0, {"account_id": 2}, "scheduled", {"river_id": second}),
        ("default", 0, {"account_id": 3}, "scheduled", {"river_id": third}),
    ]


def test_a_moved_job_stays_in_the_window_of_its_period(move):
    an_hour_ago = timezone.now() - timedelta(hours=1)
    old(1, scheduled_at=an_hour_ago)
    move()
    again = {"type": "reconcile_account", "args": {"account_id": 1}}
    assert Job.objects.enqueue(**again, scheduled_at=an_hour_ago).deduplicated
    assert Job.objects.enqueue(**again).created


def test_a_second_run_moves_nothing_twice(move):
    for account_id in range(5):
        old(account_id)
    assert [move(limit=3), move(limit=3), move(limit=3)] == [3, 2, 0]
    assert Job.objects.count() == 5
    assert states() == ["cancelled"] * 5


def test_a_run_that_is_rolled_back_has_moved_nothing(move):
    old(1)
    with transaction.atomic():
        move()
        transaction.set_rollback(True)
    assert (states(), Job.objects.count()) == (["available"], 0)


def test_what_runs_has_ended_waits_for_others_or_is_unknown_stays(move):
    for state in ("running", "pending"):
        old(1, state=state)
    for state in ("completed", "cancelled", "discarded"):
        old(1, state=state, finalized_at=timezone.now())
    old(1, kind="another")
    assert move() == 0


@pytest.mark.parametrize("on_conflict", OnConflict)
def test_what_was_enqueued_here_meanwhile_stays_and_the_old_job_is_on_record(move, handlers, on_conflict):
    handlers.unregister("reconcile_account")

    @job("reconcile_account", unique={"keys": ["args"], "on_conflict": on_conflict})
    def reconcile(account_id): ...

    here = reconcile.enqueue(account_id=1).job
    number = old(1)
    assert move() == 1
    assert Job.objects.get() == here
    assert SuppressedEnqueue.objects.get().meta == {"river_id": number}


def test_a_job_that_cannot_be_enqueued_stops_the_batch_and_is_named(move):
    old(1)
    number = old(2, queue="Ä")
    with refused(InvalidRequest, "queue") as refusal:
        move()
    assert f"job {number};" in refusal.value.__notes__[0]
    assert (states(), Job.objects.count()) == (["available", "available"], 0)
