"""The suppressed enqueues that met a job: how many there are, and how their payloads differ from the job's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any
from uuid import UUID

from django.db import connections
from django.db.models import QuerySet

from ..exceptions import Message
from ..handlers.redaction import redacted, redacted_args
from ..models import Job, SuppressedEnqueue

MOST_MET = 1000
"""How many of the suppressed enqueues that met one job are counted at most."""

MOST_ATTEMPTS = 20
MOST_DIFFERENCES = 20
LONGEST_SHOWN = 80

_JSON = json.JSONEncoder(ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Difference:
    """A member that differs between two payloads, such as ``args.user_id``; None stands for a missing one."""

    path: str
    old: str | None
    new: str | None


@dataclass(frozen=True, slots=True)
class Encounter:
    """A suppressed enqueue, and how its payload differs from that of the job that it met.

    ``differences`` is None if they were not compared, because the payload of the job is gone.
    """

    attempt: Any
    differences: tuple[Difference, ...] | None


@dataclass(frozen=True, slots=True)
class Attempts:
    """The newest suppressed enqueues that met a job.

    ``count``: how many there are, `MOST_MET` at most. ``counted``: whether that is all of them.
    """

    newest: tuple[Encounter, ...] = ()
    count: int = 0
    counted: bool = True


def count_met(jobs: Iterable[Job], using: str) -> dict[UUID, int]:
    """Return how many suppressed enqueues met each job with a fingerprint; `MOST_MET` + 1 means: that many or more.

    One statement, with one index search for each job.
    """
    unique = [job for job in jobs if job.fingerprint]
    if not unique:
        return {}
    # Our own SQL: to have Django compile a queryset for each job takes longer than the statement.
    met = f"fingerprint = %s AND existing_job_id = %s LIMIT {MOST_MET + 1}"
    count = f"(SELECT COUNT(*) FROM (SELECT 1 AS one FROM {SuppressedEnqueue._meta.db_table} WHERE {met}) AS met)"
    connection, id = connections[using], Job._meta.pk
    parameters = [each for job in unique for each in (job.fingerprint, id.get_db_prep_value(job.pk, connection))]
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join([count] * len(unique))}", parameters)
        return dict(zip([job.pk for job in unique], cursor.fetchone(), strict=True))


def attempts_that_met(job: Any, fingerprint: str | None, attempts: QuerySet[Any]) -> Attempts:
    """Find the newest of ``attempts`` that met a job under a fingerprint, and how their payloads differ."""
    if not fingerprint:
        return Attempts()
    met = attempts.using(job._state.db).filter(fingerprint=fingerprint, existing_job=job.pk)
    newest = list(met.defer("args", "meta").order_by("-created_at")[:MOST_ATTEMPTS])
    readable = [] if job.payload_pruned else [attempt.pk for attempt in newest]
    payloads = {pk: (args, meta) for pk, args, meta in _payloads(met, readable)}
    count = len(newest) if len(newest) < MOST_ATTEMPTS else met.order_by()[: MOST_MET + 1].count()
    return Attempts(
        tuple(
            Encounter(row, differences(job, row.type, *payloads[row.pk]) if row.pk in payloads else None)
            for row in newest
        ),
        min(count, MOST_MET),
        count <= MOST_MET,
    )


def differences(job: Any, type: str, args: Any, meta: Any) -> tuple[Difference, ...]:
    """Compare the args and meta of a job (old) with those of an enqueue of this type (new); mask what is redacted.

    Those that are not kept differ as a whole.

    Return up to `MOST_DIFFERENCES` + 1 differences, so that a caller can tell whether there are more.
    """
    args, meta = kept(args), kept(meta)
    shown_args = [redacted_args(type, redacted_args(job.type, each)) for each in (job.args, args)]
    shown_meta = [redacted(type, redacted(job.type, each)) for each in (job.meta, meta)]
    found = chain(_compare("args", job.args, args, *shown_args), _compare("meta", job.meta, meta, *shown_meta))
    return tuple(islice(found, MOST_DIFFERENCES + 1))


def kept(payload: Any) -> Any:
    """Return args or meta of a suppressed enqueue as they are shown: a text, if they were too large to be kept."""
    return Message("{size} bytes, which are not kept", size=f"{payload:,}") if isinstance(payload, int) else payload


def _payloads(met: QuerySet[Any], small: list[int]) -> QuerySet[Any]:
    return met.filter(pk__in=small).values_list("pk", "args", "meta")


def _compare(path: str, *sides: Any) -> Iterator[Difference]:
    """Compare two values, and yield their members as they are shown: the other two have the same members."""
    if all(isinstance(side, list) for side in sides):
        for index in range(max(map(len, sides))):
            yield from _compare_member(f"{path}[{index}]", *(side[index : index + 1] for side in sides))
    elif all(isinstance(side, dict) for side in sides):
        for name in {**sides[0], **sides[1]}:
            yield from _compare_member(f"{path}.{name}", *([side[name]] if name in side else [] for side in sides))
    else:
        yield from _compare_member(path, *([side] for side in sides))


def _compare_member(
    path: str, old: list[Any], new: list[Any], shown_old: list[Any], shown_new: list[Any]
) -> Iterator[Difference]:
    """Compare two members. Each comes in a list, which is empty if the member is missing. true differs from 1."""
    if old != new or list(map(_is_boolean, old)) != list(map(_is_boolean, new)):
        yield Difference(path, *(_short(side[0]) if side else None for side in (shown_old, shown_new)))


def _is_boolean(value: Any) -> bool:
    return isinstance(value, bool)


def _short(value: Any) -> str:
    """Write the beginning of a JSON value; the rest of a long one is not even encoded."""
    text = ""
    for part in _JSON.iterencode(value):
        text += part
        if len(text) > LONGEST_SHOWN:
            return f"{text[: LONGEST_SHOWN - 1]}…"
    return text
