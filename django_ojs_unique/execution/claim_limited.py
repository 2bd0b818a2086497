"""Claim limited jobs: from queues that an operator has limited, and past the limits and turns of jobs."""

from __future__ import annotations

import heapq
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain
from time import monotonic
from typing import Any, NamedTuple
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.db.models.functions import Left

from .. import lifecycle
from ..db.dialect import ClaimRequest
from ..db.locking import unlocked
from ..db.transactions import open_here
from ..limits.candidates import ORDER, AvailableJobs, Candidate, rank
from ..limits.slots import Slots, ensure_partitions
from ..limits.waiting import RoundRobin, Waiting, look
from ..models import LimitPartition, Queue
from ..ojs.blocking import ID, PARTITIONS, UNBLOCKED
from .leases import Lease, within_time_limits
from .queue_rules import Rules, count_handed_out, lock_rows, rooms_left, rules_of

logger = logging.getLogger("django_ojs_unique.worker")

MOST_ROUNDS = 5
"""How often a claim looks, while it finds too few jobs among those that it reads."""


class Share(NamedTuple):
    """What a claim takes at most: so many jobs of some types. None stands for any type."""

    types: Sequence[str] | None
    limit: int


class ClaimOptions(NamedTuple):
    """What a claim wants: see the parameters of `claim.claim`. ``fields``: those that an attempt needs."""

    shares: tuple[Share, ...]
    worker_id: str | None
    token: UUID
    lease: Lease
    now: datetime
    began: float
    """When ``now`` was read, on the monotonic clock."""
    fields: tuple[str, ...]
    passed_over: Callable[[], None]
    only: UUID | None
    leaves_slots: bool
    overlap: Callable[[], Any] | None

    @property
    def types(self) -> Sequence[str] | None:
        """The types of all shares."""
        if any(share.types is None for share in self.shares):
            return None
        return [type for share in self.shares for type in share.types or ()]

    @property
    def limit(self) -> int:
        """How many jobs all shares take."""
        return sum(share.limit for share in self.shares)

    def available(self, jobs: QuerySet[Any]) -> AvailableJobs:
        """Return the jobs among which this chooses."""
        return AvailableJobs(jobs, self.now, self.types, self.only)

    def after(self, claimed: Iterable[Any]) -> ClaimOptions:
        """Return what is still wanted after these jobs were claimed."""
        room = Room(self.shares)
        for job in claimed:
            room.take(job)
        return self._replace(shares=room.left())

    def time(self) -> datetime:
        """Return the time by now: a transaction may have waited for its locks since ``now`` was read."""
        return self.now + timedelta(seconds=monotonic() - self.began)

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
            is_unconfirmed=self.lease.unconfirmed,
            now=self.now,
            fields=self.fields,
            **chosen,
        )


class Room:
    """How many jobs each share may still take."""

    def __init__(self, shares: tuple[Share, ...]) -> None:
        self._shares = shares
        self._left = [share.limit for share in shares]
        self._number_of = {type: number for number, share in enumerate(shares) for type in share.types or ()}

    def has_for(self, job: Any) -> bool:
        """Tell whether the share of a job may take it."""
        return self._left[self._number_of.get(job.type, 0)] > 0

    def take(self, job: Any) -> None:
        """Count a job."""
        self._left[self._number_of.get(job.type, 0)] -= 1

    def left(self) -> tuple[Share, ...]:
        """Return the shares that may take more jobs."""
        return tuple(Share(share.types, left) for share, left in zip(self._shares, self._left, strict=True) if left > 0)


_turns: dict[str, RoundRobin] = defaultdict(RoundRobin)
"""By database."""


def claim_limited(jobs: QuerySet[Any], rules: Rules, wanted: ClaimOptions) -> tuple[list[Any], Exception | None]:
    """Lock, choose, then claim; return the jobs in the order in which they should start.

    Each round is a transaction. Also return the error of one that failed after others had claimed jobs.
    """
    available = wanted.available(jobs)
    if available.dialect.single_writer and not available.rows.filter(queue__in=rules.queues).exists():
        return [], None  # an idle worker does not take the only write lock
    if not rules.blocks:
        return _claim_from_limited(jobs, rules, wanted), None
    found: list[Any] = []
    again: set[str] = set()
    rest, repeated = wanted, 0
    for number in range(MOST_ROUNDS):
        try:
            waiting = look(available, rules.blocks, rest.limit, _turns[jobs.db], repeated, again)
            waiting.is_narrow = len(rest.shares) < len(wanted.shares)
            if number == MOST_ROUNDS - 1:
                waiting.last_new = None  # take what was read, although there may be earlier jobs
            claimed, unread = _claim_blocked(available, rules, rest, waiting)
        except Exception as error:
            if not found or jobs.db in open_here():  # the caller's transaction has lost what it found
                raise
            logger.warning("A claim ended early, with %d jobs.", len(found), exc_info=True)
            return found, error
        found += claimed
        before, rest = rest, rest.after(claimed)
        if not rest.shares:
            return found, None
        # Without the jobs of the shares that are full, the others are read from the first one on.
        repeated = repeated + 1 if len(rest.shares) == len(before.shares) else 0
        if not waiting.is_cut and not unread:
            break
        again.update(unread)
        available = rest.available(jobs)
    if waiting.is_walk_cut:
        wanted.passed_over()
    return found, None


