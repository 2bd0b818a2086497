"""The limits by name, and their partitions: which numbers are in force, what runs, and what waits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connections
from django.db.models import Count, Exists, OuterRef, QuerySet
from django.db.models.functions import Left

from ..db.index_scan import walk
from ..exceptions import Message
from ..handlers.redaction import redacted_member
from ..handlers.registry import registry
from ..models import Job, LimitOverride, LimitPartition
from ..models.limit import in_force
from ..ojs.blocking import AFTER_PARTITIONS, ID, PARTITIONS
from ..ojs.limits import are_readable
from ..ojs.states import JobState
from .limit_waits import TIMES, short_partition
from .queues import MOST_QUEUES, blocks_of_queues, every_queue, live, walked
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
    which jobs wait. ``is_cut``: whether not all names, jobs and partitions were looked at: each count may be higher.
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
    ``is_cut``: whether not all jobs and partitions were looked at.
    """

    name: str = ""
    text: str = ""
    running: int = 0
    waiting: int = 0
    since: datetime | None = None
    first: UUID | None = None
    job: UUID | None = None
    numbers: Numbers | None = None
    is_cut: bool = False


def limits(using: str) -> list[LimitReport]:
    """Return the limits that are in use, declared or set by operators, sorted by name.

    At most seven statements; four while no job has a limit.
    """
    used = _used(using)
    partitions, is_cut = _partitions(using)
    overrides = {row.name: row for row in LimitOverride.objects.using(using).order_by("name")[:MOST_NAMES]}
    by_name: dict[str, list[PartitionReport]] = defaultdict(list)
    given: dict[str, list[Numbers]] = defaultdict(list)
    for partition in partitions.values():
        by_name[partition.name].append(partition)
        given[partition.name] += [partition.numbers] if partition.numbers else []
    examples = [some[0].job for name, some in by_name.items() if not given[name]]
    for job in _jobs(using, examples):
        for limit in _readable(job.limits):
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
            is_cut=is_cut or len(used) >= MOST_NAMES,
        )
        for name in sorted({*used, *by_name, *overrides, *given})
    ]


def counted(using: str) -> list[LimitReport]:
    """Count every job that runs under the limits of `limits`, or waits for their slots. No report says numbers.

    Four statements, and a fifth if jobs wait for partitions without a row. Their time depends on how many jobs these
    are.
    """
    running, waiting, partitions = Counter[str](), Counter[str](), Counter[str]()
    active, stopping = (jobs.values_list("limits").annotate(Count("pk")) for jobs in _running(using))
    for limits, count in active.union(stopping, all=True):
        for limit in _readable(limits):
            running[limit["name"]] += count
    for name, count, jobs in _every_waiting(using):
        partitions[name] += count
        waiting[name] += jobs
    names = {*_used(using), *running, *waiting, *(name for name, _ in _declared())}
    names.update(LimitOverride.objects.using(using).values_list("name", flat=True))
    return [
        LimitReport(name, running=running[name], waiting=waiting[name], waiting_partitions=partitions[name])
        for name in sorted(names)
    ]


def partitions_of(using: str, name: str, most: int) -> list[PartitionReport]:
    """Return up to ``most`` partitions of a limit under which jobs wait or run, those for which most wait first.

    At most six statements.
    """
    partitions, is_cut = _partitions(using)
    return _shown(using, {id: one for id, one in partitions.items() if one.name == name}, most, is_cut)


def waiting_partitions(using: str, most: int) -> list[PartitionReport]:
    """Return up to ``most`` partitions for which jobs wait, those for which most wait first.

    At most five statements; one while no job waits for a slot.
    """
    partitions, is_cut = _partitions(using, with_running=False)
    return _shown(using, partitions, most, is_cut)


def _shown(using: str, partitions: Mapping[str, PartitionReport], most: int, is_cut: bool) -> list[PartitionReport]:
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
        partitions[id].is_cut = is_cut
    return [partitions[id] for id in ids if partitions[id].text]  # else its job has ended meanwhile


def _partitions(using: str, *, with_running: bool = True) -> tuple[dict[str, PartitionReport], bool]:
    """Return the partitions under which jobs wait, and run, by their ids, and whether there may be more or more jobs.

    At most four statements.
    """
    partitions: dict[str, PartitionReport] = defaultdict(PartitionReport)
    waiting, is_cut = _waiting(using)
    for id, count, first in waiting:
        partition = partitions[id]
        partition.waiting, partition.first = min(partition.waiting + count, MOST_COUNTED + 1), partition.first or first
        partition.job = partition.first
    if with_running:
        active, stopping = (jobs.only("limits") for jobs in _running(using))
        runs = list(active.union(stopping, all=True)[: MOST_COUNTED + 1])
        is_cut = is_cut or len(runs) > MOST_COUNTED
        for job in runs[:MOST_COUNTED]:
            for limit in _readable(job.limits):
                partition = partitions[limit["id"]]
                partition.name, partition.numbers, partition.job = limit["name"], Numbers.of(limit), job.pk
                partition.running += 1
    unnamed = [id for id, partition in partitions.items() if not partition.name]
    if unnamed:
        for id, name in LimitPartition.objects.using(using).filter(pk__in=unnamed).values_list("pk", "name"):
            partitions[id].name = name
    # A partition that has been full for more than a day may have no row.
    for job in _jobs(using, (partition.job for partition in partitions.values() if not partition.name)):
        for limit in _readable(job.limits):
            if limit["id"] in partitions:
                partitions[limit["id"]].name = limit["name"]
    return {id: partition for id, partition in partitions.items() if partition.name}, is_cut


