"""Which available jobs have their turn before another one: those that the same thing blocks, or that need its slot."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import QuerySet

from ..exceptions import Message
from ..models import Job, Queue
from ..ojs.blocking import FAIR, LIMITED, PARTITIONS, fair_blocks_of
from ..ojs.limits import are_readable
from ..ojs.states import JobState
from .queues import names
from .text import MOST_COUNTED, count_text

MOST_NEW = 1_000
"""How many of the jobs whose limits no worker has looked at yet are asked for the slots that they need."""


class Place(NamedTuple):
    """A place in line; without a time, behind all jobs of the priority."""

    priority: int
    since: datetime | None = None
    pk: UUID | None = None

    @classmethod
    def of(cls, job: Any) -> Place:
        """Return the place of a stored job."""
        return cls(job.priority, job.enqueued_at or job.created_at, job.pk)


@dataclass(frozen=True, slots=True)
class Line:
    """How many jobs that need a slot have their turn before a job, and how many ``take_turns`` with it.

    ``is_cut``: there may be more.
    """

    before: int
    take_turns: int
    is_cut: bool

    @property
    def is_empty(self) -> bool:
        return not (self.before or self.take_turns or self.is_cut)

    @property
    def text(self) -> str:
        if not self.take_turns:
            return before_text(self.before, self.is_cut)
        count = count_text(self.before + self.take_turns, self.is_cut)
        return Message("Others that wait for it, too, and take turns: {count}.", count=count)


class Lines:
    """The lines for slots up to a place; without one, as for a job of a fair queue, all jobs in them take turns.

    The jobs ``without`` and those of paused queues do not count. Three statements.
    """

    def __init__(self, using: str, place: Place | None, *, without: Collection[UUID] = ()) -> None:
        paused = Queue.objects.using(using).filter(paused_at__isnull=False).values_list("name", flat=True)
        self._place = place
        self._jobs = available(using, {*names(using)}.difference(paused)).exclude(pk__in=without)
        fair = self._jobs.filter(blocked_by__gt=FAIR, blocked_by__lt=PARTITIONS)
        # No worker has looked at their limits yet.
        new = [*self._before(self._jobs.filter(blocked_by=LIMITED)), fair]
        self._new = list(_first(new, MOST_NEW + 1, "blocked_by", "limits"))
        self._is_cut = len(self._new) > MOST_NEW

    def of(self, partition: str) -> Line:
        """Count the jobs that need a slot of a partition. Two statements."""
        after, before = fair_blocks_of(partition)
        fair = _count([self._jobs.filter(blocked_by__gt=after, blocked_by__lt=before)])
        in_line = _count(self._before(self._jobs.filter(blocked_by=partition)))
        for block, limits in self._new:
            if are_readable(limits) and any(limit["id"] == partition for limit in limits or ()):
                fair, in_line = fair + (block != LIMITED), in_line + (block == LIMITED)
        return Line(in_line, fair, self._is_cut) if self._place else Line(0, in_line + fair, self._is_cut)

    def _before(self, rows: QuerySet[Any]) -> list[QuerySet[Any]]:
        return [rows] if self._place is None else _parts(rows, self._place)


def ahead_of(job: Any, using: str) -> int:
    """Count the jobs of its queue that the same thing blocks and whose turn is before a job's. One statement."""
    rows = available(using, [job.queue]).filter(blocked_by=job.blocked_by)
    return _count(_parts(rows, Place.of(job)))


def before_text(count: int, is_cut: bool = False, *, in_partition: bool = False) -> str:
    """Say how many jobs have their turn before one."""
    say = partial(Message, count=f"{min(count, MOST_COUNTED):,}")
    if in_partition:
        none, one = (
            say("No job in its partition of the queue waits before it."),
            say("1 job in its partition of the queue waits before it."),
        )
        several, more = (
            say("{count} jobs in its partition of the queue wait before it."),
            say("{count} or more jobs in its partition of the queue wait before it."),
        )
    else:
        none, one = say("No job waits before it."), say("1 job waits before it.")
        several, more = say("{count} jobs wait before it."), say("{count} or more jobs wait before it.")
    if is_cut or count > MOST_COUNTED:
        return more
    return several if count > 1 else one if count else none


def available(using: str, queues: Collection[str]) -> QuerySet[Any]:
    """Select the available jobs of some queues."""
    return Job.objects.using(using).filter(state=JobState.AVAILABLE, finished_at=None, queue__in=sorted(queues))


def _parts(rows: QuerySet[Any], place: Place) -> list[QuerySet[Any]]:
    """Select the rows before a place: ranges of the index, so that no statement reads the jobs behind the place."""
    if place.since is None:
        return [rows.filter(priority__gte=place.priority)]
    same = rows.filter(priority=place.priority)
    return [
        rows.filter(priority__gt=place.priority),
        same.filter(enqueued_at__lt=place.since),
        same.filter(enqueued_at=place.since, pk__lt=place.pk),
    ]


def _count(parts: Collection[QuerySet[Any]]) -> int:
    """Count the rows of some parts, up to `MOST_COUNTED` + 1."""
    return _first(parts, MOST_COUNTED + 1, "pk").count()


def _first(parts: Collection[QuerySet[Any]], most: int, *fields: str) -> QuerySet[Any]:
    first, *others = (part.order_by().values_list(*fields) for part in parts)
    return first.union(*others, all=True)[:most] if others else first[:most]
