"""Duplicates: which fingerprints are met most, and which live jobs share one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Count, Exists, F, Max, OuterRef, Q, QuerySet, TextField, Window
from django.db.models.functions import Cast, Left, RowNumber

from ..constraints import guarding
from ..models import Job, SuppressedAttempt
from ..ojs.states import INCOMPLETE, JobState
from .entry import fingerprint_begins, read_id
from .history import Span

MOST_FINGERPRINTS = 50
MOST_GROUPS = 50
MOST_IN_GROUP = 20
MOST_IN_HISTORY = 100
MOST_MATCHES = 20
SHORTEST_BEGINNING = 8
MOST_ATTEMPTS_COUNTED = 100_000
MOST_UNGUARDED_LOOKED_AT = 10_000
LONGEST_ARGS = 500

_START = Left(Cast("args", TextField()), LONGEST_ARGS)
"""The beginning of the arguments of an attempt: all of them can be large."""

_UNFINISHED = sorted(INCOMPLETE)
_HEX = frozenset("0123456789abcdef")
_LIGHT = (
    "id",
    "type",
    "queue",
    "state",
    "attempt",
    "max_attempts",
    "created_at",
    "finished_at",
    "window_ends_at",
    "fingerprint",
    "guarded_states",
    "key",
    "revision",
    "replaced_by",
)
"""What a list of jobs shows: arguments and results can be large."""


@dataclass(frozen=True, slots=True)
class Met:
    """A fingerprint that enqueues met: how often, with which outcomes, and the newest attempt of them.

    ``args`` is the beginning of its arguments as JSON. ``holder`` is the job that answers for the fingerprint now.
    """

    fingerprint: str
    type: str
    args: str
    count: int
    rejected: int
    ignored: int
    replaced: int
    last_at: datetime
    holder: Job | None


@dataclass(frozen=True, slots=True)
class MostMet:
    """The fingerprints that were met most often since a moment, later than asked for when there was too much."""

    since: datetime
    is_cut: bool
    fingerprints: list[Met]


def most_met(attempts: QuerySet[Any], jobs: QuerySet[Any], span: Span, now: datetime) -> MostMet:
    """Count the suppressed attempts of a ``span`` by fingerprint: the `MOST_FINGERPRINTS` that have most."""
    since = now - span.whole
    recent = attempts.filter(created_at__gte=since)
    newest_first = recent.order_by("-created_at").values_list("created_at", flat=True)
    beyond = newest_first[MOST_ATTEMPTS_COUNTED : MOST_ATTEMPTS_COUNTED + 1].first()
    if beyond is not None:
        since, recent = beyond, attempts.filter(created_at__gt=beyond)
    outcomes = {str(each): Count("pk", filter=Q(outcome=each)) for each in SuppressedAttempt.Outcome}
    counted = list(
        recent.order_by()
        .values("fingerprint")
        .annotate(count=Count("pk"), last_at=Max("created_at"), newest=Max("pk"), **outcomes)
        .order_by("-count", "fingerprint")[:MOST_FINGERPRINTS]
    )
    ids = [row.pop("newest") for row in counted]
    newest = attempts.filter(pk__in=ids).annotate(start=_START).values_list("fingerprint", "type", "start")
    shown = {fingerprint: (type, readable(args)) for fingerprint, type, args in newest}
    holding = holders(jobs, [row["fingerprint"] for row in counted], now)
    return MostMet(since, beyond is not None, [_met(row, shown, holding) for row in counted])


def holders(jobs: QuerySet[Any], fingerprints: Collection[str], now: datetime) -> dict[str, Job]:
    """Return the job that answers for each fingerprint now: the one that guards it, else the newest that lives."""
    guarded = jobs.filter(guarding(), fingerprint__in=fingerprints).only(*_LIGHT)
    guards = {job.fingerprint: job for job in guarded if not _is_over(job, now)}
    unguarded = live(jobs.filter(fingerprint__in=[each for each in fingerprints if each not in guards]))
    place = Window(RowNumber(), partition_by="fingerprint", order_by=("-created_at", "-id"))
    return {job.fingerprint: job for job in unguarded.annotate(place=place).filter(place=1).only(*_LIGHT)} | guards


@dataclass(frozen=True, slots=True)
class Group:
    """Live jobs of one fingerprint: the oldest first, the newest always among them; ``more`` are left out."""

    fingerprint: str
    jobs: list[Job]
    more: int


@dataclass(frozen=True, slots=True)
class Groups:
    """A page of groups; the next one begins after the fingerprint ``last``, and there is none when it is empty."""

    groups: list[Group]
    last: str


def groups_after(jobs: QuerySet[Any], after: str) -> Groups:
    """Find fingerprints that several live jobs share, in their order, at most `MOST_GROUPS`.

    A page looks at no more than `MOST_UNGUARDED_LOOKED_AT` jobs, so it can be short although there are more.
    """
    unguarded = jobs.filter(fingerprint__gt=after, finished_at=None, guarded_states=0).order_by("fingerprint")
    bound = unguarded.values_list("fingerprint", flat=True)[MOST_UNGUARDED_LOOKED_AT:].first()
    if bound is not None:
        unguarded = unguarded.filter(fingerprint__lte=bound)
    others = live(jobs).filter(fingerprint=OuterRef("fingerprint")).exclude(pk=OuterRef("pk"))
    shared = unguarded.filter(Exists(others)).values_list("fingerprint", flat=True).distinct()
    found = list(shared[: MOST_GROUPS + 1])
    last = found[MOST_GROUPS - 1] if len(found) > MOST_GROUPS else bound or ""
    return Groups(groups_of(jobs, found[:MOST_GROUPS]), last)


def groups_of(jobs: QuerySet[Any], fingerprints: Collection[str], most: int = MOST_IN_GROUP) -> list[Group]:
    """Return those fingerprints that several live jobs share, in the order given; ``most`` jobs of each."""
    same: dict[str, Any] = {"partition_by": "fingerprint"}
    numbered = live(jobs.filter(fingerprint__in=fingerprints)).annotate(
        place=Window(RowNumber(), order_by=("created_at", "id"), **same), total=Window(Count("pk"), **same)
    )
    shown = numbered.filter(Q(place__lt=most) | Q(place=F("total"))).filter(total__gt=1).only(*_LIGHT)
    found: dict[str, list[Any]] = {fingerprint: [] for fingerprint in fingerprints}
    for job in shown.order_by("place"):
        found.setdefault(job.fingerprint, []).append(job)
    return [Group(fp, members, members[0].total - len(members)) for fp, members in found.items() if members]


def live_duplicates(jobs: QuerySet[Any], most: int) -> list[UUID]:
    """Return the ids of live jobs that share a fingerprint, up to ``most``."""
    # One of them at least guards nothing, and those are few. In order, so that the index is taken.
    unique = jobs.filter(fingerprint__isnull=False)
    unguarded = unique.filter(finished_at__isnull=True, guarded_states=frozenset()).order_by("fingerprint")
    names = set(unguarded.values_list("fingerprint", flat=True)[:most])
    alike = live(unique.filter(fingerprint__in=names)).order_by("fingerprint")
    found = list(alike.values_list("pk", "fingerprint")[:most])
    counts = Counter(fingerprint for _, fingerprint in found)
    return [id for id, fingerprint in found if counts[fingerprint] > 1]


def live(jobs: QuerySet[Any]) -> Any:
    """Select the jobs that have not finished."""
    return jobs.filter(state__in=_UNFINISHED)


@dataclass(frozen=True, slots=True)
class History:
    """The jobs of a fingerprint, the oldest first: all that live, and the last that finished.

    ``is_cut`` says whether older ones were left out. ``newest`` is the last of the jobs, with its policy.
    """

    jobs: list[Job]
    is_cut: bool
    newest: Job | None


def history(jobs: QuerySet[Any], fingerprint: str) -> History:
    """Return what is stored under one fingerprint, at most `MOST_IN_HISTORY` jobs."""
    newest_first = jobs.filter(fingerprint=fingerprint).only(*_LIGHT, "unique").order_by("-created_at", "-id")
    found = first_in_each_state(newest_first, MOST_IN_HISTORY + 1)
    found.sort(key=lambda job: (job.state in INCOMPLETE, job.created_at, job.pk), reverse=True)
    kept = sorted(found[:MOST_IN_HISTORY], key=lambda job: (job.created_at, job.pk))
    return History(kept, len(found) > MOST_IN_HISTORY, kept[-1] if kept else None)


def first_in_each_state(jobs: QuerySet[Any], most: int) -> list[Any]:
    """Return the first jobs of each state, in the order given.

    One short look at the index for each: a busy fingerprint can have a million finished jobs.
    """
    return [job for state in JobState for job in jobs.filter(state=state)[:most]]


def attempts_of(attempts: QuerySet[Any], fingerprint: str, most: int) -> Any:
    """Select the newest suppressed attempts of a fingerprint; ``start`` is the beginning of their arguments."""
    newest_first = attempts.filter(fingerprint=fingerprint).order_by("-created_at", "-pk")
    return newest_first.defer("args", "meta").annotate(start=_START)[:most]


@dataclass(frozen=True, slots=True)
class Match:
    """What a search term means: fingerprints, or a ``job`` that has none; nothing, and a ``problem`` with the term."""

    fingerprints: list[str]
    job: UUID | None = None
    problem: str = ""


def match(tables: Iterable[QuerySet[Any]], jobs: QuerySet[Any], term: str) -> Match:
    """Find fingerprints by a job's id, or by their first `SHORTEST_BEGINNING` characters or more, in each table."""
    if id := read_id(term):
        for found in jobs.filter(pk=id).values_list("fingerprint", flat=True):
            return Match([found]) if found else Match([], job=id)
    beginning = term.lower().replace("-", "") if id else term.lower()
    if len(beginning) < SHORTEST_BEGINNING or not _HEX.issuperset(beginning):
        problem = f"Write a job's id, or at least {SHORTEST_BEGINNING} characters of a fingerprint: digits and a to f."
        return Match([], problem=problem)
    within = fingerprint_begins(beginning)
    names = [table.filter(within).order_by("fingerprint").values_list("fingerprint", flat=True) for table in tables]
    return Match(sorted({name for found in names for name in found.distinct()[: MOST_MATCHES + 1]}))


def readable(start: str | None) -> str:
    """Write JSON without the escapes of a database that keeps it as text, where it is whole."""
    try:
        return json.dumps(json.loads(start or ""), ensure_ascii=False)
    except ValueError:
        return f"{start or ''}…"


def _met(row: dict[str, Any], shown: dict[str, tuple[str, str]], holding: dict[str, Job]) -> Met:
    fingerprint = row["fingerprint"]
    type, args = shown.get(fingerprint, ("", ""))
    return Met(**row, type=type, args=args, holder=holding.get(fingerprint))


def _is_over(job: Job, now: datetime) -> bool:
    return job.state not in INCOMPLETE and job.window_ends_at is not None and job.window_ends_at <= now
