"""An invented day of jobs, so that the admin of `make serve` has something to show at once.

Only an invented past needs internals of the package. A project calls `enqueue()`.
"""

import math
from datetime import datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

from django.utils import timezone

from django_ojs_unique import JobState
from django_ojs_unique.enqueue.new_job import read
from django_ojs_unique.enqueue.request import Request
from django_ojs_unique.models import Job, Queue, SuppressedEnqueue

from .jobs import remind, send_newsletter

HOURS, JOBS = 24, 700
OUTCOMES = {"reject": "rejected", "ignore": "deduplicated", "replace": "replaced"}
BANK = ("ConnectionError", "The bank does not answer.")
CARRIER = ("LookupError", "No carrier goes to Atlantis.")


def write_history() -> None:
    """Fill a database that has no jobs yet: with a day of finished ones, and with some that need an operator."""
    if Job.objects.exists():
        return
    now, chance = timezone.now(), Random(7)
    jobs, attempts = [], []
    for created_at in sorted(_moment(now, chance) for _ in range(JOBS)):
        job = _finished(created_at, chance)
        jobs.append(job)
        attempts += _attempts(job, jobs, chance)
    Job._base_manager.bulk_create(jobs)
    # Sorted, so that the primary keys are in the order of time.
    SuppressedEnqueue.objects.bulk_create(sorted(attempts, key=lambda attempt: attempt.created_at))
    _leave_work_for_the_operator(now)


def _moment(now: datetime, chance: Random) -> datetime:
    """Choose a moment of the last day: there are three busy times, and quiet times between them."""
    while True:
        hours = chance.uniform(0.1, HOURS)
        if chance.random() < 0.55 + 0.45 * math.cos(hours / HOURS * 6 * math.pi):
            return now - timedelta(hours=hours)


def _finished(created_at: datetime, chance: Random) -> Any:
    number = chance.randrange(10_000, 99_999)
    type, args = chance.choice(
        [
            ("payment.capture", {"payment": number}),
            ("payment.capture", {"payment": number}),
            ("search.update", {"product": min(chance.randrange(40), chance.randrange(40))}),
            ("search.update", {"product": min(chance.randrange(40), chance.randrange(40))}),
            ("parcel.label", {"parcel": number, "country": chance.choice(["DE", "FR", "PT", "SE"])}),
            ("basket.remind", {"basket": chance.randrange(12), "items": chance.randint(1, 9)}),
            ("catalogue.export", {"pages": 90}),
            ("stock.sync", {}),
        ]
    )
    job = _job(type, args, created_at, chance)
    job.started_at = created_at + timedelta(seconds=chance.expovariate(1))
    job.finished_at = job.started_at + timedelta(seconds=chance.expovariate(1 / 5))
    job.state, job.attempt = JobState.COMPLETED, 1
    if type == "parcel.label" and chance.random() < 0.12:
        job.args["country"] = "Atlantis"
        job.state, job.attempt, job.dead_letter = JobState.DISCARDED, 2, True
        job.errors = [_error(CARRIER, attempt, job.started_at) for attempt in (1, 2)]
    elif type == "payment.capture" and chance.random() < 0.15:
        job.attempt, job.errors = 2, [_error(BANK, 1, job.started_at)]
    return job


def _attempts(job: Any, before: list[Any], chance: Random) -> list[SuppressedEnqueue]:
    """Return the suppressed enqueues that met a job; a reminder is met and replaced by a newer one."""
    if job.unique["on_conflict"] == "replace":
        older = next((one for one in before[:-1] if _is_waiting(one) and one.fingerprint == job.fingerprint), None)
        if older is None:
            return []
        older.state, older.started_at, older.attempt = JobState.CANCELLED, None, 0
        older.finished_at, older.replaced_by_id = job.created_at, job.pk
        return [_attempt(job, older, job.created_at, replaced_by=job)]
    repeated = chance.choices([0, 1, 2, 4], [60, 25, 10, 5])[0]
    while_it_lived = job.finished_at - job.created_at
    return [_attempt(job, job, job.created_at + while_it_lived * chance.random()) for _ in range(repeated)]


def _is_waiting(job: Any) -> bool:
    return job.type == "basket.remind" and job.replaced_by_id is None


def _attempt(asked: Any, met: Any, at: datetime, replaced_by: Any = None) -> SuppressedEnqueue:
    return SuppressedEnqueue(
        created_at=at,
        outcome=OUTCOMES[asked.unique["on_conflict"]],
        on_conflict=asked.unique["on_conflict"],
        fingerprint=asked.fingerprint,
        type=asked.type,
        queue=asked.queue,
        args=asked.args,
        meta=asked.meta,
        existing_job_id=met.pk,
        existing_state=JobState.SCHEDULED if replaced_by else JobState.ACTIVE,
        job_id=replaced_by and replaced_by.pk,
    )


def _leave_work_for_the_operator(now: datetime) -> None:
    """Create a paused queue with a backlog, two live jobs of one key, and a job whose handler was renamed."""
    Queue.objects.pause("newsletters")
    Job.objects.enqueue_many(send_newsletter.item(reader=reader) for reader in range(60))
    for hours in (1, 5):
        remind.using(scheduled_at=now + timedelta(hours=hours)).enqueue(basket=100 + hours, items=hours)

    dead = Job.objects.get(type="newsletter.send", args__reader=7)
    errors = [_error(("TimeoutError", "The mail server did not answer."), attempt, now) for attempt in (1, 2, 3)]
    Job._base_manager.filter(pk=dead.pk).update(
        state=JobState.DISCARDED, attempt=3, errors=errors, finished_at=now, unique_states=frozenset()
    )
    send_newsletter.enqueue(reader=7)
    dead.refresh_from_db()
    dead.retry(force=True)

    renamed = _job("newsletter.send", {"reader": 3}, now - timedelta(hours=2), Random(8), queue="emails", unique=None)
    renamed.type = "newsletter.mail"
    Job._base_manager.bulk_create([renamed])


def _job(type: str, args: Any, created_at: datetime, chance: Random, **options: Any) -> Any:
    """Build the row that an enqueue would have written then, without its unique key."""
    job = read(Request(type, args, **options), Job, created_at).job
    milliseconds = int(created_at.timestamp() * 1000)
    job.id = UUID(int=milliseconds << 80 | 7 << 76 | chance.getrandbits(12) << 64 | 2 << 62 | chance.getrandbits(62))
    job.unique_states = frozenset()
    return job


def _error(error: tuple[str, str], attempt: int, at: datetime) -> dict[str, Any]:
    type, message = error
    trace = f'Traceback (most recent call last):\n  File "shop/jobs.py", in the handler\n{type}: {message}\n'
    return {
        "type": type,
        "code": "handler_error",
        "message": message,
        "attempt": attempt,
        "occurred_at": at.isoformat(),
        "details": {"traceback": trace},
    }
