"""Hooks around each enqueue and each attempt, for tracing. The default does nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any


class Tracer:
    """Surrounds enqueues and attempts; this one does nothing. An exception in a tracer fails the enqueue or attempt."""

    def enqueue(self, job: Any) -> AbstractContextManager[Callable[[Any], None]]:
        """Surround the enqueue of an unsaved job; yield a function that is called with the `EnqueueResult`.

        The tracer may change the job; the fingerprint is computed before that and stays.
        """
        return nullcontext(_nothing)

    def enqueue_many(self, entries: Sequence[Any]) -> AbstractContextManager[None]:
        """Surround a batch in one transaction. Each entry has its ``new_job.job`` and, at the end, its ``outcome``."""
        return nullcontext()

    def run(self, job: Any) -> AbstractContextManager[Callable[[Any, BaseException | None], None]]:
        """Surround one attempt, in its thread or task; yield a function called with its `RunResult` and its exception.

        The exception is None if none was raised. The block may never end: a worker goes on without a handler that
        ignores its time limit.
        """
        return nullcontext(_nothing)

    def flush(self) -> None:
        """Export what is kept in memory, because this process ends without its exit handlers."""


class Several(Tracer):
    """Several tracers; the first one is the outermost."""

    def __init__(self, *tracers: Tracer) -> None:
        self._tracers = tracers

    @contextmanager
    def enqueue(self, job: Any) -> Iterator[Callable[[Any], None]]:
        with ExitStack() as stack:
            reports = [stack.enter_context(tracer.enqueue(job)) for tracer in self._tracers]
            yield lambda result: _each(reports, result)

    @contextmanager
    def enqueue_many(self, entries: Sequence[Any]) -> Iterator[None]:
        with ExitStack() as stack:
            for tracer in self._tracers:
                stack.enter_context(tracer.enqueue_many(entries))
            yield

    @contextmanager
    def run(self, job: Any) -> Iterator[Callable[[Any, BaseException | None], None]]:
        with ExitStack() as stack:
            reports = [stack.enter_context(tracer.run(job)) for tracer in self._tracers]
            yield lambda finished, error: _each(reports, finished, error)

    def flush(self) -> None:
        for tracer in self._tracers:
            tracer.flush()


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


def trace_also_with(tracer: Tracer) -> None:
    """Add a tracer to that of this process."""
    trace_with(Several(_tracer, tracer) if is_traced() else tracer)


def _each(functions: Sequence[Callable[..., None]], *facts: Any) -> None:
    for function in functions:
        function(*facts)


def _nothing(*facts: Any) -> None:
    pass
