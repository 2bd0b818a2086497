"""The limits by name, and their partitions: which numbers are in force, what runs, and what waits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connections

from ..db.index_scan import walk
from ..exceptions import Message
from ..handlers.redaction import redacted_member
from ..handlers.registry import registry
from ..models import Job, LimitOverride, LimitPartition
from ..models.limit import in_force
from ..ojs.blocking import ID, PARTITIONS
from ..ojs.states import JobState
from .limit_waits import TIMES, short_partition
from .queues import MOST_QUEUES, blocks_of_queues, live, walked
from .stopped import stopped
from .text import MOST_COUNTED

MOST_NAMES = 200
"""How many names of limits are looked at."""
MOST_PARTITIONS = 1_000
"""How many of the partitions for which jobs wait are looked at."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """How many jobs of a partition may run at once, and how many may start in so many ``seconds``; None: any number."""

    running: int | None = None
    rate: int | None = None
    seconds: int = 0

    @classmethod
    def of(cls, limit: Mapping[str, Any]) -> Numbers:
        """Return the numbers of a limit as a job stores it."""
        return cls(limit.get("running"), limit.get("rate"), limit.get("seconds", 0))

    def under(self, override: LimitOverride) -> Numbers:
        """Return these numbers as an operator has changed them."""
        limit = {"running": self.running, "rate": self.rate} | ({"seconds": self.seconds} if self.seconds else {})
        return Numbers(*in_force(limit, override), self.seconds)

    def __str__(self) -> str:
        parts = [] if self.running is None else [Message("{count} at once", count=f"{self.running:,}")]
        if self.rate is not None:
            parts.append(Message("{count} per {time}", count=f"{self.rate:,}", time=TIMES.get(self.seconds, _OWN_TIME)))
        return Message.joined(", ", parts)


_OWN_TIME = Message("time of the limit")


@dataclass(frozen=True, slots=True)
class LimitReport:
    """A limit now. Counts stop at `MOST_COUNTED` + 1, which means: that many or more.

    ``given``: the numbers that jobs and handlers say; ``override``: those that an operator has set. ``partitions``:
    how many were used in the last day. ``running`` and ``waiting`` count jobs, ``waiting_partitions`` those for
    which jobs wait. ``is_cut``: whether jobs may wait for more partitions than were looked at.
    """

    name: str
    given: Sequence[Numbers] = ()
    override: LimitOverride | None = None
    partitions: int = 0
    running: int = 0
    waiting: int = 0
    waiting_partitions: int = 0
    is_cut: bool = False

    @property
    def numbers(self) -> list[Numbers]:
        """The numbers in force; several, if jobs say different ones."""
        if self.override is None:
            return list(self.given)
        if not self.given:
            return [Numbers(self.override.running, self.override.rate)]
        return list(dict.fromkeys(one.under(self.override) for one in self.given))


@dataclass(slots=True)
class PartitionReport:
    """A partition of a limit now: how many jobs run and wait there, ``since`` when, and the ``first`` of these.

    ``text``: the partition in words, without redacted values. ``job``: one of its jobs, and ``numbers``: those of one.
    """

    name: str = ""
    text: str = ""
    running: int = 0
    waiting: int = 0
    since: datetime | None = None
    first: UUID | None = None
    job: UUID | None = None
    numbers: Numbers | None = None


def limits(using: str) -> list[LimitReport]:
    """Return the limits that are in use, declared or set by operators, sorted by name.

    At most seven statements; three while no job has a limit.
    """
    used = _used(using)
    partitions = _partitions(using, with_running=bool(used))
    is_cut = sum(partition.waiting > 0 for partition in partitions.values()) >= MOST_PARTITIONS
    overrides = {row.name: row for row in LimitOverride.objects.using(using).order_by("name")[:MOST_NAMES]}
    by_name: dict[str, list[PartitionReport]] = defaultdict(list)
    given: dict[str, list[Numbers]] = defaultdict(list)
    for partition in partitions.values():
        by_name[partition.name].append(partition)
        given[partition.name] += [partition.numbers] if partition.numbers else []
    examples = [some[0].job for name, some in by_name.items() if not given[name]]
    for job in _jobs(using, examples):
        for limit in job.limits or ():
            given[limit["name"]].append(Numbers.of(limit))
    for name, numbers in _declared():
        given[name].append(numbers)
    return [
        LimitReport(
            name=name,
            given=tuple(dict.fromkeys(given[name])),
            override=overrides.get(name),
            partitions=used.get(name, 0),
            running=sum(partition.running for partition in by_name[name]),
            waiting=min(sum(partition.waiting for partition in by_name[name]), MOST_COUNTED + 1),
            waiting_partitions=sum(partition.waiting > 0 for partition in by_name[name]),
            is_cut=is_cut,
        )
        for name in sorted({*used, *by_name, *overrides, *given})
    ]


def partitions_of(using: str, name: str, most: int) -> list[PartitionReport]:
    """Return up to ``most`` partitions of a limit under which jobs wait or run, those for which most wait first.

    At most six statements.
    """
    partitions = {id: partition for id, partition in _partitions(using).items() if partition.name == name}
    return _shown(using, partitions, most)


def waiting_partitions(using: str, most: int) -> list[PartitionReport]:
    """Return up to ``most`` partitions for which jobs wait, those for which most wait first.

    At most five statements; one while no job waits for a slot.
    """
    return _shown(using, _partitions(using, with_running=False), most)


def _shown(using: str, partitions: Mapping[str, PartitionReport], most: int) -> list[PartitionReport]:
    if not partitions:
        return []
    ids = sorted(partitions, key=lambda id: (-partitions[id].waiting, -partitions[id].running, id))[:most]
    since = dict(LimitPartition.objects.using(using).filter(pk__in=ids).values_list("pk", "full_since"))
    for job in _jobs(using, (partitions[id].job for id in ids), "type", "args"):
        for limit in redacted_member(job, "limits") or ():
            if limit["id"] in partitions:
                partitions[limit["id"]].text = short_partition(limit)
    for id in ids:
        partitions[id].since = since.get(id) if partitions[id].waiting else None
    return [partitions[id] for id in ids if partitions[id].text]  # else its job has ended meanwhile


def _partitions(using: str, *, with_running: bool = True) -> dict[str, PartitionReport]:
    """Return the partitions under which jobs wait, and run, by their ids. At most four statements."""
    partitions: dict[str, PartitionReport] = defaultdict(PartitionReport)
    for id, count, first in _waiting(using):
        partition = partitions[id]
        partition.waiting, partition.first = min(partition.waiting + count, MOST_COUNTED + 1), partition.first or first
        partition.job = partition.first
    if with_running:
        limited = Job.objects.using(using).filter(limits__isnull=False).only("limits").order_by()
        active = limited.filter(state=JobState.ACTIVE, finished_at=None)
        others = limited.filter(pk__in=stopped(using).values("job_id"))
        for job in active.union(others, all=True)[:MOST_COUNTED]:
            for limit in job.limits or ():
                partition = partitions[limit["id"]]
                partition.name, partition.numbers, partition.job = limit["name"], Numbers.of(limit), job.pk
                partition.running += 1
    unnamed = [id for id, partition in partitions.items() if not partition.name]
    if unnamed:
        for id, name in LimitPartition.objects.using(using).filter(pk__in=unnamed).values_list("pk", "name"):
            partitions[id].name = name
    # A partition that has been full for more than a day may have no row.
    for job in _jobs(using, (partition.job for partition in partitions.values() if not partition.name)):
        for limit in job.limits or ():
            if limit["id"] in partitions:
                partitions[limit["id"]].name = limit["name"]
    return {id: partition for id, partition in partitions.items() if partition.name}


def _jobs(using: str, ids: Iterable[UUID | None], *fields: str) -> list[Job]:
    """Read the limits of some jobs, and more fields. One statement, or none."""
    wanted = {id for id in ids if id is not None}
    return list(Job.objects.using(using).filter(pk__in=wanted).only("limits", *fields)) if wanted else []


def _declared() -> Iterator[tuple[str, Numbers]]:
    for definition in registry.definitions():
        for limit in definition.limits:
            yield limit.name, Numbers(limit.running, limit.rate, limit.seconds)


def _used(using: str) -> dict[str, int]:
    """Return the names of limits that have partitions, and how many. One statement, one index search for each name."""
    table = connections[using].ops.quote_name(LimitPartition._meta.db_table)
    more = f"(SELECT 1 FROM {table} WHERE name = used.name LIMIT 1 OFFSET {MOST_COUNTED}) IS NOT NULL"
    sql = (
        f"WITH RECURSIVE {walk('used', 'name', f'{table} WHERE TRUE', MOST_NAMES)}"
        f" SELECT name, CASE WHEN {more} THEN {MOST_COUNTED + 1}"
        f" ELSE (SELECT COUNT(*) FROM {table} WHERE name = used.name) END FROM used WHERE name IS NOT NULL"
    )
    with connections[using].cursor() as cursor:
        cursor.execute(sql)
        return dict(cursor.fetchall())


def _waiting(using: str) -> list[tuple[str, int, UUID]]:
    """Return the partitions for which jobs wait, by queue and turn: the id, how many wait, and the first of them.

    One statement, which goes through the index from partition to partition; on MariaDB, through the waiting jobs.
    """
    connection = connections[using]
    with connection.cursor() as cursor:
        blocks = blocks_of_queues(connection, PARTITIONS, MOST_PARTITIONS)
        cursor.execute(f"WITH RECURSIVE {walked(JobState.AVAILABLE, MOST_QUEUES)}, {blocks} {_COUNTED}")
        rows = cursor.fetchall()
    return [(block[:ID], count, UUID(str(first))) for block, count, first in rows if first is not None]


_BEHIND_ONE = f"FROM {live(JobState.AVAILABLE)} AND queue = blocked.queue AND blocked_by = blocked.blocked_by"
_COUNTED = (
    f" SELECT blocked_by, CASE WHEN (SELECT 1 {_BEHIND_ONE} LIMIT 1 OFFSET {MOST_COUNTED}) IS NOT NULL"
    f" THEN {MOST_COUNTED + 1}"
    f" ELSE (SELECT COUNT(*) {_BEHIND_ONE}) END,"
    f" (SELECT id {_BEHIND_ONE} ORDER BY priority DESC, enqueued_at, id LIMIT 1)"
    f" FROM blocked WHERE blocked_by IS NOT NULL LIMIT {MOST_PARTITIONS}"
)
