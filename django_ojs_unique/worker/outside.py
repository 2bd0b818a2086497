"""Outside: what the HTTP API does for workers that are no `runworker` (HTTP binding, sections 6 and 8).

They claim, settle and retry by the same code. What they lack is a process here that watches over them: so time passes
whenever somebody asks, and the lease of a job ends with the time limit of its attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from django.db import OperationalError, connections, transaction
from django.db.models import Q, QuerySet

from .. import lifecycle
from ..events import tell
from ..exceptions import InvalidTransition
from ..lifecycle import DatabaseNow
from ..ojs.states import TIMED, JobState
from ..signals import announce, job_started
from ..transactions import is_busy, starting_over, take_write_lock
from . import maintain, schedule
from .claim import claim
from .errors import error_record
from .lease import Lease, within_time_limits
from .rows import any_of
from .run import Finished
from .settle import Settled, announce_outcome, settle

logger = logging.getLogger("django_ojs_unique.worker")

T = TypeVar("T")


def pass_time(jobs: QuerySet[Any], now: datetime, *, only: UUID | None = None, cron: bool = False) -> None:
    """Do what a worker's sweep would do by ``now``: promote what is due, discard what expired, take back what was lost.

    ``only`` is the id of the job to do it to; without it, all are. ``cron`` also enqueues the periodic jobs that are
    due. Rows that somebody else has locked are left as they are, and a database that cannot write just now is left for
    the next time: so that a client that only reads gets no error for it.
    """
    rows = jobs if only is None else jobs.filter(pk=only)
    if cron:
        _unless_busy(jobs.db, partial(schedule.tick, jobs.db, now))
    _unless_busy(jobs.db, partial(maintain.rescue, rows, now))
    _unless_busy(jobs.db, partial(maintain.promote, jobs, now, only=only))
    _unless_busy(jobs.db, partial(maintain.expire, rows, now))


def is_overdue(job: Any, now: datetime) -> bool:
    """Tell from a job as it was read whether `pass_time` would change it."""
    if job.state == JobState.ACTIVE:
        return is_over(job, now)
    if job.state in TIMED and job.run_at is not None and job.run_at <= now:
        return True
    return is_over(job, now) and job.finished_at is None and job.started_at is None


def is_over(job: Any, now: datetime) -> bool:
    """Tell from what an enqueue has read of its duplicate whether its lease or its time to start may have ended."""
    end = job.lease_expires_at if job.state == JobState.ACTIVE else job.expires_at
    return end is not None and end <= now


def fetch(
    jobs: QuerySet[Any],
    queues: Iterable[str],
    *,
    types: Sequence[str] | None = None,
    count: int,
    worker_id: str | None,
    lease: Lease,
    now: datetime,
) -> list[Any]:
    """Claim up to ``count`` jobs, of some types or any: all that the first queue gives before the second is looked at.

    Nothing is waited for that others have locked.
    """
    pass_time(jobs, now, cron=True)
    taken: list[Any] = []
    wanted = jobs if types is None else jobs.filter(type__in=types)
    for queue in dict.fromkeys(queues):
        room = count - len(taken)
        waiting = wanted.filter(state=JobState.AVAILABLE, queue=queue).order_by("-priority", "enqueued_at", "id")
        if room and any_of(waiting):
            options: Any = {"limit": room, "worker_id": worker_id, "lease": lease, "now": now}
            take = partial(claim, jobs, queues=[queue], types=types, **options)
            taken += _read_again(jobs, _unless_busy(jobs.db, take) or [])
    if taken and job_started.has_listeners(jobs.model):
        tell(jobs.db, [partial(announce, job_started, jobs.model, job=job, using=jobs.db) for job in taken])
    return taken


def ack(jobs: QuerySet[Any], id: UUID, *, worker_id: str | None, now: datetime, result: Any = None) -> Any:
    """Complete a job that a worker holds; return it.

    Raises ``DoesNotExist``, and InvalidTransition for a job that is not active, or held by somebody else.
    """
    return _as_holder(jobs, id, worker_id, now, lambda job: _settle(jobs, Finished(job, result=result, at=now)))


@dataclass(frozen=True, slots=True)
class Failure:
    """What a worker says of a failed attempt: members of the error record, and the types to compare with the policy.

    ``retryable`` False gives the job up; None and True leave it to the policy (HTTP binding, section 6.3).
    """

    record: dict[str, Any]
    types: tuple[str, ...]
    retryable: bool | None = None


def nack(jobs: QuerySet[Any], id: UUID, *, worker_id: str | None, now: datetime, failure: Failure) -> Any:
    """Let a job that a worker holds run again, or discard it, by its retry policy; return it. Raises as `ack` does."""

    def fail(job: Any) -> None:
        record = error_record(job, now=now, **failure.record)
        gives_up = failure.retryable is False
        _settle(jobs, Finished(job, error=record, error_types=failure.types, gives_up=gives_up, at=now))

    return _as_holder(jobs, id, worker_id, now, fail)


def requeue(jobs: QuerySet[Any], id: UUID, *, worker_id: str | None, now: datetime) -> Any:
    """Make a job that a worker holds available again; the attempt does not count. Raises as `ack` does."""

    def release(job: Any) -> None:
        lifecycle.release(jobs.filter(pk=job.pk), token=job.lease_token)
        job.refresh_from_db(using=jobs.db)

    return _as_holder(jobs, id, worker_id, now, release)


def extend(jobs: QuerySet[Any], ids: Collection[UUID], *, worker_id: str, lease: Lease) -> list[Any]:
    """Extend the leases of those of the jobs that a worker holds; return these jobs.

    One that was fetched without a worker's id may be extended by any.
    """
    return starting_over(jobs.db, partial(_extend, jobs, ids, worker_id, lease)) if ids else []


def _extend(jobs: QuerySet[Any], ids: Collection[UUID], worker_id: str, lease: Lease) -> list[Any]:
    held = jobs.filter(Q(worker_id=worker_id) | Q(worker_id=None), pk__in=ids, state=JobState.ACTIVE)
    with transaction.atomic(using=jobs.db):
        take_write_lock(connections[jobs.db], jobs.model)
        rows = list(held.filter(lease_expires_at__gt=DatabaseNow()).order_by("pk").select_for_update())
        for length, keys in lease.by_length(rows).items():
            jobs.filter(pk__in=keys).update(lease_expires_at=DatabaseNow() + length)
        within_time_limits(jobs, rows)
    return rows


def _as_holder(jobs: QuerySet[Any], id: UUID, worker_id: str | None, now: datetime, act: Callable[[Any], None]) -> Any:
    """Do something to a job for the worker that holds it, waiting for its row; what time did to it comes first."""

    def step() -> Any:
        with transaction.atomic(using=jobs.db):
            job = _lock(jobs, id)
            if is_overdue(job, now):
                pass_time(jobs, now, only=id)
                job = _lock(jobs, id)
            refusal = _refusal(job, worker_id)
            if refusal is None:
                act(job)
                return job
        raise refusal  # what time did is committed

    return starting_over(jobs.db, step)


def _lock(jobs: QuerySet[Any], id: UUID) -> Any:
    take_write_lock(connections[jobs.db], jobs.model)
    return jobs.select_for_update().get(pk=id)


def _refusal(job: Any, worker_id: str | None) -> InvalidTransition | None:
    details = {"job_id": str(job.pk), "current_state": str(job.state), "expected_state": str(JobState.ACTIVE)}
    if job.state != JobState.ACTIVE or job.lease_token is None:
        return InvalidTransition(f"Job {job.pk} is {job.state}: no worker holds it.", details=details)
    if worker_id is not None and job.worker_id is not None and worker_id != job.worker_id:
        return InvalidTransition(f"Job {job.pk} is held by another worker.", details=details)
    return None


def _settle(jobs: QuerySet[Any], run: Finished) -> None:
    ((_, outcome),) = settle(jobs, [run])
    assert outcome is not Settled.REFUSED, "the row is locked, and held"
    tell(jobs.db, [partial(announce_outcome, run.job, outcome, jobs.db)])


def _read_again(jobs: QuerySet[Any], claimed: Collection[Any]) -> list[Any]:
    """Return the whole rows of claimed jobs, in their order, but for those that were taken away meanwhile."""
    tokens = {job.pk: job.lease_token for job in claimed}
    rows = jobs.in_bulk(tokens) if tokens else {}
    return [row for key in tokens if (row := rows.get(key)) is not None and row.lease_token == tokens[key]]


def _unless_busy(using: str, step: Callable[[], T]) -> T | None:
    """Do something unless the locks of others are in the way for too long."""
    try:
        return starting_over(using, step)
    except OperationalError as error:
        if connections[using].in_atomic_block or not is_busy(error):
            raise
        logger.warning("The database %r is busy; left for later: %s", using, error)
        return None
