"""A live job that lost its unique key is met by every enqueue that counts it, whatever became of who took the key.

Each test lays out one interleaving that the model in `tests/model` names, step by step, with real connections.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, transaction
from django.test import override_settings
from django.utils import timezone

from django_ojs_unique.integrity import verify
from django_ojs_unique.maintenance.prune import prune
from django_ojs_unique.models import Job
from django_ojs_unique.ojs.states import ALL, TERMINAL
from django_ojs_unique.operations.bulk import change
from django_ojs_unique.operations.operation import RELEASE
from tests.concurrency.test_isolation_levels import LEVELS, isolate, late
from tests.concurrency.test_traps import at_statement, complete, is_look
from tests.support.audit import ask, audit
from tests.support.processes import Child, Parent, wait_until_blocked

pytestmark = pytest.mark.django_db(transaction=True)

PAST = {"states": ["scheduled"]}
"""A policy that counts no available job, and so is admitted past each."""
REPLACE = {"on_conflict": "replace"}
DAY = timedelta(days=1)


def live() -> list[Job]:
    return [row for row in audit() if row.state not in TERMINAL]


def enqueue_past() -> Job:
    job: Job = Job.objects.enqueue("t", unique=PAST).job
    return job


def discarded(unique: Any = None) -> Job:
    """Make a job of the key that can be retried."""
    job: Job = Job.objects.enqueue("t", unique=unique or {}).job
    job.cancel()
    return job


# How a live job loses its key, and the job that took the key goes


def cancelled(dead: Job) -> None:
    enqueue_past().cancel()


def completed(dead: Job) -> None:
    complete(enqueue_past().pk)


def deleted(dead: Job) -> None:
    enqueue_past().delete()


def deleted_with_others(dead: Job) -> None:
    Job.objects.filter(pk=enqueue_past().pk).delete()


def removed(dead: Job) -> None:
    job = enqueue_past()
    job.cancel()
    job.remove()


def pruned(dead: Job) -> None:
    complete(enqueue_past().pk)
    assert prune(Job.objects.all(), timezone.now(), retention={"completed": timedelta()}).deleted == 1


def released(dead: Job) -> None:
    enqueue_past().release_unique_key()


def released_in_bulk(dead: Job) -> None:
    list(change(Job.objects.all(), [enqueue_past().pk], RELEASE))


def passed_twice(dead: Job) -> None:
    first, second = enqueue_past(), enqueue_past()
    first.cancel()
    second.cancel()


def passed_by_a_replacement(dead: Job) -> None:
    later = timezone.now() + DAY
    for _ in range(2):
        replacing = Job.objects.enqueue("t", unique={**PAST, "on_conflict": "replace"}, scheduled_at=later).job
    replacing.cancel()


def passed_in_bulk(dead: Job) -> None:
    (answer,) = Job.objects.enqueue_many([{"type": "t", "unique": PAST}])
    answer.job.cancel()


def passed_twice_in_bulk(dead: Job) -> None:
    for answer in Job.objects.enqueue_many([{"type": "t", "unique": PAST}] * 2):
        answer.job.cancel()


def passed_by_a_retry(dead: Job) -> None:
    Job.objects.filter(pk=dead.pk).update(priority=1)
    Job._base_manager.filter(pk=dead.pk).update(unique=Job.objects.enqueue("x", unique=PAST).job.unique)
    dead.refresh_from_db()
    assert dead.retry() == []
    dead.cancel()


def retried_by_force(dead: Job) -> None:
    Job.objects.exclude(pk=dead.pk).get().cancel()
    dead.retry(force=True)


def retried_by_force_beside_another(dead: Job) -> None:
    dead.retry(force=True)
    Job.objects.exclude(pk=dead.pk).get().cancel()


WAYS = [
    cancelled,
    completed,
    deleted,
    deleted_with_others,
    removed,
    pruned,
    released,
    released_in_bulk,
    passed_twice,
    passed_by_a_replacement,
    passed_in_bulk,
    passed_twice_in_bulk,
    passed_by_a_retry,
    retried_by_force,
    retried_by_force_beside_another,
]
every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)


def winner(parent: Parent, way: Callable[[Job], None], dead: Job) -> None:
    """Enqueue a job, wait for the parent, let the job lose its key, and commit."""
    with transaction.atomic():
        Job.objects.enqueue("t", unique={})
        parent.tell()
        parent.hear()
        way(dead)


def single(strategy: str) -> str:
    return ask("t", unique={"on_conflict": strategy}).outcome


def bulk(strategy: str) -> str:
    items = [{"type": type, "unique": {"on_conflict": strategy}} for type in ("other", "t")]
    other, answer = Job.objects.enqueue_many(items)
    assert other.outcome == "created"
    return {"rejected": "duplicate"}.get(answer.outcome, str(answer.outcome))


def waiting(parent: Parent, enqueue: Callable[[str], str], strategy: str, is_callers: bool) -> str:
    connection.ensure_connection()
    parent.tell()
    if not is_callers:
        return enqueue(strategy)
    with transaction.atomic():
        return enqueue(strategy)


def answer_after(start: Any, way: Callable[[Job], None], *loser: Any) -> str:
    """Return what an enqueue answers that waited for the winner's transaction."""
    dead = discarded()
    first: Child = start(winner, way, dead)
    first.hear()
    second: Child = start(waiting, *loser)
    second.hear()
    wait_until_blocked(1)
    first.tell()
    first.result()
    return str(second.result())


