"""Hooks around each enqueue and each attempt, for tracing. The default does nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any


class Tracer:
    """Surrounds enqueues and attempts; this one does nothing. An exception in a tracer fails the enqueue or attempt."""

    def enqueue(self, job: Any) -> AbstractContextManager[Callable[[Any], None]]:
        """Surround the enqueue of an unsaved job; yield a function that is called with the `EnqueueResult`.

        The tracer may change the job; the fingerprint is computed before that and stays.
        """
        return nullcontext(_nothing)

    def enqueue_many(self, entries: Sequence[Any]) -> AbstractContextManager[None]:
        """Surround a batch in one transaction. Each entry has its ``incoming.job`` and, at the end, its ``outcome``."""
        return nullcontext()

    def run(self, job: Any) -> AbstractContextManager[Callable[[Any, BaseException | None], None]]:
        """Surround one attempt, in its thread or task; yield a function called with its `Finished` and its exception.

        The exception is None if none was raised. The block may never end: a worker goes on without a handler that
        ignores its time limit.
        """
        return nullcontext(_nothing)

    def flush(self) -> None:
        """Export what is kept in memory, because this process ends without its exit handlers."""


_tracer = Tracer()


def tracer() -> Tracer:
    """Return the tracer of this process."""
    return _tracer


def is_traced() -> bool:
    """Whether this process has a tracer that does something."""
    return type(_tracer) is not Tracer


def trace_with(tracer: Tracer) -> Tracer:
    """Replace the tracer of this process; return the previous one."""
    global _tracer
    before, _tracer = _tracer, tracer
    return before


def _nothing(*told: Any) -> None:
    pass
