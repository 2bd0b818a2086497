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

    from .request import Incoming

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


@dataclass(frozen=True, slots=True)
class EnqueueResult(Generic[JobT]):
    """The result of one enqueue.

    ``job`` is the new job, or the existing one when ``deduplicated``. ``replaced`` are the jobs that were cancelled for
    the new one. When an enqueue with a key rewrote the waiting job, the outcome is ``replaced`` too: ``job`` is that
    job, and ``replaced`` is empty.
    """

    job: JobT
    outcome: Outcome
    replaced: tuple[JobT, ...] = ()

    @property
    def created(self) -> bool:
        """Whether a new job was stored, also if it replaced others."""
        return self.outcome is Outcome.CREATED or bool(self.replaced)

    @property
    def deduplicated(self) -> bool:
        """Whether an existing job was returned, and no job was stored."""
        return self.outcome is Outcome.DEDUPLICATED


class Admitted(EnqueueResult[JobT]):
    """The result of an enqueue that stored a new job; its object is built when somebody asks for it."""

    __slots__ = ("_incoming",)

    def __init__(self, incoming: Incoming) -> None:
        for name, value in (("_incoming", incoming), ("outcome", Outcome.CREATED), ("replaced", ())):
            object.__setattr__(self, name, value)

    @property
    def job(self) -> JobT:  # type: ignore[override]
        """The new job."""
        return self._incoming.job  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return repr(EnqueueResult(self.job, self.outcome))

    def __eq__(self, other: object) -> bool:
        return EnqueueResult(self.job, self.outcome) == other if type(other) is EnqueueResult else self is other

    def __hash__(self) -> int:
        return hash(EnqueueResult(self.job, self.outcome))

    def __reduce__(self) -> Any:
        return EnqueueResult, (self.job, self.outcome)


@dataclass(frozen=True, slots=True)
class ItemResult(EnqueueResult[JobT]):
    """The result of one item of a batch.

    ``index`` counts from 0. ``error`` is what a single enqueue would have raised, when the outcome is ``rejected``
    (then ``job`` is the existing one) or ``invalid`` (then ``job`` is None).
    """

    job: Any
    index: int = 0
    error: OJSError | None = None


@dataclass(slots=True)
class BatchResult(Sequence[ItemResult[JobT]]):
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
