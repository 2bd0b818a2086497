"""Lease: for how long a worker holds a job without a word."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import QuerySet


@dataclass(frozen=True, slots=True)
class Lease:
    """What a worker wants: a ``length`` for jobs that name none, or for all when it is ``forced``.

    One that is ``timed`` ends with the time limit of the attempt at the latest. That is for workers outside, which
    nobody else makes keep it (HTTP binding, section 8).
    """

    length: timedelta
    forced: bool = False
    timed: bool = False

    def of(self, job: Any) -> timedelta:
        """Return the length of a job's lease."""
        own = job.visibility_timeout_ms
        return self.length if own is None or self.forced else timedelta(milliseconds=own)

    def by_length(self, jobs: Iterable[Any]) -> dict[timedelta, list[UUID]]:
        """Return the keys of jobs by the lengths of their leases."""
        keys: dict[timedelta, list[UUID]] = defaultdict(list)
        for job in jobs:
            keys[self.of(job)].append(job.pk)
        return keys


def within_time_limits(jobs: QuerySet[Any], held: Iterable[Any], started_at: datetime | None = None) -> None:
    """Let no lease outlast the time limit of its attempt; ``started_at`` is for rows that were read before they did."""
    by_end: dict[datetime, list[UUID]] = defaultdict(list)
    for job in held:
        if job.timeout_ms is not None:
            by_end[(started_at or job.started_at) + timedelta(milliseconds=job.timeout_ms)].append(job.pk)
    for end, keys in by_end.items():
        jobs.filter(pk__in=keys, lease_expires_at__gt=end).update(lease_expires_at=end)


def ends_with_time_limit(job: Any) -> bool:
    """Tell whether the lease of a running job ends just when its time is up, which no other lease does."""
    if job.timeout_ms is None or job.started_at is None:
        return False
    ends: bool = job.lease_expires_at == job.started_at + timedelta(milliseconds=job.timeout_ms)
    return ends
