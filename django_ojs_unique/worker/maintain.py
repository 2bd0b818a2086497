"""Maintain: what time does to jobs. Any worker may do it; all of it is safe to do twice."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from .. import lifecycle
from ..lifecycle import DatabaseNow
from ..ojs.states import TIMED, WAITING, JobState
from ..signals import announce, job_discarded, job_failed
from . import overtaken
from .rows import any_of, unlocked
from .run import labels
from .settle import add_error, retry_policy_of

logger = logging.getLogger("django_ojs_unique.worker")

BATCH = 1000


def promote(jobs: QuerySet[Any], now: datetime) -> int:
    """Make scheduled and retryable jobs available whose time has come; return how many."""
    due = jobs.filter(~overtaken.LOOK_FIRST, state__in=sorted(TIMED), run_at__lte=now).order_by("run_at")
    promoted = overtaken.promote(jobs, now)
    return promoted + _in_batches(jobs, due, lambda rows: lifecycle.promote(rows, now))


def expire(jobs: QuerySet[Any], now: datetime) -> int:
    """Discard waiting jobs whose ``expires_at`` has passed; return how many."""
    # No waiting job has finished: saying so is what lets the partial index serve.
    late = jobs.filter(state__in=sorted(WAITING), expires_at__lte=now, finished_at=None, started_at=None)
    late = late.order_by("expires_at")
    return _in_batches(jobs, late, lambda rows: lifecycle.expire(rows, now))


def rescue(jobs: QuerySet[Any], now: datetime) -> int:
    """Take back jobs whose lease ran out by the database's clock; return how many.

    They become available again, or discarded after the last attempt.
    """
    expired = jobs.filter(state=JobState.ACTIVE, lease_expires_at__lt=DatabaseNow()).order_by("lease_expires_at")
    if not any_of(expired):
        return 0
    rescued = []
    with transaction.atomic(using=jobs.db):
        for job in unlocked(expired)[:BATCH]:
            policy = retry_policy_of(job)
            again = policy.allows(job.attempt)
            message = f"Lease expired: worker {job.worker_id} was not heard of again."
            add_error(job, "lease_expired", message, now, retryable=again)
            row, token = jobs.filter(pk=job.pk), job.lease_token
            if again:
                job.state = JobState.AVAILABLE
                lifecycle.rescue(row, now, token=token, errors=job.errors)
            else:
                job.state, job.finished_at = JobState.DISCARDED, now
                job.dead_letter = policy.on_exhaustion == "dead_letter"
                lifecycle.discard(row, now, token=token, errors=job.errors, dead_letter=job.dead_letter)
            rescued.append(job)
            logger.warning(
                "Took back job %s (%s): the lease of %s expired.", job.pk, job.type, job.worker_id, extra=labels(job)
            )
    for job in rescued:
        signal = job_discarded if job.state == JobState.DISCARDED else job_failed
        announce(signal, jobs.model, job=job, error=job.errors[-1], using=jobs.db)
    return len(rescued)


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
