"""The result of a run, before it is finalized."""

from __future__ import annotations

import asyncio
import logging
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from ..conf import settings
from ..db.characters import storable
from ..enqueue.values import sized
from ..exceptions import InvalidArgs, InvalidRequest, UnknownJobType, UnstorableStep
from ..handlers.control import Discard, Interrupted, Retry, Skip, TimeLimitExceeded
from ..handlers.redaction import redact_error
from ..handlers.registry import misfit, registry
from ..ojs.canonical import plain
from .errors import LONGEST_MESSAGE, LONGEST_REASON, LONGEST_TRACEBACK, both_ends, error_record, traceback_of
from .run import Run

logger = logging.getLogger("django_ojs_unique.worker")


@dataclass(slots=True)
class RunResult:
    """A run that has ended: with a ``result``, or with an ``error`` record (HTTP binding, section 7.4).

    ``exception``: what the handler raised, if it is known here and can be printed.
    """

    job: Any
    result: Any = field(default=None, repr=False)
    error: dict[str, Any] | None = None
    error_types: tuple[str, ...] = ()
    exception: BaseException | None = None
    skipped: str = ""
    gives_up: bool = False
    retry_after: timedelta | None = None
    at: datetime = field(default_factory=timezone.now)
    is_finalized: bool = False
    """Whether the job was completed by a transaction of its handler."""
    is_requeued: bool = False
    """Whether the worker stops, and the handler has ended at a checkpoint."""
    in_doubt: RunResult | None = field(default=None, repr=False)
    """The completion that a transaction of the handler stored, if nobody knows whether that was committed."""


def completed(run: Run, result: Any) -> RunResult:
    """Say that the handler returned ``result``; it is logged and dropped if it cannot be stored."""
    if run.is_committed:
        return run.completion  # type: ignore[no-any-return]
    return RunResult(run.job, result=_storable(run, result), at=run.now(), in_doubt=run.completion)


def completion(run: Run, result: Any) -> RunResult:
    """Return the completion that a transaction of the handler stores."""
    return RunResult(run.job, result=_storable(run, result), at=run.now(), is_finalized=True)


def _storable(run: Run, result: Any) -> Any:
    if result is None:
        return None
    try:
        return sized(plain(result, "result"), "result", settings.max_result_bytes)
    except Exception as error:  # InvalidRequest, or any exception from reading a strange object
        if isinstance(error, InvalidRequest):
            redact_error(error, run.job.type)
        # The work is done; running it again for the sake of its result would do it twice.
        logger.error(
            "Job %s (%s) completed, but its result is lost: %s", run.job.pk, run.job.type, error, extra=run.labels()
        )
        return None


def failed(run: Run, error: BaseException) -> RunResult:
    """Say and log what the handler raised: a `Skip`, or an error for the job's record."""
    job = run.job
    if run.is_committed:
        logger.error(
            "Job %s (%s) is completed, but then its handler, or a callback of its transaction, raised.",
            job.pk,
            job.type,
            exc_info=_printable(error),
            extra=run.labels(),
        )
        run.completion.exception = _printable(error)
        return run.completion  # type: ignore[no-any-return]
    if _is_interruption(error):
        return RunResult(job, is_requeued=True, at=run.now())
    if isinstance(error, Skip):
        reason = storable(_message(error)[:LONGEST_REASON])
        return RunResult(job, skipped=reason, at=run.now(), in_doubt=run.completion)
    if isinstance(error, (InvalidArgs, UnstorableStep)):
        redact_error(error, job.type)
    code, types, message = "handler_error", _names(error), _message(error)
    gives_up = isinstance(error, (Discard, UnknownJobType, UnstorableStep))
    if isinstance(error, TimeLimitExceeded):
        code, types, message = "timeout", ("timeout", *types), f"The attempt took longer than {run.timeout} seconds."
    elif isinstance(error, asyncio.CancelledError) and run.cancelled:
        code, types, message = "cancelled", ("cancelled", *types), "The job was cancelled while it ran."
    elif isinstance(error, InvalidArgs):
        code, types, gives_up = "invalid_args", ("invalid_args", *types), True
    elif isinstance(error, TypeError) and (problem := misfit(registry.get(job.type), job.args)):
        # No retry can fix it: the job stays discarded until somebody fixes the handler or the arguments.
        code, types, message, gives_up = "invalid_args", ("invalid_args", *types), problem, True
    exception = _printable(error)
    now, details = run.now(), {"traceback": storable(_trace(error))}
    record = error_record(job, code, storable(message[:LONGEST_MESSAGE]), now=now, type=types[0], details=details)
    logger.warning(
        "Job %s (%s) failed: %s",
        job.pk,
        job.type,
        record["message"],
        exc_info=None if isinstance(error, (Retry, Discard)) else exception,
        extra=run.labels(),
    )
    return RunResult(
        job,
        error=record,
        error_types=types,
        exception=exception,
        gives_up=gives_up,
        retry_after=error.after if isinstance(error, Retry) else None,
        at=now,
        in_doubt=run.completion,
    )


def broken(run: Run, error: BaseException) -> RunResult:
    """Return the outcome when code around the handler failed; use nothing again that may be the cause."""
    with suppress(Exception):
        logger.exception("Job %s (%s) broke the thread that ran it.", run.job.pk, run.job.type)
    if run.is_committed:
        return run.completion  # type: ignore[no-any-return]
    name = type(error).__name__
    now = run.now()
    record = error_record(run.job, now=now, type=name)
    exception, in_doubt = _printable(error), run.completion
    return RunResult(run.job, error=record, error_types=(name,), exception=exception, at=now, in_doubt=in_doubt)


def _is_interruption(error: BaseException) -> bool:
    """Whether only checkpoints raised this, also those in the tasks of an `asyncio.TaskGroup`."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(Interrupted)[1] is None
    return isinstance(error, Interrupted)


def timed_out(run: Run) -> RunResult:
    """Return the outcome of a run that took too long, even if its handler still runs."""
    return failed(run, TimeLimitExceeded())


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return f"<{type(error).__qualname__}, whose __str__ raises>"


def _trace(error: BaseException) -> str:
    try:
        return traceback_of(error)
    except Exception:
        return both_ends("".join(traceback.format_tb(error.__traceback__)), LONGEST_TRACEBACK)


def _printable(error: BaseException) -> BaseException | None:
    """Return the error if logging can print it."""
    try:
        traceback.format_exception(error)
    except Exception:
        return None
    return error


def _names(error: BaseException) -> tuple[str, ...]:
    """Return the names that a retry policy may use for an exception: with its module, and without."""
    cls = type(error)
    if cls.__module__ == "builtins":
        return (cls.__qualname__,)
    return f"{cls.__module__}.{cls.__qualname__}", cls.__qualname__
