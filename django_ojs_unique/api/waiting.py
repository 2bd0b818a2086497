"""Waiting: hold a fetch open until there is a job for it (long-polling; HTTP binding, "Worker endpoints").

On PostgreSQL an enqueue wakes it, through one listening connection for all the fetches of a process that wait on one
database; it is closed when none is left. Elsewhere, and for what no enqueue tells (a retry that is due, a resumed
queue), it looks again at intervals. Nothing is open in the database meanwhile, and no lock is held.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from threading import Event, Lock
from typing import Any

from django.db import connections
from django.db.models import QuerySet
from django.utils import timezone

from ..worker.listen import Listener
from ..worker.maintain import next_due

SHORTEST_POLL, LONGEST_POLL = 0.05, 0.5
"""Seconds between two looks, growing from the shorter to the longer."""
LISTENING_POLL = 1.0
"""The same, where every enqueue wakes the fetch."""


def wait_for(look: Callable[[], list[Any]], jobs: QuerySet[Any], queues: Collection[str], seconds: float) -> list[Any]:
    """Return what ``look`` finds: at once if it finds anything, else again and again until it does, or time is up."""
    until = time.monotonic() + seconds
    found = look()
    if found or seconds <= 0:
        return found
    pause = SHORTEST_POLL
    with _listening(jobs.db, queues) as (listener, rung):
        while not found and (left := until - time.monotonic()) > 0:
            pause = min(pause * 2, LONGEST_POLL)
            longest = min(left, LISTENING_POLL if listener.listening else pause, _due_in(jobs))
            _lend(jobs.db)
            rung.wait(max(0.0, longest))
            rung.clear()
            found = look()
    return found


class _Switchboard:
    """The fetches of this process that wait on one database, and the listener that they share."""

    def __init__(self, using: str) -> None:
        self.listener = Listener(using, self._ring)
        self._waiting: dict[Event, frozenset[str]] = {}

    def add(self, rung: Event, queues: Collection[str]) -> None:
        self._waiting = {**self._waiting, rung: frozenset(queues)}

    def remove(self, rung: Event) -> bool:
        """Forget one; return whether it was the last."""
        self._waiting = {other: queues for other, queues in self._waiting.items() if other is not rung}
        return not self._waiting

    def _ring(self, queue: str) -> None:
        """Wake those who wait for a queue, or all, as for what came before the listener listened."""
        for rung, queues in self._waiting.items():
            if not queue or queue in queues:
                rung.set()


_switchboards: dict[tuple[int, str], _Switchboard] = {}
"""By the process, as a fork inherits no thread, and the database's alias."""
_lock = Lock()
os.register_at_fork(after_in_child=lambda: globals().update(_lock=Lock()))


@contextmanager
def _listening(using: str, queues: Collection[str]) -> Iterator[tuple[Listener, Event]]:
    key, rung = (os.getpid(), using), Event()
    with _lock:
        if (board := _switchboards.get(key)) is None:
            board = _switchboards[key] = _Switchboard(using)
            board.listener.start()
        board.add(rung, queues)
    if board.listener.listening:
        rung.set()  # what came since the look was told to nobody
    try:
        yield board.listener, rung
    finally:
        with _lock:
            last = board.remove(rung)
            if last:
                del _switchboards[key]
        if last:
            board.listener.stop()


def _lend(using: str) -> None:
    """Give a connection back to its pool, which those who wait would exhaust; without one, a new one takes long."""
    connection = connections[using]
    if connection.settings_dict["OPTIONS"].get("pool") and not connection.in_atomic_block:
        connection.close()


def _due_in(jobs: QuerySet[Any]) -> float:
    """Return in how many seconds a job becomes due; what is due by now is locked by somebody else."""
    now, due = timezone.now(), next_due(jobs)
    return SHORTEST_POLL if due is not None and due <= now else (due - now).total_seconds() if due else float("inf")
