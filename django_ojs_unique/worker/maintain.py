"""Maintain: what time does to jobs. Any worker may do it; all of it is safe to do twice."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connections, transaction
from django.db.models import QuerySet

from .. import lifecycle
from ..admission import Admission
from ..lifecycle import DatabaseNow
from ..ojs.states import TIMED, WAITING, JobState
from ..signals import announce, job_discarded, job_failed
from .run import labels
from .settle import ERRORS_KEPT, retry_policy_of

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
    expired = jobs.filter(state=JobState.ACTIVE, lease_expires_at__lt=DatabaseNow()).order_by("lease_expires_at")
    if not _any(expired):
        return 0
    rescued = []
    with transaction.atomic(using=jobs.db):
        for job in _unlocked(expired)[:BATCH]:
            policy = retry_policy_of(job)
            again = policy.allows(job.attempt)
            error = {
                "type": "lease_expired",
                "code": "lease_expired",
                "message": f"Lease expired: worker {job.worker_id} was not heard of again.",
                "attempt": job.attempt,
                "occurred_at": now.isoformat(),
                "retryable": again,
            }
            row, token = jobs.filter(pk=job.pk), job.lease_token
            job.errors = [*job.errors, error][-ERRORS_KEPT:]
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


Holding = tuple[UUID, UUID | None]
"""A job's key and the token under which it is held."""


def extend(jobs: QuerySet[Any], held: Iterable[Any], lease: timedelta) -> set[Holding]:
    """Extend the leases of the jobs that a worker holds, in one statement; return those it still held.

    A row that a transaction is replacing is passed over: to wait for it would let the other leases run out.
    """
    held = list(held)
    running = _still_held(jobs, held)
    with transaction.atomic(using=jobs.db):
        kept = set(_unlocked(running.order_by("pk")).values_list("pk", "lease_token"))
        jobs.filter(pk__in=[pk for pk, _ in kept]).update(lease_expires_at=DatabaseNow() + lease)
    return kept


def lost(jobs: QuerySet[Any], held: Iterable[Any]) -> set[Holding]:
    """Return those jobs that a worker no longer holds: cancelled, replaced, or taken back."""
    held = list(held)
    return {(job.pk, job.lease_token) for job in held} - set(_still_held(jobs, held).values_list("pk", "lease_token"))


def give_back(jobs: QuerySet[Any], held: Sequence[Any]) -> tuple[int, set[Holding]]:
    """Make claimed jobs available again; the attempt does not count.

    Return how many, and those that are still held because somebody has locked their rows.
    """
    by_token: dict[UUID, list[UUID]] = defaultdict(list)
    for job in held:
        by_token[job.lease_token].append(job.pk)
    released = 0
    for token, keys in by_token.items():
        with transaction.atomic(using=jobs.db):
            free = list(_unlocked(jobs.filter(pk__in=keys, lease_token=token)).values_list("pk", flat=True))
            released += lifecycle.release(jobs.filter(pk__in=free), token=token)
    if released == len(held):
        return released, set()
    return released, set(_still_held(jobs, held).values_list("pk", "lease_token"))


def store_progress(jobs: QuerySet[Any], said: Iterable[tuple[Any, tuple[float, str]]]) -> None:
    """Store what running handlers last said about their progress."""
    with transaction.atomic(using=jobs.db):
        for job, (fraction, note) in said:
            row = _unlocked(jobs.filter(pk=job.pk, lease_token=job.lease_token, state=JobState.ACTIVE))
            if row.only("pk").first() is not None:
                jobs.filter(pk=job.pk).update(progress=fraction, progress_note=note)


def unknown_types(jobs: QuerySet[Any], known: Collection[str], queues: Collection[str]) -> list[str]:
    """Return some types among the jobs that wait at the head of these queues which nobody here can run.

    They stay at the head, as no worker like this one takes them; so a look at the first thousand finds them.
    """
    found: set[str] = set()
    for queue in queues:
        waiting = jobs.filter(state=JobState.AVAILABLE, queue=queue).order_by("-priority", "enqueued_at", "id")
        found |= set(waiting.values_list("type", flat=True)[:BATCH]) - set(known)
    return sorted(found)


def _still_held(jobs: QuerySet[Any], held: Sequence[Any]) -> QuerySet[Any]:
    tokens = {job.lease_token for job in held}
    return jobs.filter(pk__in=[job.pk for job in held], lease_token__in=tokens, state=JobState.ACTIVE)


def _in_batches(jobs: QuerySet[Any], due: QuerySet[Any], move: Callable[[QuerySet[Any]], int]) -> int:
    """Move rows a thousand at a time, passing over those that another worker is moving."""
    total = 0
    while _any(due):
        with transaction.atomic(using=jobs.db):
            keys = list(_unlocked(due).values_list("pk", flat=True)[:BATCH])
            total += move(jobs.filter(pk__in=keys)) if keys else 0
        if len(keys) < BATCH:
            break
    return total


def _any(rows: QuerySet[Any]) -> bool:
    """Tell whether there are such rows, by their index: `exists` would drop the order, and with it the index."""
    return rows.values_list("pk", flat=True).first() is not None


def _unlocked(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Lock rows as they are read, passing over those that somebody else has locked; inside a transaction."""
    connection = connections[rows.db]
    Admission(rows.model, connection).take_write_lock()
    return rows.select_for_update(skip_locked=connection.features.has_select_for_update_skip_locked)
