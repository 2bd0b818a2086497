"""Claim: take the next jobs of some queues under one lease, so that no two workers hold the same one."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from django.db import connections, transaction
from django.db.models import Q, QuerySet

from .. import lifecycle
from ..admission import Admission
from ..ojs.states import JobState


def claim(
    jobs: QuerySet[Any],
    *,
    queues: Iterable[str],
    types: Sequence[str],
    limit: int,
    worker_id: str,
    lease: timedelta,
    now: datetime,
) -> list[Any]:
    """Claim up to ``limit`` available jobs, the highest priority first, then first in, first out across the queues.

    The jobs share one lease token. Jobs that another worker is claiming are passed over, not waited for, where the
    database can (SKIP LOCKED).
    """
    connection = connections[jobs.db]
    # A job that has started once may run again after its expiry: it must only not start after it.
    fresh = Q(expires_at=None) | Q(expires_at__gt=now) | Q(started_at__isnull=False)
    ready = jobs.filter(fresh, state=JobState.AVAILABLE, type__in=types)
    if connection.vendor == "sqlite" and not ready.filter(queue__in=list(queues)).exists():
        return []  # an idle worker does not take the only write lock
    skip = connection.features.has_select_for_update_skip_locked
    with transaction.atomic(using=jobs.db):
        Admission(jobs.model, connection).take_write_lock()
        rows = ready.order_by("-priority", "enqueued_at", "id").select_for_update(skip_locked=skip)
        chosen = heapq.nsmallest(
            limit, (row for queue in queues for row in rows.filter(queue=queue)[:limit]), key=_rank
        )
        if not chosen:
            return []
        token = uuid4()
        lifecycle.claim(
            jobs.filter(pk__in=[job.pk for job in chosen]), now, worker_id=worker_id, token=token, lease=lease
        )
    for job in chosen:
        job.state, job.attempt, job.started_at = JobState.ACTIVE, job.attempt + 1, now
        job.worker_id, job.lease_token = worker_id, token
    return chosen


def waiting_queues(jobs: QuerySet[Any]) -> Iterator[str]:
    """Yield the queues that have available jobs: one index look-up each, however many jobs wait."""
    names = jobs.filter(state=JobState.AVAILABLE).order_by("queue").values_list("queue", flat=True)
    name = names.first()
    while name is not None:
        yield name
        name = names.filter(queue__gt=name).first()


def _rank(job: Any) -> tuple[Any, ...]:
    return -job.priority, job.enqueued_at or job.created_at, job.pk
