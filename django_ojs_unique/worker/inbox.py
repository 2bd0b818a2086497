"""Inbox: what other threads tell the loop."""

from __future__ import annotations

from collections.abc import Iterator
from queue import Empty, SimpleQueue

from ..execution.run import Run
from .finalizer import Outcomes

Message = Run | Outcomes | None
"""A run that never started, the stored outcomes of a batch, or None to wake the loop."""


class Inbox:
    """A queue of messages."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Message] = SimpleQueue()

    def put(self, message: Message = None) -> None:
        """Add a message, from any thread or signal handler."""
        self._queue.put(message)

    def take(self, timeout: float) -> Iterator[Message]:
        """Yield the messages that are there; wait up to ``timeout`` seconds for the first."""
        try:
            yield self._queue.get(timeout=timeout) if timeout else self._queue.get_nowait()
            while True:
                yield self._queue.get_nowait()
        except Empty:
            return
