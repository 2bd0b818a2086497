"""The script of the guide, on Procrastinate's table."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from django.db import transaction

from django_ojs_unique import InvalidRequest, OnConflict, job
from django_ojs_unique.models import Job, SuppressedEnqueue
from tests.support.pages import ROOT, blocks
from tests.support.refusals import refused

from .tables import ON_POSTGRESQL, create, insert, rows

pytestmark = [pytest.mark.django_db, ON_POSTGRESQL]

LATER = datetime(2099, 1, 1, tzinfo=UTC)


@pytest.fixture
def guide(modules_of):
    return modules_of("migrate-from-procrastinate.md")


@pytest.fixture
def move(guide):
    create("procrastinate")
    return guide.moving.move


def old(user_id=None, **columns):
    return insert("procrastinate_jobs", **{"args": json.dumps({"user_id": user_id}), **columns})


def statuses():
    return [status for (status,) in rows("SELECT status FROM procrastinate_jobs ORDER BY id")]


def test_what_waits_is_moved_with_its_options_and_in_its_order(move):
    first, second = old(1, queue_name="slow", priority=1_000), old(2, scheduled_at=LATER)
    assert move() == 2
    found = Job.objects.order_by("created_at").values_list("type", "queue", "priority", "args", "state", "meta")
    assert list(found) == [
        ("email.welcome", "slow", 100, {"user_id": 1}, "available", {"procrastinate_id": first}),
        ("email.welcome", "mail", 0, {"user_id": 2}, "scheduled", {"procrastinate_id": second}),
    ]
    assert Job.objects.get(state="scheduled").scheduled_at == LATER


def test_a_second_run_moves_nothing_twice(move):
    for user_id in range(5):
        old(user_id)
    assert [move(limit=3), move(limit=3), move(limit=3)] == [3, 2, 0]
    assert Job.objects.count() == 5
    assert statuses() == ["cancelled"] * 5


def test_a_run_that_is_rolled_back_has_moved_nothing(move):
    old(1)
    with transaction.atomic():
        move()
        transaction.set_rollback(True)
    assert (statuses(), Job.objects.count()) == (["todo"], 0)


def test_what_runs_has_ended_or_is_unknown_stays(move):
    for status in ("doing", "succeeded", "failed", "cancelled"):
        old(1, status=status)
    old(1, task_name="shop.tasks.another")
    assert move() == 0


@pytest.mark.parametrize("on_conflict", OnConflict)
def test_what_was_enqueued_here_meanwhile_stays_and_the_old_job_is_on_record(guide, move, on_conflict):
    @job("welcome", unique={"keys": ["args"], "args_keys": ["user_id"], "on_conflict": on_conflict})
    def welcome(user_id, locale="en"): ...

    guide.moving.HANDLERS["shop.tasks.send_welcome"] = welcome
    here = welcome.enqueue(user_id=1, locale="new").job
    number = old(1)
    assert move() == 1
    assert Job.objects.get() == here
    assert SuppressedEnqueue.objects.get().meta == {"procrastinate_id": number}


def test_a_job_that_does_not_fit_stops_the_batch_and_is_named(move):
    old(1)
    number = old(args='{"wrong": 1}')
    with refused(InvalidRequest, "args", names="'wrong'") as refusal:
        move()
    assert f"job {number};" in refusal.value.__notes__[0]
    assert (statuses(), Job.objects.count()) == (["todo", "todo"], 0)


def test_the_query_of_the_guide_shows_what_is_left(move):
    old(1, status="doing")
    old(2, task_name="shop.tasks.another")
    move()
    ((_, query, _),) = blocks(ROOT / "docs" / "migrate-from-procrastinate.md", "sql")
    assert sorted(rows(query)) == [("doing", "shop.tasks.send_welcome", 1), ("todo", "shop.tasks.another", 1)]
