"""Claim: take the next jobs of some queues under one lease, so that no two workers hold the same one."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Sequence
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
from .rows import unlocked

NEEDED = (
    "id", "type", "queue", "args", "meta", "tags", "priority", "attempt", "max_attempts", "timeout_ms",
    "visibility_timeout_ms", "enqueued_at",
)  # fmt: skip
"""What a run needs to know of its job; the rest of the row is read when it is asked for."""


def claim(
    jobs: QuerySet[Any],
    *,
    queues: Collection[str],
    types: Sequence[str],
    limit: int,
    worker_id: str,
    lease: timedelta,
    now: datetime,
) -> list[Any]:
    """Claim up to ``limit`` available jobs, the highest priority first, then first in, first out across the queues.

    The jobs share one lease token; each keeps its own ``visibility_timeout_ms``, the others get ``lease``. Jobs that
    another worker is claiming are passed over, not waited for, where the database can (SKIP LOCKED). Paused queues are
    left alone, and one with a concurrency limit is claimed from by one worker at a time.
    """
    if not queues:
        return []
    connection = connections[jobs.db]
    token = uuid4()
    limited = []
    rooms = dict.fromkeys(queues, limit)
    for name, paused, concurrency_limit in _rules(connection):
        if paused:
            rooms.pop(name, None)
        elif concurrency_limit is not None and name in rooms:
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
    return chosen


def _rules(connection: BaseDatabaseWrapper) -> list[tuple[str, bool, int | None]]:
    """Return what operators said about queues: there are few such rows, and this is asked before each claim."""
    table = Queue._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT name, paused_at IS NOT NULL, concurrency_limit FROM {table}")
        return cursor.fetchall()  # type: ignore[no-any-return]


def _claim(
    jobs: QuerySet[Any],
    rooms: dict[str, int],
    limited: Collection[str],
    types: Sequence[str],
    limit: int,
    worker_id: str,
    token: UUID,
    lease: timedelta,
    now: datetime,
) -> list[Any]:
    """Lock, choose, then claim; the jobs come back as they were before."""
    # A job that has started once may run again after its expiry: it must only not start after it.
    fresh = Q(expires_at=None) | Q(expires_at__gt=now) | Q(started_at__isnull=False)
    ready = jobs.filter(fresh, state=JobState.AVAILABLE, type__in=types)
    if connections[jobs.db].vendor == "sqlite" and not ready.filter(queue__in=rooms).exists():
        return []  # an idle worker does not take SQLite's only write lock
    with transaction.atomic(using=jobs.db):
        rows = unlocked(ready.only(*NEEDED).order_by("-priority", "enqueued_at", "id"))
        rooms = _limited(jobs, rooms, limited)
        chosen = heapq.nsmallest(
            limit, (row for queue, room in rooms.items() for row in rows.filter(queue=queue)[:room]), key=_rank
        )
        for length, keys in _by_lease(chosen, lease).items():
            lifecycle.claim(jobs.filter(pk__in=keys), now, worker_id=worker_id, token=token, lease=length)
    return chosen


def lease_of(job: Any, default: timedelta) -> timedelta:
    """Return the length of a job's lease: its own, or the worker's."""
    own = job.visibility_timeout_ms
    return default if own is None else timedelta(milliseconds=own)


def _limited(jobs: QuerySet[Any], rooms: dict[str, int], limited: Collection[str]) -> dict[str, int]:
    """Return the rooms that the limits of the queues leave; hold on to the limited ones until the transaction ends."""
    rules = Queue.objects.using(jobs.db).filter(concurrency_limit__isnull=False)
    for name in sorted(limited):
        # Writes, all before the first look: so under every isolation level it sees what the last claim left.
        rules.filter(name=name).update(concurrency_limit=F("concurrency_limit"))
    rooms = dict(rooms)
    for name, concurrency_limit in rules.filter(name__in=limited).values_list("name", "concurrency_limit"):
        active = jobs.filter(state=JobState.ACTIVE, queue=name, lease_expires_at__isnull=False).count()
        rooms[name] = max(0, min(rooms[name], concurrency_limit - active))
    return {name: room for name, room in rooms.items() if room}


def _by_lease(chosen: Sequence[Any], default: timedelta) -> dict[timedelta, list[UUID]]:
    keys: dict[timedelta, list[UUID]] = defaultdict(list)
    for job in chosen:
        keys[lease_of(job, default)].append(job.pk)
    return keys


def _rank(job: Any) -> tuple[Any, ...]:
    return -job.priority, job.enqueued_at, job.pk
