"""What happened over time: enqueued, suppressed, completed and failed jobs, and how long jobs waited."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from django.db import connections
from django.db.models import Case, Count, DurationField, ExpressionWrapper, F, Func, IntegerField, QuerySet, When
from django.utils.timezone import localtime

from ..models import Job, SuppressedEnqueue
from ..ojs.states import JobState
from .created import finished_since, parts_created_since

SAMPLE = 200
"""How many of the newest jobs that completed in one part of a span `waits` looks at."""

_FINISHED_AT: Any = Job._meta.get_field("finished_at")


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time that ends now, in ``parts`` of the same ``length``."""

    name: str
    length: timedelta
    parts: int

    @property
    def whole(self) -> timedelta:
        return self.length * self.parts

    def edges(self, now: datetime) -> list[datetime]:
        """Return the moments where the parts begin and end, at round local times; the last is in the future."""
        local = localtime(now)
        seconds = int(self.length.total_seconds())
        offset = int((local.utcoffset() or timedelta()).total_seconds())
        last = (int(now.timestamp()) + offset) // seconds * seconds - offset
        first = datetime.fromtimestamp(last - (self.parts - 1) * seconds, UTC)
        return [first + number * self.length for number in range(self.parts + 1)]


SPANS = {
    span.name: span
    for span in (
        Span("hour", timedelta(minutes=5), 12),
        Span("day", timedelta(hours=1), 24),
        Span("week", timedelta(hours=6), 28),
    )
}


