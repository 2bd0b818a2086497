"""Record what happens to jobs as events, for clients that poll them (HTTP binding, section 15).

`workflows.events` records what happens to workflows.

These receivers of the signals are connected only while ``OJS_UNIQUE["EVENTS"]`` is on. Inside a `collected` block they
collect the events, which are written together at its end. Elsewhere they write each event at once.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any

from django.apps import apps
from django.db import DatabaseError, connections, transaction
from django.dispatch import Signal

from .. import signals
from ..conf import settings
from ..db.clock import database_now
from ..db.dialects import dialect_on
from ..db.fast.rows import unsaved
from ..db.fields import new_id
from ..db.transactions import starting_over
from ..handlers.redaction import redacted
from ..ojs.moments import milliseconds
from ..ojs.states import JobState

logger = logging.getLogger("django_ojs_unique")

TYPES = (
    "job.enqueued", "job.scheduled", "job.started", "job.completed", "job.failed", "job.retrying", "job.discarded",
    "job.cancelled", "job.expired", "cron.triggered", "cron.skipped", "queue.paused", "queue.resumed",
    "workflow.created", "workflow.started", "workflow.step_completed", "workflow.step_failed", "workflow.job_completed",
    "workflow.job_failed", "workflow.callback_fired", "workflow.completed", "workflow.failed", "workflow.cancelled",
)  # fmt: skip
LARGEST_RESULT = 4096
"""In characters of JSON. An event leaves out a larger result, which is in the job's row."""
LONGEST_MESSAGE = 1000
_OF_ERRORS = ("type", "code", "message", "attempt", "started_at", "occurred_at", "retryable", "retry_delay_ms")


_collecting: ContextVar[list[Any] | None] = ContextVar("ojs_events", default=None)


@contextmanager
def collected(using: str) -> Iterator[None]:
    """Write the events of a block together, at its end.

    Inside a transaction a failed write raises, so that the changes are undone together with their events. Outside of
    one the changes are already committed: the lost events are logged.
    """
    if not settings.events:
        yield
        return
    events: list[Any] = []
    token = _collecting.set(events)
    try:
        yield
    finally:
        _collecting.reset(token)
    _store(using, events)


def flush(using: str) -> None:
    """Write what this block has collected so far, so that the events of a block within it come later."""
    if events := _collecting.get():
        _store(using, events)
        events.clear()


def _store(using: str, events: list[Any]) -> None:
    if not events:
        return
    connection = connections[using]
    try:
        dialect = dialect_on(type(events[0]), connection)
        starting_over(using, lambda: dialect.insert_rows([event.__dict__ for event in events]))
    except DatabaseError:
        if connection.in_atomic_block:
            raise
        logger.exception("%d events are lost, beginning with %s of %s.", len(events), events[0].type, events[0].subject)


def tell(using: str, announcements: Collection[Callable[[], None]]) -> None:
    """Send signals and write their events; inside a transaction, no failed query of a receiver can break it."""
    with collected(using):
        try:
            with transaction.atomic(using=using) if connections[using].in_atomic_block else nullcontext():
                for say in announcements:
                    say()
        except DatabaseError:
            logger.exception("A receiver's query failed; what the receivers wrote is undone.")


def connect() -> None:
    """Start recording: connect the receivers."""
    for signal, receiver in RECEIVERS:
        signal.connect(receiver)


def disconnect() -> None:
    """Stop recording: disconnect the receivers."""
    for signal, receiver in RECEIVERS:
        signal.disconnect(receiver)


_REASONS = {
    signals.job_updated: "updated", signals.job_activated: "activated", signals.job_requeued: "requeued"
}  # fmt: skip


def _enqueued(job: Any, using: str, signal: Signal, **kwargs: Any) -> None:
    reason = {"reason": _REASONS[signal]} if signal in _REASONS else {}
    if job.state == JobState.SCHEDULED:
        _note("job.scheduled", job, using, scheduled_at=milliseconds(job.run_at), **reason)
    elif job.state == JobState.AVAILABLE or signal is signals.job_requeued:
        _note("job.enqueued", job, using, priority=job.priority, **reason)


def _started(job: Any, using: str, **kwargs: Any) -> None:
    worker = {} if job.worker_id is None else {"worker_id": job.worker_id}
    _note("job.started", job, using, **worker, attempt=job.attempt)


