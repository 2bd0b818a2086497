"""Maintain: what time does to jobs. Any worker may do it; all of it is safe to do twice."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from django.db import connections, transaction
from django.db.models import QuerySet

from .. import lifecycle
from ..admission import Admission
from ..lifecycle import DatabaseNow
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
    expired = jobs.filter(state=JobState.ACTIVE, lease_expires_at__lt=DatabaseNow()).order_by("pk")
    if not expired.exists():
        return 0
    rescued = 0
    with transaction.atomic(using=jobs.db):
        for job in _unlocked(expired)[:BATCH]:
            again = job.retry_policy.allows(job.attempt)
            error = {
                "type": "lease_expired",
                "code": "lease_expired",
                "message": f"Lease expired: worker {job.worker_id} was not heard of again.",
                "attempt": job.attempt,
                "occurred_at": now.isoformat(),
                "retryable": again,
            }
            move = lifecycle.rescue if again else lifecycle.discard
            errors = [*job.errors, error][-ERRORS_KEPT:]
            rescued += move(jobs.filter(pk=job.pk), now, token=job.lease_token, errors=errors)
            logger.warning("Took back job %s (%s): the lease of %s expired.", job.pk, job.type, job.worker_id)
    return rescued


def extend(jobs: QuerySet[Any], held: Iterable[Any], lease: timedelta) -> int:
    """Extend the leases of the jobs that a worker holds, in one statement; return how many it still held.

    A row that a transaction is replacing is passed over: to wait for it would let the other leases run out.
    """
    tokens = {job.lease_token for job in held}
    running = jobs.filter(pk__in=[job.pk for job in held], lease_token__in=tokens, state=JobState.ACTIVE)
    with transaction.atomic(using=jobs.db):
        keys = [job.pk for job in _unlocked(running.order_by("pk").only("pk"))]
        return jobs.filter(pk__in=keys).update(lease_expires_at=DatabaseNow() + lease)


def give_back(jobs: QuerySet[Any], unstarted: Iterable[Any], now: datetime) -> int:
    """Make claimed jobs available again that were never started; the attempt does not count. Return how many."""
    return sum(lifecycle.release(jobs.filter(pk=job.pk), now, token=job.lease_token) for job in unstarted)


def _in_batches(jobs: QuerySet[Any], due: QuerySet[Any], move: Callable[[QuerySet[Any]], int]) -> int:
    """Move rows a thousand at a time, passing over those that another worker is moving."""
    total = 0
    while due.exists():
        with transaction.atomic(using=jobs.db):
            keys = list(_unlocked(due).values_list("pk", flat=True)[:BATCH])
            total += move(jobs.filter(pk__in=keys)) if keys else 0
        if len(keys) < BATCH:
            break
    return total


def _unlocked(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Lock rows as they are read, passing over those that somebody else has locked; inside a transaction."""
    connection = connections[rows.db]
    Admission(rows.model, connection).take_write_lock()
    return rows.select_for_update(skip_locked=connection.features.has_select_for_update_skip_locked)
