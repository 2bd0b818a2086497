"""The dates above the list of jobs, from a look at the first and the last jobs: Django's own read the whole table."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from copy import copy
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.templatetags.admin_list import date_hierarchy
from django.db.models import Count, Max, Min, QuerySet
from django.utils import timezone

FIELD = "created_at"
PARAMETERS = tuple(f"{FIELD}__{part}" for part in ("year", "month", "day"))
_YEARS = range(1970, 9999)
MOST_YEARS = 30
"""How many of the latest years are offered."""
MOST_LOOKED_AT = 1000
"""How many of the jobs with the lowest ids are looked at, and of those with the highest."""


def check_dates(params: dict[str, Any]) -> None:
    """Raise IncorrectLookupParameters for dates in the query string that would make Django fail."""
    try:
        given = [int(params[name]) for name in PARAMETERS if name in params]
    except (TypeError, ValueError) as error:
        raise IncorrectLookupParameters(error) from error
    names = [name for name in PARAMETERS if name in params]
    if names != list(PARAMETERS[: len(names)]) or (given and given[0] not in _YEARS):
        raise IncorrectLookupParameters(names)


def begin_of(params: dict[str, Any]) -> datetime | None:
    """Return the first moment of the chosen year, month or day; None if none is chosen."""
    date = [int(params.get(name, 1)) for name in PARAMETERS]
    return timezone.make_aware(datetime(*date)) if PARAMETERS[0] in params else None  # type: ignore[arg-type]


def dates_of(changelist: Any) -> dict[str, Any]:
    """Return the context of Django's ``admin/date_hierarchy.html``: the years, months or days with jobs, unfiltered."""
    asked = copy(changelist)
    asked.date_hierarchy = FIELD
    asked.queryset = _Calendar(changelist.root_queryset, changelist.params)
    return date_hierarchy(asked) or {}


class _Calendar:
    """Stands in for a queryset where Django asks it for dates.

    Of a small table it knows the dates with jobs; of a large one it gives all dates from the first job to the last.
    """

    def __init__(self, jobs: QuerySet[Any], params: dict[str, Any]) -> None:
        self._params = params
        first, last = (jobs.order_by(order)[:MOST_LOOKED_AT] for order in ("pk", "-pk"))
        seen = first.aggregate(count=Count("pk"), first=Min(FIELD), last=Max(FIELD))
        self._is_whole = seen.pop("count") < MOST_LOOKED_AT
        found: Any
        if self._is_whole:
            found = first.values_list(FIELD, flat=True)
        else:
            found = [*seen.values(), *last.aggregate(first=Min(FIELD), last=Max(FIELD)).values()]
        self._moments = sorted(map(timezone.localtime, found))

    def aggregate(self, **_: Any) -> dict[str, datetime | None]:
        """Return the ``first`` and the ``last`` moment; None if there are no jobs."""
        return (
            {"first": self._moments[0], "last": self._moments[-1]} if self._moments else {"first": None, "last": None}
        )

    def datetimes(self, _: str, kind: str) -> list[datetime]:
        """Return the starts of the years, months or days with jobs; months and days are of the chosen year or month."""
        return [start for start, end in pairwise(self._starts(kind)) if self._has_jobs(start, end)]

    def _has_jobs(self, start: datetime, end: datetime) -> bool:
        if self._is_whole:
            first = bisect_left(self._moments, start)
            return first < len(self._moments) and self._moments[first] < end
        return self._moments[0] < end and start <= self._moments[-1]

    def _starts(self, kind: str) -> Iterator[datetime]:
        """Yield the start of each year, month or day, and of the one after the last."""
        if kind == "year":
            if self._moments:
                first, last = self._moments[0].year, self._moments[-1].year
                yield from (_midnight(year) for year in range(max(first, last - MOST_YEARS + 1), last + 2))
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
        return (self._moments[-1].year, self._moments[-1].month)[part] if self._moments else 1


def _midnight(year: int, month: int = 1) -> datetime:
    return timezone.make_aware(datetime(year, month, 1))
