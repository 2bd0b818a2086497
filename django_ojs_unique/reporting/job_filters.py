"""The filters of lists of jobs: those of `manage.py jobs` and of the HTTP API. A job must match all that are given."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet

from ..conf import retention_period
from ..db.dialects import dialect_of
from ..ojs.states import INCOMPLETE, TERMINAL, JobState
from .times import created_since

LOOKUPS = {
    "state": "state__in",
    "queue": "queue",
    "type": "type",
    "key": "key",
    "worker": "worker_id",
    "since": "created_at__gte",
    "until": "created_at__lt",
    "finished_since": "finished_at__gte",
    "finished_until": "finished_at__lt",
    "dead_letter": "dead_letter",
}
"""The name of each filter, and what it compares: ``state`` takes several states, the others one value."""

BY_END = {LOOKUPS["finished_since"], LOOKUPS["finished_until"]}
_FREE_TEXT = {"key", "worker_id"}


def filters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given filters as arguments of `QuerySet.filter`; empty if none is given. None is no filter."""
    return {lookup: given[name] for name, lookup in LOOKUPS.items() if given.get(name) is not None}


def matching(jobs: QuerySet[Any], wanted: Mapping[str, Any]) -> QuerySet[Any]:
    """Return the jobs that match ``wanted``, the result of `filters`, however many; indexes find them if they can."""
    if "state__in" in wanted:
        jobs = in_states(jobs, wanted["state__in"])
    if BY_END & wanted.keys():
        jobs = in_states(jobs, TERMINAL)
    if LOOKUPS["since"] in wanted:
        jobs = jobs.filter(created_since(wanted[LOOKUPS["since"]]))
    return narrowed(jobs, wanted)


def narrowed(jobs: QuerySet[Any], wanted: Mapping[str, Any]) -> QuerySet[Any]:
    """Return those of a few rows that match ``wanted``: there are no conditions for partial indexes."""
    dialect = dialect_of(jobs)
    return jobs.filter(**wanted).filter(*(dialect.exactly(name, wanted[name]) for name in _FREE_TEXT & wanted.keys()))


def in_states(jobs: QuerySet[Any], states: Collection[JobState]) -> QuerySet[Any]:
    """Return the jobs that are in one of the states."""
    implied = Q()  # there for the partial indexes
    if INCOMPLETE.issuperset(states):
        implied = Q(finished_at__isnull=True)
    elif TERMINAL.issuperset(states):
        implied = Q(finished_at__isnull=False, payload_pruned__in=[False, True])
    return jobs.filter(implied, state__in=sorted(states))


def before(now: datetime, text: str) -> datetime | None:
    """Return the moment that an ISO 8601 duration says, counted back; None for another text. Raises ValueError."""
    if not text.startswith("P"):
        return None
    try:
        return now - retention_period(text)
    except OverflowError:
        raise ValueError("is too long") from None
