"""The filters of lists of jobs: those of `manage.py jobs` and of the HTTP API. A job must match all that are given.

Lists of jobs go by the id, which ascends with the creation; a job whose id its caller chose may be out of order there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Q, QuerySet

from ..conf import retention_period
from ..db.dialects import dialect_of
from ..ojs.states import INCOMPLETE, TERMINAL, JobState

LOOKUPS = {
    "state": "state__in",
    "queue": "queue",
    "type": "type",
    "key": "key",
    "worker": "worker_id",
    "since": "created_at__gte",
    "until": "created_at__lt",
    "dead_letter": "dead_letter",
}
"""The name of each filter, and what it compares: ``state`` takes several states, the others one value."""

_FREE_TEXT = {"key", "worker_id"}

CLOCKS = timedelta(hours=1)
"""By how much the clocks of two hosts may differ: of the one that creates a job, and of the one that finishes it."""

_EARLIEST = datetime(1970, 1, 2, tzinfo=UTC)


def filters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given filters as arguments of `QuerySet.filter`; empty if none is given. None is no filter."""
    return {lookup: given[name] for name, lookup in LOOKUPS.items() if given.get(name) is not None}


def matching(jobs: QuerySet[Any], wanted: Mapping[str, Any]) -> QuerySet[Any]:
    """Return the jobs that match ``wanted``, the result of `filters`, however many; indexes find them if they can."""
    if "state__in" in wanted:
        jobs = in_states(jobs, wanted["state__in"])
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


def created_since(moment: datetime) -> Q:
    """Return the condition for jobs that were created at or after a moment; each part is answered from one index."""
    return unfinished_since(moment) | finished_since(moment) & Q(created_at__gte=moment)


def unfinished_since(moment: datetime) -> Q:
    """Return the condition for jobs that were created at or after a moment and have not finished."""
    return Q(state__in=sorted(INCOMPLETE), finished_at__isnull=True, created_at__gte=moment)


def finished_since(moment: datetime) -> Q:
    """Return the condition for jobs that finished at or after a moment, and for those that clocks may have put before.

    It names every leading column of the index ojs_job_finished, so that the index finds the moments.
    """
    return Q(
        payload_pruned__in=[False, True],
        state__in=sorted(TERMINAL),
        dead_letter__in=[False, True],
        finished_at__gte=earliest_end(moment),
    )


def earliest_end(moment: datetime) -> datetime:
    """Return when a job that was created at or after a moment can have finished at the earliest."""
    return max(moment, _EARLIEST) - CLOCKS
