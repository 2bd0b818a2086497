"""Slots: lock the partitions of limits, count what runs and what has started (rates), and take slots for a claim."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any
from uuid import UUID

from django.db.models import F, Min, QuerySet, Sum

from ..db.dialects import dialect_of
from ..db.fast.cursors import Plan, execute
from ..db.fast.rows import RowReader, loaded
from ..db.locking import skipping_locked
from ..models import LimitOverride, LimitPartition, Slot
from ..models.limit import in_force, weight_in_force
from ..ojs.blocking import ID, LIMITED
from .blocks import IS_RUNNING, running_rows
from .candidates import AvailableJobs, Candidate, Rank, rank
from .prune import delete_stale
from .waiting import Waiting, first_in_line

USED_AGAIN = timedelta(hours=1)
"""How old the time of a partition's last use may be, before a claim writes it again."""
HEAVY_PAUSE = timedelta(seconds=1)
"""When a claim looks again at a partition that has free slots, but fewer than the next job weighs."""
LONGEST_LEFT = timedelta(seconds=3)
"""How long a slot is left free for the first job of another queue, before later jobs take it: no worker may come."""
MOST_STALE = 100
"""How many slots of ended runs its partitions may have before a claim deletes them; maintenance deletes the others."""
MOST_KNOWN = 100_000
"""How many partitions a process remembers as stored, before it forgets them all: about 12 MB."""


_known: dict[str, set[str]] = defaultdict(set)
"""By database: the partitions that had rows when this process last looked."""


def ensure_partitions(available: AvailableJobs, waiting: Waiting) -> None:
    """Store the partitions that have no row yet, in a transaction of its own: others wait for it only for a moment."""
    known = _known[available.using]
    new = waiting.partitions.keys() - known
    if new:
        rows = [
            LimitPartition(pk=id, name=limit["name"], key=limit["key"], used_at=available.now)
            # In the same order in all claims, so that none waits for another in turn.
            for id, limit in sorted((id, waiting.partitions[id]) for id in new)
        ]
        LimitPartition.objects.using(available.using).bulk_create(rows, ignore_conflicts=True)
        if len(known) > MOST_KNOWN:
            known.clear()
        known |= new


def forget_slots(using: str, jobs: Collection[UUID], token: UUID) -> None:
    """Delete the slots that jobs have taken under a lease token, as they were requeued and have not started."""
    taken = Slot.objects.using(using).filter(job_id__in=jobs, lease_token=token)
    if partitions := set(taken.values_list("partition_id", flat=True)):
        taken.delete()
        # The jobs that wait are looked at again.
        LimitPartition.objects.using(using).filter(pk__in=sorted(partitions)).update(full_at=None, opens_at=None)


