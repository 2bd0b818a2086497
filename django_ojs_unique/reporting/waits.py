"""How long the jobs waited that completed lately, and how long their runs took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from django.db import connections
from django.db.models import Case, DurationField, ExpressionWrapper, F, When

from ..models import Job
from ..ojs.states import JobState
from .times import Span

SAMPLE = 200
"""How many of the newest jobs that completed in one part of a span `waits` looks at."""

_FINISHED_AT: Any = Job._meta.get_field("finished_at")


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
    # A job that was started manually, or made available again without another run, did not wait for this run. If a
    # filter left it out, PostgreSQL would estimate a high cost and compile the statement: a hundred times slower.
    wait = ExpressionWrapper(F("started_at") - F("enqueued_at"), DurationField())
    ran = ExpressionWrapper(F("finished_at") - F("started_at"), DurationField())
    measured = jobs.annotate(wait=Case(When(started_at__gte=F("enqueued_at"), then=wait)), ran=ran)
    newest = measured.order_by("-finished_at").values("queue", "type", "wait", "ran")[:SAMPLE]
    sql, parameters = newest.query.get_compiler(using).as_sql()
    return sql, list(parameters)
