"""Claim: take the next jobs of some queues under one lease, so that no two workers hold the same one."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F, Q, QuerySet

from .. import lifecycle
from ..models import Queue
from ..ojs.states import JobState
from . import postgres
from .lease import Lease, within_time_limits
from .rows import unlocked

NEEDED = (
    "id", "type", "queue", "args", "meta", "tags", "extra", "priority", "attempt", "max_attempts", "timeout_ms",
    "visibility_timeout_ms", "created_at", "enqueued_at", "scheduled_at", "errors",
)  # fmt: skip
"""What a run needs to know of its job; the rest of the row is read when it is asked for."""

WINDOW = timedelta(seconds=1)
"""How long a queue's ``max_per_second`` is counted, from the first job that is handed out."""
SKEW = timedelta(minutes=1)
"""How far ahead a window may have begun by the clock of a claim, which may have waited for its turn since it looked."""


def claim(
    jobs: QuerySet[Any],
    *,
    queues: Collection[str],
    types: Sequence[str] | None,
    limit: int,
    worker_id: str | None,
    lease: Lease | timedelta,
    now: datetime,
) -> list[Any]:
    """Claim up to ``limit`` available jobs, the highest priority first, then first in, first out across the queues.

    ``types`` None takes any. The jobs share one lease token; each keeps its own ``visibility_timeout_ms``, the others
    get ``lease``. Jobs that another worker is claiming are passed over, not waited for, where the database can (SKIP
    LOCKED). Paused queues are left alone, and one with a limit is claimed from by one worker at a time.
    """
    if not queues:
        return []
    connection = connections[jobs.db]
    lease = lease if isinstance(lease, Lease) else Lease(lease)
    token = uuid4()
    limited = []
    rooms = dict.fromkeys(queues, limit)
    for name, closed, is_limited in _rules(connection, now):
        if closed:
            rooms.pop(name, None)
        elif is_limited and name in rooms:
            limited.append(name)
    if not rooms:
        return []
    if connection.vendor == "postgresql" and not limited:
        chosen = postgres.claim(
            jobs,
            rooms=rooms,
            types=types,
            limit=limit,
            worker_id=worker_id,
            token=token,
            lease=lease,
            now=now,
            fields=NEEDED,
        )
        chosen.sort(key=_rank)
    else:
        chosen = _claim(jobs, rooms, limited, types, limit, worker_id, token, lease, now)
        for job in chosen:
            job.attempt += 1
    for job in chosen:
        job.state, job.started_at, job.worker_id, job.lease_token = JobState.ACTIVE, now, worker_id, token
        job.finished_at = None
    return chosen


def _rules(connection: BaseDatabaseWrapper, now: datetime) -> list[tuple[str, bool, bool]]:
    """Return which queues give nothing now, and which are limited: there are few such rows; each claim asks first."""
    table = Queue._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT name, paused_at IS NOT NULL"
            " OR (window_count >= max_per_second AND window_started_at > %s AND window_started_at < %s),"
            f" concurrency_limit IS NOT NULL OR max_per_second IS NOT NULL FROM {table}",
            [connection.ops.adapt_datetimefield_value(moment) for moment in (now - WINDOW, now + SKEW)],
        )
        return cursor.fetchall()  # type: ignore[no-any-return]


def _claim(
    jobs: QuerySet[Any],
    rooms: dict[str, int],
    limited: Collection[str],
    types: Sequence[str] | None,
    limit: int,
    worker_id: str | None,
    token: UUID,
    lease: Lease,
    now: datetime,
) -> list[Any]:
    """Lock, choose, then claim; the jobs come back as they were before."""
    # A job that has started once may run again after its expiry: it must only not start after it.
    fresh = Q(expires_at=None) | Q(expires_at__gt=now) | Q(started_at__isnull=False)
    ready = jobs.filter(fresh, state=JobState.AVAILABLE)
    if types is not None:
        ready = ready.filter(type__in=types)
    if connections[jobs.db].vendor == "sqlite" and not ready.filter(queue__in=rooms).exists():
        return []  # an idle worker does not take SQLite's only write lock
    with transaction.atomic(using=jobs.db):
        rows = unlocked(ready.only(*NEEDED).order_by("-priority", "enqueued_at", "id"))
        rooms = _limited(jobs, rooms, limited, now)
        chosen = heapq.nsmallest(
            limit, (row for queue, room in rooms.items() for row in rows.filter(queue=queue)[:room]), key=_rank
        )
        for length, keys in lease.by_length(chosen).items():
            lifecycle.claim(jobs.filter(pk__in=keys), now, worker_id=worker_id, token=token, lease=length)
        if lease.timed:
            within_time_limits(jobs, chosen, now)
        _count(jobs.db, Counter(row.queue for row in chosen if row.queue in limited), now)
    return chosen


def _limited(jobs: QuerySet[Any], rooms: dict[str, int], limited: Collection[str], now: datetime) -> dict[str, int]:
    """Return the rooms that the limits of the queues leave; hold on to the limited ones until the transaction ends."""
    rows = Queue.objects.using(jobs.db).filter(name__in=limited)
    for name in sorted(limited):
        # Writes, all before the first look: so under every isolation level it sees what the last claim left.
        rows.filter(name=name).update(window_count=F("window_count"))
    rooms = dict(rooms)
    for row in rows if limited else ():
        left = [rooms[row.name]]
        if row.concurrency_limit is not None:
            active = jobs.filter(state=JobState.ACTIVE, queue=row.name, lease_expires_at__isnull=False).count()
            left.append(row.concurrency_limit - active)
        if row.max_per_second is not None:
            left.append(row.max_per_second - (row.window_count if _in_window(row, now) else 0))
        rooms[row.name] = max(0, min(left))
    return {name: room for name, room in rooms.items() if room}


def _count(using: str, handed_out: Mapping[str, int], now: datetime) -> None:
    """Note in their windows how many jobs the limited queues, which are held, have handed out."""
    for row in Queue.objects.using(using).filter(name__in=handed_out, max_per_second__isnull=False):
        if not _in_window(row, now):
            row.window_started_at, row.window_count = now, 0
        row.window_count += handed_out[row.name]
        row.save(using=using, update_fields=["window_started_at", "window_count"])


def _in_window(row: Queue, now: datetime) -> bool:
    return row.window_started_at is not None and -SKEW < now - row.window_started_at < WINDOW


def _rank(job: Any) -> tuple[Any, ...]:
    return -job.priority, job.enqueued_at, job.pk