class Slots:
    """The slots of the partitions for which jobs wait, in one claim and its transaction.

    A partition that another claim has locked is left to it, with its jobs, and a slot to the first job of another
    queue, unless that is ``closed``: ``passed_over`` tells whether there was one. ``closed`` None: of any queue. If the
    rows of some partitions are gone, ``are_known`` is false: then store them, and begin again.
    """

    def __init__(self, available: AvailableJobs, waiting: Waiting, closed: AbstractSet[str] | None = None) -> None:
        self._ready = available
        self._closed = closed
        self._woken: set[str] = set()
        """The queues to whose first jobs a slot is left from now on."""
        self._empty: set[tuple[str, str]] = set()
        """Queues and partitions for which none of the `_first_places` was found."""
        self._now = available.now
        self._waiting = waiting
        self._taken: list[tuple[dict[str, Any], timedelta]] = []
        """Slots, and for how long a rate counts each."""
        self._partitions = self._lock()
        # After the locks: where a transaction reads from a snapshot, it has all claims that held them before.
        self._overrides = self._read_overrides() if self._partitions else {}
        missing = waiting.partitions.keys() - self._partitions.keys()
        self.passed_over = bool(missing)
        self.unread_partitions: set[str] = set()
        """The partitions with slots whose waiting jobs the next look must read: later ones would pass them."""
        self.are_known = not missing or self._forget(missing)
        if self._partitions:
            self._count_what_runs()
            self._count_what_started()

    @property
    def leaves_unread(self) -> bool:
        """Whether jobs wait for a partition that may have slots left, and were not read."""
        for id, place in self._waiting.opened.items():
            if place is None and id not in self._waiting.cut_fair:
                continue
            if id not in self._waiting.partitions:
                return True  # none of its jobs was read
            if id in self._partitions and not self._partitions[id].is_full:
                return True
        return False

    def take(self, job: Candidate) -> bool:
        """Take the slots that a job needs; return whether it got them.

        Its ``blocked_by`` becomes what it is while it runs, or must wait; it stays while that is not known.
        """
        needed: list[tuple[LockedPartition, Mapping[str, Any]]] = []
        for limit in job.limits:
            if (partition := self._partitions.get(limit["id"])) is None:
                return False
            needed.append((partition, limit))
        for partition, limit in needed:
            if not partition.is_closed:
                partition.is_full = not self._has_room(partition, limit)
                is_behind = not partition.is_full and self._is_behind(partition, job)
                if is_behind and partition.is_unread:
                    self.unread_partitions |= {
                        partition.id
                        for partition, _ in needed
                        if self._is_behind(partition, job) and partition.is_unread
                    }
                    return False
                is_left = not is_behind and self._must_leave(partition, job)
                partition.is_closed = partition.is_full or is_behind or is_left
            if partition.is_closed:
                job.blocked_by = partition.id + (job.fair_partition or "")
                return False
        job.blocked_by = job.fair_partition or LIMITED
        for number, (partition, limit) in enumerate(needed):
            self._use(partition, limit, job, is_first=number == 0)
        return True

    def store(self, token: UUID, claimed: AbstractSet[UUID], at: datetime) -> None:
        """Store the slots of the jobs that were ``claimed``, under their lease token, and which partitions are full.

        A rate counts them as started ``at`` this time. The partitions for which a job took slots, but was not claimed,
        are looked at again.
        """
        using = self._ready.using
        slots = [
            {**slot, "lease_token": token, "taken_at": at, "kept_until": at + kept_for}
            for slot, kept_for in self._taken
            if slot["job_id"] in claimed
        ]
        if slots:
            dialect_of(Slot.objects.using(using)).insert_rows(slots)
        touches = self._ready.dialect.repeats_reads
        awaited: dict[str, set[str]] = defaultdict(set)
        for job in self._waiting.jobs():
            if job.id not in claimed:
                awaited[job.blocked_by[:ID]].add(job.queue)
        groups: dict[tuple[Any, ...], list[str]] = defaultdict(list)
        for id, partition in self._partitions.items():
            full_at, opens_at = partition.full_at, partition.opens_at
            if id in self.unread_partitions or not partition.users <= claimed:
                full_at = opens_at = None
            elif partition.is_full:
                full_at, opens_at = None if partition.is_early else partition.running, partition.looks_at
            elif not partition.is_closed and id not in awaited and self._waiting.has_all_of(id):
                full_at = opens_at = None
            queues = frozenset(awaited[id]).union(queue for queue in partition.queues if not self._has_none(queue, id))
            full_since = (partition.full_since or self._now) if queues else None
            after = full_at, full_since, opens_at, queues, partition.left_since
            # Where a later claim may read from an older snapshot, it must meet a row that was written since.
            if after != partition.stored or (
                partition.users and (touches or self._now - partition.used_at > USED_AGAIN)
            ):
                groups[after].append(id)
        for (full_at, full_since, opens_at, queues, left_since), ids in groups.items():
            self._rows_of(ids).update(
                full_at=full_at,
                full_since=full_since,
                opens_at=opens_at,
                queues=sorted(queues) or None,
                left_since=left_since,
                used_at=self._now,
            )
        self._ready.dialect.wake(self._woken)

    def _forget(self, missing: Collection[str]) -> bool:
        """Forget the partitions whose rows were pruned; return whether all are there, only locked."""
        locked = set(self._rows_of(list(missing)).values_list("pk", flat=True))
        _known[self._ready.using] -= set(missing) - locked
        return len(locked) == len(missing)

    def _lock(self) -> dict[str, LockedPartition]:
        if not self._waiting.partitions:
            return {}
        dialect = dialect_of(LimitPartition.objects.using(self._ready.using))
        reader, table = RowReader(LimitPartition, dialect.connection, COLUMNS), LimitPartition._meta.db_table
        among, ids = dialect.among("id", list(self._waiting.partitions))
        columns, lock = ", ".join(COLUMNS), skipping_locked(dialect)
        statement = f"SELECT {columns} FROM {table} WHERE {among} ORDER BY id {lock}"
        # A kept plan of PostgreSQL would compare each row of a small table with every id.
        rows = execute(dialect, statement, ids, plan=Plan.ONCE)[1]
        return {partition.id: partition for partition in (LockedPartition(*row) for row in reader.convert(rows))}

    def _read_overrides(self) -> dict[str, LimitOverride]:
        dialect = self._ready.dialect
        reader = RowReader(LimitOverride, dialect.connection, ("name", "running", "rate"))
        rows = execute(dialect, f"SELECT name, running, rate FROM {LimitOverride._meta.db_table}", ())[1]
        return {row.name: row for row in map(reader.read, rows)}

    def _rows_of(self, ids: list[str]) -> QuerySet[LimitPartition]:
        rows = LimitPartition.objects.using(self._ready.using)
        condition, parameters = self._ready.dialect.among("id", ids)
        return rows.extra(where=[condition], params=parameters)

    def _is_behind(self, partition: LockedPartition, job: Candidate) -> bool:
        """Tell whether jobs that wait for the partition, and were not read, come before this one."""
        if not partition.is_cutoff_known:
            partition.is_cutoff_known, partition.cutoff = True, self._find_cutoff(partition)
        if job.fair_partition and not partition.is_unread:
            return False  # the jobs of a fair queue go by their turns
        return partition.cutoff is not None and rank(job) > partition.cutoff

    def _find_cutoff(self, partition: LockedPartition) -> Rank | None:
        waiting = self._waiting
        place, is_opened = waiting.opened.get(partition.id), partition.id in waiting.opened
        unread = partition.queues & waiting.lines.keys() - waiting.read_in.get(partition.id, set())
        if not unread or (is_opened and not waiting.is_walk_cut):
            return place
        first = first_in_line(self._ready, unread, partition.id)
        partition.is_unread = first is not None
        if first is None:
            waiting.opened.setdefault(partition.id, None)
        return min((one for one in (place, first) if one is not None), default=None)

    def _must_leave(self, partition: LockedPartition, job: Candidate) -> bool:
        """Tell whether a slot is for a job of another queue.

        Nobody may come for that job. So a slot is left free for a while only, until a claim has asked for that job.
        """
        if partition.is_full and partition.left_since is None:
            return False
        places = self._first_places.get(partition.id, {})
        # The jobs of a fair queue go by their turns: its first one stands for all.
        own = places.get((job.queue, True)) if job.fair_partition else None
        place = own or rank(job)
        others = [(other, queue) for (queue, is_own), other in places.items() if not is_own]
        first, queue = min(others, default=(place, job.queue))
        if place <= first:
            partition.left_since = None
            return False
        if partition.left_since is None:
            partition.left_since = self._now
            self._woken.add(queue)
        is_left = self._now - partition.left_since < LONGEST_LEFT
        self.passed_over = self.passed_over or is_left
        return is_left

    @cached_property
    def _first_places(self) -> dict[str, dict[tuple[str, bool], Rank]]:
        """By partition: the places of the first jobs that wait for it and that this claim does not take.

        They are by queue, and whether the place is that of a fair queue of this claim.
        """
        places: dict[str, dict[tuple[str, bool], Rank]] = defaultdict(dict)
        if self._closed is None:
            return places
        own = self._waiting.lines.keys()
        asked: list[tuple[str, str]] = []
        for id, partition in self._partitions.items():
            if elsewhere := partition.queues - own - self._closed:
                fair = (queue for queue in partition.queues & own if self._waiting.fair.get(queue))
                asked += ((queue, id) for queue in (*elsewhere, *fair))
        self._empty = set(asked)
        for job in self._ready.of_any_type().first_of_partitions(asked) if asked else ():
            id = job.blocked_by[:ID]
            self._empty.discard((job.queue, id))
            places[id][job.queue, job.queue in own] = rank(job)
        return places

    def _has_none(self, queue: str, id: str) -> bool:
        """Tell whether no job of a queue waits for a partition, but for those that this claim has read."""
        if queue in self._waiting.lines:
            return self._waiting.has_all_of(id) and queue in self._waiting.read_in.get(id, ())
        return (queue, id) in self._empty

    def _has_room(self, partition: LockedPartition, limit: Mapping[str, Any]) -> bool:
        running, rate = self._numbers(limit)
        weight = weight_in_force(limit, running, rate)
        if running is not None and partition.running + weight > running:
            if partition.running < running:
                partition.looks_at = self._now + HEAVY_PAUSE
            return False
        if rate is not None:
            seconds = limit["seconds"]
            if partition.recent[seconds] + weight > rate:
                partition.is_early = True
                partition.looks_at = partition.first_start.get(seconds, self._now) + timedelta(seconds=seconds)
                return False
        return True

    def _use(self, partition: LockedPartition, limit: Mapping[str, Any], job: Candidate, *, is_first: bool) -> None:
        weight = limit.get("weight", 1)
        partition.users.add(job.id)
        partition.running += weight
        if "seconds" in limit:
            for seconds in partition.recent:
                partition.recent[seconds] += weight
        if is_first and weight == 1 and "seconds" not in limit:
            job.blocked_by = partition.id  # its row is the slot
            return
        slot = {"partition_id": partition.id, "job_id": job.id, "weight": weight}
        self._taken.append((slot, timedelta(seconds=limit.get("seconds", 0))))

    def _numbers(self, limit: Mapping[str, Any]) -> tuple[int | None, int | None]:
        return in_force(limit, self._overrides.get(limit["name"]))

    def _count_what_runs(self) -> None:
        """Count the running rows that are slots of the partitions, and the further slots of running rows."""
        dialect, jobs, ids, stale = self._ready.dialect, self._ready.table, list(self._partitions), 0
        of_rows, blocks = dialect.among("blocked_by", ids)
        of_keys, partitions = dialect.among("partition_id", ids)
        moment = dialect.connection.ops.adapt_datetimefield_value(self._now)
        _, found = execute(
            dialect,
            f"SELECT counted.*, 0 FROM ({running_rows(jobs, of_rows)}) AS counted UNION ALL"
            " SELECT partition_id, SUM(CASE WHEN is_running THEN weight ELSE 0 END),"
            " SUM(CASE WHEN is_running THEN 0 ELSE 1 END) FROM (SELECT partition_id, weight,"
            f" {IS_RUNNING.format(jobs=jobs)} AS is_running FROM {Slot._meta.db_table} AS slot WHERE {of_keys})"
            " AS taken GROUP BY partition_id",
            [*blocks, moment, *blocks, moment, *partitions],
            plan=Plan.FRESH,
        )
        for id, weight, ended in found:
            self._partitions[id].running += int(weight)
            stale += int(ended)
        if stale > MOST_STALE:
            delete_stale(self._ready.jobs, self._now, ids)

    def _count_what_started(self) -> None:
        for seconds, partitions in self._waiting.rates.items():
            ids = [id for id in partitions if id in self._partitions]
            for id in ids:
                self._partitions[id].recent[seconds] = 0
            slots = started_since(self._ready.using, self._now - timedelta(seconds=seconds)).filter(partition__in=ids)
            for id, weight, first in slots.values_list("partition").annotate(Sum("weight"), Min("taken_at")):
                self._partitions[id].recent[seconds] = weight
                self._partitions[id].first_start[seconds] = first


