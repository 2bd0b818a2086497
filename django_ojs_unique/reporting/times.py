"""Spans of time that end now, and conditions for when jobs were created, without an index on that.

Lists of jobs go by the id, which ascends with the creation; a job whose id its caller chose may be out of order there.
A setup with the admin imports this module, so it imports little.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db.models import Q
from django.utils.timezone import localtime

from ..ojs.states import INCOMPLETE, TERMINAL, JobState

CLOCKS = timedelta(hours=1)
"""By how much the clocks of two hosts may differ: of the one that creates a job, and of the one that finishes it."""

_EARLIEST = datetime(1970, 1, 2, tzinfo=UTC)


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


def created_since(moment: datetime) -> Q:
    """Return the condition for jobs that were created at or after a moment; each part is answered from one index."""
    return unfinished_since(moment) | finished_since(moment) & Q(created_at__gte=moment)


def unfinished_since(moment: datetime) -> Q:
    """Return the condition for jobs that were created at or after a moment and have not finished."""
    return Q(state__in=sorted(INCOMPLETE), finished_at__isnull=True, created_at__gte=moment)


def finished_since(moment: datetime, states: Collection[JobState] = TERMINAL) -> Q:
    """Return the condition for jobs that finished at or after a moment, and for those that clocks may have put before.

    ``states``: which of the terminal ones they have. The condition names every leading column of the index
    ojs_job_finished, so that the index finds the moments.
    """
    return Q(
        payload_pruned__in=[False, True],
        state__in=sorted(states),
        dead_letter__in=[False, True],
        finished_at__gte=earliest_end(moment),
    )


def earliest_end(moment: datetime) -> datetime:
    """Return when a job that was created at or after a moment can have finished at the earliest."""
    return max(moment, _EARLIEST) - CLOCKS
