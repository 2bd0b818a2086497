"""What a handler learns about its attempt, and what it may do with it meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID, uuid5

from ..exceptions import InvalidRequest

if TYPE_CHECKING:
    from ..models import Job


class SupportsHold(Protocol):
    """What a context needs of `django_ojs_unique.execution.hold.Hold`, which documents the members."""

    def is_held(self) -> bool: ...
    def report(self, fraction: float, note: str) -> None: ...
    def fence(self) -> None: ...
    def complete(self, result: Any) -> None: ...


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
    hold: SupportsHold = field(repr=False)
    job: Job
    """The row as it was claimed; fields that an attempt does not need are read from the database on access."""

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled or replaced since it started, or its lease lost: its result will be refused.

        In a plain handler each access is a query: use it between the steps of a long handler, not in a tight loop. In
        an ``async def`` handler it is what the worker saw in the last second, and the worker cancels the handler then.
        """
        return not self.hold.is_held()

    def progress(self, fraction: float, note: str = "") -> None:
        """Report how far the work is, from 0 to 1, and a note. Cheap: the worker stores the last report each second.

        Raises InvalidRequest for a number outside 0 to 1.
        """
        if not isinstance(fraction, (int, float)) or not 0 <= fraction <= 1:
            raise InvalidRequest.at(
                "fraction", "must be a number from 0 to 1", value=fraction, mend="Write context.progress(done / total)."
            )
        self.hold.report(float(fraction), str(note))

    def fence(self) -> None:
        """Lock the job's row until your transaction ends, so that nobody can take the job away before its commit.

        Who cancels the job meanwhile waits. Raises LeaseLost if the job is no longer held, and RuntimeError outside of
        `transaction.atomic` on the database of the jobs.
        """
        self.hold.fence()

    def complete(self, result: Any = None) -> None:
        """Complete the job in your transaction: what you wrote in it and the completion are committed, or neither.

        What the handler returns afterwards is ignored. Raises LeaseLost if the job is no longer held or is completed
        already; your transaction cannot commit then. Raises RuntimeError outside of `transaction.atomic` on the
        database of the jobs, and in a handler that is ``atomic`` already.
        """
        self.hold.complete(result)

    def idempotency_key(self, step: str = "") -> str:
        """Return a UUID for what this job asks of another service: the same in each attempt, another for each ``step``.

        The service must honour such keys: then a request that is sent twice has the effect of one.
        """
        return str(uuid5(self.job_id, step))
