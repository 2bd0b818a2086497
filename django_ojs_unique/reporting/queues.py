"""How many jobs each queue has, which has waited longest, and what operators have set for the queue."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings as django_settings
from django.db import connections
from django.db.models import Count, Min, OuterRef, Subquery

from ..conf import settings
from ..db.clock import moment_of
from ..db.dialects import kind_of
from ..db.index_scan import walk
from ..handlers.registry import registry
from ..models import Job, Queue
from ..ojs.blocking import AFTER_PARTITIONS, LIMITED, UNBLOCKED
from ..ojs.states import INCOMPLETE, KINDS, JobState
from .stopped import stopped
from .text import MOST_COUNTED

MOST_QUEUES = 500
"""How many of the queues that have jobs in one state are looked at."""
MOST_BLOCKS = 1_000
"""How many of the values that block jobs of a queue are looked at, for the job that has waited longest."""

MOST_LOOKED_AT = 10_000
"""How many of the newest jobs are looked at: their queues are known even if nothing waits there now."""

UNFINISHED = [state for state in JobState if state in INCOMPLETE]

_NO_BOUND = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Now:
    """All queues together. ``depth``: the unfinished jobs by state, of each queue up to `MOST_COUNTED` + 1.

    ``queue``, ``oldest`` and ``waits_since`` are of the available job that has waited longest. ``is_cut``: whether not
    all queues were looked at, and ``waits_cut``: whether another job may have waited longer.
    """

    depth: Mapping[str, int]
    queue: str = ""
    oldest: UUID | None = None
    waits_since: datetime | None = None
    is_cut: bool = False
    waits_cut: bool = False


@dataclass(frozen=True, slots=True)
class QueueReport:
    """A queue now. ``depth`` counts its unfinished jobs by state; `MOST_COUNTED` + 1 means: that many or more.

    ``oldest``: the id of the available job that has waited longest. ``waits_since``: when that job became available.
    ``waits_cut``: whether another one may have waited longer. ``stopped``: its stopped runs, which count for its
    ``limit``; 0 in a queue without a row.
    """

    name: str
    depth: Mapping[str, int] = field(default_factory=dict)
    oldest: UUID | None = None
    waits_since: datetime | None = None
    paused_at: datetime | None = None
    limit: int | None = None
    max_per_second: int | None = None
    stopped: int = 0
    waits_cut: bool = False

    @property
    def unfinished(self) -> int:
        return sum(self.depth.values())

    @property
    def waiting(self) -> int:
        return self.depth.get(JobState.AVAILABLE, 0)

    @property
    def running(self) -> int:
        return self.depth.get(JobState.ACTIVE, 0) + self.stopped


def declared() -> set[str]:
    """Return the queues that handlers declare."""
    return {definition.queue or settings.default_queue for definition in registry.definitions()}


def in_code() -> set[str]:
    """Return the queues that code and settings name."""
    backends: Any = getattr(django_settings, "TASKS", {}).values()
    named = {settings.default_queue, *declared()}
    for params in backends:
        aliases = params.get("OPTIONS", {}).get("queue_aliases", {})
        named.update(aliases.get(name, name) for name in params.get("QUEUES", ()))
    return named


def used(using: str) -> set[str]:
    """Return the queues that have unfinished jobs, a row, or one of the newest jobs. One statement."""
    return set(names(using, newest_jobs=MOST_LOOKED_AT))


def queues(using: str, names: Iterable[str] = (), *, exact: bool = False) -> list[QueueReport]:
    """Return the queues that have unfinished jobs or a row, and those of ``names``, sorted by name.

    Two statements, and a third if more than `MOST_QUEUES` have jobs. ``exact`` counts every job of every queue, in a
    time that depends on their number; ``oldest`` is None then.
    """
    runs = stopped(using, queue=OuterRef("name")).values("queue").annotate(count=Count("pk")).values("count")
    stored = Queue.objects.using(using).annotate(stopped=Subquery(runs))
    rows = {row.name: row for row in stored}
    found = _every_queue(using) if exact else _bounded(using)
    if not exact and _is_cut(found) and (others := {*names, *rows} - found.keys()):
        found |= _bounded(using, sorted(others))
    reports = []
    for name in sorted({*found, *rows, *names}):
        row, seen = rows.get(name, Queue(name=name)), found.get(name, QueueReport(name))
        reports.append(
            replace(
                seen,
                paused_at=row.paused_at,
                limit=row.concurrency_limit,
                max_per_second=row.max_per_second,
                stopped=getattr(row, "stopped", None) or 0,
            )
        )
    return reports


def now(using: str) -> Now:
    """Return what is unfinished now. One statement, whose time does not depend on the number of jobs."""
    return together(_bounded(using).values())


def together(found: Iterable[QueueReport]) -> Now:
    """Return what `now` would, from queues that were read already."""
    seen = {each.name: each for each in found}
    depth: Counter[str] = Counter()
    for each in seen.values():
        depth.update(each.depth)
    waiting = [(each.waits_since, each.oldest, each.name) for each in seen.values() if each.waits_since and each.oldest]
    since, id, name = min(waiting, default=(None, None, ""))
    is_cut = _is_cut(seen)
    return Now(depth, name, id, since, is_cut, is_cut or any(each.waits_cut for each in seen.values()))


def unfinished(using: str, names: Sequence[str]) -> dict[str, int]:
    """Return the number of unfinished jobs by queue, of those of some queues that have any. One statement, or none.

    They are counted like `QueueReport.depth`.
    """
    return {name: report.unfinished for name, report in _bounded(using, names).items()} if names else {}


def names(using: str, *, newest_jobs: int = 0) -> list[str]:
    """Return the names of the queues that have unfinished jobs, a row or one of the newest jobs, in order."""
    others = [f"SELECT name FROM {Queue._meta.db_table}"]
    if newest_jobs:
        newest = f"SELECT queue FROM {Job._meta.db_table} ORDER BY id DESC LIMIT {newest_jobs}"
        others.append(f"SELECT queue FROM ({newest}) newest")
    return sorted(_names(using, [every_queue(using, state) for state in UNFINISHED], others))


def in_use(using: str, most: int = MOST_QUEUES) -> set[str]:
    """Return the names of the queues that have unfinished jobs, up to ``most`` for each state. One statement."""
    return _names(using, [walked(state, most) for state in UNFINISHED])


def _names(using: str, walks: Sequence[str], others: Iterable[str] = ()) -> set[str]:
    found = [f"SELECT queue FROM {state}_queues WHERE queue IS NOT NULL" for state in UNFINISHED]
    with connections[using].cursor() as cursor:
        cursor.execute(f"WITH RECURSIVE {', '.join(walks)} {' UNION '.join([*found, *others])}")
        return {name for (name,) in cursor.fetchall()}


def counts(using: str, name: str) -> tuple[dict[JobState, int], bool]:
    """Count the jobs of a queue by state, and say whether the counts are exact. One statement.

    Of each state at most `MOST_COUNTED` + 1 unfinished jobs are counted. No index finds the finished jobs of a queue:
    they are counted among those that have finished last in all queues, `MOST_COUNTED` + 1 of each of `KINDS`, with and
    without a payload.
    """
    most, finished = MOST_COUNTED + 1, f"{Job._meta.db_table} WHERE finished_at IS NOT NULL"
    parts = [
        f"SELECT '{state}', COUNT(*), COUNT(*) FROM (SELECT 1 FROM {live(state)} AND queue = %s LIMIT {most}) seen"
        for state in UNFINISHED
    ]
    for state, dead_letter in KINDS.values():
        for pruned in (False, True):
            kind = f"payload_pruned = {pruned} AND state = '{state}' AND dead_letter = {dead_letter}"
            newest = f"SELECT queue FROM {finished} AND {kind} ORDER BY finished_at DESC LIMIT {most}"
            parts.append(f"SELECT '{state}', COUNT(CASE WHEN queue = %s THEN 1 END), COUNT(*) FROM ({newest}) seen")
    found: dict[JobState, int] = dict.fromkeys(JobState, 0)
    with connections[using].cursor() as cursor:
        cursor.execute(" UNION ALL ".join(parts), [name] * len(parts))
        rows = cursor.fetchall()
    for state, count, _ in rows:
        found[JobState(state)] += count
    return found, all(seen < most for *_, seen in rows)


def _is_cut(found: Mapping[str, QueueReport]) -> bool:
    """Whether there may be more queues with jobs than those that were found."""
    return any(sum(state in each.depth for each in found.values()) >= MOST_QUEUES for state in UNFINISHED)


def _every_queue(using: str) -> dict[str, QueueReport]:
    """Count every unfinished job. One statement, which reads the index of all of them."""
    jobs = Job.objects.using(using).filter(finished_at__isnull=True, state__in=UNFINISHED).order_by()
    depths: dict[str, dict[str, int]] = defaultdict(dict)
    since = {}
    for name, state, count, first in jobs.values_list("queue", "state").annotate(Count("pk"), Min("enqueued_at")):
        depths[name][state] = count
        if state == JobState.AVAILABLE:
            since[name] = first
    return {name: QueueReport(name, depth, waits_since=since.get(name)) for name, depth in depths.items()}


def _bounded(using: str, names: Sequence[str] = ()) -> dict[str, QueueReport]:
    """Return the number of unfinished jobs by queue and state, and since when the oldest available job of each waits.

    One statement. For each state it goes through the index from queue to queue, or to those of ``names``; for the
    available jobs from value to value of what blocks them, and from priority to priority. So its time does not depend
    on the number of jobs.
    """
    connection = connections[using]
    among, parameters = kind_of(connection).select_texts(names) if names else ("", [])
    walks = [f"{state}_queues (queue) AS ({among})" if names else walked(state, MOST_QUEUES) for state in UNFINISHED]
    walks += [blocks_of_queues(connection, LIMITED, MOST_BLOCKS), _BLOCKS, _PRIORITIES]
    counts = [_count(state, MOST_COUNTED) for state in UNFINISHED]
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH RECURSIVE {', '.join(walks)} {' UNION ALL '.join([_HEADS, *counts])}", parameters * len(UNFINISHED)
        )
        rows: list[tuple[str, str, int, Any, Any]] = cursor.fetchall()
    depths: dict[str, dict[str, int]] = defaultdict(dict)
    heads: dict[str, list[tuple[datetime, UUID]]] = defaultdict(list)
    seen: Counter[str] = Counter()
    for of_state, name, count, head, since in rows:
        if not of_state:
            seen[name] += 1
            if head is not None:
                heads[name].append((moment_of(since, connection), UUID(str(head))))
        elif count:
            depths[name][of_state] = count
    at_once = seen if kind_of(connection).walks_indexes else Counter(dict.fromkeys(seen, seen.total()))
    found = {}
    for name, depth in depths.items():
        since, id = min(heads[name], default=(None, None))
        found[name] = QueueReport(name, depth, id, since, waits_cut=at_once[name] >= MOST_BLOCKS)
    return found


def walked(state: str, most_queues: int) -> str:
    """Return SQL that lists the queues with jobs of a state by one index search for each queue."""
    return walk(f"{state}_queues", "queue", live(state), most_queues)


def every_queue(using: str, state: str) -> str:
    """Return the SQL of `walked` for all queues."""
    if kind_of(connections[using]).walks_indexes:
        return walked(state, _NO_BOUND)
    return f"{state}_queues AS (SELECT DISTINCT queue FROM {live(state)})"  # MariaDB ends a walk after 1,000 steps


def _count(state: str, most: int) -> str:
    jobs = f"{live(state)} AND queue = named.queue"
    more = f"(SELECT 1 FROM {jobs} LIMIT 1 OFFSET {most}) IS NOT NULL"
    return (
        f"SELECT '{state}', queue, CASE WHEN {more} THEN {most + 1} ELSE (SELECT COUNT(*) FROM {jobs}) END, NULL, NULL"
        f" FROM {state}_queues named WHERE queue IS NOT NULL"
    )


def live(state: str) -> str:
    return f"{Job._meta.db_table} WHERE finished_at IS NULL AND state = '{state}'"


def blocks_of_queues(connection: Any, after: str, most: int) -> str:
    """Return SQL that lists, as ``blocked (queue, blocked_by)``, up to ``most`` values that block jobs of each queue.

    They come after a value. It is one index search for each; on MariaDB, which walks no index, it goes through the
    blocked jobs, and ``most`` are listed in all.
    """
    before = f"blocked_by < '{AFTER_PARTITIONS}'"
    if not kind_of(connection).walks_indexes:  # without finished_at, which an available job has not, no row is read
        return (
            f"blocked AS (SELECT DISTINCT queue, blocked_by FROM {Job._meta.db_table}"
            f" WHERE state = '{JobState.AVAILABLE}' AND blocked_by > '{after}' AND {before} LIMIT {most})"
        )
    block = f"SELECT blocked_by FROM {_AVAILABLE} AND {before} AND queue ="
    return (
        f"blocked (queue, blocked_by, number) AS ("
        f"SELECT queue, ({block} named.queue AND blocked_by > '{after}' ORDER BY blocked_by LIMIT 1), 1"
        f" FROM {JobState.AVAILABLE}_queues named WHERE queue IS NOT NULL UNION ALL"
        f" SELECT queue, ({block} walked.queue AND blocked_by > walked.blocked_by ORDER BY blocked_by LIMIT 1),"
        f" number + 1 FROM blocked walked WHERE blocked_by IS NOT NULL AND number < {most})"
    )


_AVAILABLE = live(JobState.AVAILABLE)
_BLOCKS = (
    f"blocks AS (SELECT queue, others.blocked_by FROM {JobState.AVAILABLE}_queues named"
    f" CROSS JOIN (SELECT '{UNBLOCKED}' AS blocked_by UNION ALL SELECT '{LIMITED}') others WHERE queue IS NOT NULL"
    " UNION ALL SELECT queue, blocked_by FROM blocked WHERE blocked_by IS NOT NULL)"
)
_PRIORITIES = (
    f"priorities (queue, blocked_by, priority) AS (SELECT queue, blocked_by, (SELECT priority FROM {_AVAILABLE}"
    " AND queue = named.queue AND blocked_by = named.blocked_by ORDER BY priority DESC LIMIT 1) FROM blocks named"
    f" UNION ALL SELECT queue, blocked_by, (SELECT priority FROM {_AVAILABLE}"
    " AND queue = walked.queue AND blocked_by = walked.blocked_by AND priority < walked.priority"
    " ORDER BY priority DESC LIMIT 1)"
    " FROM priorities walked WHERE priority IS NOT NULL)"
)
"""SQL that lists the priorities of the jobs of each queue that one thing blocks, by one index search for each."""
_OLDEST = (
    f"FROM {_AVAILABLE} AND queue = named.queue AND blocked_by = named.blocked_by AND priority = named.priority"
    " AND enqueued_at IS NOT NULL ORDER BY enqueued_at, id LIMIT 1"
)
_HEADS = (
    f"SELECT '', queue, 0, (SELECT id {_OLDEST}), (SELECT enqueued_at {_OLDEST})"
    " FROM priorities named WHERE priority IS NOT NULL"
)
