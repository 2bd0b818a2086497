"""What happened over time: enqueued, suppressed, completed and failed jobs.

Workers count each quarter of an hour once, so that a page of a week reads few rows.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Case, Count, F, Func, IntegerField, QuerySet, Sum, Value, When

from ..db.transactions import starting_over
from ..models import ActivityRollup, Job, SuppressedEnqueue
from ..ojs.states import TERMINAL, JobState
from .failures import FAILED
from .times import Span, finished_since, unfinished_since

QUARTER = timedelta(minutes=15)
"""Of the time that a rollup counts. In every time zone, round local hours begin where one begins."""

COUNTED_AFTER = timedelta(minutes=5)
"""How long after its end a quarter is counted: what commits still later, or bears an earlier time, is in no rollup."""

KEPT = timedelta(days=8)
"""Longer than the longest span. The first count goes back as far: a million jobs take PostgreSQL two seconds."""

ALL = ""
"""The queue of the rows that count all queues."""

_MOST_ROWS = 1_000
_NUMBERS = ("enqueued", "suppressed", "completed", "failed")


@dataclass(frozen=True, slots=True)
class Activity:
    """How many jobs were enqueued, suppressed, completed and failed for good in each part of a span.

    ``edges``: where the parts begin and end. ``by_queue`` counts the completed and failed jobs by queue and state, in
    the whole span; it is empty if that was not asked for.
    """

    edges: Sequence[datetime]
    enqueued: Sequence[int]
    suppressed: Sequence[int]
    completed: Sequence[int]
    failed: Sequence[int]
    by_queue: Counter[tuple[str, str]]


def activity(using: str, span: Span, now: datetime) -> Activity:
    """Count what happened in each part of a span: in two statements, and two more if there may be rollups."""
    edges = span.edges(now)
    parts = [Counts() for _ in range(span.parts)]
    by_queue: Counter[tuple[str, str]] = Counter()
    rest = edges
    if span.length >= QUARTER:
        rolled, by_queue = rolled_up(using, edges[0], edges[-1])
        for start, counts in rolled.items():
            parts[bisect(edges, start) - 1].add(counts)
        if rolled:
            begin = max(rolled) + QUARTER
            rest = [begin + number * QUARTER for number in range((edges[-1] - begin) // QUARTER + 1)]
    if len(rest) > 1:
        for (start, queue), counts in count(using, rest).items():
            parts[bisect(edges, start) - 1].add(counts)
            by_queue[queue, JobState.COMPLETED] += counts.completed
            by_queue[queue, JobState.DISCARDED] += counts.failed
    return Activity(
        edges,
        [part.enqueued for part in parts],
        [part.suppressed for part in parts],
        [part.completed for part in parts],
        [part.failed for part in parts],
        +by_queue,
    )


@dataclass(slots=True)
class Counts:
    """What happened to jobs: how many were enqueued, suppressed, completed and failed."""

    enqueued: int = 0
    suppressed: int = 0
    completed: int = 0
    failed: int = 0

    def add(self, other: Counts) -> None:
        self.enqueued += other.enqueued
        self.suppressed += other.suppressed
        self.completed += other.completed
        self.failed += other.failed


def count(using: str, edges: Sequence[datetime]) -> dict[tuple[datetime, str], Counts]:
    """Count what happened between edges at the same distances: by the edge where the part begins, and by queue.

    Two statements. Jobs that have been deleted are not counted.
    """
    counted: defaultdict[tuple[datetime, str], Counts] = defaultdict(Counts)
    starts = range(len(edges) - 1)
    met = SuppressedEnqueue.objects.using(using).filter(created_at__gte=edges[0], created_at__lt=edges[-1])
    for part, queue, number in _by_part(met, edges, "created_at"):
        counted[edges[part], queue].suppressed += number
    # One look at the finished jobs says when they were enqueued and when they ended: it is most of the time. The others
    # are counted in the same statement, or a job that finishes between two statements would be counted twice.
    # Only for the discarded ones the rows are read, as no index knows which of them have run.
    is_failed = Case(When(FAILED, then=F("state")), default=Value(""))
    looks = [
        _by_part(Job.objects.using(using).filter(condition), edges, "created_at", "finished_at", end=end)
        for condition, end in (
            (finished_since(edges[0], TERMINAL - {JobState.DISCARDED}), F("state")),
            (finished_since(edges[0], {JobState.DISCARDED}), is_failed),
            (unfinished_since(edges[0]), F("state")),
        )
    ]
    for created, ended, end, queue, number in looks[0].union(*looks[1:], all=True):
        if created in starts:
            counted[edges[created], queue].enqueued += number
        if ended in starts and end == JobState.COMPLETED:
            counted[edges[ended], queue].completed += number
        if ended in starts and end == JobState.DISCARDED:
            counted[edges[ended], queue].failed += number
    return dict(counted)


class Part(Func):
    """The number of the part that a moment lies in: -1 before the first edge, no part's number after the last.

    One function for each moment: arithmetic with its seconds would take PostgreSQL twice the time.
    """

    output_field = IntegerField()
    template = "(WIDTH_BUCKET(%(expressions)s, ARRAY[%(edges)s]::timestamptz[]) - 1)"

    def __init__(self, moment: str, edges: Sequence[datetime]) -> None:
        start, length = int(edges[0].timestamp()), int((edges[1] - edges[0]).total_seconds())
        moments = ", ".join(f"'{edge.isoformat()}'" for edge in edges)
        super().__init__(moment, before=start - length, length=length, edges=moments)

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        # Cut to the second: STRFTIME would round the last millisecond up into the next part.
        second = "CAST(STRFTIME('%%%%s', SUBSTR(%(expressions)s, 1, 19)) AS INTEGER)"
        template = f"(MAX({second} - %(before)s, 0) / %(length)s - 1)"  # a division rounds towards zero
        return self.as_sql(compiler, connection, template=template, **context)

    def as_mysql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        second = "TIMESTAMPDIFF(SECOND, '1970-01-01', %(expressions)s)"
        template = f"(GREATEST({second} - %(before)s, 0) DIV %(length)s - 1)"
        return self.as_sql(compiler, connection, template=template, **context)


def _by_part(rows: QuerySet[Any], edges: Sequence[datetime], *moments: str, **by: Case | F) -> Any:
    """Count rows by the parts that their ``moments`` lie in, by values and by queue: select these and the number."""
    parts = {f"{moment}_part": Part(moment, edges) for moment in moments}
    named = [*parts, *by, "queue"]
    return (
        rows.order_by().annotate(**parts, **by).values(*named).annotate(number=Count("*")).values_list(*named, "number")
    )


def roll_up(using: str, now: datetime) -> datetime:
    """Count the quarters that have ended and were not counted; return when there will be more to count.

    Any number of workers may do so: of two that count the same quarter, one stores its rows.
    """
    rollups = ActivityRollup.objects.using(using)
    oldest, end = _quarter(now - KEPT), _quarter(now - COUNTED_AFTER)
    last = rollups.filter(queue=ALL).order_by("-start").values_list("start", flat=True).first()
    first = oldest if last is None else max(oldest, last + QUARTER)
    if first < end:
        edges = [first + QUARTER * number for number in range((end - first) // QUARTER + 1)]
        rows = _rows_of(using, edges)
        starting_over(using, lambda: rollups.bulk_create(rows, _MOST_ROWS, ignore_conflicts=True))
        starting_over(using, rollups.filter(start__lt=oldest).delete)
    return max(first, end) + QUARTER + COUNTED_AFTER


def rolled_up(using: str, start: datetime, end: datetime) -> tuple[dict[datetime, Counts], Counter[tuple[str, str]]]:
    """Return what happened in the quarters from ``start`` to ``end``, of all queues together.

    All that was counted is there, to the end of the last quarter. Also return how many jobs completed and failed, by
    queue and state. Two statements.
    """
    rollups = ActivityRollup.objects.using(using).filter(start__gte=start, start__lt=end)
    totals = {
        moment: Counts(*numbers) for moment, *numbers in rollups.filter(queue=ALL).values_list("start", *_NUMBERS)
    }
    by_queue: Counter[tuple[str, str]] = Counter()
    if totals:
        own = rollups.filter(queue__gt=ALL, start__lte=max(totals))
        for queue, completed, failed in own.values("queue").values_list("queue", Sum("completed"), Sum("failed")):
            by_queue += Counter({(queue, JobState.COMPLETED): completed, (queue, JobState.DISCARDED): failed})
    return totals, by_queue


def _rows_of(using: str, edges: list[datetime]) -> list[ActivityRollup]:
    counted = count(using, edges)
    totals = defaultdict(Counts, {edges[-2]: Counts()})
    for (start, _), counts in counted.items():
        totals[start].add(counts)
    rows = {(start, ALL): counts for start, counts in totals.items()} | counted
    return [
        ActivityRollup(start=start, queue=queue, **{name: getattr(counts, name) for name in _NUMBERS})
        for (start, queue), counts in sorted(rows.items())
    ]


def _quarter(moment: datetime) -> datetime:
    """Return when the quarter of an hour began in which a moment lies."""
    seconds = int(QUARTER.total_seconds())
    return datetime.fromtimestamp(int(moment.timestamp()) // seconds * seconds, UTC)
