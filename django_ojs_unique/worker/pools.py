"""Pools: where handlers run. Plain functions get threads, ``async def`` functions one event loop."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context
from functools import partial
from queue import SimpleQueue
from threading import local
from typing import Any

from asgiref.sync import sync_to_async
from django.db import DatabaseError, InterfaceError, connections

from ..db import sessions
from ..exceptions import TransactionLeftOpen
from ..execution.errors import has_lost
from ..execution.execute import aexecute, execute
from ..execution.run import Run
from ..execution.run_result import RunResult, broken
from ..handlers.carried import handed_on
from .threads import WatchedThread

logger = logging.getLogger("django_ojs_unique.worker")

WORK_AHEAD_SECONDS = 0.05
"""How much work to have claimed but not started: enough to batch short jobs, too little to keep long jobs waiting."""
LARGEST_AHEAD = 600
"""How many jobs to have at most beyond those that can run at once; some of these are being claimed or finalized."""
SHORT_SECONDS = 0.005
"""Jobs of a type that take less on average begin their last attempts unconfirmed: each would take longer otherwise."""
LONGEST_UNSEEN = 0.5
"""Seconds after which a claimed job may have been cancelled unnoticed: it begins only if its lease is confirmed."""
LONGEST_UNSTARTED = 1.0
"""Seconds after which a claimed job that has not started goes back for other workers."""
IDLE_SECONDS = 1.0
"""A thread that was idle for longer checks whether its database connections still work."""

Ended = Callable[[Run, RunResult | None], None]
"""Called for each run that is over, with its outcome, or None when it never started."""
Confirm = Callable[[Run], bool]
"""Lets an attempt count, before it begins; returns whether that succeeded and its job is still leased."""


class Pool:
    """Runs up to ``capacity`` jobs at once; has some more, ready to start.

    When a worker dies, the attempts of jobs that have not begun must not count. So none counts before it is confirmed.
    For most, the next extension of the lease does that. ``confirm`` is called before an attempt begins that must not
    begin twice: the last one, and any of a job that has lost a lease, since the job itself may have killed its worker.
    It is also called for a run that has waited, so that no job begins long after it was cancelled.
    """

    def __init__(self, capacity: int, ended: Ended, confirm: Confirm) -> None:
        self.capacity = capacity
        self.runs = 0
        self.closed = False
        """Whether runs that have not started must not start any more."""
        self._ended = ended
        self._confirm = confirm
        self._mean_seconds = 1.0
        self._mean_seconds_of: dict[str, float] = {}
        """By type."""

    @property
    def is_alive(self) -> bool:
        """Whether no exception has ended a thread of it."""
        raise NotImplementedError

    def room(self, largest: int, unread: int = 0) -> int:
        """Return how many jobs to claim now: none unless some could start at once, or there is room for a batch.

        ``unread`` are the jobs that are claimed for it, but are no runs yet.
        """
        runs = self.runs + unread
        ahead = int(self.capacity * WORK_AHEAD_SECONDS / self._mean_seconds)
        target = self.capacity + min(ahead, LARGEST_AHEAD)
        room = target - runs
        return min(room, largest) if runs < self.capacity or room >= min(largest, target / 2) else 0

    def slow_down(self) -> None:
        """Have no more than can run at once, until jobs are short again."""
        self._mean_seconds = max(self._mean_seconds, LONGEST_UNSTARTED)

    def put(self, runs: Iterable[Run]) -> None:
        """Run jobs as soon as possible."""
        raise NotImplementedError

    def interrupt(self, run: Run) -> None:
        """Interrupt a handler whose time is up; it may react later."""

    def cancel(self, run: Run) -> None:
        """Cancel a handler whose lease is lost; it may react later."""

    def write_off(self, run: Run) -> None:
        """Go on without a handler that does not end."""
        raise NotImplementedError

    def stop(self) -> None:
        """End, once nothing runs any more except handlers that were written off."""
        raise NotImplementedError

    def _learn(self, run: Run) -> None:
        assert run.started_at is not None
        seconds = max(time.monotonic() - run.started_at, 1e-6)
        self._mean_seconds += (seconds - self._mean_seconds) / 8
        mean = self._mean_seconds_of.get(run.job.type, seconds)
        self._mean_seconds_of[run.job.type] = mean + (seconds - mean) / 8

    def _must_confirm(self, run: Run) -> bool:
        is_last = run.job.attempt >= run.job.max_attempts
        is_short = self._mean_seconds_of.get(run.job.type, SHORT_SECONDS) < SHORT_SECONDS
        must_not_repeat = (is_last and not is_short) or (bool(run.job.errors) and has_lost(run.job))
        return must_not_repeat or run.unseen_for > LONGEST_UNSEEN

    def _begin(self, run: Run, *, confirmed: bool) -> bool:
        """Begin a run, ``confirmed`` or not; return False if it must not begin any more."""
        return not self.closed and (not confirmed or self._confirm(run)) and run.begin()


class ThreadPool(Pool):
    """Runs plain handlers, each in a thread with database connections of its own."""

    def __init__(self, capacity: int, ended: Ended, confirm: Confirm) -> None:
        super().__init__(capacity, ended, confirm)
        self._todo: SimpleQueue[Run | None] = SimpleQueue()
        self._threads: list[WatchedThread] = []
        self._lost = 0

    @property
    def is_alive(self) -> bool:
        return not any(thread.died for thread in self._threads)

    def start(self) -> None:
        """Start the threads."""
        for _ in range(self.capacity):
            self._start_thread()

    def put(self, runs: Iterable[Run]) -> None:
        for run in runs:
            self._todo.put(run)

    def interrupt(self, run: Run) -> None:
        # Only for time limits: a plain handler can check for a cancellation itself, where that is safe for it, with
        # `context.cancelled`.
        if run.block is not None:
            run.block.interrupt()

    def write_off(self, run: Run) -> None:
        self._lost += 1
        self._start_thread()

    def stop(self) -> None:
        for _ in self._threads:
            self._todo.put(None)
        if not self._lost:
            for thread in self._threads:
                thread.join()

    def _start_thread(self) -> None:
        thread = WatchedThread(f"ojs-{len(self._threads)}", self._serve)
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        idle_since = time.monotonic()
        sessions.watch()
        try:
            while (run := self._todo.get()) is not None:
                if time.monotonic() - idle_since > IDLE_SECONDS:
                    _drop_dead_connections()
                if not self._run(run):
                    return
                idle_since = time.monotonic()
        finally:
            connections.close_all()

    def _run(self, run: Run) -> bool:
        """Run a job; return False when this thread was written off during the run."""
        if not self._begin(run, confirmed=self._must_confirm(run)):
            if run.end():
                self._ended(run, None)
            return True
        try:
            finished = Context().run(execute, run)  # a context of its own, as each async handler has
        except BaseException as error:
            finished = broken(run, error)
        self._learn(run)
        if run.end():
            self._ended(run, finished)
            return True
        logger.warning("Job %s (%s) ended after it was given up.", run.job.pk, run.job.type, extra=run.labels())
        return False


class EventLoopPool(Pool):
    """Runs ``async def`` handlers as tasks of one event loop, in a thread of its own."""

    def __init__(self, capacity: int, ended: Ended, confirm: Confirm) -> None:
        super().__init__(capacity, ended, confirm)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = WatchedThread("ojs-async", self._serve)
        self._hand_on = handed_on()
        self._waiting: deque[Run] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._next_look = 0.0
        self._stopping = asyncio.Event()
        self._is_watched = False
        """Whether the connections of the thread for synchronous code are watched; no handler starts before that."""

    @property
    def is_alive(self) -> bool:
        return not self._thread.died

    def put(self, runs: Iterable[Run]) -> None:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread.start()
        self._loop.call_soon_threadsafe(self._accept, runs)

    def cancel(self, run: Run) -> None:
        # Not needed for time limits, which `asyncio.timeout` enforces.
        if self._loop is not None and run.task is not None:
            self._loop.call_soon_threadsafe(run.task.cancel)

    def write_off(self, run: Run) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._forget, run)

    def stop(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(LONGEST_UNSTARTED)
            if self._thread.died:
                self._loop.close()

    def _serve(self) -> None:
        assert self._loop is not None
        asyncio.set_event_loop(self._loop)
        self._loop.set_default_executor(executor := WatchedExecutor())
        work = self._loop.create_task(self._work())
        while not work.done():
            try:
                self._loop.run_until_complete(work)
            except (SystemExit, KeyboardInterrupt):  # of a task; asyncio has given it to whoever awaits that, too
                logger.exception("A task tried to end the event loop.")
        self._loop.close()
        executor.close()

    async def _work(self) -> None:
        await sync_to_async(sessions.watch)(sessions.SharedSession)
        entered = await sync_to_async(self._hand_on)()
        self._is_watched = True
        self._fill()
        await self._stopping.wait()
        for task in self._tasks:
            task.cancel()
        await sync_to_async(entered.close)()
        await sync_to_async(connections.close_all)()

    def _accept(self, runs: Iterable[Run]) -> None:
        self._waiting.extend(runs)
        self._fill()

    def _fill(self) -> None:
        while self._is_watched and self._waiting and len(self._tasks) < self.capacity:
            run = self._waiting.popleft()
            assert self._loop is not None
            run.task = self._loop.create_task(self._run(run), context=Context())
            self._tasks.add(run.task)

    async def _run(self, run: Run) -> None:
        try:
            if time.monotonic() >= self._next_look:
                self._next_look = time.monotonic() + IDLE_SECONDS
                await sync_to_async(_drop_dead_connections)()
            must_confirm = self._must_confirm(run)  # only now, as it may have waited for the line above
            begin = partial(self._begin, run, confirmed=must_confirm)
            if not (await sync_to_async(begin)() if must_confirm else begin()):
                if run.end():
                    self._ended(run, None)
                return
            try:
                finished = await aexecute(run)
            except BaseException as error:
                finished = broken(run, error)
            self._learn(run)
            if run.end():
                self._ended(run, finished)
            if finished.error is not None or time.monotonic() >= self._next_look:
                self._next_look = time.monotonic() + IDLE_SECONDS
                await sync_to_async(sessions.renew)()
        finally:
            self._forget(run)

    def _forget(self, run: Run) -> None:
        if run.task is not None:
            self._tasks.discard(run.task)
        self._fill()


class WatchedExecutor(ThreadPoolExecutor):
    """The threads of an event loop for `asyncio.to_thread` and ``sync_to_async(thread_sensitive=False)``.

    They keep their database connections from call to call, as those of `ThreadPool` do from job to job.
    """

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="ojs-async", initializer=sessions.watch)
        self._here = local()
        self._unused: set[Any] = set()
        """The connections of the threads that wait for a call."""

    def close(self) -> None:
        """Close the connections of the threads that wait for a call."""
        for connection in self._unused:
            connection.inc_thread_sharing()
            with suppress(DatabaseError, InterfaceError):
                connection.close()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function in a thread. It fails with TransactionLeftOpen if it leaves one open."""
        return super().submit(self._call, fn, *args, **kwargs)

    def _call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self._unused.difference_update(connections.all(initialized_only=True))
        if time.monotonic() >= getattr(self._here, "idle_since", math.inf) + IDLE_SECONDS:
            _drop_dead_connections()
        left: list[str] = []
        try:
            result = function(*args, **kwargs)
        finally:
            left = sessions.renew()
            self._unused.update(connections.all(initialized_only=True))
            self._here.idle_since = time.monotonic()
        if left:
            raise TransactionLeftOpen.on(left)
        return result


def _drop_dead_connections() -> None:
    for connection in connections.all(initialized_only=True):
        with suppress(DatabaseError, InterfaceError):
            if connection.connection is not None and not connection.in_atomic_block and not connection.is_usable():
                connection.close()
