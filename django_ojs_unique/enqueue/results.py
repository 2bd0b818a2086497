"""The results of enqueues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, overload

from ..exceptions import OJSError

if TYPE_CHECKING:
    from django.db.models import Model
    from typing_extensions import TypeVar

    JobT = TypeVar("JobT", bound=Model, default=Any)
else:
    from typing import TypeVar

    JobT = TypeVar("JobT")


class Outcome(StrEnum):
    """The outcome of an enqueue. The last two occur only in a batch; a single enqueue raises instead."""

    CREATED = "created"
    DEDUPLICATED = "deduplicated"
    REPLACED = "replaced"
    REJECTED = "rejected"
    INVALID = "invalid"


_LATER = "result.job.refresh_from_db(), then result.job.{}: a worker runs the job later"
_ELSEWHERE = {
    **dict.fromkeys(("id", "task_id", "job_id", "message_id", "pk"), "result.job.id"),
    **dict.fromkeys(("get", "result", "wait", "return_value", "aget"), _LATER.format("result")),
    **dict.fromkeys(
        ("status", "state", "ready", "successful", "failed", "is_finished", "refresh"), _LATER.format("state")
    ),
    **dict.fromkeys(("traceback", "errors", "info"), _LATER.format("errors")),
    **dict.fromkeys(("revoke", "abort", "cancel"), "result.job.cancel()"),
    "existing_job": "result.job, with result.deduplicated",
    "duplicate": "result.deduplicated",
}
"""What other job systems call the members of a result: Celery, Dramatiq, RQ, Huey, Django's tasks."""


class LazyJob:
    """A new job whose object is built when it is first asked for."""

    __slots__ = ()
    job: Any


class EnqueueResult(Generic[JobT]):
    """The result of one enqueue.

    ``job`` is the new job, or the existing one when ``deduplicated``. ``replaced`` are the jobs that were cancelled for
    the new one. When an enqueue with a key rewrote the waiting job, the outcome is ``replaced`` too: ``job`` is that
    job, and ``replaced`` is empty.
    """

    __slots__ = ("_job", "outcome", "replaced")

    def __init__(self, job: Any, outcome: Outcome, replaced: tuple[JobT, ...] = ()) -> None:
        self._job = job
        self.outcome = outcome
        self.replaced = replaced

    @property
    def job(self) -> JobT:
        """The job; the object of a new one is built when it is first asked for."""
        job: JobT = self._job.job if isinstance(self._job, LazyJob) else self._job
        return job

    if not TYPE_CHECKING:  # type checkers would believe that a result has every attribute

        def __getattr__(self, name: str) -> Any:
            hint = f". Write {_ELSEWHERE[name]}." if name in _ELSEWHERE else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)

    @property
    def created(self) -> bool:
        """Whether a new job was stored, also if it replaced others."""
        return self.outcome is Outcome.CREATED or bool(self.replaced)

    @property
    def deduplicated(self) -> bool:
        """Whether an existing job was returned, and no job was stored."""
        return self.outcome is Outcome.DEDUPLICATED

    def __reduce__(self) -> Any:
        return type(self), self._values()

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def _values(self) -> tuple[Any, ...]:
        return self.job, self.outcome, self.replaced

    def __repr__(self) -> str:
        return f"{type(self).__name__}(job={self.job!r}, outcome={self.outcome!r}, replaced={self.replaced!r})"


class ItemResult(EnqueueResult[JobT]):
    """The result of one item of a batch.

    ``index`` counts from 0. ``error`` is what a single enqueue would have raised, when the outcome is ``rejected``
    (then ``job`` is the existing one) or ``invalid`` (then ``job`` is None).
    """

    __slots__ = ("error", "index")

    def __init__(
        self, job: Any, outcome: Outcome, replaced: tuple[JobT, ...] = (), index: int = 0, error: OJSError | None = None
    ) -> None:
        self._job = job
        self.outcome = outcome
        self.replaced = replaced
        self.index = index
        self.error = error

    def _values(self) -> tuple[Any, ...]:
        return *super()._values(), self.index, self.error

    @property
    def job(self) -> Any:
        """The job, or None."""
        return super().job


@dataclass(slots=True)
class BulkEnqueueResult(Sequence[ItemResult[JobT]]):
    """The results of a batch, in the order of its items, and how many there were of each outcome.

    It is empty, except for the ``counts``, when the results were passed to ``each``.
    """

    counts: Counter[Outcome] = field(default_factory=Counter)
    results: list[ItemResult[JobT]] = field(default_factory=list)

    @overload
    def __getitem__(self, index: int) -> ItemResult[JobT]: ...

    @overload
    def __getitem__(self, index: slice) -> list[ItemResult[JobT]]: ...

    def __getitem__(self, index: int | slice) -> ItemResult[JobT] | list[ItemResult[JobT]]:
        return self.results[index]

    def __iter__(self) -> Iterator[ItemResult[JobT]]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __str__(self) -> str:
        return ", ".join(f"{self.counts[outcome]:,} {outcome}" for outcome in Outcome if self.counts[outcome]) or "none"
