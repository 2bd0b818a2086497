"""What became of enqueues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, overload
from uuid import UUID

from .exceptions import OJSError

if TYPE_CHECKING:
    from .models import Job


class Outcome(StrEnum):
    """What became of an enqueue; the last two are answers of a batch, where a single enqueue raises."""

    CREATED = "created"
    DEDUPLICATED = "deduplicated"
    REPLACED = "replaced"
    REJECTED = "rejected"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class EnqueueResult:
    """The answer to one enqueue.

    ``job`` is the new job, or the existing one when ``deduplicated``. ``replaced`` are the jobs that were cancelled for
    the new one. An enqueue with a key that rewrote the waiting job is ``replaced`` too; then ``job`` is that job, and
    ``replaced`` is empty.
    """

    job: Job
    outcome: Outcome
    replaced: tuple[Job, ...] = ()

    @property
    def created(self) -> bool:
        """Whether a new job was stored, be it in the place of others."""
        return self.outcome is Outcome.CREATED or bool(self.replaced)

    @property
    def deduplicated(self) -> bool:
        """Whether an existing job answers for this one, and nothing was stored."""
        return self.outcome is Outcome.DEDUPLICATED


@dataclass(frozen=True, slots=True)
class ItemResult(EnqueueResult):
    """The answer to one item of a batch.

    ``index`` counts from 0. ``error`` is what a single enqueue would have raised, when the outcome is ``rejected``
    (then ``job`` is the existing one) or ``invalid`` (then ``job`` is None).
    """

    job: Any
    index: int = 0
    error: OJSError | None = None


@dataclass(slots=True)
class BatchResult(Sequence[ItemResult]):
    """The answers to a batch, in the order of its items, and how many there were of each outcome.

    It is empty, but for the ``counts``, when the answers were handed to ``each``.
    """

    counts: Counter[Outcome] = field(default_factory=Counter)
    results: list[ItemResult] = field(default_factory=list)

    @overload
    def __getitem__(self, index: int) -> ItemResult: ...

    @overload
    def __getitem__(self, index: slice) -> list[ItemResult]: ...

    def __getitem__(self, index: int | slice) -> ItemResult | list[ItemResult]:
        return self.results[index]

    def __iter__(self) -> Iterator[ItemResult]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __str__(self) -> str:
        return ", ".join(f"{self.counts[outcome]:,} {outcome}" for outcome in Outcome if self.counts[outcome]) or "none"


class Met(NamedTuple):
    """A stored job as an enqueue met it: a later one of the same batch may change it."""

    pk: UUID
    state: str


class Suppression(NamedTuple):
    """One enqueue that met stored jobs: the job it brought, its strategy, the jobs, and the outcome."""

    job: Any
    on_conflict: str
    met: tuple[Met, ...]
    outcome: str


Recorder = Callable[[Sequence[Suppression]], None]
"""Notes suppressed attempts."""
