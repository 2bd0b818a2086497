"""A job and the other jobs of its fingerprint. Each query is answered from an index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.utils import timezone

from ..models import Job
from ..ojs.states import TERMINAL, UNSUCCESSFUL, JobState
from ..unique.policy import UniquePolicy
from .duplicates import newest, newest_ended
from .uniqueness import read_policy

MOST_RELATIVES = 10

_READ = ("state", "created_at", "unique_states", "replaced_by_id")


@dataclass(frozen=True, slots=True)
class Relations:
    """The other jobs of a job's fingerprint.

    ``family``: the newest of them and the job itself, the oldest first. ``more``: whether there are others.
    ``replaces``: those that were cancelled for the job. ``blocked_by``: the live duplicate that keeps a discarded
    or cancelled job from being retried. ``successor``: the job that replaced it; None if there is none, or it is gone.
    """

    family: tuple[Any, ...] = ()
    more: bool = False
    replaces: tuple[Any, ...] = ()
    blocked_by: Any = None
    successor: Any = None


def relations(job: Any) -> Relations:
    """Find the related jobs: up to four queries for those of its fingerprint, one for the job that replaced it."""
    jobs = Job.objects.using(job._state.db)
    successor = jobs.only(*_READ).filter(pk=job.replaced_by_id).first() if job.replaced_by_id else None
    if job.fingerprint is None:
        return Relations(successor=successor)
    found = {row.pk: row for row in newest(jobs.only(*_READ), job.fingerprint, MOST_RELATIVES + 1)}
    ended_before: list[Any] = []
    if sum(row.state in TERMINAL for row in found.values()) > MOST_RELATIVES:  # else these are all that ended
        before = jobs.only(*_READ).filter(created_at__lte=job.created_at)
        ended_before = list(newest_ended(before, job.fingerprint, JobState.CANCELLED)[:MOST_RELATIVES])
    found.pop(job.pk, None)
    others = sorted(found.values(), key=_age, reverse=True)
    replaced = {row.pk: row for row in (*others, *ended_before) if row.replaced_by_id == job.pk}
    return Relations(
        family=tuple(sorted([*others[:MOST_RELATIVES], job], key=_age)),
        more=len(others) > MOST_RELATIVES,
        replaces=tuple(sorted(replaced.values(), key=_age)),
        blocked_by=_blocked_by(job, others),
        successor=successor,
    )


def _blocked_by(job: Any, others: list[Any]) -> Any:
    """Return the newest live job that counts under the job's policy, as a retry would find it."""
    if job.state not in UNSUCCESSFUL or (job.state == JobState.CANCELLED and job.replaced_by_id is not None):
        return None
    policy, problem = read_policy(job)
    if problem:
        return None
    policy, now = policy or UniquePolicy(), timezone.now()
    live = (row for row in others if row.state not in TERMINAL)
    return next((row for row in live if policy.is_duplicate(row.state, row.created_at, now)), None)


def _age(row: Any) -> Any:
    return row.created_at, row.pk
