"""What became of the jobs that were to be changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from ..exceptions import OJSError


@dataclass(slots=True)
class BulkResult:
    """What became of many jobs, all named by their ids.

    ``changed``: those that were cancelled, made available or enqueued again. ``refused``: those that stay as they
    were, each with the error that the same call for one job raises. ``replaced``: the live duplicates that were
    cancelled, each with the job that it made way for. ``new``: for each job that was enqueued again, the new job.
    ``previous``: the states of jobs before they were cancelled, activated, released or deleted.
    """

    changed: list[UUID] = field(default_factory=list)
    refused: dict[UUID, OJSError] = field(default_factory=dict)
    replaced: dict[UUID, UUID] = field(default_factory=dict)
    new: dict[UUID, UUID] = field(default_factory=dict)
    previous: dict[UUID, str] = field(default_factory=dict)

    @classmethod
    def total(cls, parts: Iterable[BulkResult]) -> BulkResult:
        """Return the result of all parts together."""
        whole = cls()
        for part in parts:
            whole.add(part)
        return whole

    def add(self, part: BulkResult) -> None:
        """Take up what became of other jobs."""
        self.changed += part.changed
        self.refused |= part.refused
        self.replaced |= part.replaced
        self.new |= part.new
        self.previous |= part.previous

    def __str__(self) -> str:
        return f"{len(self.changed):,} changed, {len(self.refused):,} refused"
