"""What happened over time: enqueued, suppressed, completed and failed jobs."""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ..ojs.states import JobState
from . import rollups
from .counts import Counts, count
from .spans import Span


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


def activity(using: str, span: Span, now: datetime) -> Activity:
    """Count what happened in each part of a span: in two statements, and two more if there may be rollups."""
    edges = span.edges(now)
    parts = [Counts() for _ in range(span.parts)]
    by_queue: Counter[tuple[str, str]] = Counter()
    rest = edges
    if span.length >= rollups.LENGTH:
        rolled, by_queue = rollups.rolled_up(using, edges[0], edges[-1])
        for start, counts in rolled.items():
            parts[bisect(edges, start) - 1].add(counts)
        if rolled:
            begin = max(rolled) + rollups.LENGTH
            rest = [begin + number * rollups.LENGTH for number in range((edges[-1] - begin) // rollups.LENGTH + 1)]
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
