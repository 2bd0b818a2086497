"""Jobs and workers of the past, at moments that a test chooses."""

from datetime import UTC, datetime, timedelta

from django_ojs_unique.models import SuppressedEnqueue, WorkerProcess
from tests.support.rows import insert

NOW = datetime(2026, 3, 18, 14, 2, 30, tzinfo=UTC)
"""A Wednesday; in Berlin, the tests' time zone, it is 15:02:30."""


def ago(**lengths):
    return NOW - timedelta(**lengths)


def job(created, *, state="available", waited=1.0, ran=1.0, queue="default", **fields):
    """Store a job that was enqueued at ``created``, and by its state waited and ran for so many seconds."""
    times = {"created_at": created, "enqueued_at": created}
    if state not in ("available", "scheduled", "pending"):
        times["started_at"] = created + timedelta(seconds=waited)
    if state in ("completed", "discarded", "cancelled"):
        times["finished_at"] = created + timedelta(seconds=waited + ran)
    return insert(type="email.send", queue=queue, state=state, **{**times, **fields})


def suppressed(created):
    return SuppressedEnqueue.objects.create(
        created_at=created,
        outcome="deduplicated",
        on_conflict="ignore",
        fingerprint="f" * 64,
        type="email.send",
        queue="default",
        args={},
        meta={},
        existing_job_id="01a1fc57-9f5c-746f-9a69-51456ba6f763",
        existing_state="available",
    )


def worker(id="host:1:ab", *, heard=NOW, queues=("*",), **fields):
    values = {"hostname": "host", "pid": 1, "queues": list(queues), "concurrency": 4, "started_at": heard}
    return WorkerProcess.objects.create(id=id, heartbeat_at=heard, **{**values, **fields})
