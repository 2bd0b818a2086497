"""Run: call the handler of one claimed job and say what became of it."""

from __future__ import annotations

import logging
import traceback
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import connections
from django.utils import timezone

from ..handlers import JobContext, run
from ..ojs.canonical import plain
from ..ojs.states import JobState
from ..registry import registry

logger = logging.getLogger("django_ojs_unique.worker")

LONGEST_MESSAGE = 1_000
LONGEST_TRACEBACK = 8_000


@dataclass(frozen=True, slots=True)
class Finished:
    """A run that has ended: with a ``result``, or with an ``error`` record (HTTP binding, section 7.4)."""

    job: Any
    result: Any = None
    error: dict[str, Any] | None = None
    error_types: tuple[str, ...] = ()
    at: datetime = field(default_factory=timezone.now)


def execute(job: Any) -> Finished:
    """Run a claimed job in this thread; whatever the handler raises becomes an error record."""
    _drop_broken_connections()
    try:
        result = run(registry.get(job.type), job.args, _context(job))
    except BaseException as error:
        record = _record(job, error)
        logger.warning("Job %s (%s) failed: %s", job.pk, job.type, record["message"], exc_info=error)
        return Finished(job, error=record, error_types=_names(error))
    finally:
        _drop_broken_connections()
    try:
        return Finished(job, result=plain(result, "result"))
    except Exception as error:  # InvalidRequest, or what a strange object raises when it is read
        # The work is done; running it again for the sake of its result would do it twice.
        logger.error("Job %s (%s) completed, but its result is lost: %s", job.pk, job.type, error)
        return Finished(job)


def _context(job: Any) -> JobContext:
    held = (
        type(job)
        ._default_manager.using(job._state.db)
        .filter(pk=job.pk, state=JobState.ACTIVE, lease_token=job.lease_token)
    )
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
        is_held=held.exists,
    )


def _record(job: Any, error: BaseException) -> dict[str, Any]:
    try:
        message = str(error)
    except Exception:
        message = f"<{type(error).__qualname__}, whose __str__ raises>"
    try:
        trace = "".join(traceback.format_exception(error))
    except Exception:
        trace = "".join(traceback.format_tb(error.__traceback__))
    return {
        "type": _names(error)[0],
        "code": "handler_error",
        "message": _storable(message[:LONGEST_MESSAGE]),
        "attempt": job.attempt,
        "occurred_at": timezone.now().isoformat(),
        "details": {"traceback": _storable(trace[-LONGEST_TRACEBACK:])},
    }


def _names(error: BaseException) -> tuple[str, ...]:
    """The names by which a retry policy may know an exception: with its module, and without."""
    cls = type(error)
    if cls.__module__ == "builtins":
        return (cls.__qualname__,)
    return f"{cls.__module__}.{cls.__qualname__}", cls.__qualname__


def _storable(text: str) -> str:
    return text.replace("\x00", "�").encode(errors="replace").decode()


def _drop_broken_connections() -> None:
    """Close what a handler broke or left inside a transaction; keep the rest, as reconnecting per job is slow."""
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block or connection.errors_occurred or not connection.autocommit:
            connection.in_atomic_block = False  # or Django keeps the closed connection
            connection.close()
        elif connection.settings_dict["CONN_MAX_AGE"]:
            connection.close_if_unusable_or_obsolete()