def _running(using: str) -> tuple[QuerySet[Any], QuerySet[Any]]:
    """Select the active jobs with limits, and those that were stopped and still run."""
    limited = Job.objects.using(using).filter(limits__isnull=False).order_by()
    active = limited.filter(state=JobState.ACTIVE, finished_at=None)
    return active, limited.filter(pk__in=stopped(using).values("job_id"))


def _readable(limits: Any) -> Sequence[Mapping[str, Any]]:
    return (limits or ()) if are_readable(limits) else ()


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


def _waiting(using: str) -> tuple[list[tuple[str, int, UUID]], bool]:
    """Return the partitions for which jobs wait, by queue and turn: the id, how many wait, and the first of them.

    Also return whether there may be more of them. One statement, which goes through the index from partition to
    partition; on MariaDB, through the waiting jobs.
    """
    connection = connections[using]
    with connection.cursor() as cursor:
        blocks = blocks_of_queues(connection, PARTITIONS, MOST_PARTITIONS)
        cursor.execute(f"WITH RECURSIVE {walked(JobState.AVAILABLE, MOST_QUEUES)}, {blocks} {_COUNTED}")
        *rows, (_, count_of_queues, _) = sorted(cursor.fetchall(), key=lambda row: row[0] is None)
    is_cut = count_of_queues >= MOST_QUEUES or len(rows) >= MOST_PARTITIONS
    return [(block[:ID], count, UUID(str(first))) for block, count, first in rows if first is not None], is_cut


def _every_waiting(using: str) -> Iterator[tuple[str, int, int]]:
    """Yield names of limits, how many of their partitions jobs wait for, and how many jobs; a name may come twice.

    One statement, which reads the index of all jobs that wait for partitions; a second if partitions have no row.
    """
    with connections[using].cursor() as cursor:
        cursor.execute(f"WITH RECURSIVE {every_queue(using, JobState.AVAILABLE)}, {_EVERY_WAITING}")
        rows = cursor.fetchall()
    names: dict[str, str] = {}
    if any(id is not None for _, id, *_ in rows):
        known = LimitPartition.objects.using(using).filter(pk=Left(OuterRef("blocked_by"), ID))
        blocked = Job.objects.using(using).filter(state=JobState.AVAILABLE, finished_at=None, blocked_by__gt=PARTITIONS)
        unknown = blocked.filter(~Exists(known), blocked_by__lt=AFTER_PARTITIONS).order_by()
        for limits in unknown.values_list("limits", flat=True).distinct():
            names |= {limit["id"]: limit["name"] for limit in _readable(limits)}
    for name, id, count, jobs in rows:
        if name := name or names.get(id):
            yield name, count, int(jobs)


_BEHIND_ONE = f"FROM {live(JobState.AVAILABLE)} AND queue = blocked.queue AND blocked_by = blocked.blocked_by"
_COUNTED = (
    f" SELECT blocked_by, CASE WHEN (SELECT 1 {_BEHIND_ONE} LIMIT 1 OFFSET {MOST_COUNTED}) IS NOT NULL"
    f" THEN {MOST_COUNTED + 1}"
    f" ELSE (SELECT COUNT(*) {_BEHIND_ONE}) END,"
    f" (SELECT id {_BEHIND_ONE} ORDER BY priority DESC, enqueued_at, id LIMIT 1)"
    f" FROM (SELECT queue, blocked_by FROM blocked WHERE blocked_by IS NOT NULL LIMIT {MOST_PARTITIONS}) blocked"
    f" UNION ALL SELECT NULL, COUNT(queue), NULL FROM {JobState.AVAILABLE}_queues"
)
_EVERY_WAITING = (
    f"waiting AS (SELECT SUBSTR(blocked_by, 1, {ID}) AS partition_id, COUNT(*) AS jobs"
    f" FROM {JobState.AVAILABLE}_queues named JOIN {Job._meta.db_table} job ON job.queue = named.queue"
    f" WHERE finished_at IS NULL AND state = '{JobState.AVAILABLE}'"
    f" AND blocked_by > '{PARTITIONS}' AND blocked_by < '{AFTER_PARTITIONS}' GROUP BY SUBSTR(blocked_by, 1, {ID}))"
    " SELECT name, CASE WHEN name IS NULL THEN partition_id END AS unnamed, COUNT(*), SUM(jobs)"
    f" FROM waiting LEFT JOIN {LimitPartition._meta.db_table} known ON known.id = partition_id"
    " GROUP BY name, CASE WHEN name IS NULL THEN partition_id END"
)
