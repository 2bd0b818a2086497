"""A run whose job was cancelled or replaced counts for its limits until its worker lets go of it, or its lease ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ojs_unique import JobContext, Limit, group, job
from django_ojs_unique.execution import leases
from django_ojs_unique.handlers.control import TimeLimitExceeded
from django_ojs_unique.limits.prune import prune_limits
from django_ojs_unique.maintenance.timers import promote
from django_ojs_unique.models import Job, Queue, Slot, StoppedRun
from django_ojs_unique.testing import run_jobs
from django_ojs_unique.worker import claimed_runs
from django_ojs_unique.worker import loop as loop_module
from tests.support.background import working
from tests.support.limits import LEASE, ONE, done, enqueue, fail, ids, take
from tests.support.processes import PATIENCE, Child, Parent, until

pytestmark = pytest.mark.django_db(transaction=True)

RATED = Limit(key=["args.n"], running=1, per_hour=100)
"""Its slots have rows of their own."""
SECOND = [Limit(name="all", running=100), ONE]
TABLE = StoppedRun._meta.db_table


def cancelled() -> Any:
    enqueue(1)
    (running,) = take()
    Job.objects.get(pk=running.pk).cancel()
    return running


def cancelled_among_many() -> Any:
    enqueue(1)
    (running,) = take()
    Job.objects.all().cancel()
    return running


def replaced() -> Any:
    policy: Any = {"keys": ["type"], "on_conflict": "replace"}
    enqueue(1, unique=policy)
    (running,) = take()
    assert Job.objects.enqueue("t", {"n": 2}, unique=policy, queue="other").replaced
    return running


def replaced_in_bulk() -> Any:
    item: Any = {"type": "t", "args": {"n": 1}, "limit": ONE, "unique": {"keys": ["type"], "on_conflict": "replace"}}
    Job.objects.enqueue_many([item])
    (running,) = take()
    Job.objects.enqueue_many([{**item, "queue": "other"}])
    return running


def replaced_by_a_retry() -> Any:
    first = enqueue(1, unique={})
    Job.objects.get(pk=first).cancel()
    enqueue(1, unique={})
    (running,) = take()
    Job.objects.get(pk=first).retry(replace=True)
    Job.objects.get(pk=first).cancel()
    return running


def workflow_cancelled() -> Any:
    workflow = group([{"type": "t", "args": {"n": 1}, "limit": ONE}]).enqueue()
    (running,) = take()
    workflow.cancel(active=True)
    return running


def workflow_cancelled_but_not_its_run() -> Any:
    workflow = group([{"type": "t", "args": {"n": 1}, "limit": ONE}]).enqueue()
    (running,) = take()
    workflow.cancel()
    return running


def key_taken() -> Any:
    enqueue(1, key="x")
    (running,) = take()
    enqueue(2, key="x", queue="other")
    return running


def key_removed() -> Any:
    enqueue(1, key="x")
    (running,) = take()
    Job.objects.remove(key="x")
    return running


@pytest.mark.parametrize(
    "stop",
    [
        cancelled,
        cancelled_among_many,
        replaced,
        replaced_in_bulk,
        replaced_by_a_retry,
        workflow_cancelled,
        workflow_cancelled_but_not_its_run,
        key_taken,
        key_removed,
    ],
)
def test_the_next_job_starts_once_the_worker_has_let_go(stop: Callable[[], Any]):
    running = stop()
    waiting = enqueue(1)
    assert take() == []
    assert take() == []
    done(running)
    assert ids(take()) == [waiting]
    assert take() == []
    assert not StoppedRun.objects.exists()


@pytest.mark.parametrize("limit", [ONE, RATED, SECOND, Limit(key=["args.n"], running=3, weight=2)])
def test_every_slot_of_the_run_stays_taken(limit: Any):
    enqueue(1, limit), enqueue(1, limit)
    (running,) = take()
    Job.objects.get(pk=running.pk).cancel()
    assert take() == []
    fail(running)
    assert len(take()) == 1


def test_the_limit_of_a_queue_counts_it():
    Queue.objects.limit("default", 1)
    Job.objects.enqueue("t")
    (running,) = take()
    waiting = Job.objects.enqueue("t").job.id
    Job.objects.get(pk=running.pk).cancel()
    assert take() == []
    done(running)
    assert ids(take()) == [waiting]


@pytest.mark.parametrize("limit", [ONE, RATED])
def test_the_slot_of_a_killed_worker_is_free_when_its_lease_ends_without_any_maintenance(limit: Any):
    enqueue(1, limit)
    (running,) = take()
    Job.objects.get(pk=running.pk).cancel()
    waiting = enqueue(1, limit)
    assert take() == []
    assert ids(take(now=timezone.now() + LEASE + timedelta(seconds=1))) == [waiting]


def test_the_limit_of_a_queue_forgets_a_killed_worker_when_its_lease_ends():
    Queue.objects.limit("default", 1)
    Job.objects.enqueue("t")
    (running,) = take()
    Job.objects.get(pk=running.pk).cancel()
    waiting = Job.objects.enqueue("t").job.id
    assert ids(take(now=timezone.now() + LEASE + timedelta(seconds=1))) == [waiting]


def test_a_worker_extends_the_lease_while_its_handler_goes_on():
    running = cancelled()
    waiting = enqueue(1)
    assert leases.extend(Job.objects.all(), [running], LEASE * 10) == set()
    later = timezone.now() + LEASE * 2
    assert take(now=later) == []
    assert leases.extend(Job.objects.all(), [running], LEASE) == set()  # it does not end earlier than before
    assert take(now=later) == []
    assert ids(take(now=timezone.now() + LEASE * 11)) == [waiting]


def test_a_run_that_never_began_is_let_go_when_it_is_handed_back():
    running, waiting = cancelled(), enqueue(1)
    assert take() == []
    assert leases.requeue(Job.objects.all(), [running]) == (0, set())
    assert ids(take()) == [waiting]


def test_a_job_that_is_retried_by_hand_waits_for_its_own_old_run_and_counts_once():
    old = cancelled()
    Job.objects.get(pk=old.pk).retry()
    waiting = enqueue(1)
    assert take() == []
    done(old)
    (again,) = take()
    assert again.pk == old.pk
    done(old)  # once more: it frees no slot of the new run
    assert take() == []
    Job.objects.get(pk=old.pk).cancel()
    assert take() == []
    done(old)
    assert take() == []
    done(again)
    assert ids(take()) == [waiting]


def test_a_row_that_is_deleted_meanwhile_frees_no_slot():
    running, waiting = cancelled(), enqueue(1)
    Job.objects.get(pk=running.pk).remove()
    assert take() == []
    done(running)
    assert ids(take()) == [waiting]


def test_a_job_that_waits_for_its_retry_or_for_a_worker_leaves_nothing_behind():
    enqueue(1)
    (running,) = take()
    fail(running)
    enqueue(2)
    Job.objects.all().cancel()
    assert not StoppedRun.objects.exists()


def test_pruning_keeps_what_counts_and_deletes_what_does_not():
    enqueue(1, RATED)
    (running,) = take()
    Job.objects.get(pk=running.pk).cancel()
    prune_limits(Job.objects.all(), timezone.now() + timedelta(hours=2))
    assert StoppedRun.objects.count() == 1
    StoppedRun.objects.update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    prune_limits(Job.objects.all(), timezone.now() + timedelta(hours=2))
    assert not StoppedRun.objects.exists()
    assert not Slot.objects.exists()


def test_a_cancellation_that_is_rolled_back_stops_nothing():
    enqueue(1)
    (running,) = take()
    with transaction.atomic():
        Job.objects.get(pk=running.pk).cancel()
        transaction.set_rollback(True)
    assert not StoppedRun.objects.exists()
    waiting = enqueue(1)
    done(running)
    assert ids(take()) == [waiting]


# What it costs those that it does not concern


def test_only_the_end_of_a_run_costs_anything():
    policy: Any = {"keys": ["type"], "on_conflict": "replace"}
    with CaptureQueriesContext(connection) as asked:
        Job.objects.enqueue("t", {"n": 1}, unique=policy)
        Job.objects.enqueue("t", {"n": 2}, unique=policy)
        done(*take())
        Job.objects.enqueue("t", {"n": 3})
        (running,) = take()
        fail(running)
        promote(Job.objects.all(), timezone.now() + timedelta(hours=1))
        leases.extend(Job.objects.all(), take(), LEASE)
    assert not [query["sql"] for query in asked if TABLE in query["sql"]]


def test_a_claim_asks_no_more_often():
    enqueue(1), enqueue(2)
    (running,) = take(1)
    with CaptureQueriesContext(connection) as before:
        take(types=["none"])
    Job.objects.get(pk=running.pk).cancel()
    with CaptureQueriesContext(connection) as after:
        take(types=["none"])
    assert len(before) == len(after)


# In a worker


@pytest.fixture
def often(monkeypatch: Any) -> None:
    monkeypatch.setattr(loop_module, "WATCH_SECONDS", 0.02)


@pytest.mark.parametrize("lease", [LEASE, timedelta(seconds=3)])
def test_a_handler_that_goes_on_keeps_the_next_one_out(handlers: Any, often: None, lease: timedelta):
    began, may_end, order = Event(), Event(), []

    @job("t", limit=ONE)
    def handler(n: int, last: bool = False) -> None:
        order.append(("start", last))
        began.set()
        if not last:
            assert may_end.wait(PATIENCE)
        order.append(("end", last))

    first = handler.enqueue(1).job
    with working(concurrency=4, lease=lease) as worker:
        assert began.wait(PATIENCE)
        first.cancel()
        second = handler.enqueue(1, last=True).job
        until(lambda: Job.objects.get(pk=second.pk).blocked_by.startswith("k"), "the second job waits for a slot")
        ends = StoppedRun.objects.get().lease_expires_at
        if lease < LEASE:
            until(lambda: StoppedRun.objects.get().lease_expires_at > ends, "its lease was extended")
        assert Job.objects.get(pk=second.pk).state == "available"
        may_end.set()
        until(lambda: worker.summary.completed, "the second job ran")
    assert order == [("start", False), ("end", False), ("start", True), ("end", True)]
    assert worker.summary.refused == 1


def test_an_async_handler_that_is_cancelled_lets_go(handlers: Any, often: None):
    began = Event()

    @job("t", limit=ONE)
    async def handler(n: int, last: bool = False) -> None:
        began.set()
        if not last:
            await asyncio.Event().wait()

    first = handler.enqueue(1).job
    with working() as worker:
        assert began.wait(PATIENCE)
        second = handler.enqueue(1, last=True).job
        first.cancel()
        until(lambda: worker.summary.completed, "the second job ran")
    second.refresh_from_db()
    assert second.state == "completed"


def test_a_worker_that_stops_without_its_handler_leaves_no_slot_behind(handlers: Any, often: None):
    began, may_end = Event(), Event()

    @job("t", limit=ONE)
    def handler(n: int) -> None:
        began.set()
        may_end.wait(PATIENCE)

    first = handler.enqueue(1).job
    with working(shutdown_timeout=0.01):
        assert began.wait(PATIENCE)
        first.cancel()
        assert StoppedRun.objects.count() == 1
    assert not StoppedRun.objects.exists()
    may_end.set()


def test_a_handler_that_goes_on_after_it_has_completed_its_job_frees_the_slot(handlers: Any):
    second_began = Event()

    @job("t", limit=ONE, takes_context=True)
    def handler(context: JobContext, n: int, last: bool = False) -> None:
        if last:
            second_began.set()
            return
        with transaction.atomic():
            context.complete()
        assert second_began.wait(PATIENCE)

    handler.enqueue(1), handler.enqueue(1, last=True)
    with working(concurrency=2) as worker:
        until(lambda: worker.summary.completed == 2, "both ran")


def test_a_time_limit_that_cannot_interrupt_its_handler_frees_the_slot(handlers: Any, monkeypatch: Any):
    monkeypatch.setattr(claimed_runs, "WRITE_OFF_SECONDS", 0.01)
    second_began, heard = Event(), Event()

    @job("t", limit=ONE, retry={"max_attempts": 1})
    def handler(n: int, last: bool = False) -> None:
        if last:
            second_began.set()
            return
        try:
            second_began.wait(PATIENCE)
        except TimeLimitExceeded:  # it arrives only now, or came before the wait began
            second_began.wait(PATIENCE)
        heard.set()

    handler.using(timeout=0.01).enqueue(1), handler.enqueue(1, last=True)
    with working(concurrency=2) as worker:
        until(lambda: worker.summary.completed == 1, "the second job ran")
        assert heard.wait(PATIENCE)
    assert (worker.summary.discarded, worker.left_behind) == (1, 1)


def test_a_job_that_cancels_itself_lets_go_in_a_test_and_in_eager_mode(handlers: Any, settings: Any):
    ran = []

    @job("t", limit=ONE)
    def handler(n: int) -> None:
        ran.append(n)
        Job.objects.filter(state="active").cancel()

    handler.enqueue(1), handler.enqueue(1)
    assert len(run_jobs()) == 2
    settings.OJS_UNIQUE = {**getattr(settings, "OJS_UNIQUE", {}), "EAGER": True}
    handler.enqueue(1), handler.enqueue(1)
    assert ran == [1, 1, 1, 1]
    assert not StoppedRun.objects.exists()


# Others that write to the same table at that time


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer at a time")
def test_a_worker_waits_for_no_cancellation_that_is_not_committed(start: Callable[..., Child]):
    mine, other = cancelled(), enqueue(2)
    (running,) = take()
    rival = start(hold_a_cancellation, other)
    assert rival.hear() == "cancelled"
    assert leases.extend(Job.objects.all(), [mine, running], LEASE) == set()
    done(mine)
    assert not StoppedRun.objects.exists()
    rival.tell()
    rival.result()
    assert StoppedRun.objects.get().job_id == other


def hold_a_cancellation(parent: Parent, id: Any) -> None:
    with transaction.atomic():
        Job.objects.get(pk=id).cancel()
        parent.tell("cancelled")
        parent.hear()
