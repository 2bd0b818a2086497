"""Lists that look at a bounded number of rows, however many there are and whatever the filters are."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any
from uuid import UUID

from django.db import connections
from django.db.models import Q, QuerySet

from ..ojs.states import INCOMPLETE, KINDS, JobState
from .job_filters import BY_END, LOOKUPS
from .text import MOST_COUNTED
from .times import earliest_end

MOST_LOOKED_AT = 20_000
"""How many rows a list looks at, the first ones in its order, if indexes find none or too many for its filters."""

_FOUND_BY_INDEX = {LOOKUPS[name] for name in ("state", "key", "since", "dead_letter")} | BY_END


def few(jobs: QuerySet[Any], wanted: Mapping[str, Any]) -> list[UUID] | None:
    """Return the ids of at most `MOST_COUNTED` jobs among which are all that match ``wanted``, the result of `filters`.

    None if no index finds so few. A job that is retried meanwhile can be missing.
    """
    if not _FOUND_BY_INDEX & wanted.keys():
        return None
    ids: list[UUID] = []
    for found in _found_by_index(jobs, wanted):
        ids += found.values_list("pk", flat=True)[: MOST_COUNTED + 1 - len(ids)]
        if len(ids) > MOST_COUNTED:
            return None
    return ids


def first(rows: QuerySet[Any], by: Sequence[str]) -> tuple[QuerySet[Any], Sequence[Any] | None]:
    """Return the first `MOST_LOOKED_AT` rows in the total order ``by``, and the sort key of the last of them.

    The key is None if there are no more rows.
    """
    fields = [field.removeprefix("-") for field in by]
    seen = list(rows.order_by(*by).values_list(*fields)[MOST_LOOKED_AT - 1 : MOST_LOOKED_AT + 1])
    if len(seen) < 2:
        return rows, None
    backwards = [field[1:] if field.startswith("-") else f"-{field}" for field in by]
    return rows.filter(behind(backwards, seen[0], or_at=True)), seen[0]


def behind(by: Sequence[str], key: Sequence[Any], *, or_at: bool = False) -> Q:
    """Return the condition for the rows that come later in the order ``by`` than a sort key, or ``or_at`` it.

    Its first part is a range for an index.
    """
    same, later = Q(), []
    for field, value in zip(by, key, strict=True):
        name, side = field.removeprefix("-"), "lt" if field.startswith("-") else "gt"
        later.append(same & Q(**{f"{name}__{side}": value}))
        same &= Q(**{name: value})
    if or_at:
        later.append(same)
    side = "lte" if by[0].startswith("-") else "gte"
    return Q(**{f"{by[0].removeprefix('-')}__{side}": key[0]}) & reduce(operator.or_, later)


def _found_by_index(jobs: QuerySet[Any], wanted: Mapping[str, Any]) -> Iterator[QuerySet[Any]]:
    """Select jobs by what an index knows of the filters, in its order: PostgreSQL takes no other one then."""
    if (key := LOOKUPS["key"]) in wanted:
        yield jobs.filter(**{key: wanted[key]})
        return
    ordered = connections[jobs.db].features.supports_partial_indexes
    states, dead = wanted.get("state__in", JobState), wanted.get(LOOKUPS["dead_letter"])
    ends = {name: wanted[name] for name in BY_END & wanted.keys()}
    if (live := sorted(INCOMPLETE.intersection(states))) and not dead and not ends:
        found = jobs.filter(finished_at__isnull=True, state__in=live)
        if "queue" in wanted:
            found = found.filter(queue=wanted["queue"])
        yield found.order_by("state") if ordered else found
    for state, dead_letter in KINDS.values():
        if state not in states or dead not in (None, dead_letter):
            continue
        found = jobs.filter(payload_pruned__in=[False, True], state=state, dead_letter__in=[dead_letter])
        if (since := wanted.get(LOOKUPS["since"])) is None:
            found = found.filter(finished_at__isnull=False, **ends)
        else:
            found = found.filter(finished_at__gte=earliest_end(since)).filter(**ends)
        yield found.order_by("payload_pruned") if ordered else found
