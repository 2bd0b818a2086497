"""What others want of a worker's loop: whether it claims, drains or stops, and the inbox for other threads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from queue import Empty, SimpleQueue

from ..execution.run import Run
from ..models import WorkerProcess
from .finalizer import Outcomes


class Control:
    """What the caller, a signal or an operator wants of a worker. Safe to change in a signal handler."""

    def __init__(self, shutdown_timeout: float) -> None:
        self.draining = False
        self.stopping = False
        self.quiet = False
        """Whether an operator wants no more claims."""
        self.give_up_at = float("inf")
        """When to stop without the handlers that still run, on the monotonic clock."""
        self._shutdown_timeout = shutdown_timeout

    @property
    def state(self) -> str:
        """``stopping``, ``quiet`` or ``running``."""
        return "stopping" if self.stopping else "quiet" if self.quiet else "running"

    @property
    def may_claim(self) -> bool:
        """Whether the worker may claim jobs."""
        return not self.stopping and not self.quiet

    @property
    def is_late(self) -> bool:
        """Whether the time to stop is over."""
        return self.stopping and time.monotonic() >= self.give_up_at

    @property
    def seconds_left(self) -> float:
        """How many seconds of the shutdown timeout are left."""
        return min(self._shutdown_timeout, max(0.0, self.give_up_at - time.monotonic()))

    def stop(self) -> None:
        """Stop: running handlers may finish within the shutdown timeout."""
        self.stopping = True
        self.give_up_at = min(self.give_up_at, time.monotonic() + self._shutdown_timeout)

    def obey(self, directive: str) -> tuple[bool, bool]:
        """Follow the directive of an operator; return whether it is new, and whether it ends the worker."""
        quiet = directive == WorkerProcess.Directive.QUIET
        ends = directive == WorkerProcess.Directive.TERMINATE and not self.stopping
        is_new = quiet != self.quiet or ends
        self.quiet = quiet
        return is_new, ends


Heard = Run | Outcomes | None
"""A run that never started, the stored outcomes of a batch, or None to wake the loop."""


class Inbox:
    """A queue of messages."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Heard] = SimpleQueue()

    def put(self, message: Heard = None) -> None:
        """Add a message, from any thread or signal handler."""
        self._queue.put(message)

    def take(self, timeout: float) -> Iterator[Heard]:
        """Yield the messages that are there; wait up to ``timeout`` seconds for the first."""
        try:
            yield self._queue.get(timeout=timeout) if timeout else self._queue.get_nowait()
            while True:
                yield self._queue.get_nowait()
        except Empty:
            return
