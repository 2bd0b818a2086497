"""Overtaken: promote the retries whose policies say ``on_retry="discard"``, or discard them (River, "Required states").

Everybody else's retry is promoted without a look. A policy that does not count ``retryable`` lets a newer job of the
key in while the older one waits to run again; River discards the older one then, when its time has come.
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
from ..events import recorded, tell
from ..exceptions import InvalidPolicy
from ..ojs.conflict import duplicates
from ..ojs.policy import OnRetry, UniquePolicy
from ..ojs.states import JobState
from ..signals import announce, job_discarded
from ..transactions import starting_over
from .errors import error_record, with_error
from .rows import unlocked
from .run import labels

logger = logging.getLogger("django_ojs_unique.worker")

BATCH = 1000

LOOK_FIRST = Q(state=JobState.RETRYABLE, fingerprint__isnull=False, unique__has_key="on_retry")
"""The jobs that wait for a retry before which somebody must look: a policy names ``on_retry`` only to discard.

Not a comparison with its value, which would be NULL for the policies that do not name it, and so its negation.
"""


def promote(jobs: QuerySet[Any], now: datetime, *, only: UUID | None = None) -> int:
    """Make due retries available unless another job counts as their duplicate, else discard them; return how many are.

    ``only`` names a job: then those of its key, as the newest of them goes on.

    Of several jobs of a key that are due together the newest goes on. Jobs of a key of which somebody has locked one
    are left for the next time: to wait for it would let the leases of running jobs run out.
    """
    due = jobs.filter(LOOK_FIRST, run_at__lte=now)
    looked_at = (due if only is None else due.filter(pk=only)).order_by("run_at")
    promoted = 0
    while fingerprints := set(looked_at.values_list("fingerprint", flat=True)[:BATCH]):
        step = partial(_settle_and_tell, jobs, due, fingerprints, now)
        available, discarded = starting_over(jobs.db, partial(recorded, jobs.db, step))
        promoted += available
        if not available and not discarded:
            break
    return promoted


def _settle_and_tell(
    jobs: QuerySet[Any], due: QuerySet[Any], fingerprints: Collection[str], now: datetime
) -> tuple[int, list[Any]]:
    available, discarded = _settle(jobs, due, fingerprints, now)
    for job in discarded:
        logger.warning("Job %s (%s) discarded. %s", job.pk, job.type, job.errors[-1]["message"], extra=labels(job))
    told = partial(announce, job_discarded, jobs.model, using=jobs.db)
    tell(jobs.db, [partial(told, job=job, error=job.errors[-1]) for job in discarded])
    return available, discarded


def _settle(
    jobs: QuerySet[Any], due: QuerySet[Any], fingerprints: Collection[str], now: datetime
) -> tuple[int, list[Any]]:
    """Settle the due jobs of these keys; return how many became available, and those that were discarded."""
    survivors: list[UUID] = []
    discarded: list[Any] = []
    keys = dict(due.filter(fingerprint__in=fingerprints).order_by("-pk").values_list("pk", "fingerprint"))
    with transaction.atomic(using=jobs.db):
        families = _lock(due, keys)
        policies = {job.pk: _policy_of(job) for family in families.values() for job in family}
        others = _others(jobs, families, policies)
        for fingerprint, family in families.items():
            rivals = others[fingerprint]
            if any(_is_due(row, now) and _looks_first(row) for row in rivals):
                continue  # another worker has it, or is about to: one of us must have all of them
            for row in rivals:
                if _is_due(row, now):
                    row.state = JobState.AVAILABLE  # nothing stops it
            for job in sorted(family, key=_age, reverse=True):
                policy = policies[job.pk]
                overtaker = None if policy is None else _overtaker(job, policy, rivals, now)
                if overtaker is None:
                    job.state = JobState.AVAILABLE
                    survivors.append(job.pk)
                else:
                    _discard(jobs, job, overtaker, now)
                    discarded.append(job)
                rivals.append(job)
        available = lifecycle.promote(jobs.filter(pk__in=survivors), now) if survivors else 0
    return available, discarded


def _lock(due: QuerySet[Any], keys: dict[UUID, str]) -> dict[str, list[Any]]:
    """Lock the due jobs of each fingerprint; ``keys`` names the fingerprint of each, the lowest key last.

    The first job of each is locked before the others: of two workers the one that gets it goes on, so that they do not
    each lock a part and leave the whole.
    """
    first = {fingerprint: pk for pk, fingerprint in keys.items()}
    ours = set(unlocked(due.filter(pk__in=list(first.values())).order_by("pk")).values_list("fingerprint", flat=True))
    families: dict[str, list[Any]] = defaultdict(list)
    for job in unlocked(due.filter(pk__in=[pk for pk, fingerprint in keys.items() if fingerprint in ours])):
        families[job.fingerprint].append(job)
    return families


def _others(
    jobs: QuerySet[Any], families: dict[str, list[Any]], policies: dict[UUID, UniquePolicy | None]
) -> dict[str, list[Any]]:
    """Return, by fingerprint, the other jobs that may count. Read after the locks, it sees what a faster worker did."""
    states = {state for policy in policies.values() if policy is not None for state in policy.states}
    rows = jobs.filter(fingerprint__in=list(families), state__in=sorted({*states, JobState.RETRYABLE}))
    others: dict[str, list[Any]] = defaultdict(list)
    for row in rows.exclude(pk__in=list(policies)).only("state", "fingerprint", "unique", "created_at", "run_at"):
        others[row.fingerprint].append(row)
    return others


def _overtaker(job: Any, policy: UniquePolicy, rivals: Iterable[Any], now: datetime) -> Any | None:
    """Return the newest job that counts as a duplicate of a due one; of those that wait for a retry, a newer one."""
    counted = duplicates(rivals, policy, now)
    return next((row for row in counted if row.state != JobState.RETRYABLE or _age(row) > _age(job)), None)


def _discard(jobs: QuerySet[Any], job: Any, overtaker: Any, now: datetime) -> None:
    message = f"Overtaken: job {overtaker.pk}, which is {overtaker.state}, has the key."
    job.errors = with_error(job.errors, error_record(job, "overtaken", message, now=now, retryable=False))
    job.state, job.finished_at, job.run_at = JobState.DISCARDED, now, None
    lifecycle.overtake(jobs.filter(pk=job.pk), now, errors=job.errors)


def _policy_of(job: Any) -> UniquePolicy | None:
    """Return the job's policy if it discards; one that somebody made invalid in the row does not."""
    try:
        policy: UniquePolicy | None = job.unique_policy
    except InvalidPolicy as error:
        logger.error("Job %s (%s) has an invalid unique policy: %s", job.pk, job.type, error, extra=labels(job))
        return None
    return policy if policy is not None and policy.on_retry is OnRetry.DISCARD else None


def _looks_first(row: Any) -> bool:
    return isinstance(row.unique, dict) and "on_retry" in row.unique


def _is_due(row: Any, now: datetime) -> bool:
    return row.state == JobState.RETRYABLE and row.run_at is not None and row.run_at <= now


def _age(row: Any) -> tuple[datetime, UUID]:
    return row.created_at, row.pk
