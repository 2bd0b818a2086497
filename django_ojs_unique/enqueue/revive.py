"""Revive a discarded job: refuse or cancel the live duplicates, and guard its fingerprint again, in one transaction."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ObjectDoesNotExist
from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from .. import lifecycle
from ..db.constraints import guarding
from ..db.dialect import Dialect
from ..db.dialects import dialect_of
from ..exceptions import DuplicateJob, InvalidRequest
from ..ojs.keys import HOLDING
from ..ojs.policy import UniquePolicy
from ..ojs.states import TERMINAL, JobState
from ..unit_of_work import LostRace
from .duplicates import may_replace_active, stored_matches
from .row import JobRow


def revive(jobs: QuerySet[Any], job: JobRow, *, force: bool, replace: bool, lost_races: int) -> list[JobRow] | None:
    """Make a discarded ``job`` available; return the jobs that were cancelled for it, or None if it was not discarded.

    Raises DuplicateJob when a live duplicate stays; see `Job.revive`. Raises LostRace when another job got the guard.
    ``lost_races``: how often that has happened to this revival.
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
    dialect = dialect_of(jobs)
    with transaction.atomic(using=jobs.db):
        if force or not job.fingerprint:
            return [] if lifecycle.revive(jobs.filter(pk=job.pk), timezone.now()) else None
        dialect.lock_keys([job.fingerprint])
        if not lifecycle.revive(jobs.filter(pk=job.pk), timezone.now()):
            return None
        policy = job.unique_policy or UniquePolicy()
        # After a lost race, query with locks only: the snapshot of the caller's transaction may hide new rows.
        replaced = _make_way(jobs, dialect, job, policy, replace=replace, by_key=not lost_races)
        try:
            row = jobs.filter(pk=job.pk, fingerprint=job.fingerprint)
            lifecycle.guard(row, HOLDING if job.key is not None else policy.guarded_states)
        except IntegrityError:  # an enqueue or another revival was faster
            raise LostRace from None
        return replaced


def _make_way(
    jobs: QuerySet[Any], dialect: Dialect, job: JobRow, policy: UniquePolicy, *, replace: bool, by_key: bool
) -> list[JobRow]:
    """Cancel the live duplicates and return them, or raise DuplicateJob; take the guard from any other job."""
    now = timezone.now()
    matches = stored_matches(jobs, job.fingerprint, policy, now).exclude(pk=job.pk)
    stored = dialect.lock(matches.filter(~Q(state__in=sorted(TERMINAL)) | guarding()), by_key=by_key)
    rivals = [
        row for row in stored if row.state not in TERMINAL and policy.is_duplicate(row.state, row.created_at, now)
    ]
    if rivals and not (replace and may_replace_active(jobs, rivals)):
        # Name a running duplicate if there is one, else the newest.
        raise DuplicateJob(max(rivals, key=lambda row: (row.state == JobState.ACTIVE, row.created_at)), job.fingerprint)
    lifecycle.replace(jobs.filter(pk__in=[row.pk for row in rivals]), now, by=job.pk)
    lifecycle.drop_guards(jobs.filter(pk__in=[row.pk for row in stored if row not in rivals]))
    return rivals
