"""Rollups: workers count what happened in each quarter of an hour once, so that a page of a week reads few rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta

from django.db.models import Sum

from ..db.transactions import starting_over
from ..models import ActivityRollup
from ..ojs.states import JobState
from .counts import Counts, count

LENGTH = timedelta(minutes=15)
"""Of the time that a rollup counts. In every time zone, round local hours begin where one begins."""

COUNTED_AFTER = timedelta(minutes=5)
"""How long after its end a quarter is counted: what commits still later, or bears an earlier time, is in no rollup."""

KEPT = timedelta(days=8)
"""Longer than the longest span. The first count goes back as far: a million jobs take PostgreSQL two seconds."""

ALL = ""
"""The queue of the rows that count all queues."""

_MOST_ROWS = 1_000
_NUMBERS = ("enqueued", "suppressed", "completed", "failed")


def roll_up(using: str, now: datetime) -> datetime:
    """Count the quarters that have ended and were not counted; return when there will be more to count.

    Any number of workers may do so: of two that count the same quarter, one stores its rows.
    """
    rollups = ActivityRollup.objects.using(using)
    oldest, end = _quarter(now - KEPT), _quarter(now - COUNTED_AFTER)
    last = rollups.filter(queue=ALL).order_by("-start").values_list("start", flat=True).first()
    first = oldest if last is None else max(oldest, last + LENGTH)
    if first < end:
        edges = [first + LENGTH * number for number in range((end - first) // LENGTH + 1)]
        rows = _rows_of(using, edges)
        starting_over(using, lambda: rollups.bulk_create(rows, _MOST_ROWS, ignore_conflicts=True))
        starting_over(using, rollups.filter(start__lt=oldest).delete)
    return max(first, end) + LENGTH + COUNTED_AFTER


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
    seconds = int(LENGTH.total_seconds())
    return datetime.fromtimestamp(int(moment.timestamp()) // seconds * seconds, UTC)
