"""A partition of a limit whose row a claim has locked, and what the claim finds out about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from .candidates import Rank

COLUMNS = ("id", "full_at", "full_since", "opens_at", "used_at")
"""The columns that a claim reads, in the order of the members."""


@dataclass(slots=True)
class LockedPartition:
    """What a claim knows of a partition whose row it has locked; the first five members are columns of it.

    ``running``: the weight that runs. ``recent``: the weight of jobs with a rate that has started in the last so many
    seconds, and ``first_start``: when the first of these did. ``cutoff``: jobs whose place is after this one must wait:
    it is the first job that waits without having been read, or the last one that was read; ``is_unread``: it had no
    slots at the look, but jobs wait for it. ``is_full``: a job has found no slot; ``is_early``: its rate is the reason.
    ``is_closed``: a job must wait, so those behind it must wait, too. ``looks_at``: when a claim is to look
    again, though as many jobs run. ``users``: the jobs that have taken slots.
    """

    id: str
    full_at: int | None
    full_since: datetime | None
    opens_at: datetime | None
    used_at: datetime
    running: int = 0
    recent: dict[int, int] = field(default_factory=dict)
    first_start: dict[int, datetime] = field(default_factory=dict)
    cutoff: Rank | None = None
    is_cutoff_known: bool = False
    is_unread: bool = False
    is_full: bool = False
    is_closed: bool = False
    is_early: bool = False
    looks_at: datetime | None = None
    users: set[UUID] = field(default_factory=set)

    @property
    def stored(self) -> tuple[int | None, datetime | None, datetime | None]:
        """What the claim may have to write again."""
        return self.full_at, self.full_since, self.opens_at