@pytest.mark.slow
@every_way
@pytest.mark.parametrize("enqueue", [single, bulk])
def test_an_enqueue_that_waited_meets_the_live_job_that_lost_its_key_meanwhile(start, way, enqueue):
    assert answer_after(start, way, enqueue, "reject", False) == "duplicate"
    assert len([row for row in live() if row.fingerprint and row.type == "t"]) == 1
    assert not verify(Job.objects.all())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "answer"),
    [("ignore", "deduplicated"), ("replace", "replaced"), ("replace_except_schedule", "replaced")],
)
@pytest.mark.parametrize("is_callers", [False, True], ids=["alone", "in a transaction"])
@pytest.mark.parametrize("enqueue", [single, bulk])
def test_an_enqueue_that_waited_treats_the_live_job_by_its_strategy(start, enqueue, is_callers, strategy, answer):
    assert answer_after(start, cancelled, enqueue, strategy, is_callers) == answer
    assert len([row for row in live() if row.type == "t"]) == 1


def rewriting(parent: Parent) -> None:
    with transaction.atomic():
        Job.objects.enqueue("t", {"n": 1}, key="k")
        parent.tell()
        parent.hear()
        Job.objects.enqueue("t", {"n": 2}, key="k")


def by_key(strategy: str) -> str:
    return str(Job.objects.enqueue("t", {"n": 3}, key="k").outcome)


@pytest.mark.slow
def test_an_enqueue_by_key_that_waited_rewrites_the_job_that_was_rewritten_meanwhile(start):
    first: Child = start(rewriting)
    first.hear()
    second: Child = start(waiting, by_key, "", False)
    second.hear()
    wait_until_blocked(1)
    first.tell()
    first.result()
    assert second.result() == "replaced"
    (row,) = live()
    assert (row.args, row.revision) == ({"n": 3}, 2)


def replacing_after_its_look(parent: Parent, other: str) -> str:
    with at_statement(parent, is_look, after=True):
        items = [{"type": type, "unique": REPLACE} for type in ("t", other)]
        first, _ = Job.objects.enqueue_many(items, mode="atomic")
    return str(first.outcome)


@pytest.mark.slow
@pytest.mark.skipif(connection.vendor != "postgresql", reason="elsewhere a key is locked from the look to the insert")
def test_a_job_retried_by_force_while_a_bulk_enqueue_waits_for_the_one_that_it_replaces_is_replaced_too(start):
    dead = discarded()
    Job.objects.enqueue("t", unique={})
    child: Child = start(replacing_after_its_look, "other")
    child.hear()
    dead.retry(force=True)
    child.tell()
    assert child.result() == "replaced"
    assert sorted(row.type for row in live()) == ["other", "t"]


@pytest.mark.slow
@pytest.mark.skipif(connection.vendor != "postgresql", reason="elsewhere a key is locked from the look to the insert")
def test_a_job_released_while_a_bulk_enqueue_waits_to_replace_it_goes_on(start):
    job = Job.objects.enqueue("t", unique={}).job
    child: Child = start(replacing_after_its_look, "other")
    child.hear()
    job.release_unique_key()
    child.tell()
    assert child.result() == "created"
    assert sorted(row.type for row in live()) == ["other", "t", "t"]


# A snapshot that is older than all of it


REFUSED = "40001" if connection.vendor == "postgresql" else "duplicate"


@pytest.mark.slow
@pytest.mark.skipif(not LEVELS, reason="SQLite knows one isolation level")
@pytest.mark.parametrize("level", LEVELS[1:2])
@pytest.mark.parametrize("enqueue", [single, bulk])
@every_way
def test_in_an_older_snapshot_no_job_is_admitted_beside_a_live_one_that_lost_its_key(start, way, enqueue, level):
    dead = discarded()
    child: Child = start(late, level, partial(enqueue, "reject"))
    child.hear()
    Job.objects.enqueue("t", unique={})
    way(dead)
    child.tell()
    assert child.result() == REFUSED
    assert len([row for row in live() if row.fingerprint and row.type == "t"]) == 1


THROTTLE = {"states": ["available", "active", "completed"], "period": "P1D"}


def throttled() -> str:
    return ask("t", unique=THROTTLE).outcome


def throttled_in_bulk() -> str:
    (answer,) = Job.objects.enqueue_many([{"type": "t", "unique": THROTTLE}])
    return {"rejected": "duplicate"}.get(answer.outcome, str(answer.outcome))


