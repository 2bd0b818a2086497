"""How many jobs each queue has, which has waited longest, and what operators have set for the queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings as django_settings
from django.db import connections
from django.db.models import Count, OuterRef, Subquery

from ..conf import settings
from ..db.clock import moment_of
from ..db.index_scan import walk
from ..handlers.registry import registry
from ..models import Job, Queue
from ..ojs.blocking import LIMITED, UNBLOCKED
from ..ojs.states import INCOMPLETE, KINDS, JobState
from .stopped import stopped
from .text import MOST_COUNTED

MOST_QUEUES = 500
"""How many of the queues that have jobs in one state are looked at."""

MOST_LOOKED_AT = 10_000
"""How many of the newest jobs are looked at: their queues are known even if nothing waits there now."""

UNFINISHED = [state for state in JobState if state in INCOMPLETE]

_NO_BOUND = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Now:
    """All queues together. ``depth``: the unfinished jobs by state, of each queue up to `MOST_COUNTED` + 1.

    ``queue``, ``oldest`` and ``waits_since`` are of the available job that has waited longest.
    """

    depth: Mapping[str, int]
    queue: str = ""
    oldest: UUID | None = None
    waits_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class QueueReport:
    """A queue now. ``depth`` counts its unfinished jobs by state; `MOST_COUNTED` + 1 means: that many or more.

    ``oldest``: the id of the available job that has waited longest. ``waits_since``: when that job became available.
    ``stopped``: its stopped runs, which count for its ``limit``; 0 in a queue without a row.
    """

    name: str
    depth: Mapping[str, int] = field(default_factory=dict)
    oldest: UUID | None = None
    waits_since: datetime | None = None
    paused_at: datetime | None = None
    limit: int | None = None
    max_per_second: int | None = None
    stopped: int = 0

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

    Two statements. ``exact`` counts every job of every queue.
    """
    depths, oldest = _depths(using, exact)
    runs = stopped(using, queue=OuterRef("name")).values("queue").annotate(count=Count("pk")).values("count")
    stored = Queue.objects.using(using).annotate(stopped=Subquery(runs)).order_by("name")
    rows = {row.name: row for row in stored[: _NO_BOUND if exact else MOST_QUEUES]}
    found = []
    for name in sorted({*depths, *rows, *names}):
        row, (since, id) = rows.get(name, Queue(name=name)), oldest.get(name, (None, None))
        limits = row.concurrency_limit, row.max_per_second
        found.append(
            QueueReport(
                name, depths.get(name, {}), id, since, row.paused_at, *limits, getattr(row, "stopped", None) or 0
            )
        )
    return found


def now(using: str) -> Now:
    """Return what is unfinished now. One statement, whose time does not depend on the number of jobs."""
    depths, oldest = _depths(using, exact=False)
    return _together(depths, [(*first, name) for name, first in oldest.items()])


def together(found: Iterable[QueueReport]) -> Now:
    """Return what `now` would, from queues that were read already."""
    seen = list(found)
    waiting = [(each.waits_since, each.oldest, each.name) for each in seen if each.waits_since and each.oldest]
    return _together({each.name: each.depth for each in seen}, waiting)


def unfinished(using: str) -> dict[str, int]:
    """Return the number of unfinished jobs by queue, counted like `QueueReport.depth`. One statement."""
    return {name: sum(depth.values()) for name, depth in _depths(using, exact=False)[0].items()}


def names(using: str, *, newest_jobs: int = 0) -> list[str]:
    """Return the names of the queues that have unfinished jobs, a row or one of the newest jobs, in order."""
    others = [f"SELECT name FROM {Queue._meta.db_table}"]
    if newest_jobs:
        newest = f"SELECT queue FROM {Job._meta.db_table} ORDER BY id DESC LIMIT {newest_jobs}"
        others.append(f"SELECT queue FROM ({newest}) newest")
    return sorted(_names(using, _NO_BOUND, others))


def in_use(using: str, most: int = MOST_QUEUES) -> set[str]:
    """Return the names of the queues that have unfinished jobs, up to ``most`` for each state. One statement."""
    return _names(using, most)


def _names(using: str, most: int, others: Iterable[str] = ()) -> set[str]:
    walks = ", ".join(walked(state, most) for state in UNFINISHED)
    found = [f"SELECT queue FROM {state}_queues WHERE queue IS NOT NULL" for state in UNFINISHED]
    with connections[using].cursor() as cursor:
        cursor.execute(f"WITH RECURSIVE {walks} {' UNION '.join([*found, *others])}")
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


