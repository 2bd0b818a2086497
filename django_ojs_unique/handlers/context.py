"""What a handler learns about its attempt, and what it may report meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ..exceptions import InvalidRequest

if TYPE_CHECKING:
    from ..models import Job


@dataclass(frozen=True, slots=True)
class JobContext:
    """What a handler declared with ``takes_context=True`` learns about its attempt."""

    job_id: UUID
    type: str
    queue: str
    attempt: int
    max_attempts: int
    meta: dict[str, Any] = field(repr=False)
    tags: list[str]
    enqueued_at: datetime
    started_at: datetime
    worker_id: str
    is_held: Callable[[], bool]
    report: Callable[[float, str], None]
    job: Job
    """The row as it was claimed; fields that an attempt does not need are read from the database on access."""

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled or replaced since it started, or its lease lost: its result will be refused.

        In a plain handler each access is a query: use it between the steps of a long handler, not in a tight loop. In
        an ``async def`` handler it is what the worker saw in the last second, and the worker cancels the handler then.
        """
        return not self.is_held()

    def progress(self, fraction: float, note: str = "") -> None:
        """Report how far the work is, from 0 to 1, and a note. Cheap: the worker stores the last report each second.

        Raises InvalidRequest for a number outside 0 to 1.
        """
        if not isinstance(fraction, (int, float)) or not 0 <= fraction <= 1:
            raise InvalidRequest.at(
                "fraction", "must be a number from 0 to 1", value=fraction, mend="Write context.progress(done / total)."
            )
        self.report(float(fraction), str(note))
