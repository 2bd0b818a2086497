"""Select the stored jobs that may be duplicates. `unique.conflict` decides which are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from django.db import connections
from django.db.models import Q, QuerySet

from ..conf import settings
from ..db.capabilities import STRONG, strength
from ..db.constraints import finished, holding_unique_key, of_fingerprint, released, unfinished_or_holding
from ..db.dialects import dialect_of
from ..ojs.states import TERMINAL, UNSTARTED, JobState
from ..unique.conflict import READ, counts, duplicates
from ..unique.policy import UniquePolicy, Window, ended_states
from ..unique.row import JobRow

Jobs = TypeVar("Jobs", bound=QuerySet[Any])


def stored_matches(jobs: Jobs, fingerprint: str, policy: UniquePolicy, now: datetime) -> Jobs:
    """Select the jobs that a verdict needs beside `newest_finished`.

    These are the unfinished ones that the policy may count, and the one that holds the unique key.
    """
    counted = counted_by([policy], now)
    return jobs.filter(unfinished_or_holding(fingerprint=fingerprint), counted | holding_unique_key())


def newest_finished(jobs: Jobs, fingerprint: str, policy: UniquePolicy, most: int = 1) -> list[Jobs]:
    """Return a query for each final state that the policy counts: ``most`` jobs that ended there, the newest first.

    A verdict needs one of each only: if any finished job counts, the newest one does.
    """
    newest_first = jobs.filter(finished(), fingerprint=fingerprint).order_by("-created_at", "-pk")
    return [newest_first.filter(state=state)[:most] for state in ended_states([policy])]


def by_id(queries: Sequence[QuerySet[Any]]) -> dict[UUID, JobRow]:
    """Return the jobs of some queries, by one statement where the database can."""
    if len(queries) > 1 and connections[queries[0].db].features.supports_slicing_ordering_in_compound:
        queries = [queries[0].union(*queries[1:], all=True)]
    return {job.pk: job for query in queries for job in query}


def stored_matches_of_any(jobs: Jobs, policies: Collection[UniquePolicy], now: datetime) -> Jobs:
    """Select the jobs that verdicts by these policies need, of all fingerprints: the caller filters by fingerprint."""
    return jobs.filter(counted_by(policies, now) | holding_unique_key())


def duplicates_of(jobs: Jobs, fingerprint: str, policy: UniquePolicy, now: datetime) -> Jobs:
    """Select the stored jobs of a fingerprint that count under a policy now, the newest first."""
    which = of_fingerprint if ended_states([policy]) else unfinished_or_holding
    matches = jobs.filter(which(fingerprint=fingerprint), counted_by([policy], now))
    counted = duplicates(matches.only(*READ), policy, now)
    return jobs.filter(pk__in=[row.pk for row in counted]).order_by("-created_at", "-id")


def satisfied(jobs: QuerySet[Any], fingerprints: Collection[str], policy: UniquePolicy, now: datetime) -> set[str]:
    """Return, by one query, the fingerprints whose newest stored job makes a new job unnecessary.

    Even under a policy that replaces, a waiting job stays. This only saves work: `enqueue` decides about the rest.
    """
    states = [state for state in policy.states if not (policy.replaces and state in TERMINAL)]
    rows = jobs.filter(state__in=states).only(*READ, "fingerprint")
    found = dialect_of(jobs).find(rows, list(fingerprints), sorted(TERMINAL.intersection(states)))
    return {row.fingerprint for row in found if counts(policy, row, now)}


def may_replace_active(jobs: QuerySet[Any], stored: Iterable[JobRow]) -> bool:
    """Tell whether running duplicates may be cancelled: where the promise is strong, unless the project forbids it."""
    if not any(row.state == JobState.ACTIVE for row in stored):
        return True
    return settings.replace_active and strength(jobs.model, jobs.db) == STRONG


def left_without(jobs: QuerySet[Any], fingerprints: Collection[str]) -> dict[str, set[UUID]]:
    """Return, by fingerprint, the live jobs that do not hold the unique key.

    It is exact, also in an old snapshot, if the rows that hold these keys are locked.
    """
    if not fingerprints:
        return {}
    left = jobs.filter(released(), fingerprint__in=sorted(fingerprints)).only("fingerprint")
    found: dict[str, set[UUID]] = defaultdict(set)
    for row in dialect_of(jobs).lock(left, by_key=False):
        found[row.fingerprint].add(row.pk)
    return found


def outside(jobs: QuerySet[Any] | None, rows: Iterable[JobRow]) -> list[JobRow]:
    """Return those of the stored rows that are not among ``jobs``; with None, no row is outside."""
    if jobs is None:
        return []
    rows = list(rows)
    found = set(jobs.filter(pk__in=[row.pk for row in rows]).values_list("pk", flat=True))
    return [row for row in rows if row.pk not in found]


def expired(now: Any) -> Q:
    """Return the condition for the waiting jobs that may not start any more: they are duplicates of nothing."""
    return Q(state__in=sorted(UNSTARTED), started_at=None, expires_at__lte=now)


def counted_by(policies: Collection[UniquePolicy], now: datetime) -> Q:
    """Return the condition for the jobs that one of the policies may count, whatever their fingerprints."""
    if not policies:
        return Q(pk__in=[])
    counted = Q(state__in=sorted(set().union(*(policy.states for policy in policies))))
    by_creation = (policy for policy in policies if policy.window is not Window.DUE)
    starts = [start for policy in by_creation if (start := policy.window_start(now)) is not None]
    return counted & Q(created_at__gt=min(starts)) if len(starts) == len(policies) else counted