def started_since(using: str, moment: datetime) -> QuerySet[Slot]:
    """Return the slots that a rate counts: of jobs that have one and have started after a moment."""
    return Slot.objects.using(using).filter(kept_until__gt=F("taken_at"), taken_at__gt=moment)


COLUMNS = ("id", "full_at", "full_since", "opens_at", "used_at", "queues", "left_since")
"""The columns that a claim reads, in the order of the members."""


@dataclass(slots=True)
class LockedPartition:
    """What a claim knows of a partition whose row it has locked; the first five members are columns of it.

    ``running``: the weight that runs. ``recent``: the weight of jobs with a rate that has started in the last so many
    seconds, and ``first_start``: when the first of these did. ``cutoff``: jobs whose place is after this one must wait:
    it is the first job that waits without having been read, or the last one that was read; ``is_unread``: it had no
    slots at the look, but jobs wait for it. ``is_full``: a job has found no slot; ``is_early``: its rate is the reason.
    ``is_closed``: a job must wait, so those behind it must wait, too. ``looks_at``: when a claim is to look
    again, though as many jobs run. ``users``: the jobs that have taken slots. ``queues``: those in which jobs may
    wait for it. ``stored``: what the claim may have to write again.
    """

    id: str
    full_at: int | None
    full_since: datetime | None
    opens_at: datetime | None
    used_at: datetime
    queues_text: str | None
    left_since: datetime | None
    running: int = 0
    recent: dict[int, int] = field(default_factory=dict)
    first_start: dict[int, datetime] = field(default_factory=dict)
    cutoff: Rank | None = None
    is_cutoff_known: bool = False
    is_unread: bool = False
    is_full: bool = False
    is_closed: bool = False
    is_early: bool = False
    looks_at: datetime | None = None
    users: set[UUID] = field(default_factory=set)
    queues: frozenset[str] = frozenset()
    stored: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        self.queues = frozenset(loaded(self.queues_text) if self.queues_text else ())
        self.stored = self.full_at, self.full_since, self.opens_at, self.queues, self.left_since
