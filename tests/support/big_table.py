"""Tables as a busy month leaves them: a sample of two thousand jobs on any database, multiplied on PostgreSQL."""

from __future__ import annotations

import hashlib
import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.utils import timezone

from django_ojs_unique import UniquePolicy
from django_ojs_unique.models import ActivityRollup, Job, Queue, SuppressedEnqueue, WorkerProcess
from django_ojs_unique.reporting.activity import roll_up
from tests.support.rows import insert_all

SAMPLE = 2_000
MONTH = timedelta(days=30)
QUEUES = ["default", "emails", "exports", "images", "imports", "invoices", "reports", "search"]
PAUSED = "reports"
TYPES = [
    *("email.send_welcome", "email.send_receipt", "email.digest", "export.csv", "image.thumbnail", "image.resize"),
    *("import.orders", "import.stock", "invoice.create", "report.daily", "report.monthly", "search.reindex"),
]
POLICY = UniquePolicy(keys=["type", "args"], on_conflict="ignore", period="P30D")
ERROR = {"type": "TimeoutError", "code": "handler_error", "message": "the server did not answer", "retryable": False}
LIVE = {"available": 50, "scheduled": 25, "retryable": 10, "active": 10, "pending": 5}
FINISHED = {"completed": 92, "discarded": 4, "cancelled": 4}


@dataclass(frozen=True)
class Crowd:
    """What to ask of the tables: a job of each kind."""

    hot: Job
    """A job that has waited in a paused queue for a month, and that three of ten attempts met."""
    keyed: Job
    discarded: Job
    doubled: Job
    """A waiting job beside another of its fingerprint."""


