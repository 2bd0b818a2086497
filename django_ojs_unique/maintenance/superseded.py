"""Superseded: promote retries of policies with ``on_retry="discard"``, or discard them (River, "Required states").

All other retries are promoted without this check. If a policy does not count ``retryable``, a newer job of the same
fingerprint can be admitted while the older one waits for its retry. When that retry is due, River discards the older
one. A job of such a policy that its worker requeues, or whose lease runs out, is retryable, too, and due at once: its
policy may not count running jobs.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet

from .. import lifecycle
from ..db.constraints import LOOKS_FIRST, unfinished_or_holding
from ..db.dialects import dialect_of
from ..db.locking import unlocked
from ..enqueue.duplicates import counted_by
from ..enqueue.unit_of_work import UnitOfWork
from ..exceptions import InvalidPolicy
from ..execution.errors import error_record, with_error
from ..execution.run import labels
from ..lifecycle.events import tell
from ..ojs.states import JobState
from ..signals import announce_failure, job_discarded
from ..unique.conflict import duplicates
from ..unique.policy import OnRetry, UniquePolicy, ended_states

logger = logging.getLogger("django_ojs_unique.worker")

BATCH = 1000

LOOK_FIRST = Q(LOOKS_FIRST, state=JobState.RETRYABLE)
"""The retryable jobs to check before they are promoted."""


def promote(jobs: QuerySet[Any], now: datetime, *, only: UUID | None = None) -> int:
    """Promote due retries, or discard those that another job supersedes as their duplicate; return how many promoted.

    ``only``: a job's id; then only the due jobs of its fingerprint are looked at.

    Of several due jobs of a fingerprint, the newest is promoted. If another worker has locked one of them, all of them
    are left for the next call: while this waited for the lock, the leases of running jobs could expire.
    """
    due = jobs.filter(LOOK_FIRST, run_at__lte=now)
    looked_at = (due if only is None else due.filter(pk=only)).order_by("run_at")
    promoted = 0
    while fingerprints := set(looked_at.values_list("fingerprint", flat=True)[:BATCH]):
        for work in UnitOfWork(jobs.db):
            with work:
                available, discarded = _finalize_and_tell(jobs, due, fingerprints, now)
        promoted += available
        if not available and not discarded:
            break
    return promoted


def _finalize_and_tell(
    jobs: QuerySet[Any], due: QuerySet[Any], fingerprints: Collection[str], now: datetime
) -> tuple[int, list[Any]]:
    available, discarded = _finalize(jobs, due, fingerprints, now)
    for job in discarded:
        logger.warning("Job %s (%s) discarded. %s", job.pk, job.type, job.errors[-1]["message"], extra=labels(job))
    tell(jobs.db, [partial(announce_failure, job_discarded, job, None, jobs.db) for job in discarded])
    return available, discarded


def _finalize(
    jobs: QuerySet[Any], due: QuerySet[Any], fingerprints: Collection[str], now: datetime
) -> tuple[int, list[Any]]:
    """Promote or discard the due jobs of these fingerprints; return how many were promoted, and the discarded jobs."""
    survivors: list[UUID] = []
    discarded: list[Any] = []
    theirs = due.filter(unfinished_or_holding(fingerprint__in=fingerprints))
    keys = dict(theirs.order_by("-pk").values_list("pk", "fingerprint"))
    with transaction.atomic(using=jobs.db):
        families = _lock(due, keys)
        policies = {job.pk: _policy_of(job) for family in families.values() for job in family}
        others = _others(jobs, families, policies, now)
        for fingerprint, family in families.items():
            rivals = others[fingerprint]
            if any(_is_due(row, now) and looks_first(row) for row in rivals):
                continue  # another worker has locked it, or will: one worker must lock all of them
            for row in rivals:
                if _is_due(row, now):
                    row.state = JobState.AVAILABLE  # it will be promoted in any case
            for job in sorted(family, key=_age, reverse=True):
                policy = policies[job.pk]
                successor = None if policy is None else _successor(job, policy, rivals, now)
                if successor is None:
                    job.state = JobState.AVAILABLE
                    survivors.append(job.pk)
                else:
                    _discard(jobs, job, successor, now)
                    discarded.append(job)
                rivals.append(job)
        available = lifecycle.promote(jobs.filter(pk__in=survivors), now) if survivors else 0
    return available, discarded


def _lock(due: QuerySet[Any], keys: dict[UUID, str]) -> dict[str, list[Any]]:
    """Lock the due jobs of each fingerprint; ``keys`` maps each job's id to its fingerprint, the lowest id last.

    The job with the lowest id is locked first. Only the worker that gets this lock goes on with the fingerprint. Else
    two workers could each lock a part of the jobs, and both leave them.
    """
    first = {fingerprint: pk for pk, fingerprint in keys.items()}
    ours = set(unlocked(due.filter(pk__in=list(first.values())).order_by("pk")).values_list("fingerprint", flat=True))
    families: dict[str, list[Any]] = defaultdict(list)
    for job in unlocked(due.filter(pk__in=[pk for pk, fingerprint in keys.items() if fingerprint in ours])):
        families[job.fingerprint].append(job)
    return families


def _others(
    jobs: QuerySet[Any], families: dict[str, list[Any]], policies: dict[UUID, UniquePolicy | None], now: datetime
) -> dict[str, list[Any]]:
    """Return, by fingerprint, the other jobs that may count. Call it after the locks, to see what others committed."""
    known = [policy for policy in policies.values() if policy is not None]
    rows = jobs.filter(counted_by(known, now) | Q(state=JobState.RETRYABLE)).exclude(pk__in=list(policies))
    rows = rows.only("state", "fingerprint", "unique", "created_at", "run_at")
    others: dict[str, list[Any]] = defaultdict(list)
    for row in dialect_of(jobs).find(rows, list(families), ended_states(known)):
        others[row.fingerprint].append(row)
    return others


def _successor(job: Any, policy: UniquePolicy, rivals: Iterable[Any], now: datetime) -> Any | None:
    """Return the newest job that counts as a duplicate of a due job; a retryable one counts only if it is newer."""
    counted = duplicates(rivals, policy, now)
    return next((row for row in counted if row.state != JobState.RETRYABLE or _age(row) > _age(job)), None)


def _discard(jobs: QuerySet[Any], job: Any, successor: Any, now: datetime) -> None:
    message = f"Superseded: job {successor.pk}, which is {successor.state}, has the key."
    job.errors = with_error(job, error_record(job, "superseded", message, now=now, retryable=False))
    job.state, job.finished_at, job.run_at = JobState.DISCARDED, now, None
    lifecycle.supersede(jobs.filter(pk=job.pk), now, errors=job.errors)


def _policy_of(job: Any) -> UniquePolicy | None:
    """Return the job's policy if its ``on_retry`` is "discard", else None; also None, and logged, if it is invalid."""
    try:
        policy: UniquePolicy | None = job.unique_policy
    except InvalidPolicy as error:
        logger.error("Job %s (%s) has an invalid unique policy: %s", job.pk, job.type, error, extra=labels(job))
        return None
    return policy if policy is not None and policy.on_retry is OnRetry.DISCARD else None


def looks_first(row: Any) -> bool:
    """Tell whether a job that is to wait again must be checked for duplicates before (`LOOKS_FIRST`)."""
    return row.fingerprint is not None and isinstance(row.unique, dict) and "on_retry" in row.unique


def _is_due(row: Any, now: datetime) -> bool:
    return row.state == JobState.RETRYABLE and row.run_at is not None and row.run_at <= now


def _age(row: Any) -> tuple[datetime, UUID]:
    return row.created_at, row.pk
