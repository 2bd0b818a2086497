"""Maintain: what time does to jobs. Any worker may do it; all of it is safe to do twice."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet

from .. import lifecycle
from ..events import collected, recorded, tell
from ..lifecycle import DatabaseNow
from ..ojs.states import TIMED, WAITING, JobState
from ..signals import announce, job_discarded, job_expired, job_failed
from . import overtaken
from .errors import error_record, with_error
from .lease import ends_with_time_limit
from .rows import any_of, unlocked
from .run import Finished, labels
from .settle import Settled, retry_policy_of, settle_failure

logger = logging.getLogger("django_ojs_unique.worker")

BATCH = 1000


def promote(jobs: QuerySet[Any], now: datetime, *, only: UUID | None = None) -> int:
    """Make scheduled and retryable jobs available whose time has come, or one of them; return how many."""
    due = jobs.filter(~overtaken.LOOK_FIRST, state__in=sorted(TIMED), run_at__lte=now).order_by("run_at")
    if only is not None:
        due = due.filter(pk=only)
    promoted = overtaken.promote(jobs, now, only=only)
    return promoted + _in_batches(jobs, due, lambda rows: lifecycle.promote(rows, now))


def expire(jobs: QuerySet[Any], now: datetime) -> int:
    """Discard waiting jobs whose ``expires_at`` has passed; return how many."""
    # No waiting job has finished: saying so is what lets the partial index serve.
    late = jobs.filter(state__in=sorted(WAITING), expires_at__lte=now, finished_at=None, started_at=None)
    late = late.order_by("expires_at")
    return _in_batches(jobs, late, lambda rows: _expire(rows, now))


def rescue(jobs: QuerySet[Any], now: datetime) -> int:
    """Take back jobs whose lease ran out by the database's clock; return how many.

    They become available again, or discarded after the last attempt. Where the lease was to end with the time limit of
    the attempt (`lease.within_time_limits`), that is what ended: the job waits for its retry as after any failure.
    """
    expired = jobs.filter(state=JobState.ACTIVE, lease_expires_at__lt=DatabaseNow()).order_by("lease_expires_at")
    if not any_of(expired):
        return 0
    return recorded(jobs.db, partial(_rescue, jobs, expired, now))


def next_due(jobs: QuerySet[Any]) -> datetime | None:
    """Return when the next scheduled or retryable job is due, or None."""
    timed = jobs.filter(state__in=sorted(TIMED), run_at__isnull=False)
    moment: datetime | None = timed.order_by("run_at").values_list("run_at", flat=True).first()
    return moment


def unknown_types(jobs: QuerySet[Any], known: Collection[str], queues: Collection[str]) -> list[str]:
    """Return some types among the jobs that wait at the head of these queues which nobody here can run.

    They stay at the head, as no worker like this one takes them; so a look at the first thousand finds them.
    """
    found: set[str] = set()
    for queue in queues:
        waiting = jobs.filter(state=JobState.AVAILABLE, queue=queue).order_by("-priority", "enqueued_at", "id")
        found |= set(waiting.values_list("type", flat=True)[:BATCH]) - set(known)
    return sorted(found)


def _expire(rows: QuerySet[Any], now: datetime) -> int:
    expired = lifecycle.expire(rows, now)
    if expired and job_expired.has_listeners(rows.model):
        with collected(rows.db):
            for job in rows.filter(state=JobState.DISCARDED, finished_at=now):
                announce(job_expired, rows.model, job=job, using=rows.db)
    return expired


def _rescue(jobs: QuerySet[Any], expired: QuerySet[Any], now: datetime) -> int:
    said = []
    with transaction.atomic(using=jobs.db):
        for job in unlocked(expired)[:BATCH]:
            if ends_with_time_limit(job):
                _time_out(jobs, job, now)
            else:
                _take_back(jobs, job, now)
            signal = job_discarded if job.state == JobState.DISCARDED else job_failed
            said.append(partial(announce, signal, jobs.model, job=job, error=job.errors[-1], using=jobs.db))
    tell(jobs.db, said)
    return len(said)


def _time_out(jobs: QuerySet[Any], job: Any, now: datetime) -> None:
    message = f"The attempt took longer than {job.timeout_ms / 1000} seconds."
    run = Finished(job, error=error_record(job, "timeout", message, now=now), error_types=("timeout",), at=now)
    if settle_failure(jobs, run, job) is Settled.RETRIED:
        job.state = JobState.RETRYABLE
    else:
        job.state, job.finished_at = JobState.DISCARDED, now
    logger.warning("Took back job %s (%s): its time was up.", job.pk, job.type, extra=labels(job))


def _take_back(jobs: QuerySet[Any], job: Any, now: datetime) -> None:
    policy = retry_policy_of(job)
    again = policy.allows(job.attempt)
    holder = "its worker" if job.worker_id is None else f"worker {job.worker_id}"
    message = f"Lease expired: {holder} was not heard of again."
    record = error_record(job, "visibility_timeout", message, now=now, retryable=again)
    job.errors = with_error(job.errors, record)
    row, token = jobs.filter(pk=job.pk), job.lease_token
    if again:
        job.state = JobState.AVAILABLE
        lifecycle.rescue(row, now, token=token, errors=job.errors)
    else:
        job.state, job.finished_at = JobState.DISCARDED, now
        job.dead_letter = policy.on_exhaustion == "dead_letter"
        lifecycle.discard(row, now, token=token, errors=job.errors, dead_letter=job.dead_letter)
    logger.warning("Took back job %s (%s): the lease of %s expired.", job.pk, job.type, holder, extra=labels(job))


def _in_batches(jobs: QuerySet[Any], due: QuerySet[Any], move: Callable[[QuerySet[Any]], int]) -> int:
    """Move rows a thousand at a time, passing over those that another worker is moving."""
    total = 0
    while any_of(due):
        with transaction.atomic(using=jobs.db):
            keys = list(unlocked(due).values_list("pk", flat=True)[:BATCH])
            total += move(jobs.filter(pk__in=keys)) if keys else 0
        if len(keys) < BATCH:
            break
    return total
