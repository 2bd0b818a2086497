"""Waiting: hold a fetch open until there is a job for it (long-polling; HTTP binding, "Worker endpoints").

On PostgreSQL an enqueue wakes the fetch. All fetches of a process that wait on one database share one listening
connection, which is closed when none waits. On other databases, and for a due retry or a resumed queue, the fetch polls
at intervals. Meanwhile it has no open transaction and no lock in the database.

Each waiting fetch occupies a thread of the server. So only some may wait; the others are told to fetch again later.
"""

from __future__ import annotations

import asyncio
import os
import select
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from threading import Event, Lock
from typing import Any

from asgiref.sync import async_to_sync
from django.core.handlers.asgi import ASGIRequest
from django.db import connections
from django.db.models import QuerySet
from django.http import HttpRequest

from ..conf import settings
from ..db.clock import database_now
from ..maintenance.timers import next_due
from ..worker.listen import Listener

SHORTEST_POLL, LONGEST_POLL = 0.05, 0.5
"""Seconds between two polls, growing from the shorter to the longer."""
LISTENING_POLL = 1.0
"""The same, where every enqueue wakes the fetch."""
DUE_POLL = 0.05
"""The same, while a job is due that the last look did not find."""
COME_BACK = 2
"""``Retry-After`` in seconds for a client whose fetch may not wait."""


class Crowded(Exception):
    """The fetch may not wait: too many wait already, or the process serves one request at a time."""


def wait_for(
    look: Callable[[], list[Any]], jobs: QuerySet[Any], queues: Collection[str], seconds: float, request: HttpRequest
) -> list[Any]:
    """Call ``look`` until it finds jobs, and return them; return none after ``seconds`` or if the client has gone.

    Raises Crowded. Under ASGI, raises asyncio.CancelledError if the client has gone.
    """
    until, pause = time.monotonic() + seconds, SHORTEST_POLL
    found: list[Any] = []
    with _listening(jobs.db, queues, _room(request)) as (listener, rung):
        while not found and (left := until - time.monotonic()) > 0:
            pause = min(pause * 2, LONGEST_POLL)
            longest = min(left, LISTENING_POLL if listener.listening else pause, _due_in(jobs))
            _lend(jobs.db)
            _rest(max(0.0, longest), rung, request)
            rung.clear()
            if has_gone(request):
                break
            found = look()
    return found


def has_gone(request: HttpRequest) -> bool:
    """Whether the client has closed its connection; False if the server does not show it. Gunicorn does.

    Nothing is read from the socket, so that further data of the client, or of TLS, is left to the server.
    """
    client = request.META.get("gunicorn.socket")
    if client is None:
        return False
    poll = select.poll()
    poll.register(client.fileno(), select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0))
    return bool(poll.poll(0))


def _rest(seconds: float, rung: Event, request: HttpRequest) -> None:
    """Wait until ``rung`` is set or time is up. Under ASGI, raises asyncio.CancelledError if the client goes."""
    if isinstance(request, ASGIRequest):
        async_to_sync(_rest_in_loop)(seconds, rung)
    else:
        rung.wait(seconds)


async def _rest_in_loop(seconds: float, rung: Event) -> None:
    """Do the same in the server's event loop; Django cancels the task there when the client goes."""
    until = time.monotonic() + seconds
    while not rung.is_set() and (left := until - time.monotonic()) > 0:
        await asyncio.sleep(min(left, SHORTEST_POLL))


def _room(request: HttpRequest) -> int:
    """Return how many fetches may wait: none if the process serves one request at a time."""
    return settings.api["MAX_WAITING"] if request.META.get("wsgi.multithread", True) else 0


class _Switchboard:
    """The waiting fetches of this process on one database, and the listener that they share."""

    def __init__(self, using: str) -> None:
        self.listener = Listener(using, self._ring)
        self._waiting: dict[Event, frozenset[str]] = {}

    def add(self, rung: Event, queues: Collection[str]) -> None:
        self._waiting = {**self._waiting, rung: frozenset(queues)}

    def __len__(self) -> int:
        return len(self._waiting)

    def remove(self, rung: Event) -> bool:
        """Remove one fetch; return whether it was the last."""
        self._waiting = {other: queues for other, queues in self._waiting.items() if other is not rung}
        return not self._waiting

    def _ring(self, queue: str) -> None:
        """Wake the fetches that wait for a queue; all of them if it is empty, as when the listener has just begun."""
        for rung, queues in self._waiting.items():
            if not queue or queue in queues:
                rung.set()


_switchboards: dict[tuple[int, str], _Switchboard] = {}
"""By process id and database alias; the process id is needed because a forked process has no listener thread."""
_lock = Lock()
if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=lambda: globals().update(_lock=Lock()))


@contextmanager
def _listening(using: str, queues: Collection[str], room: int) -> Iterator[tuple[Listener, Event]]:
    key, rung = (os.getpid(), using), Event()
    with _lock:
        if sum(len(board) for (process, _), board in _switchboards.items() if process == key[0]) >= room:
            raise Crowded
        if (board := _switchboards.get(key)) is None:
            board = _switchboards[key] = _Switchboard(using)
            board.listener.start()
        board.add(rung, queues)
    if board.listener.listening:
        rung.set()  # a job may have come since the last look, before this fetch was listed
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
    """Give a pooled connection back, as waiting fetches would exhaust the pool; else keep it: a new one is slow."""
    connection = connections[using]
    if connection.settings_dict["OPTIONS"].get("pool") and not connection.in_atomic_block:
        connection.close()


def _due_in(jobs: QuerySet[Any]) -> float:
    """Return in how many seconds the next job is due, infinity if none is.

    For one that is due the answer is `DUE_POLL`: it became due since the last look, or another worker has it locked.
    """
    now, due = database_now(jobs.db), next_due(jobs)
    return DUE_POLL if due is not None and due <= now else (due - now).total_seconds() if due else float("inf")
