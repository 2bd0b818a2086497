"""Races between enqueues: how one is lost, and how often it may be."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar
from uuid import UUID

from django.db.models import QuerySet

from .exceptions import Contended, JobIdTaken

MOST_LOOKS = 100
"""How often one enqueue may lose a race. Each loss means that another enqueue of the key was admitted."""

T = TypeVar("T")


class LostRace(Exception):
    """Somebody else's job went in between the look and the insert; what was done in between is rolled back."""


def until_won(attempt: Callable[[int], T]) -> T:
    """Call ``attempt`` with the number of earlier looks until it does not raise LostRace, or raise Contended."""
    for look in range(MOST_LOOKS):
        try:
            return attempt(look)
        except LostRace:
            continue
    raise Contended(f"Lost {MOST_LOOKS} races for one uniqueness key in a row; try again.")


def ids_in_use(jobs: QuerySet[Any], ids: Collection[UUID]) -> set[UUID]:
    """Return which of these ids stored jobs have, in a transaction: also those that a snapshot of its start hides."""
    return set(jobs.filter(pk__in=ids).order_by("pk").select_for_update().values_list("pk", flat=True))


def id_taken(job: Any) -> JobIdTaken:
    """Return the error about an id that is in use."""
    return JobIdTaken(
        f"id: a job with the id {job.pk} already exists. Leave the id out, or make a new one.",
        details={"field": "id", "existing_job_id": str(job.pk)},
    )
