"""The leases of jobs that tests hold over HTTP."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from django_ojs_unique.models import Job

CLOCKS_DIFFER = timedelta(seconds=1)
"""At most: the database may run on another machine, and SQLite's clock knows milliseconds only."""


def row(job: Any) -> Job:
    return Job.objects.get(pk=job["id"])


def lasts(job: Any, length: timedelta, since: datetime) -> bool:
    """Whether a lease of this length was given between a moment and now."""
    ends = row(job).lease_expires_at
    return since + length - CLOCKS_DIFFER <= ends <= timezone.now() + length + CLOCKS_DIFFER


def let_lease_end(job: Any) -> None:
    """Let the lease of a job end now, wherever it would have ended; its time limit goes with it."""
    stored = row(job)
    late = stored.lease_expires_at - timezone.now() + timedelta(seconds=1)
    Job._base_manager.filter(pk=stored.pk).update(
        lease_expires_at=stored.lease_expires_at - late, started_at=stored.started_at - late
    )