def enqueue_and_complete(unique: Any) -> UUID:
    id: UUID = Job.objects.enqueue("t", unique=unique).job.pk
    complete(id)
    return id


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS[1:])
@pytest.mark.parametrize("enqueue", [throttled, throttled_in_bulk])
def test_in_an_older_snapshot_a_throttle_meets_what_another_throttled_job_did(start, enqueue, level):
    child: Child = start(late, level, enqueue)
    child.hear()
    enqueue_and_complete(THROTTLE)
    child.tell()
    assert child.result() == REFUSED


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS[1:])
@pytest.mark.parametrize("enqueue", [throttled, throttled_in_bulk])
def test_in_an_older_snapshot_a_plain_job_that_came_and_went_is_met_on_mariadb_and_not_on_postgresql(
    start, enqueue, level
):
    child: Child = start(late, level, enqueue)
    child.hear()
    enqueue_and_complete({})
    child.tell()
    # The docs name this limit: nothing of the finished job is in the way that PostgreSQL shows to an older snapshot.
    assert child.result() == ("created" if connection.vendor == "postgresql" else "duplicate")


def looking(parent: Parent, level: str, enqueue: Callable[[], str], events: bool) -> str:
    isolate(level)
    with override_settings(OJS_UNIQUE={"EVENTS": events}):
        return _looking(parent, enqueue)


def _looking(parent: Parent, enqueue: Callable[[], str]) -> str:
    # A single enqueue looks first in a transaction of its own.
    with at_statement(parent, is_look if enqueue is throttled_in_bulk else is_later_look, after=True):
        return enqueue()


def is_later_look(sql: str) -> bool:
    return is_look(sql) and sql.startswith("(")


@pytest.mark.slow
@pytest.mark.skipif(connection.vendor != "postgresql", reason="elsewhere the key is locked before the look")
@pytest.mark.parametrize("events", [False, True], ids=["", "events"])
@pytest.mark.parametrize("level", LEVELS[:2])
@pytest.mark.parametrize("enqueue", [throttled, throttled_in_bulk])
def test_outside_of_transactions_a_throttle_meets_a_plain_job_that_came_and_went_after_its_look(
    start, enqueue, level, events
):
    child: Child = start(looking, level, enqueue, events)
    child.hear()
    enqueue_and_complete({})
    child.tell()
    assert child.result() == "duplicate"


# What is kept, and for how long


@pytest.mark.slow
def test_who_is_admitted_past_a_live_job_holds_the_key_after_its_end_and_the_next_one_decides_anew():
    old = Job.objects.enqueue("t", unique={}).job
    past = enqueue_past()
    complete(past.pk)
    past.refresh_from_db()
    assert (past.holds_unique_key, past.unique_states) == (True, ALL)
    assert ask("t", unique={}).id == old.pk
    old.cancel()
    new = Job.objects.enqueue("t", unique={})
    past.refresh_from_db()
    assert (new.outcome, past.holds_unique_key) == ("created", False)
    assert new.job.unique_states < ALL
    assert not verify(Job.objects.all())


@pytest.mark.parametrize("enqueue", [lambda: ask("t", unique=PAST), lambda: bulk_past()], ids=["single", "bulk"])
def test_the_key_is_handed_from_one_to_the_next_while_a_live_job_is_left(enqueue):
    old = Job.objects.enqueue("t", unique={}).job
    for _ in range(3):
        complete(enqueue().id)
    (holder,) = [row for row in audit() if row.holds_unique_key]
    assert holder.unique_states == ALL
    assert ask("t", unique={}).id == old.pk


def bulk_past() -> Any:
    (answer,) = Job.objects.enqueue_many([{"type": "t", "unique": PAST}])
    return answer.job


def test_a_live_job_gets_the_key_back_when_the_row_that_holds_it_is_deleted():
    old = Job.objects.enqueue("t", unique={}).job
    enqueue_past().delete()
    old.refresh_from_db()
    assert (old.holds_unique_key, old.unique_states) == (True, ALL)
    old.cancel()
    assert ask("t", unique={}).outcome == "created"


def test_of_two_live_jobs_one_gets_the_key_when_the_row_that_holds_it_leaves():
    first, second = Job.objects.enqueue("t", unique={}).job, enqueue_past()
    enqueue_past().release_unique_key()
    assert sorted(row.holds_unique_key for row in live() if row.fingerprint) == [False, True]
    first.delete()
    assert ask("t", unique={}).id == second.pk


@pytest.mark.slow
def test_verify_finds_and_repairs_a_key_that_nobody_holds_for_a_live_job():
    jobs = Job.objects.all()
    Job.objects.enqueue("t", unique={})
    Job._base_manager.update(unique_states=frozenset())
    assert {kind.name: count for kind, count in verify(jobs).counts.items()} == {"UNHELD": 1}
    assert not verify(jobs, fix=True)
    assert Job.objects.get().unique_states == ALL


@pytest.mark.slow
def test_verify_finds_and_repairs_a_key_that_its_holder_would_drop():
    jobs = Job.objects.all()
    Job.objects.enqueue("t", unique={})
    past = enqueue_past()
    Job._base_manager.filter(pk=past.pk).update(unique_states=Job.objects.enqueue("x", unique={}).job.unique_states)
    assert {kind.name: count for kind, count in verify(jobs).counts.items()} == {"UNHELD": 1}
    assert not verify(jobs, fix=True)
    past.cancel()
    assert ask("t", unique={}).outcome == "duplicate"
