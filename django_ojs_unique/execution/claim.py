"""Claim: take the next jobs of some queues under one lease token, so that no two workers hold the same job."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from operator import attrgetter
from typing import Any
from uuid import UUID, uuid4

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F, Q, QuerySet

from .. import lifecycle
from ..db.dialect import ClaimRequest
from ..db.dialects import dialect_of
from ..db.locking import unlocked
from ..db.rows import UnreadRows
from ..models import Queue
from ..ojs.states import JobState
from .leases import Lease, within_time_limits

NEEDED = (
    "id", "type", "queue", "args", "meta", "tags", "extra", "priority", "attempt", "max_attempts", "timeout_ms",
    "visibility_timeout_ms", "created_at", "enqueued_at", "scheduled_at", "errors", "workflow_id",
)  # fmt: skip
"""The fields of a job that an attempt needs; the other fields are read on access."""

WINDOW = timedelta(seconds=1)
"""The window in which a queue's ``max_per_second`` is counted; it begins with the first job that is handed out."""
SKEW = timedelta(minutes=1)
"""How far in the future a window may begin for a claim, which may have read its clock before it waited for a lock."""


_priority = attrgetter("priority")
_age = attrgetter("enqueued_at", "id")


class Claimed(Sequence[Any]):
    """The jobs of one claim, in the order in which they should start. Like a queryset, it builds them on first use."""

    def __init__(self, found: UnreadRows | list[Any], held: dict[str, Any]) -> None:
        self._found = found
        self._held = held
        """What the claim has changed in each job."""

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, index: Any) -> Any:
        return self._jobs[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._jobs)

    def values(self, name: str) -> list[Any]:
        """Return the value of a column of numbers or texts in each row, unordered, without building the jobs."""
        found = self._found
        return [getattr(job, name) for job in found] if isinstance(found, list) else found.values(name)

    @cached_property
    def _jobs(self) -> list[Any]:
        jobs = list(self._found)
        # Two sorts by plain attributes are faster than one by a function; the second keeps the order of equals.
        jobs.sort(key=_age)
        jobs.sort(key=_priority, reverse=True)
        for job in jobs:
            job.__dict__.update(self._held)
        return jobs


def claim(
    jobs: QuerySet[Any],
    *,
    queues: Collection[str],
    types: Sequence[str] | None,
    limit: int,
    worker_id: str | None,
    lease: Lease | timedelta,
    now: datetime,
    token: UUID | None = None,
    limited: Collection[str] | None = None,
    passed_over: Callable[[], None] = lambda: None,
    meanwhile: Callable[[], Any] | None = None,
    only: UUID | None = None,
) -> Claimed:
    """Claim up to ``limit`` available jobs, the highest priority first, then first in, first out across the queues.

    ``types`` None means any type. The jobs share one lease ``token``, by default a new one. A job's own
    ``visibility_timeout_ms`` is the length of its lease; the others get ``lease``. Jobs that another worker is claiming
    are skipped, not waited for, where the database can (SKIP LOCKED). Paused queues are skipped. Only one worker at a
    time claims from a queue with a limit: when another one has locked its row, the queue is skipped, and
    ``passed_over`` is called. ``limited`` are the queues with a limit, as far as the caller knows; any other queue with
    a limit may be skipped. None means to query for them, as databases do that cannot claim at once.
    ``meanwhile`` is called before or while the database claims, unless there is nothing to claim from; it must not use
    the connection. ``only`` is the id of the one job to claim, if the rules allow it.
    """
    nothing = Claimed([], {})
    if not queues:
        return nothing
    connection = connections[jobs.db]
    lease = lease if isinstance(lease, Lease) else Lease(lease)
    token = token or uuid4()
    dialect = dialect_of(jobs)
    if dialect.claims_at_once and limited is not None and set(limited).isdisjoint(queues):
        limited = []
    else:
        queues, limited = _by_rules(queues, connection, now)
    if not queues:
        return nothing
    rooms = dict.fromkeys(queues, limit)
    if dialect.claims_at_once and not limited and only is None:
        found: UnreadRows | list[Any] = dialect.claim(
            ClaimRequest(
                rooms=rooms,
                types=types,
                limit=limit,
                worker_id=worker_id,
                token=token,
                lease=lease.length,
                is_forced=lease.forced,
                is_timed=lease.timed,
                now=now,
                fields=NEEDED,
            ),
            meanwhile,
        )
    else:
        if meanwhile is not None:
            meanwhile()
        found = _claim(jobs, rooms, limited, types, limit, worker_id, token, lease, now, passed_over, only)
        for job in found:
            job.attempt += 1
    held = {
        "state": JobState.ACTIVE,
        "started_at": now,
        "worker_id": worker_id,
        "lease_token": token,
        "finished_at": None,
    }
    return Claimed(found, held)


