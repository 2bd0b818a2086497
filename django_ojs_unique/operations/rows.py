"""The rows of jobs: how many in each state, some after others."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Count, QuerySet

from ..db.inserts import ROWS_AT_ONCE


def by_state(jobs: QuerySet[Any]) -> dict[str, int]:
    """Return how many of the jobs there are in each state."""
    return dict(jobs.order_by("state").values_list("state").annotate(count=Count("*")))


def next_ids(jobs: QuerySet[Any], after: UUID | None, until: datetime) -> list[UUID]:
    """Return the ids of the next thousand of ``jobs`` behind ``after``, of those that were enqueued until a time."""
    rest = jobs.filter(created_at__lte=until) if after is None else jobs.filter(created_at__lte=until, pk__gt=after)
    return list(rest.order_by("pk").values_list("pk", flat=True)[:ROWS_AT_ONCE])