def _together(depths: Mapping[str, Mapping[str, int]], waiting: list[tuple[datetime, UUID, str]]) -> Now:
    depth: Counter[str] = Counter()
    for each in depths.values():
        depth.update(each)
    since, id, name = min(waiting, default=(None, None, ""))
    return Now(depth, name, id, since)


def _depths(using: str, exact: bool) -> tuple[dict[str, dict[str, int]], dict[str, tuple[datetime, UUID]]]:
    """Return the number of unfinished jobs by queue and state, and since when the oldest available job of each waits.

    One statement. For each state it goes through the index from queue to queue, and for the available jobs from
    priority to priority, so its time does not depend on the number of jobs unless ``exact`` counts all.
    """
    most_queues, most = (_NO_BOUND, _NO_BOUND) if exact else (MOST_QUEUES, MOST_COUNTED)
    walks, counts = [], []
    for state in UNFINISHED:
        walks.append(walked(state, most_queues))
        counts.append(_count(state, most))
    connection = connections[using]
    with connection.cursor() as cursor:
        cursor.execute(f"WITH RECURSIVE {', '.join([*walks, _PRIORITIES])} {' UNION ALL '.join([_HEADS, *counts])}")
        rows: list[tuple[str, str, int, Any, Any]] = cursor.fetchall()
    depths: dict[str, dict[str, int]] = {}
    oldest: dict[str, tuple[datetime, UUID]] = {}
    for of_state, name, count, head, since in rows:
        if of_state:
            depths.setdefault(name, {})[of_state] = count
        elif head is not None:
            first = moment_of(since, connection), UUID(str(head))
            oldest[name] = min(oldest.get(name, first), first)
    return depths, oldest


def walked(state: str, most_queues: int) -> str:
    """Return SQL that lists the queues with jobs of a state by one index search for each queue."""
    return walk(f"{state}_queues", "queue", live(state), most_queues)


def _count(state: str, most: int) -> str:
    jobs = f"{live(state)} AND queue = named.queue"
    more = f"(SELECT 1 FROM {jobs} LIMIT 1 OFFSET {most}) IS NOT NULL"
    return (
        f"SELECT '{state}', queue, CASE WHEN {more} THEN {most + 1} ELSE (SELECT COUNT(*) FROM {jobs}) END, NULL, NULL"
        f" FROM {state}_queues named WHERE queue IS NOT NULL"
    )


def live(state: str) -> str:
    return f"{Job._meta.db_table} WHERE finished_at IS NULL AND state = '{state}'"


_AVAILABLE = live(JobState.AVAILABLE)
_PRIORITIES = (
    f"priorities (queue, blocked_by, priority) AS (SELECT queue, blocks.blocked_by, (SELECT priority FROM {_AVAILABLE}"
    " AND queue = named.queue AND blocked_by = blocks.blocked_by ORDER BY priority DESC LIMIT 1)"
    f" FROM {JobState.AVAILABLE}_queues named CROSS JOIN (SELECT '{UNBLOCKED}' AS blocked_by"
    f" UNION ALL SELECT '{LIMITED}') blocks"
    f" WHERE queue IS NOT NULL UNION ALL SELECT queue, blocked_by, (SELECT priority FROM {_AVAILABLE}"
    " AND queue = walked.queue AND blocked_by = walked.blocked_by AND priority < walked.priority"
    " ORDER BY priority DESC LIMIT 1)"
    " FROM priorities walked WHERE priority IS NOT NULL)"
)
"""SQL that lists the priorities of each queue's next jobs by one index search for each."""

_OLDEST = (
    f"FROM {_AVAILABLE} AND queue = named.queue AND blocked_by = named.blocked_by AND priority = named.priority"
    " AND enqueued_at IS NOT NULL ORDER BY enqueued_at, id LIMIT 1"
)
# Of the jobs that wait for a turn or a slot, of which there may be very many, only one that is first in its line.
_BEHIND_ANY = (
    f"FROM {_AVAILABLE} AND queue = named.queue AND blocked_by > '{LIMITED}' AND enqueued_at IS NOT NULL"
    " ORDER BY blocked_by, priority DESC, enqueued_at, id LIMIT 1"
)
_HEADS = (
    f"SELECT '', queue, 0, (SELECT id {_OLDEST}), (SELECT enqueued_at {_OLDEST})"
    " FROM priorities named WHERE priority IS NOT NULL UNION ALL"
    f" SELECT '', queue, 0, (SELECT id {_BEHIND_ANY}), (SELECT enqueued_at {_BEHIND_ANY})"
    f" FROM {JobState.AVAILABLE}_queues named WHERE queue IS NOT NULL"
)