@dataclass(frozen=True, slots=True)
class Activity:
    """How many jobs were enqueued, suppressed, completed and failed in each part of a span.

    ``edges``: where the parts begin and end. ``by_queue`` counts the completed and failed jobs by queue and state, in
    the whole span; it is empty if that was not asked for.
    """

    edges: Sequence[datetime]
    enqueued: Sequence[int]
    suppressed: Sequence[int]
    completed: Sequence[int]
    failed: Sequence[int]
    by_queue: Counter[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Spread:
    """How some numbers of seconds are spread: how many they are, and what half, 95 of 100 and all do not exceed."""

    count: int
    median: float
    p95: float
    longest: float


@dataclass(frozen=True, slots=True)
class Waits:
    """How many seconds the jobs waited that completed in each part of a span; None for a part without such jobs.

    ``median`` and ``p95`` are of the newest `SAMPLE` jobs of each part. ``is_sample``: whether there may be more jobs.
    ``by_queue``: how long the same jobs waited, by queue. ``runs``: how long their last runs took, by type.
    """

    edges: Sequence[datetime]
    median: Sequence[float | None]
    p95: Sequence[float | None]
    is_sample: bool
    by_queue: Mapping[str, Spread]
    runs: Mapping[str, Spread]


def activity(using: str, span: Span, now: datetime, *, with_queues: bool = True) -> Activity:
    """Count what happened in each part of a span. Three statements."""
    edges = span.edges(now)
    enqueued: Counter[int] = Counter()
    by_state: Counter[tuple[int, str]] = Counter()
    by_queue: Counter[tuple[str, str]] = Counter()
    unfinished, _ = parts_created_since(edges[0])
    for part, count in _by_part(Job.objects.using(using).filter(unfinished), edges, "created_at"):
        enqueued[part] += count
    suppressed: Counter[int] = Counter()
    met = SuppressedEnqueue.objects.using(using).filter(created_at__gte=edges[0], created_at__lt=edges[-1])
    for part, count in _by_part(met, edges, "created_at"):
        suppressed[part] += count
    # One look says when these were enqueued and when they ended: it is most of the time of a page.
    finished = Job.objects.using(using).filter(finished_since(edges[0]))
    fields = ("state", "queue") if with_queues else ("state",)
    for created, part, state, *queues, count in _by_part(finished, edges, "created_at", "finished_at", fields=fields):
        enqueued[created] += count
        by_state[part, state] += count
        for queue in queues:
            if state in (JobState.COMPLETED, JobState.DISCARDED) and 0 <= part < span.parts:
                by_queue[queue, state] += count
    parts = range(span.parts)
    return Activity(
        edges,
        [enqueued[part] for part in parts],
        [suppressed[part] for part in parts],
        [by_state[part, JobState.COMPLETED] for part in parts],
        [by_state[part, JobState.DISCARDED] for part in parts],
        by_queue,
    )


def waits(using: str, span: Span, now: datetime) -> Waits:
    """Return how long jobs waited: from when they last became available to when they last started. One statement."""
    edges = span.edges(now)
    samples: list[list[float]] = [[] for _ in edges[1:]]
    by_queue: dict[str, list[float]] = {}
    runs: dict[str, list[float]] = {}
    asked: Counter[int] = Counter()
    for part, queue, type, waited, ran in _newest(using, edges):
        asked[part] += 1
        if waited is not None:
            samples[part].append(waited)
            by_queue.setdefault(queue, []).append(waited)
        if ran is not None:
            runs.setdefault(type, []).append(ran)
    for sample in samples:
        sample.sort()
    return Waits(
        edges,
        [percentile(sample, 0.5) for sample in samples],
        [percentile(sample, 0.95) for sample in samples],
        any(count >= SAMPLE for count in asked.values()),
        {queue: spread(numbers) for queue, numbers in by_queue.items()},
        {type: spread(numbers) for type, numbers in runs.items()},
    )


def spread(numbers: Iterable[float]) -> Spread:
    """Return how numbers are spread; there must be at least one."""
    ordered = sorted(numbers)
    return Spread(len(ordered), _at(ordered, 0.5), _at(ordered, 0.95), ordered[-1])


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return the smallest of the ordered numbers that a ``share`` of them do not exceed; None if there are none."""
    return _at(ordered, share) if ordered else None


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


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


def _by_part(rows: QuerySet[Any], edges: Sequence[datetime], *moments: str, fields: Sequence[str] = ()) -> Any:
    """Count rows by the parts that their ``moments`` lie in and by ``fields``: yield these and the count.

    One statement.
    """
    parts = {f"{moment}_part": Part(moment, edges) for moment in moments}
    counted = rows.order_by().annotate(**parts).values(*parts, *fields).annotate(count=Count("*"))
    return counted.values_list(*parts, *fields, "count")


def _newest(using: str, edges: Sequence[datetime]) -> Iterator[tuple[int, str, str, float | None, float | None]]:
    """Yield the part, the queue, the type and the seconds of waiting and of running of each part's newest jobs."""
    connection = connections[using]
    moments = [_FINISHED_AT.get_db_prep_value(edge, connection) for edge in edges]
    selects, parameters = [], []
    for payload_pruned in (False, True):  # one index search for each, which stops after the newest
        # Written once: to have Django compile it for each part takes as long as the statement.
        sql, values = _newest_completed(using, payload_pruned, *edges[:2])
        for part, ends in enumerate(pairwise(moments)):
            selects.append(f"SELECT {part}, newest.queue, newest.type, newest.wait, newest.ran FROM ({sql}) newest")
            own = dict(zip(moments, ends, strict=False))
            parameters += [own.get(value, value) for value in values]
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(selects), parameters)
        for part, queue, type, *lengths in cursor.fetchall():
            yield part, queue, type, *map(_seconds, lengths)


def _seconds(length: Any) -> float | None:
    if length is None:
        return None
    return length.total_seconds() if isinstance(length, timedelta) else length / 1_000_000


def _newest_completed(using: str, payload_pruned: bool, start: datetime, end: datetime) -> tuple[str, list[Any]]:
    jobs = Job.objects.using(using).filter(
        payload_pruned=payload_pruned,
        state=JobState.COMPLETED,
        dead_letter=False,
        finished_at__gte=start,
        finished_at__lt=end,
    )
    # A job that was started by hand, or made available again without another run, did not wait for this run. If a
    # filter left it out, PostgreSQL would estimate a high cost and compile the statement: a hundred times slower.
    wait = ExpressionWrapper(F("started_at") - F("enqueued_at"), DurationField())
    ran = ExpressionWrapper(F("finished_at") - F("started_at"), DurationField())
    measured = jobs.annotate(wait=Case(When(started_at__gte=F("enqueued_at"), then=wait)), ran=ran)
    newest = measured.order_by("-finished_at").values("queue", "type", "wait", "ran")[:SAMPLE]
    sql, parameters = newest.query.get_compiler(using).as_sql()
    return sql, list(parameters)
