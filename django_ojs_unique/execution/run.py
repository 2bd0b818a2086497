"""Run: a claimed job in a worker, and the interruption of its handler when its time is up."""

from __future__ import annotations

import asyncio
import ctypes
import time
from datetime import datetime, timedelta
from threading import Lock, get_ident
from typing import Any

from ..db.characters import storable
from ..db.clock import database_now
from ..exceptions import LeaseLost
from ..handlers.control import TimeLimitExceeded
from .errors import LONGEST_REASON


class Run:
    """A claimed job in this worker.

    ``lease_until`` is on the monotonic clock: from then on another worker may claim the job, so it must not start.
    """

    started_at: float | None = None
    ended_at: float | None = None
    over = cancelled = interrupted = False
    task: asyncio.Task[None] | None = None
    block: Interruptible | None = None
    progress: tuple[float, str] | None = None
    completion: Any = None
    """The `RunResult` with which a transaction of the handler has completed the job, if it commits."""
    is_committed = False
    """Whether that transaction was committed."""
    outer_blocks = 0
    """How many blocks of `transaction.atomic` the caller has open on the jobs' database, such as those of a test."""

    def __init__(
        self,
        job: Any,
        *,
        pool: Any = None,
        lease: timedelta = timedelta(days=1),
        lease_until: float = float("inf"),
    ) -> None:
        self.job = job
        self.pool = pool
        self.lease = lease
        self.lease_until = lease_until
        self.claimed_at = time.monotonic()
        self._lock = Lock()
        if job.timeout_ms is not None:
            self.block = Interruptible()

    @property
    def timeout(self) -> float | None:
        """The time limit of one attempt in seconds, or None."""
        return None if self.job.timeout_ms is None else self.job.timeout_ms / 1000

    @property
    def unseen_for(self) -> float:
        """How many seconds ago its lease was last seen in the database: when it was claimed or extended."""
        return time.monotonic() - (self.lease_until - self.lease.total_seconds())

    def now(self) -> datetime:
        """Return the time of the jobs' database, without a question to it: the handler may not use that."""
        return database_now(self.job._state.db, may_ask=False)

    def begin(self) -> bool:
        """Start it; return False when it was taken back, or its lease may have run out."""
        with self._lock:
            if self.over or time.monotonic() >= self.lease_until:
                return False
            self.started_at = time.monotonic()
            return True

    def refuse_late_start(self) -> None:
        """Raise LeaseLost or TimeLimitExceeded if the handler must not be called any more.

        The call comes later than `begin`: receivers of `job_started`, for example, may wait for a lock before it.
        """
        if self.over or self.cancelled:
            raise LeaseLost
        if self.interrupted:
            raise TimeLimitExceeded

    def take_back(self) -> bool:
        """End it before it started; return False when it has started or ended."""
        with self._lock:
            if self.over or self.started_at is not None:
                return False
            self.over = True
            return True

    def end(self) -> bool:
        """End it; return False when it had ended before, for example because the worker gave it up."""
        with self._lock:
            ended, self.over = not self.over, True
            if ended:
                self.ended_at = time.monotonic()
            return ended

    @property
    def is_stopping(self) -> bool:
        """Whether the worker stops, and waits for the runs that have begun."""
        return self.pool is not None and self.pool.closed

    def report(self, fraction: float, note: str) -> None:
        """Keep the progress that the handler reports until the worker stores it."""
        self.progress = fraction, storable(note[:LONGEST_REASON])

    def labels(self) -> dict[str, Any]:
        """Return the ``extra`` of a log record about this run."""
        return labels(self.job)


def labels(job: Any) -> dict[str, Any]:
    """Return the ``extra`` of a log record about a job."""
    return {"job_id": str(job.pk), "job_type": job.type, "queue": job.queue, "attempt": job.attempt}


class Interruptible:
    """A block that another thread may interrupt, once, and never after its end.

    The exception arrives between two steps of Python code, so a call that waits outside of Python (a query, a socket,
    `time.sleep`) is interrupted when it returns.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._thread: int | None = None
        self._sent = False

    def interrupt(self) -> None:
        """Raise in the thread that is inside the block, or at its entry if no thread is inside yet."""
        with self._lock:
            sent, self._sent = self._sent, True
            if not sent and self._thread is not None:
                _raise_in(self._thread, TimeLimitExceeded)

    def __enter__(self) -> None:
        with self._lock:
            if self._sent:
                raise TimeLimitExceeded
            self._thread = get_ident()

    def __exit__(self, *error: object) -> None:
        while True:
            try:
                with self._lock:
                    if self._sent and self._thread is not None:
                        _raise_in(self._thread, None)  # if it has not arrived by now, it must not arrive later
                    self._thread = None
                return
            except TimeLimitExceeded:  # it arrived here, after the end of the work
                continue


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), ctypes.py_object(error) if error is not None else None
    )
