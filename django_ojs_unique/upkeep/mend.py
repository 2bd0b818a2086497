"""Decide on the jobs of one fingerprint, and write the decision under the locks of an enqueue."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from django.db import IntegrityError, connections, transaction
from django.db.models import QuerySet
from django.utils import timezone

from .. import lifecycle
from ..admission import Admission
from ..constraints import guarding
from ..events import recorded
from ..ojs.keys import HOLDING
from ..ojs.states import INCOMPLETE, WAITING, JobState
from ..races import LostRace, until_won
from ..signals import announce, job_cancelled
from ..transactions import starting_over
from .kinds import Kind
from .standing import READ, Standing
from .worklist import Worklist

UNTAKEN = frozenset({JobState.SCHEDULED, JobState.PENDING, JobState.AVAILABLE})
"""Where a job can have been that no worker has taken yet."""


Part = tuple[str, Sequence[Any]]
"""A fingerprint, and the ids of some jobs that should have it."""


class Mender:
    """Brings jobs to the standing that ``judge`` gives them.

    With ``cancels``, waiting jobs that duplicate an older one are cancelled, else they go on. ``strict`` counts only
    those as duplicates that no enqueue can have admitted: a job that ran while the newer one came may wait again.
    """

    def __init__(
        self, jobs: QuerySet[Any], judge: Callable[[Any], Standing], *, cancels: bool = True, strict: bool = True
    ) -> None:
        self._jobs = jobs
        self._judge = judge
        self._cancels = cancels
        self._strict = strict
        self._kept: dict[str, Standing] = {}
        """The last job of each state that stays, while the parts of one group go by."""
        self._last = ""

    def foresee(self, parts: Sequence[Part]) -> Iterator[list[Standing]]:
        """Decide on parts without locks, with two looks for all of them, and write nothing."""
        jobs = self._jobs.only(*READ)
        holders: dict[str, list[Any]] = defaultdict(list)
        for row in jobs.filter(guarding(), fingerprint__in={fingerprint for fingerprint, _ in parts} - {""}):
            holders[row.fingerprint].append(row)
        listed = jobs.in_bulk([id for _, ids in parts for id in ids])
        for fingerprint, ids in parts:
            self._begin(fingerprint)
            rows = [*holders[fingerprint], *(standing.row for standing in self._kept.values())]
            rows += [listed[id] for id in ids if id in listed]
            yield self._decide(fingerprint, {row.pk: row for row in rows}.values())

    def mend(self, parts: Sequence[Part]) -> Iterator[list[Standing]]:
        """Decide and write, each part in a transaction of its own."""
        for fingerprint, ids in parts:
            self._begin(fingerprint)
            yield self._mend_part(fingerprint, ids)

    def _begin(self, fingerprint: str) -> None:
        if fingerprint != self._last or not fingerprint:
            self._kept = {}
        self._last = fingerprint

    def _mend_part(self, fingerprint: str, ids: Sequence[Any]) -> list[Standing]:
        before = self._kept

        def attempt() -> list[Standing]:
            self._kept = before
            return self._mend(fingerprint, ids)

        def mend() -> list[Standing]:
            standings = until_won(lambda look: starting_over(self._jobs.db, attempt))
            for standing in standings:
                if (older := standing.duplicates) is not None:
                    job = self._jobs.filter(pk=standing.row.pk).first() or standing.row  # it may be pruned by now
                    announce(job_cancelled, self._jobs.model, job=job, replaced_by=older.row.pk, using=self._jobs.db)
            return standings

        return recorded(self._jobs.db, mend)

    def _mend(self, fingerprint: str, ids: Sequence[Any]) -> list[Standing]:
        """Take the turns, lock, decide, write: all of it or, with LostRace, nothing."""
        jobs = self._jobs
        admission = Admission(jobs.model, connections[jobs.db])
        stored = jobs.filter(pk__in=ids).exclude(fingerprint=None).values_list("fingerprint", flat=True)
        turns = {name for name in (fingerprint, *stored) if name and _is_hexadecimal(name)}
        try:
            with transaction.atomic(using=jobs.db):
                admission.take_turns(turns)
                wanted = {*ids, *self._others(fingerprint)}
                rows = admission.lock(jobs.filter(pk__in=wanted).only(*READ), by_key=False)
                standings = self._decide(fingerprint, rows)
                self._write(standings)
        except IntegrityError as error:
            # Only PostgreSQL lets a rival take the guard after the look.
            raise LostRace from error
        return standings

    def _others(self, fingerprint: str) -> list[Any]:
        """Return the jobs that have the guard, and those that earlier parts of the group have kept."""
        holders = self._jobs.filter(guarding(), fingerprint=fingerprint) if fingerprint else self._jobs.none()
        return [*holders.values_list("pk", flat=True), *(standing.row.pk for standing in self._kept.values())]

    def _decide(self, fingerprint: str, rows: Iterable[Any]) -> list[Standing]:
        """Decide on rows of one part, and keep the last of each state that stays for the next part."""
        were_new = {standing.row.pk for standing in self._kept.values() if standing.is_new}
        self._kept = {}
        standings = sorted(map(self._judge, rows), key=lambda standing: standing.age)
        sharing = [standing for standing in standings if fingerprint and standing.fingerprint == fingerprint]
        for standing in standings:
            standing.is_new = standing.is_new or standing.row.pk in were_new
            if (standing.fingerprint or "") != fingerprint:
                standing.forget()  # its turn comes with those of the same fingerprint
        _leave_one_key(sharing)
        for standing in sharing:
            self._compare(standing)
        guards = [standing for standing in sharing if standing.is_guarding and standing.duplicates is None]
        for standing in [standing for standing in guards if _guards_now(standing, fingerprint)][1:]:
            standing.kinds.append(Kind.SHARED)
        for standing in guards[1:]:
            standing.set(guarded_states=frozenset())
            standing.lost_guard = True
        for standing in standings:
            blocks = bool(guards) and standing not in sharing and _guards_now(standing, fingerprint)
            if blocks or standing.duplicates is not None:
                standing.set(guarded_states=frozenset())
        return standings

    def _compare(self, standing: Standing) -> None:
        state = standing.row.state
        if standing.key is not None or state not in (WAITING if self._strict else INCOMPLETE):
            return
        older = next((older for older in self._kept.values() if self._is_duplicate(standing, older)), None)
        if older is None:
            self._kept[state] = standing
        else:
            standing.kinds.append(Kind.DUPLICATE)
            standing.duplicates = older if self._cancels else None

    def _is_duplicate(self, newer: Standing, older: Standing) -> bool:
        policy, state = newer.policy, older.row.state
        if policy is None or newer.row.state not in WAITING:
            return False
        if self._strict and not newer.is_new and not older.is_new:
            seen = UNTAKEN if state == JobState.AVAILABLE else {state}
            if older.row.worker_id is not None or not seen <= set(policy.states):
                return False
            enqueued_at = older.row.enqueued_at
            if state == JobState.AVAILABLE and enqueued_at is not None and enqueued_at > newer.row.created_at:
                return False  # it may have expired before the newer one came, and have been revived by force since
        return policy.is_duplicate(state, older.row.created_at, newer.row.created_at)

    def _write(self, standings: Iterable[Standing]) -> None:
        jobs = self._jobs
        changed = [standing for standing in standings if standing.changes]
        # First nobody guards, so that guards can change hands.
        lifecycle.release_guard(jobs.filter(pk__in=[standing.row.pk for standing in changed]))
        for standing in changed:
            changes = {"guarded_states": standing.row.guarded_states, **standing.changes}
            jobs.filter(pk=standing.row.pk).update(**changes)
        now = timezone.now()
        for standing in standings:
            if (older := standing.duplicates) is not None:
                lifecycle.replace(jobs.filter(pk=standing.row.pk), now, by=older.row.pk)


def _leave_one_key(sharing: Collection[Standing]) -> None:
    """Let one of the jobs that hold a key keep it."""
    holding = [standing for standing in sharing if standing.key is not None and standing.row.state in HOLDING]
    if len(holding) > 1:
        first = next((standing for standing in holding if standing.is_guarding), holding[0])
        for standing in holding:
            if standing is not first:
                standing.kinds.append(Kind.KEY)
                standing.leave()


def _guards_now(standing: Standing, fingerprint: str) -> bool:
    row = standing.row
    return bool(row.fingerprint == fingerprint and row.state in row.guarded_states)


def _is_hexadecimal(text: str) -> bool:
    try:
        int(text, 16)
    except ValueError:
        return False
    return True


def go_through(
    worklist: Worklist, decide: Callable[[Sequence[Part]], Iterator[list[Standing]]], bar: Any
) -> Iterator[Standing]:
    """Decide on the listed jobs, fingerprint by fingerprint; yield what becomes of each."""
    for parts in worklist.parts():
        for (_, ids), standings in zip(parts, decide(parts), strict=True):
            listed = set(ids)
            yield from (standing for standing in standings if standing.row.pk in listed)
            bar.update(len(ids))
