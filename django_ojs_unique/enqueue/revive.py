"""Revive a discarded job: look for live duplicates, then refuse or cancel them, all in one transaction."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ObjectDoesNotExist
from django.db import connections, transaction
from django.db.models import QuerySet
from django.utils import timezone

from .. import lifecycle
from ..db.dialect import Dialect
from ..db.dialects import dialect_of
from ..exceptions import DuplicateJob, InvalidRequest
from ..ojs.policy import UniquePolicy
from ..ojs.states import INCOMPLETE, TERMINAL, JobState
from .duplicates import duplicates_of, live, may_replace_active, stored_matches
from .row import JobRow


def revive(jobs: QuerySet[Any], job: JobRow, *, force: bool, replace: bool) -> list[JobRow] | None:
    """Make a discarded ``job`` available; return the jobs that were cancelled for it, or None if it was not discarded.

    Raises DuplicateJob when a live duplicate stays; see `Job.revive`.
    """
    if force and replace:
        raise InvalidRequest.at(
            "replace",
            "cannot be said together with force",
            mend="Replace cancels the live duplicates, force lets them run: choose one.",
        )
    try:
        job.refresh_from_db(using=jobs.db)
    except ObjectDoesNotExist:  # it was deleted
        return None
    looks = not force and bool(job.fingerprint)
    # The snapshot of a caller's transaction may be old: then use only a query with locks.
    by_key = not connections[jobs.db].in_atomic_block
    dialect = dialect_of(jobs)
    with transaction.atomic(using=jobs.db):
        if looks:
            _lock_key(jobs, dialect, job.fingerprint)
        if not lifecycle.revive(jobs.filter(pk=job.pk), timezone.now()):
            return None
        return _make_way(jobs, dialect, job, replace, by_key) if looks else []


def _lock_key(jobs: QuerySet[Any], dialect: Dialect, fingerprint: str) -> None:
    dialect.lock_keys([fingerprint])
    if dialect.lets_rivals_in:
        # At least two revivals of one key wait for each other.
        alike = jobs.filter(fingerprint=fingerprint, state__in=sorted({*INCOMPLETE, JobState.DISCARDED}))
        list(alike.order_by("pk").select_for_update().values_list("pk"))


def _make_way(jobs: QuerySet[Any], dialect: Dialect, job: JobRow, replace: bool, by_key: bool) -> list[JobRow]:
    """Cancel the live duplicates, and return them; or raise DuplicateJob.

    On PostgreSQL this does not see an enqueue that is not yet committed: then both jobs live.
    """
    policy, replaced = job.unique_policy or UniquePolicy(), list[JobRow]()
    while True:
        now = timezone.now()
        matches = stored_matches(jobs, job.fingerprint, policy, now).exclude(pk=job.pk)
        rivals = [
            row
            for row in dialect.lock(live(matches), by_key=by_key)
            if row.state not in TERMINAL and policy.is_duplicate(row.state, row.created_at, now)
        ]
        if rivals and not (replace and may_replace_active(jobs, rivals)):
            # Name a running duplicate if there is one, else the newest.
            raise DuplicateJob(
                max(rivals, key=lambda row: (row.state == JobState.ACTIVE, row.created_at)), job.fingerprint
            )
        lifecycle.replace(jobs.filter(pk__in=[row.pk for row in rivals]), now, by=job.pk)
        replaced += rivals
        # While this waited for a lock, a duplicate may have been replaced by another one that the query did not see.
        others = live(duplicates_of(jobs, job.fingerprint, policy, now)).exclude(pk=job.pk)
        if not (dialect.lets_rivals_in and others.exists()):
            return replaced
