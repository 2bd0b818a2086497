"""Leases: how long a worker has a job, and what it may do to it meanwhile; the lease's token protects each change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet

from .. import lifecycle
from ..db.locking import unlocked
from ..db.now import DatabaseNow
from ..lifecycle import stopped
from ..lifecycle.announcing import announce_requeued
from ..ojs.states import JobState

Claim = tuple[UUID, UUID | None]
"""A job's id and the lease token under which it is claimed."""

FIRST_LEASE = timedelta(minutes=1)
"""How long a job that an HTTP request waited for is leased, unless its worker makes another call."""
BEGUN: dict[str, Any] = {"expires_at": None}
"""What to change in a job that comes back after it has begun: ``expires_at`` is the latest first start."""
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease that a worker asks for: a ``length`` for jobs that have none, or for all when it is ``forced``.

    A ``timed`` lease ends with the time limit of the attempt at the latest. That is for HTTP workers, on which nothing
    else enforces the limit (HTTP binding, section 8). An ``unconfirmed`` attempt does not count before
    `confirm` or `extend`.
    """

    length: timedelta
    forced: bool = False
    timed: bool = False
    unconfirmed: bool = False

    def of(self, job: Any) -> timedelta:
        """Return the length of a job's lease."""
        own = job.visibility_timeout_ms
        return self.length if own is None or self.forced else timedelta(milliseconds=own)

    def at_first(self) -> Lease:
        """Return the lease until the worker's first call: the worker may have gone away while it waited for a job."""
        own_choice = self.forced or self.length <= FIRST_LEASE
        return self if own_choice else replace(self, length=FIRST_LEASE, unconfirmed=True)

    def by_length(self, jobs: Iterable[Any]) -> dict[timedelta, list[UUID]]:
        """Return the ids of jobs by the lengths of their leases."""
        keys: dict[timedelta, list[UUID]] = defaultdict(list)
        for job in jobs:
            keys[self.of(job)].append(job.pk)
        return keys


def within_time_limits(jobs: QuerySet[Any], claimed: Iterable[Any], started_at: datetime | None = None) -> None:
    """Let no lease outlast the time limit of its attempt; ``started_at`` is for jobs read before they were claimed."""
    by_end: dict[datetime, list[UUID]] = defaultdict(list)
    for job in claimed:
        if job.timeout_ms is not None:
            by_end[(started_at or job.started_at) + timedelta(milliseconds=job.timeout_ms)].append(job.pk)
    for end, keys in by_end.items():
        lifecycle.write(jobs.filter(pk__in=keys, lease_expires_at__gt=end), lease_expires_at=end)


def ends_with_time_limit(job: Any) -> bool:
    """Tell whether the lease of a running job ends exactly at its time limit, as only a ``timed`` lease does."""
    if job.timeout_ms is None or job.started_at is None:
        return False
    # The length is measured, as one that was stored manually may be too long to be added.
    ends: bool = divmod(job.lease_expires_at - job.started_at, _MILLISECOND) == (job.timeout_ms, timedelta())
    return ends


def confirm(jobs: QuerySet[Any], claimed: Iterable[Any]) -> bool:
    """Let the attempts of claimed jobs count from now on, as they begin; return whether any was still leased."""
    return bool(lifecycle.write(_under(jobs, {(job.pk, job.lease_token) for job in claimed}), unconfirmed=None))


def still_leased(jobs: QuerySet[Any], claimed: Iterable[Any]) -> set[Claim]:
    """Return the jobs that are still leased under their tokens; read their rows in the order of their ids."""
    leases = {(job.pk, job.lease_token) for job in claimed}
    return leases & set(_under(jobs, leases).order_by("pk").values_list("pk", "lease_token"))


def lost(jobs: QuerySet[Any], claimed: Iterable[Any]) -> set[Claim]:
    """Return the jobs whose leases are lost: cancelled, replaced, or rescued."""
    claimed = list(claimed)
    return {(job.pk, job.lease_token) for job in claimed} - still_leased(jobs, claimed)