def limited_queues(using: str) -> frozenset[str]:
    """Return the names of the queues with a limit."""
    rows = Queue.objects.using(using).exclude(concurrency_limit=None, max_per_second=None)
    return frozenset(rows.values_list("name", flat=True))


def _by_rules(queues: Collection[str], connection: BaseDatabaseWrapper, now: datetime) -> tuple[list[str], list[str]]:
    """Return those of the queues that may give jobs now, and those of them that have a limit."""
    rules = _rules(connection, now)
    closed = {name for name, is_closed, _ in rules if is_closed}
    limited = {name for name, _, is_limited in rules if is_limited}
    found = [name for name in dict.fromkeys(queues) if name not in closed]
    return found, [name for name in found if name in limited]


def _rules(connection: BaseDatabaseWrapper, now: datetime) -> list[tuple[str, bool, bool]]:
    """Return (name, gives nothing now, is limited) for each row of a queue. There are few."""
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
    passed_over: Callable[[], None],
    only: UUID | None = None,
) -> list[Any]:
    """Lock, choose, then claim; return the jobs as they were before the claim."""
    # The expiry limits only the first start: a job that has started once may run again after it.
    fresh = Q(expires_at=None) | Q(expires_at__gt=now) | Q(started_at__isnull=False)
    ready = jobs.filter(fresh, state=JobState.AVAILABLE, finished_at=None)
    if types is not None:
        ready = ready.filter(type__in=types)
    if only is not None:
        ready = ready.filter(pk=only)
    if dialect_of(jobs).single_writer and not ready.filter(queue__in=rooms).exists():
        return []  # an idle worker does not take the only write lock
    with transaction.atomic(using=jobs.db):
        rows = unlocked(ready.only(*NEEDED).order_by("-priority", "enqueued_at", "id"))
        held = _hold(jobs, limited)
        if len(held) < len(limited):
            passed_over()
        rooms = {name: room for name, room in rooms.items() if name not in limited} | _limited(jobs, rooms, held, now)
        chosen = heapq.nsmallest(
            limit, (row for queue, room in rooms.items() for row in rows.filter(queue=queue)[:room]), key=_rank
        )
        for length, keys in lease.by_length(chosen).items():
            lifecycle.claim(jobs.filter(pk__in=keys), now, worker_id=worker_id, token=token, lease=length)
        if lease.timed:
            within_time_limits(jobs, chosen, now)
        _count(jobs.db, Counter(row.queue for row in chosen if row.queue in limited), now)
    return chosen


def _hold(jobs: QuerySet[Any], limited: Collection[str]) -> list[Queue]:
    """Lock the rows of limited queues until the transaction ends, except those that another transaction has locked."""
    if not limited:
        return []
    rows = Queue.objects.using(jobs.db)
    held = list(unlocked(rows.filter(name__in=limited).order_by("name")))
    # Write the rows before the first query of the jobs: then a snapshot that is older than the last claim raises an
    # error, and under every isolation level the query sees the result of that claim.
    rows.filter(name__in=[row.name for row in held]).update(window_count=F("window_count"))
    return held


def _limited(jobs: QuerySet[Any], rooms: dict[str, int], held: Collection[Queue], now: datetime) -> dict[str, int]:
    """Return how many jobs the limits still allow for each of the ``held`` queues."""
    found = {}
    for row in held:
        left = [rooms[row.name]]
        if row.concurrency_limit is not None:
            active = jobs.filter(state=JobState.ACTIVE, queue=row.name, finished_at=None)
            left.append(row.concurrency_limit - active.filter(lease_expires_at__isnull=False).count())
        if row.max_per_second is not None:
            left.append(row.max_per_second - (row.window_count if _in_window(row, now) else 0))
        found[row.name] = min(left)
    return {name: room for name, room in found.items() if room > 0}


def _count(using: str, handed_out: Mapping[str, int], now: datetime) -> None:
    """Add the jobs handed out to the windows of the limited queues, whose rows are locked."""
    for row in Queue.objects.using(using).filter(name__in=handed_out, max_per_second__isnull=False):
        if not _in_window(row, now):
            row.window_started_at, row.window_count = now, 0
        row.window_count += handed_out[row.name]
        row.save(using=using, update_fields=["window_started_at", "window_count"])


def _in_window(row: Queue, now: datetime) -> bool:
    return row.window_started_at is not None and -SKEW < now - row.window_started_at < WINDOW


def _rank(job: Any) -> tuple[Any, ...]:
    return -job.priority, job.enqueued_at, job.id
