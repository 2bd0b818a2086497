"""Runs that go on although their jobs were cancelled or replaced."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet

from ..db.now import DatabaseNow
from ..exceptions import Message
from ..models import StoppedRun
from ..ojs.states import JobState
from .text import full


def stopped(using: str, **which: Any) -> QuerySet[StoppedRun]:
    """Select the runs of which no worker has let go, and whose leases have not ended."""
    return StoppedRun.objects.using(using).filter(lease_expires_at__gt=DatabaseNow(), **which)


def still_runs(job: Any, using: str) -> str:
    """Say that a run goes on although the job was cancelled or replaced; empty if none does. One statement, or none."""
    if job.state == JobState.COMPLETED or not (job.attempt or job.worker_id):
        return ""
    runs = stopped(using, job_id=job.pk).order_by("-lease_expires_at")
    end = runs.values_list("lease_expires_at", flat=True).first()
    return "" if end is None else Message(_STILL_RUNS, moment=full(end))


_STILL_RUNS = Message(
    "A run that was stopped goes on: it counts for the limits until its worker has let go of it, or the lease ends at"
    " {moment}."
)
