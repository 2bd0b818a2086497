"""Claim by rules: from queues that an operator has limited, and past the gates of limits and lanes."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, NamedTuple
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet

from .. import lifecycle
from ..db.dialect import ClaimRequest
from ..db.dialects import dialect_of
from ..db.locking import unlocked
from ..db.rows import read_fields
from ..limits.slots import Slots, ensure_keys
from ..limits.waiting import FIELDS, ORDER, Turns, Waiting, look, rank
from ..ojs.gates import OPEN
from ..ojs.states import JobState
from .leases import Lease, within_time_limits
from .queue_rules import Rules, count_handed_out, hold, rooms_left

MOST_ROUNDS = 5
"""How often a claim looks again when it found too few jobs among those that it read."""


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

    def request(self, rooms: Mapping[str, int], **chosen: Any) -> ClaimRequest:
        """Return this for a dialect: jobs of the queues in ``rooms``, or the ``chosen`` ones."""
        return ClaimRequest(
            rooms=rooms,
            types=self.types,
            limit=self.limit,
            worker_id=self.worker_id,
            token=self.token,
            lease=self.lease.length,
            is_forced=self.lease.forced,
            is_timed=self.lease.timed,
            now=self.now,
            fields=self.fields,
            **chosen,
        )


_turns: dict[str, Turns] = defaultdict(Turns)
"""By database."""


def claim_by_rules(jobs: QuerySet[Any], rules: Rules, wanted: Wanted) -> list[Any]:
    """Lock, choose, then claim; return the jobs in the order in which they should start."""
    # The expiry limits only the first start: a job that has started once may run again after it.
    fresh = Q(expires_at=None) | Q(expires_at__gt=wanted.now) | Q(started_at__isnull=False)
    ready = jobs.filter(fresh, state=JobState.AVAILABLE, finished_at=None)
    if wanted.types is not None:
        ready = ready.filter(type__in=wanted.types)
    if wanted.only is not None:
        ready = ready.filter(pk=wanted.only)
    if dialect_of(jobs).single_writer and not ready.filter(queue__in=rules.queues).exists():
        return []  # an idle worker does not take the only write lock
    if not rules.gates:
        return _claim_from_limited(jobs, ready, rules, wanted)
    found: list[Any] = []
    for repeated in range(MOST_ROUNDS):
        rest = wanted._replace(limit=wanted.limit - len(found))
        claimed, may_find_more = _claim_at_gates(jobs, ready, rules, rest, repeated)
        found += claimed
        if len(found) == wanted.limit or not may_find_more:
            break
    return found


def _claim_from_limited(jobs: QuerySet[Any], ready: QuerySet[Any], rules: Rules, wanted: Wanted) -> list[Any]:
    with transaction.atomic(using=jobs.db):
        rooms = _rooms(jobs, rules, wanted)
        rows = unlocked(ready.only(*wanted.fields).order_by(*ORDER))
        plain = (row for queue, room in rooms.items() for row in rows.filter(gate=OPEN, queue=queue)[:room])
        chosen = heapq.nsmallest(wanted.limit, plain, key=rank)
        _take(jobs, chosen, wanted)
        count_handed_out(jobs.db, Counter(row.queue for row in chosen if row.queue in rules.limited), wanted.now)
    return chosen


def _claim_at_gates(
    jobs: QuerySet[Any], ready: QuerySet[Any], rules: Rules, wanted: Wanted, repeated: int
) -> tuple[list[Any], bool]:
    """Claim once; return the jobs, and whether others may be found behind those that were read."""
    now, turns = wanted.now, _turns[jobs.db]
    waiting = look(ready, rules.gates, wanted.limit, now, turns, repeated)
    ensure_keys(jobs.db, waiting, now)
    with transaction.atomic(using=jobs.db):
        rooms = _rooms(jobs, rules, wanted)
        slots = Slots(ready, waiting, now)
        if not slots.are_known:
            return [], True
        if slots.passed_over:
            wanted.passed_over()
        plain = [
            row
            for queue, room in rooms.items()
            if queue not in rules.gates or rules.gates[queue].open
            for row in read_fields(ready.filter(gate=OPEN, queue=queue).order_by(*ORDER)[:room], FIELDS)
        ]
        chosen, must_wait = _choose(plain, rooms, waiting, wanted.limit, slots)
        if must_wait:
            rows = unlocked(ready.filter(pk__in=[job.pk for job in must_wait]))
            free = dict(rows.values_list("pk", "revision"))
            lifecycle.park(jobs, [job for job in must_wait if job.revision == free.get(job.pk)])
        claimed = _claim_these(jobs, ready, chosen, wanted)
        slots.store(wanted.token, {job.pk for job in claimed})
        count_handed_out(jobs.db, Counter(job.queue for job in claimed if job.queue in rules.limited), now)
    _note_turns(turns, waiting, chosen)
    return claimed, waiting.is_cut or bool(slots.looks_again)


def _rooms(jobs: QuerySet[Any], rules: Rules, wanted: Wanted) -> dict[str, int]:
    """Return how many jobs each queue may give; lock the rows of those with a limit."""
    held = hold(jobs, rules.limited)
    if len(held) < len(rules.limited):
        wanted.passed_over()
    rooms = dict.fromkeys((name for name in rules.queues if name not in rules.limited), wanted.limit)
    return rooms | rooms_left(jobs, wanted.limit, held, wanted.now)


def _choose(
    plain: Collection[Any], rooms: Mapping[str, int], waiting: Waiting, limit: int, slots: Slots
) -> tuple[list[Any], list[Any]]:
    """Return the first jobs that find slots, and those before them that must wait, each with its new ``gate``."""
    chosen: list[Any] = []
    must_wait: list[Any] = []
    passed: set[UUID] = set()
    left = dict(rooms)
    for job in _merged(plain, rooms, waiting, passed):
        if len(chosen) == limit:
            break
        before = job.gate
        is_taken = left[job.queue] > 0 and (slots.take(job) if job.limits else True)
        if is_taken:
            chosen.append(job)
            left[job.queue] -= 1
            continue
        passed.add(job.pk)
        if job.gate != before:
            must_wait.append(job)
    if slots.looks_again:
        return [], must_wait  # once more, with the jobs that must be read first
    return chosen, must_wait


def _merged(
    plain: Collection[Any], rooms: Mapping[str, int], waiting: Waiting, passed: Collection[UUID]
) -> Iterator[Any]:
    """Yield the jobs of all queues in the order in which they should start."""
    by_queue: dict[str, list[Any]] = defaultdict(list)
    for job in plain:
        by_queue[job.queue].append(job)
    lines = [
        chain(
            sorted([*by_queue[queue], *waiting.lines.get(queue, ())], key=rank),
            _in_turns(waiting.lanes.get(queue, ()), passed),
        )
        for queue in rooms
    ]
    return heapq.merge(*lines, key=rank)


def _in_turns(lanes: Iterable[Iterable[Any]], passed: Collection[UUID]) -> Iterator[Any]:
    """Yield a job of each lane, then another one, and so on; in the place of one that was ``passed``, its next."""
    left = [iter(lane) for lane in lanes]
    while left:
        for lane in list(left):
            for job in lane:
                yield job
                if job.pk not in passed:
                    break
            else:
                left.remove(lane)


def _claim_these(jobs: QuerySet[Any], ready: QuerySet[Any], chosen: Sequence[Any], wanted: Wanted) -> list[Any]:
    """Claim these jobs, but for those that were claimed, rewritten or locked meanwhile; return them in this order.

    Their ``gate`` is where they stand while they run.
    """
    if not chosen:
        return []
    gates, revisions = {job.pk: job.gate for job in chosen}, {job.pk: job.revision for job in chosen}
    dialect = dialect_of(jobs)
    if dialect.claims_at_once:
        rows = dialect.claim(wanted.request({}, gates=gates, revisions=[*revisions.values()]))
        by_id = {job.pk: job for job in rows}
    else:
        locked = unlocked(ready.only(*wanted.fields, "gate", "revision")).filter(pk__in=list(gates))
        by_id = {job.pk: job for job in locked if job.revision == revisions[job.pk]}
        lifecycle.park(jobs, [job for job in chosen if job.pk in by_id and job.gate != by_id[job.pk].gate])
        _take(jobs, by_id.values(), wanted)
    return [by_id[id] for id in gates if id in by_id]


def _take(jobs: QuerySet[Any], chosen: Collection[Any], wanted: Wanted) -> None:
    """Claim locked rows."""
    for length, keys in wanted.lease.by_length(chosen).items():
        rows = jobs.filter(pk__in=keys)
        lifecycle.claim(rows, wanted.now, worker_id=wanted.worker_id, token=wanted.token, lease=length)
    if wanted.lease.timed:
        within_time_limits(jobs, chosen, wanted.now)
    for job in chosen:
        job.attempt += 1


def _note_turns(turns: Turns, waiting: Waiting, chosen: Sequence[Any]) -> None:
    """Note the lane of each fair queue that had the last turn."""
    for queue, lanes in waiting.lanes.items():
        with_turn = {job.pk for lane in lanes for job in lane}
        for job in chosen:
            if job.pk in with_turn:
                turns.lanes[queue] = job.lane
