"""Duplicates: which fingerprints suppressed most enqueues, which live jobs share one, and what else has a job's."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Count, F, Max, Q, QuerySet, TextField, Window
from django.db.models.functions import Cast, Left, RowNumber

from ..db.clock import database_now
from ..db.constraints import finished, holding_unique_key, released, unfinished_or_holding
from ..db.now import DatabaseNow
from ..enqueue.duplicates import expired
from ..exceptions import Message
from ..handlers.redaction import redacted_args, redacted_beginning
from ..models import Job, SuppressedEnqueue
from ..ojs.states import INCOMPLETE, TERMINAL, UNSUCCESSFUL, JobState
from ..unique.conflict import duplicates, has_expired
from ..unique.policy import UniquePolicy
from .parse import fingerprint_begins, read_id
from .suppressed import kept
from .times import Span
from .uniqueness import read_policy

MOST_FINGERPRINTS = 50
MOST_GROUPS = 50
MOST_IN_GROUP = 20
MOST_IN_HISTORY = 100
MOST_MATCHES = 20
SHORTEST_BEGINNING = 8
MOST_ATTEMPTS_COUNTED = 100_000
MOST_RELEASED_LOOKED_AT = 10_000
LONGEST_ARGS = 500
MOST_RELATIVES = 10

_START = Left(Cast("args", TextField()), LONGEST_ARGS)
"""The first characters of the args of a suppressed enqueue; the whole can be large."""

_UNFINISHED = sorted(INCOMPLETE)
_HEX = frozenset("0123456789abcdef")
LIGHT = (
    "id", "type", "queue", "state", "attempt", "max_attempts", "created_at", "started_at", "finished_at",
    "expires_at", "window_ends_at", "fingerprint", "unique_states", "key", "revision", "replaced_by",
)  # fmt: skip
"""The fields that a list of jobs shows; args and results are left out, as they can be large."""


@dataclass(frozen=True, slots=True)
class SuppressedKey:
    """The suppressed enqueues of one fingerprint: how many, with which outcomes, and when the newest was.

    ``args``: the first characters of the newest one's args as JSON. ``holder``: the job that holds the fingerprint now.
    """

    fingerprint: str
    type: str
    args: str
    count: int
    rejected: int
    deduplicated: int
    replaced: int
    last_at: datetime
    holder: Job | None


@dataclass(frozen=True, slots=True)
class MostSuppressed:
    """The fingerprints with most suppressed enqueues since a moment.

    ``is_cut``: there were more than `MOST_ATTEMPTS_COUNTED`, so ``since`` is later than asked for.
    """

    since: datetime
    is_cut: bool
    fingerprints: list[SuppressedKey]


def most_suppressed(attempts: QuerySet[Any], jobs: QuerySet[Any], span: Span, now: datetime) -> MostSuppressed:
    """Count the suppressed enqueues of a ``span`` by fingerprint; return the `MOST_FINGERPRINTS` with the most."""
    since = now - span.whole
    recent = attempts.filter(created_at__gte=since)
    newest_first = recent.order_by("-created_at").values_list("created_at", flat=True)
    beyond = newest_first[MOST_ATTEMPTS_COUNTED : MOST_ATTEMPTS_COUNTED + 1].first()
    if beyond is not None:
        since, recent = beyond, attempts.filter(created_at__gt=beyond)
    outcomes = {str(each): Count("pk", filter=Q(outcome=each)) for each in SuppressedEnqueue.Outcome}
    counted = list(
        recent.order_by()
        .values("fingerprint")
        .annotate(count=Count("pk"), last_at=Max("created_at"), newest=Max("pk"), **outcomes)
        .order_by("-count", "fingerprint")[:MOST_FINGERPRINTS]
    )
    ids = [row.pop("newest") for row in counted]
    newest = attempts.filter(pk__in=ids).annotate(start=_START).values_list("fingerprint", "type", "start")
    shown = {fingerprint: (type, readable(type, args)) for fingerprint, type, args in newest}
    holding = holders(jobs, [row["fingerprint"] for row in counted], now)
    return MostSuppressed(since, beyond is not None, [_suppressed(row, shown, holding) for row in counted])


def holders(jobs: QuerySet[Any], fingerprints: Collection[str], now: datetime) -> dict[str, Job]:
    """Return the job that holds each fingerprint now: the one that holds the unique key, else the newest live one."""
    holding = jobs.filter(holding_unique_key(), fingerprint__in=fingerprints).only(*LIGHT)
    holders = {job.fingerprint: job for job in holding if not _is_over(job, now)}
    others = [each for each in fingerprints if each not in holders]
    rest = jobs.filter(released(), fingerprint__in=others, state__in=_UNFINISHED)
    place = Window(RowNumber(), partition_by="fingerprint", order_by=("-created_at", "-id"))
    return {job.fingerprint: job for job in rest.annotate(place=place).filter(place=1).only(*LIGHT)} | holders


@dataclass(frozen=True, slots=True)
class Group:
    """Live jobs of one fingerprint, the oldest first; the newest is always included. ``more`` are left out."""

    fingerprint: str
    jobs: list[Job]
    more: int


@dataclass(frozen=True, slots=True)
class Groups:
    """A page of groups. The next page begins after the fingerprint ``last``; if it is empty, there is no next page."""

    groups: list[Group]
    last: str


def groups_after(jobs: QuerySet[Any], after: str) -> Groups:
    """Find the first `MOST_GROUPS` fingerprints after ``after`` that several live jobs share, in their order.

    A page looks at no more than `MOST_RELEASED_LOOKED_AT` jobs, so it can have fewer groups although more follow.
    """
    # They are few, but no index has only them: so they are looked for once, and not joined with the others.
    others = jobs.filter(released(), fingerprint__gt=after).order_by("fingerprint")
    names = list(others.values_list("fingerprint", flat=True)[: MOST_RELEASED_LOOKED_AT + 1])
    bound = names[-1] if len(names) > MOST_RELEASED_LOOKED_AT else ""
    alike = live_of(jobs, set(names)).order_by("fingerprint").values("fingerprint")
    shared = alike.annotate(count=Count("pk")).filter(count__gt=1).values_list("fingerprint", flat=True)
    found = list(shared[: MOST_GROUPS + 1])
    last = found[MOST_GROUPS - 1] if len(found) > MOST_GROUPS else bound
    return Groups(groups_of(jobs, found[:MOST_GROUPS]), last)


def groups_of(jobs: QuerySet[Any], fingerprints: Collection[str], most: int = MOST_IN_GROUP) -> list[Group]:
    """Return those of the fingerprints that several live jobs share, in the order given, with ``most`` jobs of each."""
    same: dict[str, Any] = {"partition_by": "fingerprint"}
    numbered = live_of(jobs, fingerprints).annotate(
        place=Window(RowNumber(), order_by=("created_at", "id"), **same), total=Window(Count("pk"), **same)
    )
    shown = numbered.filter(Q(place__lt=most) | Q(place=F("total"))).filter(total__gt=1).only(*LIGHT)
    found: dict[str, list[Any]] = {fingerprint: [] for fingerprint in fingerprints}
    for job in shown.order_by("place"):
        found.setdefault(job.fingerprint, []).append(job)
    return [Group(fp, members, members[0].total - len(members)) for fp, members in found.items() if members]


def live_duplicates(jobs: QuerySet[Any], most: int) -> list[UUID]:
    """Return the ids of live jobs that share a fingerprint, up to ``most``."""
    # At least one of them does not hold its unique key; such jobs are few. The order makes the database use the index.
    others = jobs.filter(released(), fingerprint__isnull=False).order_by("fingerprint")
    names = set(others.values_list("fingerprint", flat=True)[:most])
    alike = live_of(jobs, names).order_by("fingerprint")
    found = list(alike.values_list("pk", "fingerprint")[:most])
    counts = Counter(fingerprint for _, fingerprint in found)
    return [id for id, fingerprint in found if counts[fingerprint] > 1]


def live_of(jobs: QuerySet[Any], fingerprints: Collection[str]) -> Any:
    """Select the jobs of some fingerprints that have not finished, and have not expired."""
    unfinished = jobs.filter(unfinished_or_holding(fingerprint__in=fingerprints), state__in=_UNFINISHED)
    return unfinished.exclude(expired(DatabaseNow()))


@dataclass(frozen=True, slots=True)
class History:
    """The jobs of a fingerprint, the oldest first: the live ones, and those that finished last.

    ``is_cut``: whether jobs were left out. ``newest``: the last of the jobs, with its policy.
    """

    jobs: list[Job]
    is_cut: bool
    newest: Job | None


def history(jobs: QuerySet[Any], fingerprint: str) -> History:
    """Return the stored jobs of one fingerprint, at most `MOST_IN_HISTORY`."""
    found = newest(jobs.only(*LIGHT, "unique"), fingerprint, MOST_IN_HISTORY + 1)
    found.sort(key=lambda job: (job.state in INCOMPLETE, job.created_at, job.pk), reverse=True)
    kept = sorted(found[:MOST_IN_HISTORY], key=lambda job: (job.created_at, job.pk))
    return History(kept, len(found) > MOST_IN_HISTORY, kept[-1] if kept else None)


def newest(jobs: QuerySet[Any], fingerprint: str, most: int) -> list[Any]:
    """Return the job that holds a unique key, the newest other live ones, and the newest of each final state.

    Up to ``most`` of each, by one index search each: a busy fingerprint can have a million finished jobs.
    """
    holder = jobs.filter(holding_unique_key(), fingerprint=fingerprint)
    others = jobs.filter(released(), fingerprint=fingerprint).order_by("-created_at", "-pk")[:most]
    ended = (job for state in sorted(TERMINAL) for job in newest_ended(jobs, fingerprint, state)[:most])
    return list({job.pk: job for job in (*holder, *others, *ended)}.values())


def newest_ended(jobs: QuerySet[Any], fingerprint: str, state: str) -> Any:
    """Select the jobs of a fingerprint that ended in a state, the newest first."""
    return jobs.filter(finished(), fingerprint=fingerprint, state=state).order_by("-created_at", "-pk")


def attempts_of(attempts: QuerySet[Any], fingerprint: str, most: int) -> Any:
    """Select the newest suppressed enqueues of a fingerprint; ``start`` is the first characters of the args."""
    newest_first = attempts.filter(fingerprint=fingerprint).order_by("-created_at", "-pk")
    return newest_first.defer("args", "meta").annotate(start=_START)[:most]


@dataclass(frozen=True, slots=True)
class Match:
    """What a search term finds: fingerprints, or a ``job`` without one, or a ``problem`` with the term."""

    fingerprints: list[str]
    job: UUID | None = None
    problem: str = ""


def match(jobs: QuerySet[Any], attempts: QuerySet[Any] | None, term: str) -> Match:
    """Find fingerprints in both tables by a job's id, or by at least their first `SHORTEST_BEGINNING` characters."""
    if id := read_id(term):
        for found in jobs.filter(pk=id).values_list("fingerprint", flat=True):
            return Match([found]) if found else Match([], job=id)
    beginning = term.lower().replace("-", "") if id else term.lower()
    if len(beginning) < SHORTEST_BEGINNING or not _HEX.issuperset(beginning):
        template = Message("Write a job's id, or at least {count} characters of a fingerprint: digits and a to f.")
        return Match([], problem=Message(template, count=SHORTEST_BEGINNING))
    parts = [jobs.filter(which) for which in (holding_unique_key(), finished(), released())]
    parts += [] if attempts is None else [attempts]
    within = [part.filter(**fingerprint_begins(beginning)).order_by("fingerprint").distinct() for part in parts]
    names = (found.values_list("fingerprint", flat=True)[: MOST_MATCHES + 1] for found in within)
    return Match(sorted({name for found in names for name in found}))


