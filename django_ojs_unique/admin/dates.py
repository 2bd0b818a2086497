"""The dates above the list of jobs, found by a few index searches: Django's own read the whole table."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.templatetags.admin_list import date_hierarchy
from django.db.models import QuerySet, Subquery
from django.utils import timezone

FIELD = "created_at"
PARAMETERS = tuple(f"{FIELD}__{part}" for part in ("year", "month", "day"))
_YEARS = range(1970, 9999)
MOST_YEARS = 30
"""How many of the latest years are offered."""


def check_dates(params: dict[str, Any]) -> None:
    """Raise IncorrectLookupParameters for dates in the query string that would make Django fail."""
    try:
        said = [int(params[name]) for name in PARAMETERS if name in params]
    except (TypeError, ValueError) as error:
        raise IncorrectLookupParameters(error) from error
    names = [name for name in PARAMETERS if name in params]
    if names != list(PARAMETERS[: len(names)]) or (said and said[0] not in _YEARS):
        raise IncorrectLookupParameters(names)


def dates_of(changelist: Any) -> dict[str, Any]:
    """Return the context of Django's ``admin/date_hierarchy.html``: the years, months or days with jobs, unfiltered."""
    asked = copy(changelist)
    asked.date_hierarchy = FIELD
    asked.queryset = _Calendar(changelist.root_queryset, changelist.params)
    return date_hierarchy(asked) or {}


class _Calendar:
    """Stands in for a queryset where Django asks it for dates."""

    def __init__(self, jobs: QuerySet[Any], params: dict[str, Any]) -> None:
        self._jobs = jobs.order_by()
        self._params = params
        self._ends: list[datetime] = []

    def aggregate(self, **_: Any) -> dict[str, datetime | None]:
        """Return the ``first`` and the ``last`` moment; None if there are no jobs."""
        # Two statements: for both in one, SQLite would read everything.
        ends = {"first": FIELD, "last": f"-{FIELD}"}
        found = {name: self._jobs.order_by(order).values_list(FIELD, flat=True).first() for name, order in ends.items()}
        self._ends = [timezone.localtime(moment) for moment in found.values() if moment is not None]
        return found

    def datetimes(self, _: str, kind: str) -> list[datetime]:
        """Return the starts of the years, months or days with jobs; months and days are of the chosen year or month."""
        starts = list(self._starts(kind))
        looks = [self._first_between(*ends) for ends in pairwise(starts)]
        row = self._jobs.order_by(FIELD).values_list(*looks).first() if looks else None
        return [start for start, found in zip(starts, row or (), strict=False) if found is not None]

    def _first_between(self, start: datetime, end: datetime) -> Subquery:
        # Ordered: without an order, PostgreSQL may read the table until it meets a row, if the month is common.
        jobs = self._jobs.filter(**{f"{FIELD}__gte": start, f"{FIELD}__lt": end})
        return Subquery(jobs.order_by(FIELD).values(FIELD)[:1])

    def _starts(self, kind: str) -> Iterator[datetime]:
        """Yield the start of each year, month or day, and of the one after the last."""
        if kind == "year":
            years = [moment.year for moment in self._ends]
            if years:
                yield from (_midnight(year) for year in range(max(years[0], years[-1] - MOST_YEARS + 1), years[-1] + 2))
            return
        year, month = self._chosen(0), self._chosen(1)
        if kind == "month":
            yield from (_midnight(year + number // 12, number % 12 + 1) for number in range(13))
            return
        day = datetime(year, month, 1)
        while day.month == month:
            yield timezone.make_aware(day)
            day += timedelta(days=1)
        yield timezone.make_aware(day)

    def _chosen(self, part: int) -> int:
        """Return the chosen year or month; if none is chosen, that of the last job, as Django skips a single choice."""
        if PARAMETERS[part] in self._params:
            return int(self._params[PARAMETERS[part]])
        return (self._ends[-1].year, self._ends[-1].month)[part] if self._ends else 1


def _midnight(year: int, month: int = 1) -> datetime:
    return timezone.make_aware(datetime(year, month, 1))
