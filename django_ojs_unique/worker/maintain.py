"""Maintain: what time does to jobs. Any worker may do it; all of it is safe to do twice."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from django.db import connections, transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from .. import lifecycle
from ..admission import Admission
from ..ojs.states import TIMED, WAITING, JobState
from .settle import ERRORS_KEPT

logger = logging.getLogger("django_ojs_unique.worker")

BATCH = 1000


def promote(jobs: QuerySet[Any], now: datetime) -> int:
    """Make scheduled and retryable jobs available whose time has come; return how many."""
    due = jobs.filter(state__in=sorted(TIMED), run_at__lte=now).order_by("run_at")
    return _in_batches(jobs, due, lambda rows: lifecycle.promote(rows, now))


def expire(jobs: QuerySet[Any], now: datetime) -> int:
    """Discard waiting jobs whose ``expires_at`` has passed; return how many."""
    late = jobs.filter(state__in=sorted(WAITING), expires_at__lte=now, finished_at=None, started_at=None).order_by(
        "expires_at"
    )
    return _in_batches(jobs, late, lambda rows: lifecycle.expire(rows, now))


def rescue(jobs: QuerySet[Any], now: datetime) -> int:
    """Take back jobs whose lease ran out by the database's clock; return how many.

    They become available again, or discarded after the last attempt.
    """
    rescued = 0
    for job in jobs.filter(state=JobState.ACTIVE, lease_expires_at__lt=Now()).order_by("pk")[:BATCH]:
        error = {
            "type": "lease_expired",
            "code": "lease_expired",
            "message": f"Lease expired: worker {job.worker_id} was not heard of again.",
            "attempt": job.attempt,
            "occurred_at": now.isoformat(),
            "retryable": job.retry_policy.allows(job.attempt),
        }
        stale = jobs.filter(pk=job.pk, lease_expires_at__lt=Now())
        errors = [*job.errors, error][-ERRORS_KEPT:]
        if error["retryable"]:
            moved = lifecycle.rescue(stale, now, token=job.lease_token, errors=errors)
        else:
            moved = lifecycle.discard(stale, now, token=job.lease_token, errors=errors)
        if moved:
            logger.warning("Took back job %s (%s): the lease of %s expired.", job.pk, job.type, job.worker_id)
        rescued += moved
    return rescued


def extend(jobs: QuerySet[Any], held: Iterable[Any], lease: timedelta) -> int:
    """Extend the leases of the jobs that a worker holds, in one statement; return how many it still held."""
    tokens = {job.lease_token for job in held}
    running = jobs.filter(pk__in=[job.pk for job in held], lease_token__in=tokens, state=JobState.ACTIVE)
    return running.update(lease_expires_at=Now() + lease)


def give_back(jobs: QuerySet[Any], unstarted: Iterable[Any], now: datetime) -> int:
    """Make claimed jobs available again that were never started; the attempt does not count. Return how many."""
    return sum(lifecycle.release(jobs.filter(pk=job.pk), now, token=job.lease_token) for job in unstarted)


def _in_batches(jobs: QuerySet[Any], due: QuerySet[Any], move: Callable[[QuerySet[Any]], int]) -> int:
    """Move rows a thousand at a time, passing over those that another worker is moving."""
    connection = connections[jobs.db]
    skip = connection.features.has_select_for_update_skip_locked
    total = 0
    while due.exists():
        with transaction.atomic(using=jobs.db):
            Admission(jobs.model, connection).take_write_lock()
            keys = list(due.select_for_update(skip_locked=skip).values_list("pk", flat=True)[:BATCH])
            total += move(jobs.filter(pk__in=keys)) if keys else 0
        if len(keys) < BATCH:
            break
    return total
