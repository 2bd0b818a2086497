"""Superseded: promote retries of policies with ``on_retry="discard"``, or discard them (River, "Required states").

All other retries are promoted without this check. If a policy does not count ``retryable``, a newer job of the same
fingerprint can be admitted while the older one waits for its retry. When that retry is due, River discards the older
one. A job of such a policy that its worker requeues, or whose lease runs out, is retryable, too, and due at once: its
policy may not count running jobs.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet

from ..db.constraints import LOOKS_FIRST, unfinished_or_holding
from ..db.dialects import dialect_of
from ..db.locking import unlocked
from ..enqueue.duplicates import counted_by
from ..enqueue.unit_of_work import UnitOfWork
from ..enqueue.write import write
from ..exceptions import InvalidPolicy
from ..execution.errors import error_record, with_error
from ..execution.run import labels
from ..lifecycle.events import tell
from ..ojs.states import JobState
from ..signals import announce_failure, job_discarded
from ..unique.conflict import READ
from ..unique.plan import Effects, Family, Plan
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
                available, discarded = _decide_and_tell(jobs, due, fingerprints, now)
        promoted += available
        if not available and not discarded:
            break
    return promoted


def _decide_and_tell(
    jobs: QuerySet[Any], due: QuerySet[Any], fingerprints: Collection[str], now: datetime
) -> tuple[int, int]:
    """Promote or discard the due jobs of these fingerprints; return how many of each."""
    theirs = due.filter(unfinished_or_holding(fingerprint__in=fingerprints))
    keys = dict(theirs.order_by("-pk").values_list("pk", "fingerprint"))
    with transaction.atomic(using=jobs.db):  # its first statement is a lock
        effects = _decide(jobs, due, keys, now)
        write(jobs, dialect_of(jobs), effects, now)
    for job in effects.superseded:
        logger.warning("Job %s (%s) discarded. %s", job.pk, job.type, job.errors[-1]["message"], extra=labels(job))
    tell(jobs.db, [partial(announce_failure, job_discarded, job, None, jobs.db) for job in effects.superseded])
    return len(effects.promoted), len(effects.superseded)


def _decide(jobs: QuerySet[Any], due: QuerySet[Any], keys: dict[UUID, str], now: datetime) -> Effects:
    waiting = _lock(due, keys)
    policies = {job.pk: _policy_of(job) for alike in waiting.values() for job in alike}
    others, plan = _others(jobs, waiting, policies, now), Plan(now)
    for fingerprint, alike in waiting.items():
        family = Family(others[fingerprint])
        if any(_is_due(row, now) and looks_first(row) for row in family.rows):
            continue  # another worker has locked it, or will: one worker must lock all of them
        for row in family.rows:
            if _is_due(row, now):
                row.state = JobState.AVAILABLE  # it will be promoted in any case
        for job in sorted(alike, key=lambda job: (job.created_at, job.pk), reverse=True):
            if (successor := plan.promote(job, policies[job.pk], family)) is not None:
                message = f"Superseded: job {successor.pk}, which is {successor.state}, has the key."
                job.errors = with_error(job, error_record(job, "superseded", message, now=now, retryable=False))
    return plan.effects


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
    rows = rows.only(*READ, "fingerprint", "unique", "run_at")
    others: dict[str, list[Any]] = defaultdict(list)
    for row in dialect_of(jobs).find(rows, list(families), ended_states(known)):
        others[row.fingerprint].append(row)
    return others


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
