"""A database worth looking at: a day of work, and a little of everything that an operator meets."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any

from django.utils import timezone

from django_ojs_unique import DuplicateJob, JobState, RetryPolicy, UniquePolicy, batch, chain, job
from django_ojs_unique.enqueue.new_job import read
from django_ojs_unique.enqueue.request import Request
from django_ojs_unique.models import Job, Queue, SuppressedEnqueue, WorkerProcess
from tests.support.big_table import id_at
from tests.support.rows import insert_all
from tests.support.workflows import advance

UNLESS_IT_FAILED = [state for state in JobState if state not in ("cancelled", "discarded")]
OUTCOMES = {"ignore": "deduplicated", "reject": "rejected", "replace": "replaced"}
TRACE = """Traceback (most recent call last):
  File "shop/jobs.py", line 58, in capture_payment
    bank.capture(order, amount)
ConnectionError: The bank does not answer."""


def declare() -> None:
    """Declare the handlers of a shop; nobody runs them."""
    by_user = {"keys": ["type", "args"], "args_keys": ["user_id"]}
    by_order = {"keys": ["type", "args"], "args_keys": ["order"]}
    by_picture = {"keys": ["type", "queue", "args"], "args_keys": ["picture"]}
    welcome = UniquePolicy(**by_user, period="P7D", states=UNLESS_IT_FAILED, on_conflict="ignore")
    for type, queue, options in [
        ("email.send_welcome", "emails", {"unique": welcome}),
        ("email.receipt", "emails", {}),
        ("invoice.render", "invoices", {"unique": UniquePolicy(**by_order)}),
        ("payment.capture", "payments", {"unique": UniquePolicy(**by_order), "retry": _dead_letter}),
        ("image.resize", "thumbnails", {"unique": UniquePolicy(**by_picture, on_conflict="replace")}),
        ("newsletter.send", "newsletters", {"unique": UniquePolicy(**by_user)}),
        ("catalogue.export", "reports", {"unique": UniquePolicy(on_conflict="ignore")}),
    ]:
        job(type, queue=queue, **options)(_handler(type))


@dataclass(frozen=True)
class Gallery:
    """The jobs that tests ask for."""

    holder: Any
    """Runs, and others met it."""
    dead: Any
    """Discarded, with errors; another job of its key lives."""
    pair: tuple[Any, Any]
    """Two live jobs of one key."""


def fill() -> Gallery:
    """Write the jobs of a day, and what waits, runs and failed now."""
    now = timezone.now()
    _a_day(now)
    _workers(now)
    Queue.objects.pause("newsletters")
    Queue.objects.limit("reports", 2)
    for number in range(14):
        _back(Job.objects.enqueue("newsletter.send", {"user_id": 100 + number}).job, minutes=60 + number)
    for number in range(5):
        _back(Job.objects.enqueue("email.receipt", {"order": number}).job, minutes=4 + number / 5)
    later = Job.objects.enqueue("email.receipt", {"order": 18}, scheduled_at=now + timedelta(hours=15)).job
    _back(later, minutes=5)
    export = Job.objects.enqueue("catalogue.export", {"pages": 90}).job
    _run(_back(export, minutes=1), now, progress=0.4, progress_note="page 36 of 90")
    return Gallery(_holder(now), dead(), pair())


def dead() -> Any:
    """Make a job that failed for good, while another one of its key waits."""
    failed = discard(Job.objects.enqueue("payment.capture", {"order": 4711}).job, dead_letter=True, errors=_errors(3))
    _back(Job.objects.enqueue("payment.capture", {"order": 4711}).job, minutes=2)
    return _back(failed, minutes=25)


def pair() -> tuple[Any, Any]:
    """Make two live jobs of one key: the older one was retried by force."""
    retried = discard(Job.objects.enqueue("newsletter.send", {"user_id": 7}).job)
    newer = Job.objects.enqueue("newsletter.send", {"user_id": 7}).job
    retried.retry(force=True)
    return _back(retried, minutes=40), _back(newer, minutes=35)


def flow() -> Any:
    """Make a workflow that runs: its first step is done, of the jobs side by side one has failed, the last waits."""
    side_by_side = batch(
        [
            {"type": "invoice.render", "args": {"order": 4712}, "name": "render the invoice"},
            {"type": "image.resize", "args": {"picture": "label-4712.png"}, "name": "print the label"},
            {"type": "catalogue.export", "args": {"pages": 3}, "unique": None, "name": "tell the warehouse"},
        ],
        on_success={"type": "email.receipt", "args": {"order": 4712}},
        on_failure={"type": "email.receipt", "args": {"order": 4712, "to": "support"}},
        name="pack",
    )
    pay = {"type": "payment.capture", "args": {"order": 4712}, "name": "pay"}
    mail = {"type": "email.receipt", "args": {"order": 4712}, "name": "mail"}
    workflow = chain(pay, side_by_side, mail, name="order-4712").enqueue()
    now = timezone.now()
    began = {"attempt": 1, "started_at": now - timedelta(seconds=95), "run_at": None}
    done = {**began, "state": "completed", "finished_at": now - timedelta(seconds=80), "unique_states": frozenset()}
    _change(
        Job.objects.get(pk=workflow.members[0].job_id), **done, result={"charge": "ch_3MtwBwLkdIwHu7ix", "cents": 4200}
    )
    advance()
    invoice, label, warehouse = workflow.members[1].child.members
    failed = {**done, "state": "discarded", "attempt": 3, "errors": _errors(3)}
    _change(Job.objects.get(pk=invoice.job_id), **done, result={"pages": 2})
    _change(Job.objects.get(pk=label.job_id), **failed)
    _run(Job.objects.get(pk=warehouse.job_id), now)
    advance()
    return workflow


def discard(job: Any, **changes: Any) -> Any:
    """Let a job have failed for good."""
    now = timezone.now()
    ran = {"state": "discarded", "started_at": now, "finished_at": now, "unique_states": frozenset(), "attempt": 3}
    return _change(job, **ran, **changes)


def _a_day(now: datetime) -> None:
    chance, jobs, attempts, newest = Random(7), [], [], {}
    for minutes in range(23 * 60, 10, -12):
        share = 0.55 + 0.45 * math.cos(minutes / 210)
        for _ in range(3):
            if chance.random() < share:
                job = _finished(now - timedelta(minutes=minutes), chance)
                jobs.append(job)
                attempts += [_met(job, chance) for _ in range(chance.choice([0, 0, 0, 1, 2]))]
                if older := newest.pop(job.fingerprint, None):
                    older.unique_states = frozenset()
                if job.holds_unique_key:
                    newest[job.fingerprint] = job
                else:
                    job.unique_states = frozenset()
    insert_all(jobs)
    SuppressedEnqueue.objects.bulk_create(sorted(attempts, key=lambda attempt: attempt.created_at))


def _finished(created_at: datetime, chance: Random) -> Any:
    type, args = chance.choice(
        [
            ("email.send_welcome", {"user_id": chance.randrange(9)}),
            ("payment.capture", {"order": chance.randrange(900)}),
            ("image.resize", {"picture": chance.randrange(20)}),
        ]
    )
    job = read(Request(type, args), Job, created_at).job
    job.id, job.attempt = id_at(chance, created_at), 1
    job.started_at = created_at + timedelta(seconds=chance.expovariate(1))
    job.finished_at = job.started_at + timedelta(seconds=chance.expovariate(0.3))
    job.state = chance.choices(["completed", "discarded", "cancelled"], [20, 1, 1])[0]
    if job.state == "discarded":
        job.errors = _errors(1)
    return job


def _met(job: Any, chance: Random) -> SuppressedEnqueue:
    policy = job.unique["on_conflict"]
    return SuppressedEnqueue(
        created_at=job.created_at + timedelta(seconds=chance.random()),
        outcome=OUTCOMES[policy],
        on_conflict=policy,
        fingerprint=job.fingerprint,
        type=job.type,
        queue=job.queue,
        args=job.args,
        meta={},
        existing_job_id=job.pk,
        existing_state="active",
    )


def _workers(now: datetime) -> None:
    for number, silent in ((1, 2), (2, 400)):
        WorkerProcess.objects.create(
            id=f"web-{number}:40{number}:9f3c",
            hostname=f"web-{number}",
            pid=400 + number,
            queues=["*"],
            concurrency=4,
            claimed=2,
            finalized=1_234 * number,
            started_at=now - timedelta(hours=9),
            heartbeat_at=now - timedelta(seconds=silent),
        )


def _holder(now: datetime) -> Any:
    holder = Job.objects.enqueue("invoice.render", {"order": 17, "format": "pdf"}, meta={"request": "b7c1"}).job
    _run(_back(holder, minutes=3), now, attempt=2, errors=_errors(1), progress=0.6, progress_note="page 3 of 5")
    for format in ("pdf", "html", "pdf"):
        with suppress(DuplicateJob):
            Job.objects.enqueue("invoice.render", {"order": 17, "format": format})
    holder.refresh_from_db()
    return holder


def _run(job: Any, now: datetime, **changes: Any) -> None:
    """Let a job run since half a minute."""
    begun = now - timedelta(seconds=30)
    values = {"state": "active", "attempt": 1, "started_at": begun, "worker_id": "web-1:401:9f3c"}
    _change(job, **{**values, "lease_token": job.pk, "lease_expires_at": now + timedelta(minutes=30), **changes})


def _back(job: Any, *, minutes: float) -> Any:
    """Let a job be older."""
    moments = ("created_at", "enqueued_at", "started_at", "finished_at")
    return _change(job, **{name: at - timedelta(minutes=minutes) for name in moments if (at := getattr(job, name))})


def _change(job: Any, **changes: Any) -> Any:
    Job._base_manager.filter(pk=job.pk).update(**changes)
    job.refresh_from_db()
    return job


def _errors(number: int) -> list[dict[str, Any]]:
    """Return the records of so many attempts that failed."""
    return [
        {
            "type": "ConnectionError",
            "code": "handler_error",
            "message": "The bank does not answer.",
            "attempt": attempt,
            "occurred_at": timezone.now().isoformat(),
            "details": {"traceback": TRACE},
        }
        for attempt in range(1, number + 1)
    ]


def _handler(type: str) -> Callable[..., None]:
    def handler(**args: Any) -> None:
        """Do nothing."""

    handler.__module__, handler.__qualname__ = "shop.jobs", type.partition(".")[2]
    return handler


_dead_letter = RetryPolicy(on_exhaustion="dead_letter")