def can_claim(jobs: QuerySet[Any], queues: Collection[str], types: Sequence[str] | None, now: datetime) -> bool:
    """Tell whether a claim could find jobs in the queues without a limit, if nobody had them locked."""
    if not queues:
        return False
    rules = rules_of(jobs, queues, now)
    return (
        AvailableJobs(jobs, now, types)
        .rows.filter(queue__in={*rules.queues}.difference(rules.limited), blocked_by=UNBLOCKED)
        .exists()
    )


def wait_for_slots(jobs: QuerySet[Any], queues: Collection[str], types: Sequence[str] | None, now: datetime) -> bool:
    """Tell whether jobs of the queues wait for slots; those that wait for a rate only do not count."""
    if not queues:
        return False
    rules = rules_of(jobs, queues, now)
    by_rate = LimitPartition.objects.filter(pk=Left(OuterRef("blocked_by"), ID), full_at=None, opens_at__gt=now)
    waiting = AvailableJobs(jobs, now, types).rows.filter(queue__in=list(rules.blocks), blocked_by__gt=PARTITIONS)
    return waiting.filter(~Exists(by_rate)).exists()


def _claim_from_limited(jobs: QuerySet[Any], rules: Rules, wanted: ClaimOptions) -> list[Any]:
    chosen: list[Any] = []
    with transaction.atomic(using=jobs.db):
        rooms = _rooms(jobs, rules, wanted, _lock_rows(jobs, rules, wanted))
        for share in wanted.shares:
            found = _lock_first(jobs, rooms, wanted._replace(shares=(share,)))
            chosen += found
            for row in found:
                rooms[row.queue] -= 1
        _take(jobs, chosen, wanted)
        count_handed_out(jobs.db, Counter(row.queue for row in chosen if row.queue in rules.limited), wanted.time())
    return chosen


def _claim_blocked(
    available: AvailableJobs, rules: Rules, wanted: ClaimOptions, waiting: Waiting
) -> tuple[list[Any], Collection[str]]:
    """Claim once; return the jobs, and the partitions for which the next look must read those that wait."""
    jobs = available.jobs
    with_unblocked = [queue for queue in rules.queues if queue not in rules.blocks or rules.blocks[queue].unblocked]
    if not waiting.has_jobs and not with_unblocked:
        waiting.is_cut = waiting.is_cut or any(waiting.opened.values())
        return [], ()
    ensure_partitions(available, waiting)
    with transaction.atomic(using=jobs.db):
        locked = _lock_rows(jobs, rules, wanted)
        # Before anything is counted: then no count is older than the locks.
        slots = Slots(available, waiting, rules.closed if wanted.leaves_slots and wanted.only is None else None)
        rooms = _rooms(jobs, rules, wanted, locked)
        if not slots.are_known:
            waiting.is_cut = True  # they are stored in the next round
            return [], ()
        plain = [
            row
            for queue in with_unblocked
            if (room := rooms.get(queue))
            for row in available.first(queue, UNBLOCKED, room)
        ]
        chosen, must_wait = _choose(plain, rooms, waiting, wanted, slots)
        if must_wait:
            rows = unlocked(available.rows.filter(pk__in=[job.id for job in must_wait]))
            free = dict(rows.values_list("pk", "revision"))
            lifecycle.block(jobs, [job for job in must_wait if job.revision == free.get(job.id)])
        claimed = _claim_these(available, chosen, wanted)
        slots.store(wanted.token, {job.id for job in claimed}, wanted.time())
        if slots.passed_over:
            wanted.passed_over()
        waiting.is_cut = waiting.is_cut or slots.leaves_unread
        if rules.limited:
            handed_out = Counter(job.queue for job in claimed if job.queue in rules.limited)
            count_handed_out(jobs.db, handed_out, wanted.time())
    _note_turns(_turns[jobs.db], waiting, chosen)
    return claimed, slots.unread_partitions


def _lock_first(jobs: QuerySet[Any], rooms: Mapping[str, int], wanted: ClaimOptions) -> list[Any]:
    """Lock the first jobs of some queues: of each queue only as many as it has among the first jobs of all queues."""
    available = wanted.available(jobs)
    shares: Mapping[str, int] = rooms
    if len(rooms) > 1 and not available.dialect.single_writer:
        first = (job for queue, room in rooms.items() for job in available.first(queue, UNBLOCKED, room))
        shares = Counter(job.queue for job in heapq.nsmallest(wanted.limit, first, key=rank))
    rows = unlocked(available.rows.only(*wanted.fields).order_by(*ORDER))
    locked = [row for queue, share in shares.items() for row in rows.filter(blocked_by=UNBLOCKED, queue=queue)[:share]]
    if shares is not rooms and len(locked) < sum(shares.values()):
        wanted.passed_over()
    return heapq.nsmallest(wanted.limit, locked, key=rank)


