"""Jobs to drain, and the rate at which a worker drains them, measured in the database."""

from __future__ import annotations

import hashlib
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from django.db import connection

from django_ojs_unique import UniquePolicy
from django_ojs_unique.models import InboxRequest, Job

from .project import RUNWORKER, running

POLICY = UniquePolicy(keys=["type", "args"], on_conflict="ignore")
PATIENCE = 300


def fill(count: int, type: str = "noop", **columns: Any) -> None:
    """Make ``count`` unique jobs available, by default of a type that does nothing."""
    for start in range(0, count, 1000):
        numbers = range(start, min(start + 1000, count))
        Job._base_manager.bulk_create([_job(number, type, **columns) for number in numbers])


def clear() -> None:
    """Empty the table."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE django_ojs_unique_job" if _postgres() else "DELETE FROM django_ojs_unique_job")


def tidy() -> None:
    """Run now the maintenance that the database would else do during the measurement."""
    with connection.cursor() as cursor:
        for statement in ["VACUUM ANALYZE", "CHECKPOINT"] if _postgres() else ["PRAGMA wal_checkpoint(TRUNCATE)"]:
            cursor.execute(statement)


def unfinished() -> int:
    """Count the requests in the inbox, and the available and the running jobs."""
    asked = InboxRequest.objects.waiting().count()  # first, because they become jobs
    waiting = Job.objects.filter(state="available", finished_at=None).count()  # without the second, no index is used
    return asked + waiting + Job.objects.filter(lease_expires_at__isnull=False).count()


def rate(count: int, command: Sequence[str] = RUNWORKER, type: str = "noop", **columns: Any) -> float:
    """Start ``command`` on ``count`` new jobs; return jobs per second, from the first one done to the last."""
    fill(count, type, **columns)
    tidy()
    with running(command) as process:
        begin, left = wait_until_below(count, process)
        end, _ = wait_until_below(1, process)
    return left / (end - begin) if left else float("nan")


def wait_until_below(number: int, process: subprocess.Popen[bytes]) -> tuple[float, int]:
    """Wait until fewer than ``number`` jobs are unfinished; return the moment, and how many are left."""
    deadline = time.perf_counter() + PATIENCE
    while (left := unfinished()) >= number:
        if process.poll() is not None or time.perf_counter() > deadline:
            raise RuntimeError(f"{process.args} left {left} jobs")
        time.sleep(0.05 if left > 2000 else 0.005)
    return time.perf_counter(), left


def _job(number: int, type: str, **columns: Any) -> Job:
    job = Job(type=type, queue="default", args={"i": number}, unique=POLICY.to_dict(), **columns)
    job.fingerprint = hashlib.sha256(str(number).encode()).hexdigest()
    job.unique_states = frozenset(POLICY.states)
    job.enqueued_at = job.created_at
    return job


def _postgres() -> bool:
    return connection.vendor == "postgresql"
