"""Run: call the handler of one claimed job and say what became of it."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from threading import Lock
from typing import Any

from asgiref.sync import sync_to_async
from django.db import DatabaseError, InterfaceError, connections
from django.utils import timezone

from ..conf import settings
from ..control import Discard, Retry, Skip, TimeLimitExceeded
from ..exceptions import UnknownJobType
from ..handlers import JobContext, call, misfit, still_wanted
from ..ojs.canonical import plain
from ..ojs.states import JobState
from ..registry import Definition, registry
from ..request import sized
from ..signals import announce, job_started
from ..tracing import tracer
from .errors import error_record
from .interrupt import Interruptible

logger = logging.getLogger("django_ojs_unique.worker")

LONGEST_MESSAGE = 1_000
LONGEST_TRACEBACK = 8_000
LONGEST_REASON = 255


class Run:
    """A claimed job on its way through this worker.

    ``lease_until`` is on the monotonic clock: from then on the job may be another worker's, and must not be started.
    """

    def __init__(
        self,
        job: Any,
        *,
        lane: Any = None,
        lease: timedelta = timedelta(days=1),
        lease_until: float = float("inf"),
        clock: Callable[[], datetime] = timezone.now,
    ) -> None:
        self.job = job
        self.lane = lane
        self.lease = lease
        self.lease_until = lease_until
        self.clock = clock
        self.claimed_at = time.monotonic()
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.over = False
        self.cancelled = False
        self.interrupted = False
        self.task: asyncio.Task[None] | None = None
        self.block = Interruptible() if job.timeout_ms is not None else None
        self.progress: tuple[float, str] | None = None
        self._lock = Lock()

    @property
    def timeout(self) -> float | None:
        """The length of one attempt in seconds, or None."""
        return None if self.job.timeout_ms is None else self.job.timeout_ms / 1000

    def begin(self) -> bool:
        """Start, unless it was taken back or its lease may have run out."""
        with self._lock:
            if self.over or time.monotonic() >= self.lease_until:
                return False
            self.started_at = time.monotonic()
            return True

    def take_back(self) -> bool:
        """End it before it started; return False when it has started or ended."""
        with self._lock:
            if self.over or self.started_at is not None:
                return False
            self.over = True
            return True

    def end(self) -> bool:
        """End it; return False when it has been given up by then."""
        with self._lock:
            ended, self.over = not self.over, True
            if ended:
                self.ended_at = time.monotonic()
            return ended

    def report(self, fraction: float, note: str) -> None:
        """Keep what the handler says about its progress until the worker stores it."""
        self.progress = fraction, storable(note[:LONGEST_REASON])

    def labels(self) -> dict[str, Any]:
        """Return the ``extra`` of a log record about this run."""
        return labels(self.job)


@dataclass(frozen=True, slots=True)
class Finished:
    """A run that has ended: with a ``result``, or with an ``error`` record (HTTP binding, section 7.4)."""

    job: Any
    result: Any = None
    error: dict[str, Any] | None = None
    error_types: tuple[str, ...] = ()
    skipped: str = ""
    gives_up: bool = False
    retry_after: timedelta | None = None
    at: datetime = field(default_factory=timezone.now)


def execute(run: Run) -> Finished:
    """Run a job in this thread; whatever the handler raises becomes an error record."""
    with tracer().run(run.job) as told:
        try:
            _announce_start(run)
            definition = registry.get(run.job.type)
            context = _context(run, _is_held(run)) if definition.takes_context else None
            with run.block or nullcontext():
                if definition.skip_unless is not None and not still_wanted(definition, run.job.args):
                    raise Skip(_reason(definition))
                result = call(definition, run.job.args, context)
        except BaseException as error:
            ended = _failed(run, error)
            told(ended, error)
        else:
            ended = _completed(run, result)
            told(ended, None)
    drop_broken_connections(interrupted=run.interrupted)
    return ended


async def aexecute(run: Run) -> Finished:
    """Run a job in this event loop; a timeout or a cancellation reaches the handler where it awaits."""
    deadline = asyncio.timeout(run.timeout)
    with tracer().run(run.job) as told:
        try:
            if job_started.has_listeners(type(run.job)):
                await sync_to_async(_announce_start)(run)
            definition = registry.get(run.job.type)
            context = _context(run, lambda: not run.cancelled) if definition.takes_context else None
            async with deadline:
                if definition.skip_unless is not None and not await _astill_wanted(definition, run.job.args):
                    raise Skip(_reason(definition))
                result = await call(definition, run.job.args, context)
        except BaseException as error:
            is_late = deadline.expired() and isinstance(error, TimeoutError)
            ended = _failed(run, TimeLimitExceeded() if is_late else error)
            told(ended, error)
        else:
            ended = _completed(run, result)
            told(ended, None)
    return ended


def _announce_start(run: Run) -> None:
    if job_started.has_listeners(type(run.job)):
        announce(job_started, type(run.job), job=run.job, using=run.job._state.db)
        drop_broken_connections()  # what a receiver may have left


async def _astill_wanted(definition: Definition, args: Any) -> Any:
    wanted = await sync_to_async(still_wanted)(definition, args)
    return await wanted if asyncio.iscoroutine(wanted) else wanted


def broken(run: Run, error: BaseException) -> Finished:
    """Say of a run that what surrounds the handler failed, without touching again what may be the cause."""
    with suppress(Exception):
        logger.exception("Job %s (%s) broke the thread that ran it.", run.job.pk, run.job.type)
    name = type(error).__name__
    now = run.clock()
    record = error_record(run.job, now=now, type=name)
    return Finished(run.job, error=record, error_types=(name,), at=now)


def timed_out(run: Run) -> Finished:
    """Say that a run took too long, whatever its handler still does."""
    return _failed(run, TimeLimitExceeded())


def labels(job: Any) -> dict[str, Any]:
    """Return the ``extra`` of a log record about a job."""
    return {"job_id": str(job.pk), "job_type": job.type, "queue": job.queue, "attempt": job.attempt}


def storable(text: str) -> str:
    """Make a text one that every database takes."""
    return text.replace("\x00", "�").encode(errors="replace").decode()


def drop_broken_connections(*, interrupted: bool = False) -> None:
    """Close what a handler broke or left inside a transaction; keep the rest, as reconnecting per job is slow."""
    for connection in connections.all(initialized_only=True):
        with suppress(DatabaseError, InterfaceError):  # one that cannot be closed is dropped all the same
            if interrupted or connection.in_atomic_block or connection.errors_occurred or not connection.autocommit:
                connection.in_atomic_block = False  # or Django keeps the closed connection
                connection.close()
            elif connection.settings_dict["CONN_MAX_AGE"]:
                connection.close_if_unusable_or_obsolete()


def _context(run: Run, is_held: Callable[[], bool]) -> JobContext:
    job = run.job
    return JobContext(
        job_id=job.pk,
        type=job.type,
        queue=job.queue,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        meta=job.meta,
        tags=job.tags,
        enqueued_at=job.enqueued_at,
        started_at=job.started_at,
        worker_id=job.worker_id,
        is_held=is_held,
        report=run.report,
        job=job,
    )


def _is_held(run: Run) -> Callable[[], bool]:
    job = run.job

    def is_held() -> bool:
        rows = type(job)._default_manager.using(job._state.db)
        return not run.cancelled and rows.filter(pk=job.pk, state=JobState.ACTIVE, lease_token=job.lease_token).exists()

    return is_held


def _completed(run: Run, result: Any) -> Finished:
    if result is None:
        return Finished(run.job, at=run.clock())
    try:
        stored = sized(plain(result, "result"), "result", settings.max_result_bytes)
        return Finished(run.job, result=stored, at=run.clock())
    except Exception as error:  # InvalidRequest, or what a strange object raises when it is read
        # The work is done; running it again for the sake of its result would do it twice.
        logger.error(
            "Job %s (%s) completed, but its result is lost: %s", run.job.pk, run.job.type, error, extra=run.labels()
        )
        return Finished(run.job, at=run.clock())


def _failed(run: Run, error: BaseException) -> Finished:
    job = run.job
    if isinstance(error, Skip):
        return Finished(job, skipped=storable(_message(error)[:LONGEST_REASON]), at=run.clock())
    code, types, message = "handler_error", _names(error), _message(error)
    gives_up = isinstance(error, (Discard, UnknownJobType))
    if isinstance(error, TimeLimitExceeded):
        code, types, message = "timeout", ("timeout", *types), f"The attempt took longer than {run.timeout} seconds."
    elif isinstance(error, asyncio.CancelledError) and run.cancelled:
        code, types, message = "cancelled", ("cancelled", *types), "The job was cancelled while it ran."
    elif isinstance(error, TypeError) and (problem := misfit(registry.get(job.type), job.args)):
        # No retry can mend it: the job waits among the discarded ones until handler or arguments are mended.
        code, types, message, gives_up = "invalid_args", ("invalid_args", *types), problem, True
    now, details = run.clock(), {"traceback": storable(_trace(error)[-LONGEST_TRACEBACK:])}
    record = error_record(job, code, storable(message[:LONGEST_MESSAGE]), now=now, type=types[0], details=details)
    logger.warning(
        "Job %s (%s) failed: %s",
        job.pk,
        job.type,
        record["message"],
        exc_info=None if isinstance(error, (Retry, Discard)) else _safe(error),
        extra=run.labels(),
    )
    return Finished(
        job,
        error=record,
        error_types=types,
        gives_up=gives_up,
        retry_after=error.after if isinstance(error, Retry) else None,
        at=now,
    )


def _reason(definition: Definition) -> str:
    assert definition.skip_unless is not None
    return f"skip_unless {getattr(definition.skip_unless, '__qualname__', definition.skip_unless)} was false"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return f"<{type(error).__qualname__}, whose __str__ raises>"


def _trace(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception:
        return "".join(traceback.format_tb(error.__traceback__))


def _safe(error: BaseException) -> BaseException | None:
    """Return the error if logging can print it."""
    try:
        traceback.format_exception(error)
    except Exception:
        return None
    return error


def _names(error: BaseException) -> tuple[str, ...]:
    """The names by which a retry policy may know an exception: with its module, and without."""
    cls = type(error)
    if cls.__module__ == "builtins":
        return (cls.__qualname__,)
    return f"{cls.__module__}.{cls.__qualname__}", cls.__qualname__
