"""A claim of several transactions that fails after the first ones: what these have claimed is not lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.utils import timezone

from django_ojs_unique import job
from django_ojs_unique.execution import claim_limited
from django_ojs_unique.execution.leases import Lease
from django_ojs_unique.limits import slots
from django_ojs_unique.limits.slots import ensure_partitions
from django_ojs_unique.models import Job, LimitPartition, Queue
from django_ojs_unique.worker import loop, outages, remote
from tests.concurrency.test_isolation_levels import LEVELS, isolate
from tests.support.background import working
from tests.support.limits import LEASE, enqueue, ids, take
from tests.support.processes import Parent, until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.every_database]


class Busy(Exception):
    """What a driver raises after a serialization failure."""

    sqlstate = "40001"


def busy() -> OperationalError:
    error = OperationalError("could not serialize access")
    error.__cause__ = Busy()
    return error


def cut_off() -> OperationalError:
    connection.close()
    return OperationalError("server closed the connection unexpectedly")


@pytest.fixture
def second_round(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Exception]], None]:
    """Return a function that lets the second round of the next claim fail."""
    monkeypatch.setattr(slots, "_known", defaultdict(set))

    def fail(error: Callable[[], Exception]) -> None:
        rounds = iter([ensure_partitions, None])

        def act(*given: Any) -> None:
            if (real := next(rounds, ensure_partitions)) is None:
                raise error()
            real(*given)

        monkeypatch.setattr(claim_limited, "ensure_partitions", act)

    return fail


def in_line(count: int = 12) -> list[Any]:
    """Enqueue more jobs than one look reads, of which one may run; return their ids."""
    return [enqueue(1) for _ in range(count)]


def active() -> list[Any]:
    return ids(Job.objects.filter(state="active").order_by("id"))


def fetch(*queues: str, count: int = 5) -> list[Any]:
    wanted: Any = {"count": count, "worker_id": "w", "lease": Lease(LEASE), "now": timezone.now()}
    return remote.fetch(Job.objects.all(), dict.fromkeys(queues), **wanted)


@pytest.mark.parametrize("error", [busy, cut_off, ValueError])
@pytest.mark.parametrize("claim", [take, partial(fetch, "default")])
def test_it_returns_what_it_has_claimed_and_logs_why_that_is_not_more(second_round, caplog, claim, error):
    first, *_ = in_line()
    second_round(error)
    assert ids(claim()) == [first] == active()
    assert "A claim ended early, with 1 jobs." in caplog.text


def test_in_a_transaction_of_the_caller_the_error_goes_on(second_round):
    in_line()
    second_round(busy)
    with pytest.raises(OperationalError, match="serialize"), transaction.atomic():
        take()
    assert active() == []


@pytest.fixture
def second_queue(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Exception]], None]:
    """Return a function that lets each claim of a fetch from the queue b fail."""

    def fail(error: Callable[[], Exception]) -> None:
        def claim(*given: Any, queues: list[str], **options: Any) -> Any:
            if queues == ["b"]:
                raise error()
            return real(*given, queues=queues, **options)

        monkeypatch.setattr(remote, "claim", claim)

    real = remote.claim
    return fail


def test_a_fetch_returns_the_jobs_of_the_queues_before_the_error(second_queue, caplog):
    first, _ = enqueue(1, None), enqueue(2, None, queue="b")
    second_queue(cut_off)
    assert ids(fetch("default", "b")) == [first] == active()
    assert "A fetch ended early, with 1 jobs." in caplog.text
    with pytest.raises(OperationalError, match="closed"):
        fetch("b")


def test_in_a_transaction_of_the_caller_the_error_of_a_fetch_goes_on(second_queue):
    enqueue(1, None), enqueue(2, None, queue="b")
    second_queue(busy)
    with pytest.raises(OperationalError, match="serialize"), transaction.atomic():
        fetch("default", "b")
    assert active() == []


@pytest.mark.parametrize(("error", "requeued"), [(busy, 0), (cut_off, 1)])
def test_a_worker_loses_neither_the_jobs_nor_their_attempts(second_round, handlers, monkeypatch, error, requeued):
    """It runs them at once, unless the failed round may have claimed jobs, too: then it requeues them all."""
    attempts = []
    job("t", takes_context=True)(lambda context, n: attempts.append(context.attempt))
    monkeypatch.setattr(outages, "LONGEST_PAUSE", 0.001)
    monkeypatch.setattr(loop, "WATCH_SECONDS", 0.02)
    count = len(in_line(25))
    second_round(error)
    with working(concurrency=2, lease=timedelta(hours=1)) as worker:
        until(lambda: worker.summary.completed == count, "all have run")
    assert (attempts, worker.summary.requeued) == ([1] * count, requeued)


def disturbed(parent: Parent, level: str) -> list[Any]:
    """Claim, and let the parent write in the second round what this is to lock."""
    isolate(level)
    slots._known.clear()  # else the first round may only find out that the partition's row is gone
    lock, calls = slots.skipping_locked, []

    def wait(dialect: Any) -> Any:
        calls.append(dialect)
        if len(calls) == 2:
            parent.tell()
            parent.hear()
        return lock(dialect)

    slots.skipping_locked = wait
    return ids(take())


@pytest.mark.skipif(not LEVELS, reason="SQLite knows one isolation level")
@pytest.mark.parametrize("level", LEVELS)
def test_a_serialization_failure_loses_no_job(start, level):
    Queue.objects.limit("default", 50)  # so that the round has its snapshot before it locks the partitions
    first, *_ = in_line()
    child = start(disturbed, level)
    child.hear()
    LimitPartition.objects.update(used_at=timezone.now())
    child.tell()
    assert child.result() == [first] == active()