def gather(jobs: int = SAMPLE, copies: int = 1) -> Crowd:
    """Fill the tables with ``jobs`` times ``copies`` jobs, and attempts a tenth of that; return some of them.

    95 of 100 jobs finished during the last 30 days, half are unique. ``copies`` beyond 1 need PostgreSQL.
    """
    now = timezone.now()
    dice = random.Random(7)
    sample = list(_jobs(dice, jobs, now))
    hot, *doubled = [job for job in sample if job.state == "available" and job.fingerprint][:4]
    hot.created_at = hot.enqueued_at = now - MONTH
    hot.id, hot.queue = id_at(dice, hot.created_at), PAUSED
    single = [hot, *_doubles(doubled)]
    insert_all(sorted([*sample, *single[2::2]], key=lambda job: job.created_at))
    SuppressedEnqueue.objects.bulk_create(_attempts(dice, jobs // 10, sample, hot, now))
    _around(now)
    if copies > 1:
        _multiply(copies, [job.pk for job in single], MONTH / jobs)
    roll_up("default", now)  # as a worker has done
    return Crowd(
        hot=hot,
        keyed=next(job for job in sample if job.key),
        discarded=next(job for job in sample if job.state == "discarded"),
        doubled=doubled[0],
    )


def disperse() -> None:
    """Empty the tables."""
    models = (Job, SuppressedEnqueue, Queue, WorkerProcess, ActivityRollup)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(f"TRUNCATE {', '.join(model._meta.db_table for model in models)}")
        return
    for model in models:
        model.objects.all().delete()


def _jobs(dice: random.Random, count: int, now: datetime) -> Iterator[Job]:
    for number in range(count):
        finished = number % 20 != 0
        age = (MONTH if finished else timedelta(hours=2)) * (number + dice.random()) / count
        yield _job(dice, number, now, now - age, finished)


def _job(dice: random.Random, number: int, now: datetime, created_at: datetime, finished: bool) -> Job:
    job = Job(
        id=id_at(dice, created_at),
        type=dice.choice(TYPES),
        queue=dice.choice(QUEUES),
        args={"user_id": dice.randrange(10**6), "locale": "en"},
        state=_chosen(dice, FINISHED if finished else LIVE),
        created_at=created_at,
        enqueued_at=created_at,
    )
    if dice.random() < 0.5:
        job.unique = POLICY.to_dict()
        job.fingerprint = hashlib.sha256(str(number).encode()).hexdigest()
        job.unique_states = frozenset() if finished else frozenset(POLICY.states)
    elif dice.random() < 0.1:
        job.key = f"order-{number}"
    if finished:
        _finish(dice, job, now)
    elif job.state == "active":
        job.attempt, job.started_at, job.worker_id = 1, created_at + timedelta(seconds=1), "host-1:17:ab"
        job.lease_token, job.lease_expires_at = id_at(dice, created_at), now + timedelta(minutes=1)
    elif job.state in ("scheduled", "retryable"):
        job.enqueued_at, job.run_at = None, now + timedelta(minutes=dice.randrange(1, 600))
    elif job.state == "pending":
        job.enqueued_at = None
    return job


def _finish(dice: random.Random, job: Job, now: datetime) -> None:
    job.attempt = 1
    job.started_at = min(now, job.created_at + timedelta(seconds=dice.expovariate(1 / 30)))
    job.finished_at = min(now, job.started_at + timedelta(seconds=dice.expovariate(1 / 2)))
    if job.state == "discarded":
        job.attempt, job.dead_letter = 3, dice.random() < 0.2
        job.errors = [{**ERROR, "attempt": n, "occurred_at": job.finished_at.isoformat()} for n in (1, 2, 3)]
    elif job.fingerprint:
        job.window_ends_at = job.created_at + MONTH
    if job.window_ends_at and now - job.finished_at > timedelta(days=7):
        job.payload_pruned, job.args = True, {}


def _doubles(jobs: list[Job]) -> Iterator[Job]:
    """Yield jobs and, after each, another of its fingerprint that holds no key."""
    for job in jobs:
        yield job
        double = Job(**{field.attname: getattr(job, field.attname) for field in Job._meta.concrete_fields})
        double.id = id_at(random.Random(job.fingerprint), job.created_at)
        double.unique_states = frozenset()
        yield double


def _attempts(
    dice: random.Random, count: int, sample: list[Job], hot: Job, now: datetime
) -> Iterator[SuppressedEnqueue]:
    met = [job for job in sample if job.fingerprint and job is not hot]
    for number in range(count):
        job = dice.choice(met)
        created_at = min(now, job.created_at + timedelta(minutes=dice.expovariate(1 / 60)))
        if number % 20 in (0, 5):
            created_at = now - timedelta(minutes=55 * dice.random())
        if number % 10 < 3:
            job = hot
        yield SuppressedEnqueue(
            created_at=created_at,
            outcome="deduplicated" if number % 8 else "rejected",
            on_conflict="ignore" if number % 8 else "reject",
            fingerprint=job.fingerprint,
            type=job.type,
            queue=job.queue,
            args=job.args,
            meta={},
            existing_job_id=job.pk,
            existing_state=job.state,
        )


def _around(now: datetime) -> None:
    Queue.objects.create(name=PAUSED, paused_at=now)
    Queue.objects.create(name="exports", concurrency_limit=2)
    for number in range(4):
        WorkerProcess.objects.create(
            id=f"host-{number}:17:ab",
            hostname=f"host-{number}",
            pid=17,
            queues=["*"],
            concurrency=8,
            started_at=now - MONTH,
            heartbeat_at=now - timedelta(hours=number // 3),
        )


def _multiply(copies: int, single: list[uuid.UUID], spread: timedelta) -> None:
    """Copy each row but the ``single`` ones, moved back by up to ``spread``, with its own id and fingerprint."""
    back = f"interval '{spread.total_seconds() / copies} seconds' * copy"
    time = f"lpad(to_hex((extract(epoch FROM job.created_at - {back}) * 1000)::bigint), 12, '0')"
    noise = "md5(job.id::text || copy)"
    id = f"({time} || '7' || substr({noise}, 1, 3) || '8' || substr({noise}, 4, 15))::uuid"
    fingerprint = "md5(job.fingerprint || copy) || md5(copy || job.fingerprint)"
    moved = {name: f"job.{name} - {back}" for name in ("created_at", "enqueued_at", "started_at", "finished_at")}
    jobs = {**moved, "id": id, "key": "job.key || copy", "fingerprint": fingerprint}
    attempts = {
        "created_at": f"attempt.created_at - {back}",
        "existing_job_id": f"CASE WHEN job.id = ANY(%(single)s) THEN job.id ELSE {id} END",
        "fingerprint": f"CASE WHEN job.id = ANY(%(single)s) THEN job.fingerprint ELSE {fingerprint} END",
    }
    copying = f"CROSS JOIN generate_series(1, {copies - 1}) AS copy"
    job, attempt = Job._meta.db_table, SuppressedEnqueue._meta.db_table
    met = f"{attempt} AS attempt JOIN {job} AS job ON job.id = attempt.existing_job_id {copying}"
    alone = f"{job} AS job {copying} WHERE job.id <> ALL(%(single)s)"
    indexes = [(model, index) for model in (Job, SuppressedEnqueue) for index in model._meta.indexes]
    with connection.schema_editor() as editor, connection.cursor() as cursor:
        # To build the indexes at the end takes a third of the time that it takes to keep them.
        for model, index in indexes:
            editor.remove_index(model, index)
        cursor.execute("SET LOCAL work_mem = '256MB'")
        cursor.execute("SET LOCAL maintenance_work_mem = '256MB'")
        cursor.execute(_insert(SuppressedEnqueue, "attempt", attempts, met), {"single": single})
        cursor.execute(_insert(Job, "job", jobs, alone), {"single": single})
        for model, index in indexes:
            editor.add_index(model, index)
    with connection.cursor() as cursor:
        cursor.execute(f"VACUUM ANALYZE {job}, {attempt}")


def _insert(model: Any, row: str, changed: dict[str, str], source: str) -> str:
    quote = connection.ops.quote_name
    columns = [field.column for field in model._meta.concrete_fields if field.get_internal_type() != "BigAutoField"]
    values = [changed.get(column, f"{row}.{quote(column)}") for column in columns]
    return (
        f"INSERT INTO {model._meta.db_table} ({', '.join(map(quote, columns))})"
        f" SELECT {', '.join(values)} FROM {source} ORDER BY 1"
    )


def _chosen(dice: random.Random, weights: dict[str, int]) -> str:
    return dice.choices(list(weights), list(weights.values()))[0]


def id_at(dice: random.Random, moment: datetime) -> uuid.UUID:
    """Return a UUIDv7 of a moment."""
    milliseconds = int(moment.timestamp() * 1000)
    return uuid.UUID(int=milliseconds << 80 | 7 << 76 | dice.getrandbits(12) << 64 | 2 << 62 | dice.getrandbits(62))
