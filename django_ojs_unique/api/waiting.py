"""Waiting: hold a fetch open until there is a job for it (long-polling; HTTP binding, "Worker endpoints").

On PostgreSQL an enqueue wakes the fetch. All fetches of a process that wait on one database share one listening
connection, which is closed when none waits. For other databases, and for a due retry or a resumed queue, one of them
looks at intervals, for all. Meanwhile a fetch has no open transaction and no lock in the database.

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
from ..maintenance import due
from ..maintenance.on_demand import fail_deleted_now_and_then
from ..worker.listen import Listener
from ..worker.queues import waiting_queues

SHORTEST_POLL, LONGEST_POLL = 0.05, 0.5
"""Seconds between two looks of a process, growing from the shorter to the longer for each fetch."""
LISTENING_POLL = 1.0
"""The same, where every enqueue wakes the fetch."""
DUE_POLL = 0.05
"""The same, while a job is due that the last look did not promote: another worker has it locked."""
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
    with _listening(jobs.db, queues, _room(request)) as (board, rung):
        while not found and (left := until - time.monotonic()) > 0:
            pause = min(pause * 2, LONGEST_POLL)
            next_look = board.look(jobs, LISTENING_POLL if board.listener.listening else pause)
            _lend(jobs.db)
            _rest(max(0.0, min(left, next_look)), rung, request)
            if has_gone(request):
                break
            if rung.is_set():
                rung.clear()
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
        self._looking = Lock()
        self._looked_at = self._due_at = float("-inf")
        """When a fetch last looked for all, and when a job is due before the next look; on the monotonic clock."""

    def add(self, rung: Event, queues: Collection[str]) -> None:
        self._waiting = {**self._waiting, rung: frozenset(queues)}

    def __len__(self) -> int:
        return len(self._waiting)

    def remove(self, rung: Event) -> bool:
        """Remove one fetch; return whether it was the last."""
        self._waiting = {other: queues for other, queues in self._waiting.items() if other is not rung}
        return not self._waiting

    def look(self, jobs: QuerySet[Any], interval: float) -> float:
        """Look for all fetches, unless one did so within ``interval`` seconds; return in how many to look again.

        Wake those for whose queues there are available jobs, and all of them if there is maintenance to do.
        """
        with self._looking:  # the others wait for what this look finds: it says when the next one must be
            began = time.monotonic()
            if began >= min(self._looked_at + interval, self._due_at):
                self._looked_at, self._due_at = began, self._due_in(jobs) + began
            return min(self._looked_at + interval, self._due_at) - time.monotonic()

    def _due_in(self, jobs: QuerySet[Any]) -> float:
        """Look; return in how many seconds the next job is due, infinity if none is."""
        now = database_now(jobs.db)
        fail_deleted_now_and_then(jobs.db, now)
        seen = due.look(jobs, now)
        rung = [""] if seen.calls_for_maintenance(now) else waiting_queues(jobs) if seen.available is not None else []
        for queue in rung:
            self._ring(queue)
        return float("inf") if seen.due is None else max(DUE_POLL, (seen.due - now).total_seconds())

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
def _listening(using: str, queues: Collection[str], room: int) -> Iterator[tuple[_Switchboard, Event]]:
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
        yield board, rung
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