def extend(jobs: QuerySet[Any], claimed: Iterable[Any], lease: timedelta, *, begun: bool = True) -> set[Claim]:
    """Extend the leases of claimed jobs, in one statement; return those that were still leased.

    ``begun`` says whether the attempts have begun, so that they count from now on.
    A row that another transaction has locked is skipped: while this waited for it, the other leases could run out.
    The leases of stopped runs are extended, too.
    """
    with transaction.atomic(using=jobs.db):
        kept = still_leased(unlocked(jobs), claimed)
        changes: dict[str, Any] = {"unconfirmed": None} if begun else {}
        lifecycle.write(jobs.filter(pk__in=[pk for pk, _ in kept]), lease_expires_at=DatabaseNow() + lease, **changes)
    if gone := {(job.pk, job.lease_token) for job in claimed} - kept:
        stopped.extend(jobs.db, gone, DatabaseNow() + lease)
    return kept


def requeue(jobs: QuerySet[Any], claimed: Sequence[Any], begun: Collection[UUID] = ()) -> tuple[int, set[Claim]]:
    """Make claimed jobs available again; the attempt does not count.

    ``begun`` are the ids of those that were not only claimed: these do not expire any more. Return how many, and those
    that are still leased because another transaction has locked their rows.
    """
    alike: dict[tuple[UUID, bool], list[UUID]] = defaultdict(list)
    for job in claimed:
        alike[job.lease_token, job.pk in begun].append(job.pk)
    requeued = 0
    for (token, has_begun), keys in alike.items():
        with transaction.atomic(using=jobs.db):
            free = list(unlocked(jobs.filter(pk__in=keys, lease_token=token)).values_list("pk", flat=True))
            requeued += requeue_leased(jobs, free, token, **(BEGUN if has_begun else {}))
            if has_begun:
                announce_requeued(jobs, free)
    if requeued == len(claimed):
        return requeued, set()
    locked = still_leased(jobs, claimed)
    stopped.let_go(jobs.db, {(job.pk, job.lease_token) for job in claimed} - locked)
    return requeued, locked


def requeue_leased(jobs: QuerySet[Any], keys: Sequence[UUID], token: UUID | None, **changes: Any) -> int:
    """Make jobs that are leased under a token available again, or let them be looked at first; return how many.

    Those that may not run again lose their leases, so that the next rescue ends them.
    """
    rows = jobs.filter(pk__in=keys)
    requeued = lifecycle.requeue(rows, token=token, **changes)
    if requeued < len(keys):
        requeued += lifecycle.requeue(rows, token=token, looks_first=True, **changes)
        lifecycle.end_lease(rows, token=token)
    return requeued


def requeue_claims(jobs: QuerySet[Any], tokens: Iterable[UUID]) -> int:
    """Make all jobs that are leased under these tokens available again; return how many."""
    rows = jobs.filter(lease_token__in=list(tokens), state=JobState.ACTIVE, finished_at=None)
    return requeue(jobs, list(rows.only("lease_token")))[0]


def _under(jobs: QuerySet[Any], leases: set[Claim]) -> QuerySet[Any]:
    """Select the running jobs with these ids and with one of these tokens."""
    keys, tokens = {pk for pk, _ in leases}, {token for _, token in leases}
    return jobs.filter(pk__in=keys, lease_token__in=tokens, state=JobState.ACTIVE)


def store_progress(jobs: QuerySet[Any], reported: Iterable[tuple[Any, tuple[float, str]]]) -> None:
    """Store the last progress that running handlers have reported."""
    with transaction.atomic(using=jobs.db):
        for job, (fraction, note) in reported:
            row = unlocked(jobs.filter(pk=job.pk, lease_token=job.lease_token, state=JobState.ACTIVE))
            if row.only("pk").first() is not None:
                jobs.filter(pk=job.pk).update(progress=fraction, progress_note=note)