def readable(type: str, start: str | None) -> str:
    """Write the beginning of a job's args without the escapes that some databases store, and without what is redacted.

    Text that was cut ends with an ellipsis.
    """
    try:
        args = kept(json.loads(start or ""))
        return args if isinstance(args, str) else json.dumps(redacted_args(type, args), ensure_ascii=False)
    except (ValueError, RecursionError):
        return f"{redacted_beginning(type, start or '')}…"


def _suppressed(row: dict[str, Any], shown: dict[str, tuple[str, str]], holding: dict[str, Job]) -> SuppressedKey:
    fingerprint = row["fingerprint"]
    type, args = shown.get(fingerprint, ("", ""))
    return SuppressedKey(**row, type=type, args=args, holder=holding.get(fingerprint))


def _is_over(job: Job, now: datetime) -> bool:
    is_closed = job.state not in INCOMPLETE and job.window_ends_at is not None and job.window_ends_at <= now
    return is_closed or has_expired(job, now)


@dataclass(frozen=True, slots=True)
class Relations:
    """The other jobs of a job's fingerprint.

    ``family``: the newest of them and the job itself, the oldest first. ``more``: whether there are others.
    ``replaces``: those that were cancelled for the job. ``blocked_by``: the live duplicate that keeps a discarded
    or cancelled job from being retried. ``successor``: the job that replaced it; None if there is none, or it is gone.
    """

    family: tuple[Any, ...] = ()
    more: bool = False
    replaces: tuple[Any, ...] = ()
    blocked_by: Any = None
    successor: Any = None


