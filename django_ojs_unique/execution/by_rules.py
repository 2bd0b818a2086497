"""Claim by rules: from queues that an operator has limited, and past the gates of limits and lanes."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F, Q, QuerySet

from .. import lifecycle
from ..db.dialects import dialect_of
from ..db.locking import unlocked
from ..limits.slots import Slots, ensure_keys
from ..limits.waiting import ORDER, Waiting, gated_queues, look, rank
from ..models import Queue
from ..ojs.gates import OPEN
from ..ojs.states import JobState
from .leases import Lease, within_time_limits

WINDOW = timedelta(seconds=1)
"""The window in which a queue's ``max_per_second`` is counted; it begins with the first job that is handed out."""
SKEW = timedelta(minutes=1)
"""How far in the future a window may begin for a claim, which may have read its clock before it waited for a lock."""
MOST_ROUNDS = 5
"""How often a claim looks again when all jobs that it found had to wait for slots."""


_turns: dict[str, dict[str, str]] = defaultdict(dict)
"""By database and fair queue: the lane that had the last turn in this process."""


class Wanted(NamedTuple):
    """What a claim wants: see `claim.claim`, which documents the members."""

    types: Sequence[str] | None
    limit: int
    worker_id: str | None
    token: UUID
    lease: Lease
    now: datetime
    fields: tuple[str, ...]
    passed_over: Callable[[], None]
    only: UUID | None


class Rules(NamedTuple):
    """The queues that may give jobs now: all of them, those with a limit, and those with jobs that wait at gates."""

    queues: list[str]
    limited: list[str]
    gated: list[str]


def rules_of(jobs: QuerySet[Any], queues: Collection[str], now: datetime) -> Rules:
    """Read the rules of some queues."""
    rules = _rules(connections[jobs.db], now)
    closed = {name for name, is_closed, _ in rules if is_closed}
    limited = {name for name, _, is_limited in rules if is_limited}
    found = [name for name in dict.fromkeys(queues) if name not in closed]
    return Rules(found, [name for name in found if name in limited], gated_queues(jobs, found) if found else [])


def queues_with_rules(jobs: QuerySet[Any], queues: Collection[str]) -> frozenset[str]:
    """Return the names of all queues with a limit, and those of ``queues`` in which jobs wait at gates."""
    rows = Queue.objects.using(jobs.db).exclude(concurrency_limit=None, max_per_second=None)
    return frozenset([*rows.values_list("name", flat=True), *gated_queues(jobs, queues)])


def claim_by_rules(jobs: QuerySet[Any], rules: Rules, wanted: Wanted) -> list[Any]:
    """Lock, choose, then claim; return the jobs as they were before the claim."""
    # The expiry limits only the first start: a job that has started once may run again after it.
    fresh = Q(expires_at=None) | Q(expires_at__gt=wanted.now) | Q(started_at__isnull=False)
    ready = jobs.filter(fresh, state=JobState.AVAILABLE, finished_at=None)
    if wanted.types is not None:
        ready = ready.filter(type__in=wanted.types)
    if wanted.only is not None:
        ready = ready.filter(pk=wanted.only)
    if dialect_of(jobs).single_writer and not ready.filter(queue__in=rules.queues).exists():
        return []  # an idle worker does not take the only write lock
    found: list[Any] = []
    for _ in range(MOST_ROUNDS):
        chosen, may_find_more = _claim(jobs, ready, rules, wanted._replace(limit=wanted.limit - len(found)))
        found += chosen
        if len(found) == wanted.limit or not may_find_more:
            break
    return found


def _claim(jobs: QuerySet[Any], ready: QuerySet[Any], rules: Rules, wanted: Wanted) -> tuple[list[Any], bool]:
    """Claim once; return the jobs, and whether others may be found behind those that have to wait."""
    now = wanted.now
    turns = _turns[jobs.db]
    waiting = look(ready, rules.gated, wanted.limit, now, turns)
    ensure_keys(jobs.db, waiting, now)
    with transaction.atomic(using=jobs.db):
        rows = unlocked(ready.only(*wanted.fields).order_by(*ORDER))
        held = _hold(jobs, rules.limited)
        slots = Slots(ready, waiting, now)
        if len(held) < len(rules.limited) or slots.passed_over:
            wanted.passed_over()
        rooms = dict.fromkeys((name for name in rules.queues if name not in rules.limited), wanted.limit)
        rooms |= _limited(jobs, dict.fromkeys(rules.limited, wanted.limit), held, now)
        plain = [row for queue, room in rooms.items() for row in rows.filter(gate=OPEN, queue=queue)[:room]]
        if rules.gated:
            chosen = _at_gates(rows, plain, rooms, waiting, wanted.limit, slots)
        else:
            chosen = heapq.nsmallest(wanted.limit, plain, key=rank)
        for length, keys in wanted.lease.by_length(chosen).items():
            lifecycle.claim(jobs.filter(pk__in=keys), now, worker_id=wanted.worker_id, token=wanted.token, lease=length)
        if wanted.lease.timed:
            within_time_limits(jobs, chosen, now)
        if rules.gated:
            slots.store(wanted.token, {job.pk for job in chosen})
        _count(jobs.db, Counter(row.queue for row in chosen if row.queue in rules.limited), now)
    _note_turns(turns, waiting, chosen)
    return chosen, waiting.is_cut


def _at_gates(
    rows: QuerySet[Any], plain: list[Any], rooms: Mapping[str, int], waiting: Waiting, limit: int, slots: Slots
) -> list[Any]:
    """Choose from the ``plain`` jobs, which are locked, and from those at gates; let those wait that find no slot."""
    chosen: list[Any] = []
    must_wait: list[Any] = []
    left = dict(rooms)
    for job in _merged(plain, rooms, waiting):
        if len(chosen) == limit:
            break
        if not left[job.queue]:
            continue
        gate = slots.take(job) if job.gate else None
        if gate is None:
            chosen.append(job)
            left[job.queue] -= 1
        elif gate and gate != job.gate:
            job.gate = gate
            must_wait.append(job)
    found = {job.pk: job for job in plain}
    at_gates = [job.pk for job in chosen if job.gate]
    found |= {job.pk: job for job in rows.filter(pk__in=at_gates)} if at_gates else {}
    if must_wait:
        unlocked_ids = set(rows.filter(pk__in=[job.pk for job in must_wait]).values_list("pk", flat=True))
        lifecycle.park(rows, [job for job in must_wait if job.pk in unlocked_ids])
    return [found[job.pk] for job in chosen if job.pk in found]


def _merged(plain: list[Any], rooms: Mapping[str, int], waiting: Waiting) -> Iterator[Any]:
    """Yield the jobs of all queues in the order in which they should start."""
    by_queue: dict[str, list[Any]] = defaultdict(list)
    for job in plain:
        by_queue[job.queue].append(job)
    lines = [
        [*sorted([*by_queue[queue], *waiting.lines.get(queue, ())], key=rank), *waiting.turns.get(queue, ())]
        for queue in rooms
    ]
    return heapq.merge(*lines, key=rank)


def _note_turns(turns: MutableMapping[str, str], waiting: Waiting, chosen: Sequence[Any]) -> None:
    """Note the lane of each fair queue that had the last turn."""
    for queue, line in waiting.turns.items():
        with_turn = {job.pk for job in line}
        for job in chosen:
            if job.pk in with_turn:
                turns[queue] = job.lane


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
