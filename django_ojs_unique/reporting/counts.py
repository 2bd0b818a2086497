"""How many jobs were enqueued, suppressed, completed and failed in parts of a time, by queue."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, Func, IntegerField, QuerySet

from ..models import Job, SuppressedEnqueue
from ..ojs.states import JobState
from .created import finished_since, unfinished_since


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
    finished, unfinished = (
        _by_part(Job.objects.using(using).filter(condition), edges, "created_at", "finished_at", by=("state",))
        for condition in (finished_since(edges[0]), unfinished_since(edges[0]))
    )
    for created, ended, state, queue, number in finished.union(unfinished, all=True):
        if created in starts:
            counted[edges[created], queue].enqueued += number
        if ended in starts and state == JobState.COMPLETED:
            counted[edges[ended], queue].completed += number
        if ended in starts and state == JobState.DISCARDED:
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


def _by_part(rows: QuerySet[Any], edges: Sequence[datetime], *moments: str, by: Sequence[str] = ()) -> Any:
    """Count rows by the parts that their ``moments`` lie in, by fields and by queue: select these and the number."""
    parts = {f"{moment}_part": Part(moment, edges) for moment in moments}
    named = [*parts, *by, "queue"]
    return rows.order_by().annotate(**parts).values(*named).annotate(number=Count("*")).values_list(*named, "number")
