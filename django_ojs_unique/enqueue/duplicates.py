"""Which stored jobs count as duplicates."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any, TypeVar

from django.db.models import Max, Q, QuerySet

from ..capabilities import STRONG, strength
from ..conf import settings
from ..db.constraints import guarding, of_fingerprint
from ..ojs.conflict import duplicates
from ..ojs.policy import UniquePolicy
from ..ojs.states import TERMINAL, JobState
from .row import JobRow

Jobs = TypeVar("Jobs", bound=QuerySet[Any])


def stored_matches(jobs: Jobs, fingerprint: str, policy: UniquePolicy, now: datetime) -> Jobs:
    """Select the jobs that a verdict needs: those that the policy may count, and those that guard the fingerprint."""
    counted = counted_by([policy], now)
    return jobs.filter(of_fingerprint(fingerprint=fingerprint), counted | guarding())


def stored_matches_of_any(jobs: Jobs, policies: Collection[UniquePolicy], now: datetime) -> Jobs:
    """Select the jobs that verdicts by these policies need, of all fingerprints: the caller filters by fingerprint."""
    return jobs.filter(counted_by(policies, now) | guarding())


def duplicates_of(jobs: Jobs, fingerprint: str, policy: UniquePolicy, now: datetime) -> Jobs:
    """Select the stored jobs of a fingerprint that count under a policy now, the newest first."""
    matches = stored_matches(jobs, fingerprint, policy, now)
    counted = duplicates(matches.only("state", "created_at"), policy, now)
    return jobs.filter(pk__in=[row.pk for row in counted]).order_by("-created_at", "-id")


def satisfied(jobs: QuerySet[Any], fingerprints: Collection[str], policy: UniquePolicy, now: datetime) -> set[str]:
    """Return, by one query, the fingerprints whose newest stored job makes a new job unnecessary.

    Even under a policy that replaces, a waiting job stays. This only saves work: `enqueue` decides about the rest.
    """
    states = [state for state in policy.states if not (policy.replaces and state in TERMINAL)]
    rows = jobs.filter(of_fingerprint(fingerprint__in=list(fingerprints)), state__in=states).order_by()
    newest = rows.values_list("fingerprint").annotate(Max("created_at"))
    return {fingerprint for fingerprint, at in newest if (end := policy.window_end(at)) is None or now < end}


def may_replace_active(jobs: QuerySet[Any], stored: Iterable[JobRow]) -> bool:
    """Tell whether running duplicates may be cancelled: where the promise is strong, unless the project forbids it."""
    if not any(row.state == JobState.ACTIVE for row in stored):
        return True
    return settings.replace_active and strength(jobs.model, jobs.db) == STRONG


def outside(jobs: QuerySet[Any] | None, rows: Iterable[JobRow]) -> list[JobRow]:
    """Return those of the stored rows that are not among ``jobs``; with None, no row is outside."""
    if jobs is None:
        return []
    stored = [row for row in rows if not row._state.adding]
    found = set(jobs.filter(pk__in=[row.pk for row in stored]).values_list("pk", flat=True))
    return [row for row in stored if row.pk not in found]


def counted_by(policies: Collection[UniquePolicy], now: datetime) -> Q:
    """Return the condition for the jobs that one of the policies may count, whatever their fingerprints."""
    if not policies:
        return Q(pk__in=[])
    counted = Q(state__in=sorted(set().union(*(policy.states for policy in policies))))
    starts = [start for policy in policies if (start := policy.window_start(now)) is not None]
    return counted & Q(created_at__gt=min(starts)) if len(starts) == len(policies) else counted
