"""Remote: what the HTTP API does for workers that are not a `runworker` (HTTP binding, sections 6 and 8).

They claim, finalize and retry with the same code. But no process here watches their jobs: so requests run maintenance,
and the lease of a job ends with the time limit of its attempt.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet

from .. import lifecycle
from ..db.clock import database_now
from ..db.dialects import dialect_of
from ..db.now import DatabaseNow
from ..db.sizes import OF_A_JOB, bytes_of, fit, fitting
from ..db.transactions import open_here, starting_over
from ..execution.claim import Claimed, claim
from ..execution.errors import error_record, has_lost
from ..execution.finalize import Finalized, announce_outcome, finalize
from ..execution.leases import BEGUN, Claim, Lease, confirm, requeue_leased, within_time_limits
from ..execution.queue_rules import QueueState
from ..execution.run_result import RunResult
from ..lifecycle import stopped
from ..lifecycle.announcing import announce_requeued
from ..lifecycle.events import tell
from ..limits.slots import forget_slots
from ..maintenance.on_demand import (
    fail_deleted_now_and_then,
    is_overdue,
    maintained,
    run_maintenance,
    unless_busy,
)
from ..models import StoppedRun
from ..ojs.blocking import UNBLOCKED
from ..ojs.states import JobState
from ..signals import announce, job_completed, job_discarded, job_failed, job_started
from ..workflows.advance import advance_due
from .remote_worker import RemoteWorker

logger = logging.getLogger("django_ojs_unique.worker")

_JUDGED = (
    "id", "type", "queue", "meta", "state", "attempt", "max_attempts", "run_at", "started_at", "finished_at",
    "expires_at", "worker_id", "lease_token", "lease_expires_at", "awaited",
)  # fmt: skip
"""The fields by which a report about a job is judged, and those that every answer to it needs."""


def fetch(
    jobs: QuerySet[Any],
    queues: Mapping[str, Sequence[str] | None],
    *,
    count: int,
    worker_id: str | None,
    lease: Lease,
    now: datetime,
    token: UUID | None = None,
    max_bytes: int = sys.maxsize,
) -> list[Any]:
    """Claim up to ``count`` jobs: from the first queue as many as possible, then from the next.

    ``queues`` names the types that are wanted from each queue; None means any. Locked rows are skipped.
    Together the jobs have at most ``max_bytes``; but the first is claimed, however large. If others claim jobs at the
    same time, the jobs can have some bytes more.
    """
    fail_deleted_now_and_then(jobs.db, now)
    states = maintained(jobs, now, queues)
    claims = _claims(
        jobs, queues, states, count=count, worker_id=worker_id, lease=lease, token=token, max_bytes=max_bytes
    )
    taken: list[Any] = []
    try:
        for claimed in claims:
            taken += claimed
    except Exception:
        if not taken or jobs.db in open_here():  # the caller's transaction has lost what was claimed
            raise
        logger.warning("A fetch ended early, with %d jobs.", len(taken), exc_info=True)
    if taken and job_started.has_listeners(jobs.model):
        tell(jobs.db, [partial(announce, job_started, jobs.model, job=job, using=jobs.db) for job in taken])
    return taken


def _claims(
    jobs: QuerySet[Any],
    queues: Mapping[str, Sequence[str] | None],
    states: Mapping[str, QueueState],
    *,
    count: int,
    worker_id: str | None,
    lease: Lease,
    token: UUID | None,
    max_bytes: int,
) -> Iterator[list[Any]]:
    """Claim for `fetch`; yield what was claimed from each queue."""
    taken = 0
    for queue, state in states.items():
        if taken == count or (taken and max_bytes <= 0):
            break
        types, least = queues[queue], 0 if taken else 1
        if state.has_blocked:  # only the claim can tell which of the jobs are next
            room = count - taken
        elif not state.has_unblocked or count == 1:
            room = int(state.has_unblocked)
        else:
            waiting = jobs.filter(state=JobState.AVAILABLE, queue=queue, finished_at=None, blocked_by=UNBLOCKED)
            waiting = waiting if types is None else waiting.filter(type__in=types)
            ordered = waiting.order_by("-priority", "enqueued_at", "id")
            room, max_bytes = fitting(ordered, count - taken, max_bytes, least=least)
        if room:
            known = None if state.has_rules else ()
            wanted = {"types": types, "limit": room, "worker_id": worker_id, "lease": lease, "token": token}
            claimed = _claim(jobs, queue, with_rules=known, **wanted)
            if state.has_blocked and count > 1:
                claimed, max_bytes = _within(jobs, claimed, max_bytes, least)
            # Only once for each attempt: a job that kills its worker at once looks the same as a client that has gone.
            if lost := [job for job in claimed if lease.unconfirmed and has_lost(job, job.attempt)]:
                unless_busy(jobs.db, partial(confirm, jobs, lost))
            if lost or not (isinstance(claimed, Claimed) and claimed.are_as_stored):
                claimed = starting_over(jobs.db, partial(_read_again, jobs, claimed))
            taken += len(claimed)
            yield list(claimed)


def _claim(jobs: QuerySet[Any], queue: str, **options: Any) -> Sequence[Any]:
    """Claim from a queue; return nothing if other transactions block that for too long."""
    fields = tuple(field.attname for field in jobs.model._meta.concrete_fields)

    def take() -> Sequence[Any]:
        # Each try reads the clock, as the one before it may have waited for locks.
        return claim(jobs, queues=[queue], now=database_now(jobs.db), fields=fields, **options)

    return unless_busy(jobs.db, take) or []


def _within(jobs: QuerySet[Any], claimed: Sequence[Any], room: int, least: int) -> tuple[Sequence[Any], int]:
    """Return the first claimed jobs that fit into ``room`` bytes, and how many are left; requeue the others.

    The first ``least`` jobs always fit.
    """
    sizes = dict(jobs.filter(pk__in=[job.pk for job in claimed]).values_list("pk", bytes_of(OF_A_JOB)))
    count, left = fit((sizes.get(job.pk, 0) for job in claimed), room, least=least)
    if rest := [job.pk for job in claimed[count:]]:
        token = claimed[0].lease_token
        requeue_leased(jobs, rest, token)
        unless_busy(jobs.db, partial(forget_slots, jobs.db, rest, token))
    return claimed[:count], left


def ack(jobs: QuerySet[Any], id: UUID, *, holder: RemoteWorker, now: datetime, result: Any = None) -> Any:
    """Complete a job that a worker has claimed; return it.

    Raises ``DoesNotExist``, and InvalidTransition for a job that is not active, or claimed by another worker.
    """
    return _end(jobs, id, holder, now, lambda job: RunResult(job, result=result, at=now))


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt as the worker reports it: members of the error record, and the types to match with the policy.

    ``retryable`` False discards the job; None and True leave it to the policy (HTTP binding, section 6.3).
    """

    record: dict[str, Any]
    types: tuple[str, ...]
    retryable: bool | None = None


