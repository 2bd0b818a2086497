"""Revive a discarded job: look for live duplicates, and refuse or make way, all in one transaction."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.core.exceptions import ObjectDoesNotExist
from django.db import connections, transaction
from django.db.models import QuerySet
from django.utils import timezone

from . import lifecycle
from .admission import Admission
from .enqueue import may_replace_active, stored_matches
from .exceptions import DuplicateJob, InvalidRequest
from .explain import duplicates_of
from .ojs.policy import UniquePolicy
from .ojs.states import INCOMPLETE, TERMINAL, JobState
from .transactions import starting_over


def revive(jobs: QuerySet[Any], job: Any, *, force: bool, replace: bool) -> list[Any] | None:
    """Make a discarded ``job`` available; return the jobs that were cancelled for it, or None if it was not discarded.

    Raises DuplicateJob when a live duplicate stays; see `Job.revive`.
    """
    if force and replace:
        raise InvalidRequest.at(
            "replace",
            "cannot be said together with force",
            mend="Replace cancels the live duplicates, force lets them run: choose one.",
        )
    # The snapshot of a caller's transaction may be old; then only a locking look will do.
    by_key = not connections[jobs.db].in_atomic_block
    return starting_over(jobs.db, partial(_revive, jobs, job, replace, looks=not force, by_key=by_key))


def _revive(jobs: QuerySet[Any], job: Any, replace: bool, *, looks: bool, by_key: bool) -> list[Any] | None:
    try:
        job.refresh_from_db(using=jobs.db)
    except ObjectDoesNotExist:  # somebody has deleted it
        return None
    looks = looks and bool(job.fingerprint)
    admission = Admission(jobs.model, connections[jobs.db])
    with transaction.atomic(using=jobs.db):
        if looks:
            _take_turns(jobs, admission, job.fingerprint)
        if not lifecycle.revive(jobs.filter(pk=job.pk), timezone.now()):
            return None
        return _make_way(jobs, admission, job, replace, by_key) if looks else []


def _take_turns(jobs: QuerySet[Any], admission: Admission, fingerprint: str) -> None:
    admission.take_turns([fingerprint])
    if admission.can_be_overtaken:
        # Revivals of one key wait for each other at least.
        alike = jobs.filter(fingerprint=fingerprint, state__in=sorted({*INCOMPLETE, JobState.DISCARDED}))
        list(alike.order_by("pk").select_for_update().values_list("pk"))


def _make_way(jobs: QuerySet[Any], admission: Admission, job: Any, replace: bool, by_key: bool) -> list[Any]:
    """Cancel the live duplicates, and return them; or raise DuplicateJob.

    On PostgreSQL an enqueue that is not yet committed is not seen: then both jobs live.
    """
    policy, replaced = job.unique_policy or UniquePolicy(), list[Any]()
    while True:
        now = timezone.now()
        matches = stored_matches(jobs, job.fingerprint, policy, now).exclude(pk=job.pk)
        rivals = [
            row
            for row in admission.lock(matches.exclude(state__in=sorted(TERMINAL)), by_key=by_key)
            if row.state not in TERMINAL and policy.is_duplicate(row.state, row.created_at, now)
        ]
        if rivals and not (replace and may_replace_active(jobs, rivals)):
            # The one that is in the way: of those that could be replaced, one that runs.
            raise DuplicateJob(
                max(rivals, key=lambda row: (row.state == JobState.ACTIVE, row.created_at)), job.fingerprint
            )
        lifecycle.replace(jobs.filter(pk__in=[row.pk for row in rivals]), now, by=job.pk)
        replaced += rivals
        # One that was waited for may have given way to one that the look was too early to see.
        live = duplicates_of(jobs, job.fingerprint, policy, now).exclude(pk=job.pk).exclude(state__in=sorted(TERMINAL))
        if not (admission.can_be_overtaken and live.exists()):
            return replaced
