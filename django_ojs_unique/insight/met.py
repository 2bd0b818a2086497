"""The suppressed attempts that met a job: how many there are, and what they asked for otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any
from uuid import UUID

from django.db import connections
from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast, Length

from ..models import Job, SuppressedAttempt

MOST_MET = 1000
"""Of the attempts that met one job, no more are counted."""

MOST_ATTEMPTS = 50
LARGEST_COMPARED = 20_000
"""How many characters the args and meta of an attempt may have to be read for a comparison in a list."""

MOST_DIFFERENCES = 20
LONGEST_SHOWN = 80

_JSON = json.JSONEncoder(ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Difference:
    """A member that is not the same in two payloads, as in ``args.user_id``; a missing one is None."""

    path: str
    old: str | None
    new: str | None


@dataclass(frozen=True, slots=True)
class Encounter:
    """A suppressed attempt, and what it asked for otherwise than the job that it met.

    ``differences`` is None where they were not compared, because one of the two is gone or too large for a list.
    """

    attempt: Any
    differences: tuple[Difference, ...] | None


@dataclass(frozen=True, slots=True)
class Attempts:
    """The newest attempts that met a job; ``count`` goes up to `MOST_MET`, and ``counted`` tells if that is all."""

    newest: tuple[Encounter, ...] = ()
    count: int = 0
    counted: bool = True


def count_met(jobs: Iterable[Job], using: str) -> dict[UUID, int]:
    """Return how many suppressed attempts met each job that has a fingerprint; `MOST_MET` + 1 means: more than that.

    One statement, and one look into the index for each job.
    """
    unique = [job for job in jobs if job.fingerprint]
    if not unique:
        return {}
    parts: list[str] = []
    parameters: list[Any] = []
    for job in unique:
        some = SuppressedAttempt.objects.using(using).filter(fingerprint=job.fingerprint, existing_job=job.pk)
        sql, values = some.order_by().values("existing_job")[: MOST_MET + 1].query.get_compiler(using).as_sql()
        parts.append(f"(SELECT COUNT(*) FROM ({sql}) AS met)")
        parameters += values
    with connections[using].cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(parts)}", parameters)
        return dict(zip([job.pk for job in unique], cursor.fetchone(), strict=True))


def attempts_that_met(job: Any, fingerprint: str | None) -> Attempts:
    """Find the newest attempts that met a job under a fingerprint, with what they asked for otherwise."""
    if not fingerprint:
        return Attempts()
    met = SuppressedAttempt.objects.using(job._state.db).filter(fingerprint=fingerprint, existing_job=job.pk)
    size = Length(Cast("args", TextField())) + Length(Cast("meta", TextField()))
    newest = list(met.defer("args", "meta").annotate(size=size).order_by("-created_at")[:MOST_ATTEMPTS])
    small = [] if job.slimmed else [attempt.pk for attempt in newest if attempt.size <= LARGEST_COMPARED]
    payloads = {pk: (args, meta) for pk, args, meta in _payloads(met, small)}
    count = len(newest) if len(newest) < MOST_ATTEMPTS else met.order_by()[: MOST_MET + 1].count()
    return Attempts(
        tuple(Encounter(row, differences(job, *payloads[row.pk]) if row.pk in payloads else None) for row in newest),
        min(count, MOST_MET),
        count <= MOST_MET,
    )


def differences(job: Any, args: Any, meta: Any) -> tuple[Difference, ...]:
    """Compare the args and meta of a job, the old ones, with those of an attempt; one more than `MOST_DIFFERENCES`."""
    found = chain(_compare("args", job.args, args), _compare("meta", job.meta, meta))
    return tuple(islice(found, MOST_DIFFERENCES + 1))


def _payloads(met: QuerySet[Any], small: list[int]) -> QuerySet[Any]:
    return met.filter(pk__in=small).values_list("pk", "args", "meta")


def _compare(path: str, old: Any, new: Any) -> Iterator[Difference]:
    if isinstance(old, list) and isinstance(new, list):
        for index in range(max(len(old), len(new))):
            yield from _compare_member(f"{path}[{index}]", old[index : index + 1], new[index : index + 1])
    elif isinstance(old, dict) and isinstance(new, dict):
        for name in {**old, **new}:
            yield from _compare_member(f"{path}.{name}", *([side[name]] if name in side else [] for side in (old, new)))
    else:
        yield from _compare_member(path, [old], [new])


def _compare_member(path: str, old: list[Any], new: list[Any]) -> Iterator[Difference]:
    """Compare two members, each in a list that is empty where it is missing; true is not 1."""
    if old != new or list(map(_is_boolean, old)) != list(map(_is_boolean, new)):
        yield Difference(path, *(_short(side[0]) if side else None for side in (old, new)))


def _is_boolean(value: Any) -> bool:
    return isinstance(value, bool)


def _short(value: Any) -> str:
    """Write the beginning of a JSON value, without writing the rest of a long one."""
    text = ""
    for part in _JSON.iterencode(value):
        text += part
        if len(text) > LONGEST_SHOWN:
            return f"{text[: LONGEST_SHOWN - 1]}…"
    return text