def nack(jobs: QuerySet[Any], id: UUID, *, holder: RemoteWorker, now: datetime, failure: Failure) -> Any:
    """Let a claimed job run again, or discard it, by its retry policy; return it. Raises like `ack`."""

    def failed(job: Any) -> RunResult:
        record = error_record(job, now=now, **failure.record)
        return RunResult(job, error=record, error_types=failure.types, gives_up=failure.retryable is False, at=now)

    return _end(jobs, id, holder, now, failed)


def requeue(jobs: QuerySet[Any], id: UUID, *, holder: RemoteWorker, now: datetime) -> Any:
    """Make a claimed job available again, if it may run again; the attempt does not count.

    Raises like `ack`.
    """

    def put_back(job: Any) -> None:
        requeue_leased(jobs, [job.pk], job.lease_token, **({} if job.unconfirmed else BEGUN))
        announce_requeued(jobs, [job.pk])
        job.refresh_from_db(using=jobs.db)
        if job.state != JobState.AVAILABLE:  # it may not run again, or must be checked for duplicates first
            run_maintenance(jobs, now, only=id)
            job.refresh_from_db(using=jobs.db)

    return _as_holder(jobs, id, holder, now, put_back)


def report_progress(
    jobs: QuerySet[Any],
    id: UUID,
    *,
    holder: RemoteWorker,
    now: datetime,
    lease: Lease,
    reported: tuple[float | None, str | None],
) -> Any:
    """Store how far a worker is, from 0 to 1, and its note; extend its lease as `extend` does; return the job.

    None leaves what was stored before, and so does a smaller fraction. Raises like `ack`.
    """
    fraction, note = reported

    def store(job: Any) -> None:
        job.progress = job.progress if fraction is None else max(fraction, job.progress or 0.0)
        job.progress_note = job.progress_note if note is None else note
        lifecycle.write(
            jobs.filter(pk=job.pk),
            progress=job.progress,
            progress_note=job.progress_note,
            lease_expires_at=DatabaseNow() + lease.of(job),
            unconfirmed=None,
        )
        within_time_limits(jobs, [job])
        job.refresh_from_db(using=jobs.db, fields=["lease_expires_at"])

    return _as_holder(jobs, id, holder, now, store, ends=False)


def extend(
    jobs: QuerySet[Any],
    ids: Collection[UUID],
    *,
    holder: RemoteWorker,
    tokens: Collection[UUID] | None = None,
    lease: Lease,
) -> list[Any]:
    """Extend the leases of the jobs that a worker has claimed, under one of ``tokens`` if given; return these jobs.

    A job that was fetched without a worker's id may be extended by any worker of the account.
    """
    return starting_over(jobs.db, partial(_extend, jobs, ids, holder, tokens, lease)) if ids else []


