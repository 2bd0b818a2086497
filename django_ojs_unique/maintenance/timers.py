"""Promote, expire and rescue jobs. Any worker may do this, and it is safe to do it twice."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet

from .. import lifecycle
from ..db.locking import any_of, unlocked
from ..db.now import DatabaseNow
from ..enqueue.duplicates import expired
from ..enqueue.unit_of_work import UnitOfWork
from ..execution.errors import LEASE_LOST, error_record, with_error
from ..execution.finalize import Finalized, finalize_failure, retry_policy_of
from ..execution.leases import ends_with_time_limit, requeue_leased
from ..execution.run import labels
from ..execution.run_result import RunResult
from ..lifecycle.events import collected, tell
from ..ojs.states import TIMED, JobState
from ..signals import announce, announce_failure, job_discarded, job_expired, job_failed
from . import superseded

logger = logging.getLogger("django_ojs_unique.worker")

BATCH = 1000


def promote(jobs: QuerySet[Any], now: datetime, *, only: UUID | None = None) -> int:
    """Make due scheduled and retryable jobs available, or ``only`` the job of this id; return how many."""
    promoted = superseded.promote(jobs, now, only=only)
    return promoted + promote_unseen(jobs if only is None else jobs.filter(pk=only), now)


def promote_unseen(jobs: QuerySet[Any], now: datetime) -> int:
    """Promote due jobs, except those that `superseded.promote` must check for duplicates; return how many."""
    due = jobs.filter(~superseded.LOOK_FIRST, state__in=sorted(TIMED), run_at__lte=now).order_by("run_at")
    return _in_batches(jobs, due, lambda rows: lifecycle.promote(rows, now))


def late(jobs: QuerySet[Any], now: Any) -> QuerySet[Any]:
    """Select the waiting jobs whose ``expires_at`` has passed."""
    # No waiting job has finished; the condition is there so that the partial index is used.
    return jobs.filter(expired(now), finished_at=None).order_by("expires_at")


def lost(jobs: QuerySet[Any], now: Any = None) -> QuerySet[Any]:
    """Select the running jobs whose lease has expired, without ``now`` by the database's clock as the query runs."""
    # No running job has a `run_at`; the condition is there so that the index of both times is used.
    expired = jobs.filter(state=JobState.ACTIVE, run_at=None, lease_expires_at__lt=now or DatabaseNow())
    return expired.order_by("lease_expires_at")


def expire(jobs: QuerySet[Any], now: datetime) -> int:
    """Discard waiting jobs whose ``expires_at`` has passed; return how many."""
    return _in_batches(jobs, late(jobs, now), lambda rows: _expire(rows, now))


def rescue(jobs: QuerySet[Any], now: datetime) -> int:
    """Rescue jobs whose lease has expired by the database's clock; return how many.

    They become available again, or discarded after the last attempt, or if they may not run again. An ``unconfirmed``
    attempt does not count. If the lease was set to end with the attempt's time limit (`leases.within_time_limits`), the
    attempt failed by its timeout: the job waits for its retry as after any failure.
    """
    expired = lost(jobs)
    if not any_of(expired):
        return 0
    for work in UnitOfWork(jobs.db):
        with work:
            rescued = _rescue(jobs, expired, now)
    return rescued


def timed(jobs: QuerySet[Any]) -> QuerySet[Any]:
    """Select the scheduled and retryable jobs, the next due first."""
    # Only these jobs have a `run_at`. With a condition on the state, PostgreSQL may read the whole table.
    return jobs.filter(run_at__isnull=False).order_by("run_at")


def _expire(rows: QuerySet[Any], now: datetime) -> int:
    expired = lifecycle.expire(rows, now)
    if expired and job_expired.has_listeners(rows.model):
        with collected(rows.db):
            for job in rows.filter(state=JobState.DISCARDED, finished_at=now):
                announce(job_expired, rows.model, job=job, using=rows.db)
    return expired


def _rescue(jobs: QuerySet[Any], expired: QuerySet[Any], now: datetime) -> int:
    announcements = []
    with transaction.atomic(using=jobs.db):
        for job in unlocked(expired)[:BATCH]:
            if job.may_run_again and ends_with_time_limit(job):
                _time_out(jobs, job, now)
            else:
                _take_back(jobs, job, now)
            signal = job_discarded if job.state == JobState.DISCARDED else job_failed
            announcements.append(partial(announce_failure, signal, job, None, jobs.db))
    tell(jobs.db, announcements)
    return len(announcements)


def _time_out(jobs: QuerySet[Any], job: Any, now: datetime) -> None:
    message = f"The attempt took longer than {job.timeout_ms / 1000} seconds."
    run = RunResult(job, error=error_record(job, "timeout", message, now=now), error_types=("timeout",), at=now)
    if finalize_failure(jobs, run, job) is Finalized.RETRIED:
        job.state = JobState.RETRYABLE
    else:
        job.state, job.finished_at = JobState.DISCARDED, now
    logger.log(_level(job), "Took back job %s (%s): its time was up.", job.pk, job.type, extra=labels(job))


def _take_back(jobs: QuerySet[Any], job: Any, now: datetime) -> None:
    policy = retry_policy_of(job)
    counts = not job.unconfirmed
    again = job.may_run_again and (policy.allows(job.attempt) or not counts)
    holder = "its worker" if job.worker_id is None else f"worker {job.worker_id}"
    code, message = LEASE_LOST, f"Lease expired: {holder} was not heard of again."
    if not job.may_run_again:
        code = "no_further_run"
        message = (
            f"The run of {holder} did not end, and the job may not run again: it has lost its key or its workflow."
        )
    elif not counts:
        message += " The attempt does not count, as it may never have begun."
    job.errors = with_error(job, error_record(job, code, message, now=now, retryable=again))
    row, token = jobs.filter(pk=job.pk), job.lease_token
    if not again:
        job.state, job.finished_at = JobState.DISCARDED, now
        job.dead_letter = job.may_run_again and policy.on_exhaustion == "dead_letter"
        lifecycle.discard(row, now, token=token, errors=job.errors, dead_letter=job.dead_letter)
    else:
        job.state = JobState.AVAILABLE
        if looks_first := superseded.looks_first(job):
            job.state, job.run_at = JobState.RETRYABLE, now
        if not counts:
            requeue_leased(jobs, [job.pk], token, errors=job.errors)
        elif looks_first:
            lifecycle.schedule_retry(row, now, token=token, errors=job.errors)
        else:
            lifecycle.rescue(row, now, token=token, errors=job.errors)
    message = "Took back job %s (%s): the lease of %s expired."
    logger.log(_level(job), message, job.pk, job.type, holder, extra=labels(job))


def _level(job: Any) -> int:
    return logging.ERROR if job.state == JobState.DISCARDED and job.may_run_again else logging.WARNING


def _in_batches(jobs: QuerySet[Any], due: QuerySet[Any], move: Callable[[QuerySet[Any]], int]) -> int:
    """Move rows in batches of 1000, skipping those that another worker has locked; return how many."""
    total = 0
    while any_of(due):
        with transaction.atomic(using=jobs.db):
            keys = list(unlocked(due).values_list("pk", flat=True)[:BATCH])
            total += move(jobs.filter(pk__in=keys)) if keys else 0
        if len(keys) < BATCH:
            break
    return total