def _lock_rows(jobs: QuerySet[Any], rules: Rules, wanted: ClaimOptions) -> list[Queue]:
    """Lock the rows of the queues with a limit, and return those that no other claim has locked."""
    locked = lock_rows(jobs, rules.limited)
    if len(locked) < len(rules.limited):
        wanted.passed_over()
    return locked


def _rooms(jobs: QuerySet[Any], rules: Rules, wanted: ClaimOptions, locked: Collection[Queue]) -> dict[str, int]:
    """Return how many jobs each queue may give."""
    rooms = dict.fromkeys((name for name in rules.queues if name not in rules.limited), wanted.limit)
    return rooms | rooms_left(jobs, wanted.limit, locked, wanted.now)


def _choose(
    plain: Collection[Candidate], rooms: Mapping[str, int], waiting: Waiting, wanted: ClaimOptions, slots: Slots
) -> tuple[list[Candidate], list[Candidate]]:
    """Return the first jobs that find slots, and those before them that must wait, each with its new ``blocked_by``."""
    chosen: list[Candidate] = []
    must_wait: list[Candidate] = []
    passed: set[UUID] = set()
    left, room, limit = dict(rooms), Room(wanted.shares), wanted.limit
    for job in _merged(plain, rooms, waiting, passed):
        if len(chosen) == limit:
            break
        if waiting.may_be_preceded(job):
            continue
        if not room.has_for(job):
            passed.add(job.id)
            continue
        before = job.blocked_by
        is_taken = left[job.queue] > 0 and (slots.take(job) if job.limits else True)
        if is_taken:
            chosen.append(job)
            room.take(job)
            left[job.queue] -= 1
            continue
        passed.add(job.id)
        if job.blocked_by != before:
            must_wait.append(job)
    if slots.unread_partitions:
        return [], must_wait  # once more, with the jobs that must be read first
    return chosen, must_wait


def _merged(
    plain: Collection[Candidate], rooms: Mapping[str, int], waiting: Waiting, passed: Collection[UUID]
) -> Iterator[Candidate]:
    """Yield the jobs of all queues in the order in which they should start."""
    by_queue: dict[str, list[Candidate]] = defaultdict(list)
    for job in plain:
        by_queue[job.queue].append(job)
    lines = [
        chain(
            sorted([*by_queue[queue], *waiting.lines.get(queue, ())], key=rank),
            _in_turns(waiting.fair.get(queue, ()), passed),
        )
        for queue in rooms
    ]
    return heapq.merge(*lines, key=rank)


def _in_turns(partitions: Iterable[Iterable[Candidate]], passed: Collection[UUID]) -> Iterator[Candidate]:
    """Yield a job of each partition, then another one, and so on; in the place of one that was ``passed``, its next."""
    left = [iter(partition) for partition in partitions]
    while left:
        for partition in list(left):
            for job in partition:
                yield job
                if job.id not in passed:
                    break
            else:
                left.remove(partition)


def _claim_these(available: AvailableJobs, chosen: Sequence[Candidate], wanted: ClaimOptions) -> list[Any]:
    """Claim these jobs, but for those that were claimed, rewritten or locked meanwhile; return them in this order.

    Their ``blocked_by`` is what it is to be while they run.
    """
    if not chosen:
        return []
    blocks, revisions = {job.id: job.blocked_by for job in chosen}, {job.id: job.revision for job in chosen}
    jobs, dialect = available.jobs, available.dialect
    if dialect.claims_at_once:
        rows = dialect.claim(wanted.request({}, blocks=blocks, revisions=[*revisions.values()]), wanted.overlap)
        by_id = {job.id: job for job in rows}
    else:
        locked = unlocked(available.rows.only(*wanted.fields, "blocked_by", "revision")).filter(pk__in=list(blocks))
        by_id = {job.id: job for job in locked if job.revision == revisions[job.id]}
        lifecycle.block(jobs, [job for job in chosen if job.id in by_id and job.blocked_by != by_id[job.id].blocked_by])
        _take(jobs, by_id.values(), wanted)
    return [by_id[id] for id in blocks if id in by_id]


def _take(jobs: QuerySet[Any], chosen: Collection[Any], wanted: ClaimOptions) -> None:
    """Claim locked rows."""
    holder: dict[str, Any] = {"worker_id": wanted.worker_id, "token": wanted.token}
    for length, ids in wanted.lease.by_length(chosen).items():
        rows = jobs.filter(pk__in=ids)
        lifecycle.claim(rows, wanted.now, lease=length, unconfirmed=wanted.lease.unconfirmed or None, **holder)
    if wanted.lease.timed:
        within_time_limits(jobs, chosen, wanted.now)
    for job in chosen:
        job.attempt += 1


def _note_turns(turns: RoundRobin, waiting: Waiting, chosen: Sequence[Candidate]) -> None:
    """Note the partition of each fair queue that had the last turn."""
    for queue, partitions in waiting.fair.items():
        with_turn = {job.id for partition in partitions for job in partition}
        for job in chosen:
            if job.id in with_turn:
                turns.fair[queue] = job.fair_partition or ""
