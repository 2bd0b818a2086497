"""What surrounds each enqueue and each run, for whoever traces them. By default nothing does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .outcomes import EnqueueResult


class Tracer:
    """Surrounds enqueues and runs; this one does nothing. What another one raises, the enqueue or the run raises."""

    def enqueue(self, job: Any) -> AbstractContextManager[Callable[[EnqueueResult], None]]:
        """Surround an enqueue of an unsaved job, which may be changed; tell the answer to what this yields.

        The job's fingerprint stays what it is.
        """
        return nullcontext(_nothing)

    def enqueue_many(self, entries: Sequence[Any]) -> AbstractContextManager[None]:
        """Surround a batch in one transaction. Each entry has its ``incoming.job`` and, in the end, its ``outcome``."""
        return nullcontext()

    def run(self, job: Any) -> AbstractContextManager[Callable[[Any, BaseException | None], None]]:
        """Surround one attempt, in its thread or task; tell its `Finished`, and what was raised, to what this yields.

        It may never end: a worker goes on without a handler that does not heed its time limit.
        """
        return nullcontext(_nothing)

    def flush(self) -> None:
        """Hand over what is kept in memory, as this process ends without its exit handlers."""


_tracer = Tracer()


def tracer() -> Tracer:
    """Return who traces in this process."""
    return _tracer


def trace_with(tracer: Tracer) -> Tracer:
    """Let another one trace in this process; return the one before."""
    global _tracer
    before, _tracer = _tracer, tracer
    return before


def _nothing(*told: Any) -> None:
    pass