def _completed(job: Any, using: str, **kwargs: Any) -> None:
    took = duration_ms(job.started_at, job.finished_at)
    _note("job.completed", job, using, attempt=job.attempt, duration_ms=took, **_result(job.type, job.result))


def _failed(job: Any, error: Mapping[str, Any], using: str, **kwargs: Any) -> None:
    record = _error(error)
    _note("job.failed", job, using, attempt=job.attempt, error=record)
    if job.state == JobState.RETRYABLE:
        times = {"attempt": job.attempt, "max_attempts": job.most_attempts, "next_retry_at": milliseconds(job.run_at)}
        _note("job.retrying", job, using, **times, error=record)


def _discarded(job: Any, error: Mapping[str, Any], using: str, **kwargs: Any) -> None:
    record = _error(error)
    if record.get("code") != "superseded":  # a superseded job made no attempt
        _note("job.failed", job, using, attempt=job.attempt, error=record)
    _note("job.discarded", job, using, total_attempts=job.attempt, last_error=record)


def _cancelled(job: Any, replaced_by: Any, using: str, **kwargs: Any) -> None:
    if replaced_by is None:
        _note("job.cancelled", job, using, reason="cancelled")
    else:
        _note("job.cancelled", job, using, reason="replaced", replaced_by=str(replaced_by))


def _expired(job: Any, using: str, **kwargs: Any) -> None:
    _note("job.expired", job, using, expired_at=milliseconds(job.expires_at))


def _triggered(entry: Any, job_id: Any, using: str, **kwargs: Any) -> None:
    data = {"cron_name": entry.name, "job_id": str(job_id), "job_type": entry.type}
    write(using, type="cron.triggered", subject=entry.name, job_type=entry.type, data=data)


def _skipped(entry: Any, reason: str, using: str, **kwargs: Any) -> None:
    data = {"cron_name": entry.name, "job_type": entry.type, "reason": reason}
    write(using, type="cron.skipped", subject=entry.name, job_type=entry.type, data=data)


def _paused(queue: str, using: str, **kwargs: Any) -> None:
    write(using, type="queue.paused", subject=queue, queue=queue, data={"queue": queue})


def _resumed(queue: str, using: str, **kwargs: Any) -> None:
    write(using, type="queue.resumed", subject=queue, queue=queue, data={"queue": queue})


RECEIVERS: list[tuple[Signal, Callable[..., None]]] = [
    (signals.job_enqueued, _enqueued),
    (signals.job_updated, _enqueued),
    (signals.job_activated, _enqueued),
    (signals.job_requeued, _enqueued),
    (signals.job_started, _started),
    (signals.job_completed, _completed),
    (signals.job_failed, _failed),
    (signals.job_discarded, _discarded),
    (signals.job_cancelled, _cancelled),
    (signals.job_expired, _expired),
    (signals.cron_triggered, _triggered),
    (signals.cron_skipped, _skipped),
    (signals.queue_paused, _paused),
    (signals.queue_resumed, _resumed),
]


def _note(type: str, job: Any, using: str, **data: Any) -> None:
    write(using, type=type, subject=str(job.pk), job_type=job.type, queue=job.queue, data=data)


def duration_ms(start: datetime | None, end: datetime | None) -> int:
    """Return a length of time in milliseconds; 0 if it has no start or no end, or the clock was set back."""
    took = timedelta() if start is None or end is None else max(end - start, timedelta())
    return round(took / timedelta(milliseconds=1))


def write(using: str, **values: Any) -> None:
    """Write an event, or collect it for the end of the `collected` block."""
    event = unsaved(apps.get_model("django_ojs_unique", "Event"), event_id=new_id(), time=database_now(using), **values)
    events = _collecting.get()
    if events is None:
        dialect_on(type(event), connections[using]).insert_rows([event.__dict__])
    else:
        events.append(event)


def _result(type: str, result: Any) -> dict[str, Any]:
    if result is None:
        return {}
    result = redacted(type, result)
    if len(json.dumps(result)) > LARGEST_RESULT:
        return {"result_omitted": True}
    return {"result": result}


def _error(error: Mapping[str, Any]) -> dict[str, Any]:
    """Return an error as events have it: without details such as a traceback, and with a shortened message."""
    record = {name: error[name] for name in _OF_ERRORS if error.get(name) is not None}
    return {name: value[:LONGEST_MESSAGE] if isinstance(value, str) else value for name, value in record.items()}
