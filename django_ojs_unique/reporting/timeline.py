"""What happened to a job and what is due, in the order of time, as far as its row shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

from ..conf import settings
from ..enqueue.new_job import FOREVER
from ..exceptions import Message
from ..models import Event as StoredEvent
from ..models.event import LOOKED_THROUGH
from ..ojs.states import TIMED, WAITING, JobState
from .text import shortened

LONGEST_MESSAGE = 200
MOST_FAILURES = 100


@dataclass(frozen=True, slots=True)
class Event:
    """A moment in the life of a job, with the id of another ``job`` if it is about one."""

    at: datetime
    text: str
    job: UUID | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """One entry of a job's errors, with its members as text; ``at`` is None if the entry has no valid time.

    ``started_at``: when the attempt began, or None. ``raw``: the entry itself if it does not say what went wrong, as in
    rows that were changed manually.
    """

    attempt: str = ""
    at: datetime | None = None
    started_at: datetime | None = None
    type: str = ""
    message: str = ""
    traceback: str = ""
    then: str = ""
    raw: Any = None


def timeline(job: Any, more: Iterable[Event] = ()) -> list[Event]:
    """List the events of a row together with ``more`` of them, the earliest first; no query is made."""
    return sorted([*_of_row(job), *more], key=lambda event: event.at)


def requeued(job: Any, using: str) -> Iterator[Event]:
    """Yield the starts of runs that a worker has requeued, and their ends, as far as the newest events tell.

    The row forgets them. Two statements; none while ``OJS_UNIQUE["EVENTS"]`` is off.
    """
    newest = StoredEvent.objects.using(using).order_by("-pk").first() if settings.events else None
    if newest is None:
        return
    told = StoredEvent.objects.using(using).filter(pk__gt=newest.pk - LOOKED_THROUGH, subject=str(job.pk))
    start = None
    for event in told.filter(type__in=["job.started", "job.enqueued"]).order_by("pk"):
        if event.type == "job.started":
            start = Event(event.time, _started(event.data.get("attempt"), event.data.get("worker_id")))
        elif event.data.get("reason") == "requeued":
            yield from filter(None, [start])
            yield Event(event.time, Message("Requeued by its worker: the attempt does not count"))
            start = None


def failures(job: Any) -> list[Failure]:
    """Read the newest `MOST_FAILURES` errors of a row, the newest first, whatever their format."""
    errors = job.errors if isinstance(job.errors, list) else [job.errors]
    return [_failure(error) for error in reversed(errors[-MOST_FAILURES:]) if error is not None]


def starts(job: Any) -> dict[datetime, str]:
    """Return when the attempts began that a row tells of, in order, with their numbers: the last one, and failed ones.

    A row keeps the errors of ten attempts.
    """
    began = {failure.started_at: failure.attempt for failure in reversed(failures(job)) if failure.started_at}
    return began if job.started_at is None else {**began, job.started_at: str(job.attempt)}


def _of_row(job: Any) -> Iterator[Event]:
    yield Event(job.created_at, Message("Created"))
    if job.enqueued_at is not None:
        yield Event(job.enqueued_at, Message("Became available"))
    if job.scheduled_at is not None and _was_kept(job):
        yield Event(job.scheduled_at, Message("Scheduled for"))
    for failure in reversed(failures(job)):
        if failure.at is not None:
            yield Event(failure.at, _failed(failure))
    for at, number in starts(job).items():
        yield Event(at, _started(number, job.worker_id if at == job.started_at else None))
    if job.finished_at is not None:
        yield _end(job)
    yield from _ahead(job)


def _started(number: Any, worker_id: str | None) -> Message:
    say = partial(Message, number=number, id=worker_id)
    by_worker = say("Attempt {number} started by worker {id}")
    return by_worker if worker_id else say("Attempt {number} started")


def _failed(failure: Failure) -> Message:
    text = ": ".join(part for part in (failure.type, failure.message.partition("\n")[0]) if part)
    text = shortened(text, LONGEST_MESSAGE)
    say = partial(Message, number=failure.attempt, error=text)
    if failure.attempt:
        return say("Attempt {number} failed: {error}") if text else say("Attempt {number} failed")
    return say("Failed: {error}") if text else say("Failed")


def _was_kept(job: Any) -> bool:
    """Whether the scheduled time came, or still can; a job may be cancelled or made available before it."""
    return job.state == JobState.SCHEDULED or (job.enqueued_at is not None and job.scheduled_at <= job.enqueued_at)


def _end(job: Any) -> Event:
    if job.replaced_by_id is not None:
        return Event(job.finished_at, Message("Replaced by"), job.replaced_by_id)
    state = Message(job.state.capitalize())
    if job.skipped:
        why = shortened(job.skipped, LONGEST_MESSAGE)
        return Event(job.finished_at, Message("{state}: it had nothing to do ({why})", state=state, why=why))
    return Event(job.finished_at, state)


def _ahead(job: Any) -> Iterator[Event]:
    if job.run_at is not None and job.state in TIMED and job.run_at != job.scheduled_at:
        again = job.state == JobState.RETRYABLE
        yield Event(job.run_at, Message("Due to run again") if again else Message("Due to run"))
    if job.lease_expires_at is not None and job.state == JobState.ACTIVE:
        yield Event(job.lease_expires_at, Message("The lease ends, unless its worker prolongs it"))
    if job.expires_at is not None and job.state in WAITING and job.started_at is None:
        yield Event(job.expires_at, Message("Expires, unless it has started by then"))
    if job.window_ends_at is not None and job.window_ends_at < FOREVER:
        yield Event(job.window_ends_at, Message("Its window ends"))


def _failure(error: Any) -> Failure:
    if not isinstance(error, dict):
        return Failure(raw=error)
    record = {name: _text(error.get(name)) for name in ("attempt", "type", "code", "message")}
    details = error.get("details")
    then = ""
    if error.get("retryable") is True:
        delay: Any = error.get("retry_delay_ms")
        then = Message("Tried again.")
        if _is_duration(delay):
            then = Message("Tried again after {length}.", length=Message("{number} s", number=f"{delay / 1000:g}"))
    elif error.get("retryable") is False:
        then = Message("Not tried again.")
    return Failure(
        attempt=record["attempt"],
        at=_moment(error.get("occurred_at")),
        started_at=_moment(error.get("started_at")),
        type=record["type"] or record["code"],
        message=record["message"],
        traceback=_text(details.get("traceback")) if isinstance(details, dict) else "",
        then=then,
        raw=None if record["type"] or record["code"] or record["message"] else error,
    )


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _is_duration(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2**63


def _moment(value: Any) -> datetime | None:
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