def relations(job: Any) -> Relations:
    """Find the related jobs: up to four queries for those of its fingerprint, one for the job that replaced it."""
    jobs = Job.objects.using(job._state.db)
    successor = jobs.only(*LIGHT).filter(pk=job.replaced_by_id).first() if job.replaced_by_id else None
    if job.fingerprint is None:
        return Relations(successor=successor)
    found = {row.pk: row for row in newest(jobs.only(*LIGHT), job.fingerprint, MOST_RELATIVES + 1)}
    ended_before: list[Any] = []
    if sum(row.state in TERMINAL for row in found.values()) > MOST_RELATIVES:  # else these are all that ended
        before = jobs.only(*LIGHT).filter(created_at__lte=job.created_at)
        ended_before = list(newest_ended(before, job.fingerprint, JobState.CANCELLED)[:MOST_RELATIVES])
    found.pop(job.pk, None)
    others = sorted(found.values(), key=_age, reverse=True)
    replaced = {row.pk: row for row in (*others, *ended_before) if row.replaced_by_id == job.pk}
    return Relations(
        family=tuple(sorted([*others[:MOST_RELATIVES], job], key=_age)),
        more=len(others) > MOST_RELATIVES,
        replaces=tuple(sorted(replaced.values(), key=_age)),
        blocked_by=_blocked_by(job, others),
        successor=successor,
    )


def _blocked_by(job: Any, others: list[Any]) -> Any:
    """Return the newest live job that counts under the job's policy, as a retry would find it."""
    if job.state not in UNSUCCESSFUL or (job.state == JobState.CANCELLED and job.replaced_by_id is not None):
        return None
    policy, problem = read_policy(job)
    if problem:
        return None
    live = (row for row in others if row.state not in TERMINAL)
    return next(iter(duplicates(live, policy or UniquePolicy(), database_now(job._state.db))), None)


def _age(row: Any) -> Any:
    return row.created_at, row.pk