def _extend(
    jobs: QuerySet[Any], ids: Collection[UUID], holder: RemoteWorker, tokens: Collection[UUID] | None, lease: Lease
) -> list[Any]:
    leased = jobs.filter(Q(worker_id=holder.worker_id) | Q(worker_id=None), pk__in=ids, state=JobState.ACTIVE)
    if tokens is not None:
        leased = leased.filter(lease_token__in=tokens)
    with transaction.atomic(using=jobs.db):
        dialect_of(jobs).take_write_lock()
        alive = leased.filter(lease_expires_at__gt=DatabaseNow()).order_by("pk").select_for_update()
        rows = [job for job in alive if holder.has_fetched(job)]
        for length, keys in lease.by_length(rows).items():
            lifecycle.write(jobs.filter(pk__in=keys), lease_expires_at=DatabaseNow() + length, unconfirmed=None)
        within_time_limits(jobs, rows)
        if others := set(ids) - {job.pk for job in rows}:
            running = [run for run in _stopped(jobs, others, holder) if tokens is None or run[1] in tokens]
            stopped.extend(jobs.db, running, DatabaseNow() + lease.length)
    return rows


def _stopped(jobs: QuerySet[Any], ids: Collection[UUID], holder: RemoteWorker) -> list[Claim]:
    """Return the leases of the stopped runs of these jobs that are a worker's."""
    runs = StoppedRun.objects.using(jobs.db).filter(job_id__in=ids).order_by("pk")
    return [(run.job_id, run.lease_token) for run in runs if holder.runs(run)]


def _end(
    jobs: QuerySet[Any], id: UUID, holder: RemoteWorker, now: datetime, result_of: Callable[[Any], RunResult]
) -> Any:
    """Finalize the run of a claimed job, then advance the workflows that wait for it; return the job."""

    def finalize_locked(job: Any) -> None:
        is_done = _finalize(jobs, result_of(job))
        assert is_done, "the row is locked, and leased"

    job = starting_over(jobs.db, partial(_finalize_unlocked, jobs, id, holder, now, result_of))
    return _advanced(jobs, job or _as_holder(jobs, id, holder, now, finalize_locked))


def _finalize_unlocked(
    jobs: QuerySet[Any], id: UUID, holder: RemoteWorker, now: datetime, result_of: Callable[[Any], RunResult]
) -> Any | None:
    """Finalize a job that was read without a lock, as its lease token protects the change; return it as far as read.

    Return None, and change nothing, if the worker may not finalize it, or if only a lock can tell.
    """
    job = dialect_of(jobs).get(id, _JUDGED)
    if job is None or is_overdue(job, now) or holder.refusal(job) is not None:
        return None
    run = result_of(job)
    # It begins after that read: under REPEATABLE READ its snapshot must not be older than its locks.
    with transaction.atomic(using=jobs.db) if _is_heard(run) else nullcontext():
        return job if _finalize(jobs, run) else None


def _as_holder(
    jobs: QuerySet[Any], id: UUID, holder: RemoteWorker, now: datetime, act: Callable[[Any], None], *, ends: bool = True
) -> Any:
    """Lock a job and call ``act`` for the worker that has claimed it; run overdue maintenance on the job first.

    ``ends`` says that the worker's run has ended: if it was stopped, the worker has let go of it.
    """

    def step() -> Any:
        with transaction.atomic(using=jobs.db):
            job = _lock(jobs, id)
            if is_overdue(job, now):
                run_maintenance(jobs, now, only=id)
                job = _lock(jobs, id)
            refusal = holder.refusal(job)
            if refusal is None:
                act(job)
                return job
            if ends:
                stopped.let_go(jobs.db, _stopped(jobs, [id], holder))
        raise refusal  # after the commit, which keeps the maintenance

    return starting_over(jobs.db, step)


def _lock(jobs: QuerySet[Any], id: UUID) -> Any:
    dialect_of(jobs).take_write_lock()
    return jobs.select_for_update().get(pk=id)


def _finalize(jobs: QuerySet[Any], run: RunResult) -> bool:
    """Finalize a run, and tell so in the same transaction; return False if its lease is lost, or its row locked."""
    outcome = next((outcome for _, outcome in finalize(jobs, [run])), Finalized.REFUSED)
    if outcome is not Finalized.REFUSED and _is_heard(run):
        tell(jobs.db, [partial(announce_outcome, run, outcome, jobs.db)])
    return outcome is not Finalized.REFUSED


def _is_heard(run: RunResult) -> bool:
    signals = (job_completed,) if run.error is None else (job_failed, job_discarded)
    return any(signal.receivers for signal in signals)


def _advanced(jobs: QuerySet[Any], job: Any) -> Any:
    """Advance the workflows that wait for a job that has ended; return the job.

    The end is committed. So if this fails, the next request or a worker does it.
    """
    if job.awaited and job.finished_at is not None:
        try:
            unless_busy(jobs.db, partial(advance_due, jobs.db))
        except Exception:
            logger.exception("The workflow of job %s was not advanced; left for later.", job.pk)
    return job


def _read_again(jobs: QuerySet[Any], claimed: Collection[Any]) -> list[Any]:
    """Return the whole rows of claimed jobs, in their order, without those whose leases are lost."""
    tokens = {job.pk: job.lease_token for job in claimed}
    rows = jobs.in_bulk(tokens) if tokens else {}
    return [row for key in tokens if (row := rows.get(key)) is not None and row.lease_token == tokens[key]]
