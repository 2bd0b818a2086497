"""Decide on the jobs of one fingerprint, and write the decision under the locks of an enqueue."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from ...db.clock import database_now
from ...db.constraints import holding_unique_key
from ...db.dialects import dialect_of
from ...db.holding import held_for_others
from ...enqueue.unit_of_work import LostRace, UnitOfWork
from ...enqueue.write import write
from ...ojs.states import ALL, INCOMPLETE, WAITING, JobState
from ...signals import announce, job_cancelled
from ...unique.conflict import has_expired
from ...unique.keys import HOLDING
from ...unique.plan import Effects
from .expected_row import READ, ExpectedRow
from .problems import Kind
from .spool import Spool

UNTAKEN = frozenset({JobState.SCHEDULED, JobState.PENDING, JobState.AVAILABLE})
"""The states that an available job can have had before, if no worker has claimed it yet."""


Part = tuple[str, Sequence[Any]]
"""A fingerprint, and the ids of some jobs that should have it."""


class Repairer:
    """Decides on jobs, and writes what ``judge`` says that each row should be.

    With ``cancels``, waiting jobs that duplicate an older one are cancelled, else they go on. ``strict`` counts a job
    as a duplicate only if no enqueue can have admitted it. For example, the older job may have been active, and not
    counted, when the newer one was enqueued, and wait for a retry.
    """

    def __init__(
        self, jobs: QuerySet[Any], judge: Callable[[Any], ExpectedRow], *, cancels: bool = True, strict: bool = True
    ) -> None:
        self._jobs = jobs
        self._judge = judge
        self._cancels = cancels
        self._strict = strict
        self._kept: dict[str, ExpectedRow] = {}
        """By state, the last job that duplicates no older one; it is compared with the next part of its fingerprint."""
        self._last = ""

    def preview(self, parts: Sequence[Part]) -> list[list[ExpectedRow]]:
        """Decide on the parts without locks, in two queries for all of them, and write nothing."""
        return self._decide_all(parts, [*self._rows(parts), *self._holders(parts)])

    def repair(self, parts: Sequence[Part]) -> list[list[ExpectedRow]]:
        """Decide and write, all parts in one transaction."""
        before, using = (self._kept, self._last), self._jobs.db
        for work in UnitOfWork(using):
            with work:
                self._kept, self._last = before
                decided = self._repair(parts)
                for expected in chain.from_iterable(decided):
                    if (older := expected.duplicates) is not None:
                        job = self._jobs.filter(pk=expected.row.pk).first() or expected.row  # may be pruned by now
                        announce(job_cancelled, self._jobs.model, job=job, replaced_by=older.row.pk, using=using)
        return decided

    def _repair(self, parts: Sequence[Part]) -> list[list[ExpectedRow]]:
        """Lock the fingerprints and the rows, decide, and write, in one transaction. Raises LostRace."""
        jobs = self._jobs
        dialect = dialect_of(jobs)
        stored = self._rows(parts).exclude(fingerprint=None).values_list("fingerprint", flat=True)
        turns = {name for name in (*(name for name, _ in parts), *stored) if name and _is_hexadecimal(name)}
        try:
            with transaction.atomic(using=jobs.db):
                dialect.lock_keys(turns)
                holders = list(self._holders(parts).values_list("pk", flat=True))
                rows = dialect.lock(self._rows(parts, holders), by_key=False)
                decided = self._decide_all(parts, rows)
                write(jobs, dialect, _effects(parts, decided), database_now(jobs.db))
        except IntegrityError as error:
            # Only on PostgreSQL can an enqueue take the unique key after the rows were read.
            raise LostRace from error
        return decided

    def _rows(self, parts: Sequence[Part], others: Collection[Any] = ()) -> QuerySet[Any]:
        """Select the jobs of the parts, those kept from earlier parts of a fingerprint, and ``others``."""
        kept = (expected.row.pk for expected in self._kept.values())
        return self._jobs.only(*READ).filter(pk__in={*(id for _, ids in parts for id in ids), *kept, *others})

    def _holders(self, parts: Sequence[Part]) -> QuerySet[Any]:
        """Select the jobs that hold the unique keys of the parts."""
        names = {name for name, _ in parts if name}
        return self._jobs.only(*READ).filter(holding_unique_key(), fingerprint__in=names)

    def _decide_all(self, parts: Sequence[Part], rows: Iterable[Any]) -> list[list[ExpectedRow]]:
        found = {row.pk: row for row in rows}
        holders: dict[str, list[Any]] = defaultdict(list)
        for row in found.values():
            if row.fingerprint and row.state in row.unique_states:
                holders[row.fingerprint].append(row.pk)
        decided = []
        for fingerprint, ids in parts:
            if fingerprint != self._last or not fingerprint:
                self._kept = {}
            self._last = fingerprint
            chosen = {*ids, *holders[fingerprint], *(expected.row.pk for expected in self._kept.values())}
            decided.append(self._decide(fingerprint, [found[pk] for pk in chosen if pk in found]))
        return decided

    def _decide(self, fingerprint: str, rows: Iterable[Any]) -> list[ExpectedRow]:
        """Decide on the rows of one part; note in ``_kept`` what the next part is compared with."""
        were_new = {expected.row.pk for expected in self._kept.values() if expected.is_new}
        self._kept = {}
        expected_rows = sorted(map(self._judge, rows), key=lambda expected: expected.age)
        sharing = [expected for expected in expected_rows if fingerprint and expected.fingerprint == fingerprint]
        for expected in expected_rows:
            expected.is_new = expected.is_new or expected.row.pk in were_new
            if (expected.fingerprint or "") != fingerprint:
                expected.forget()  # it is decided on with the jobs of its own fingerprint
        _leave_one_key(sharing)
        for expected in sharing:
            self._compare(expected)
        holders = [expected for expected in sharing if expected.holds_unique_key and expected.duplicates is None]
        for expected in [expected for expected in holders if _holds_now(expected, fingerprint)][1:]:
            expected.kinds.append(Kind.SHARED)
        for expected in holders[1:]:
            expected.set(unique_states=frozenset())
            expected.lost_unique_key = True
        left = [expected for expected in sharing if _is_left(expected)]
        if left and (holder := (holders or left)[0]).unique_states != ALL:
            if not any(expected.lost_unique_key for expected in left):
                holder.kinds.append(Kind.UNHELD)
            holder.set(unique_states=ALL)
        for expected in expected_rows:
            blocks = bool(holders) and expected not in sharing and _holds_now(expected, fingerprint)
            if blocks or expected.duplicates is not None:
                expected.set(unique_states=frozenset())
        return expected_rows

    def _compare(self, expected: ExpectedRow) -> None:
        state = expected.row.state
        if expected.key is not None or state not in (WAITING if self._strict else INCOMPLETE):
            return
        older = next((older for older in self._kept.values() if self._is_duplicate(expected, older)), None)
        if older is None:
            self._kept[state] = expected
        else:
            expected.kinds.append(Kind.DUPLICATE)
            expected.duplicates = older if self._cancels else None

    def _is_duplicate(self, newer: ExpectedRow, older: ExpectedRow) -> bool:
        policy, state = newer.policy, older.row.state
        if policy is None or newer.row.state not in WAITING:
            return False
        if self._strict and not newer.is_new and not older.is_new:
            seen = UNTAKEN if state == JobState.AVAILABLE else {state}
            if older.row.worker_id is not None or not seen <= set(policy.states):
                return False
            enqueued_at = older.row.enqueued_at
            if state == JobState.AVAILABLE and enqueued_at is not None and enqueued_at > newer.row.created_at:
                return False  # it may have been discarded then, and retried by force since
        is_duplicate = policy.is_duplicate(state, policy.begins(older.row), newer.row.created_at)
        return is_duplicate and not has_expired(older.row, database_now(self._jobs.db))


def _effects(parts: Sequence[Part], decided: Sequence[Sequence[ExpectedRow]]) -> Effects:
    """Collect what to write. The part of the key that a job should have decides after that of the key it holds."""
    listed = [
        (expected.row.pk in ids, expected) for (_, ids), some in zip(parts, decided, strict=True) for expected in some
    ]
    expected_rows = [expected for _, expected in sorted(listed, key=itemgetter(0))]
    changed = {one.row.pk: {"unique_states": one.row.unique_states} for one in expected_rows if one.changes}
    for expected in expected_rows:
        if expected.changes:
            changed[expected.row.pk] |= expected.changes
    return Effects(
        released=list(changed),
        changed=changed,
        cancelled={one.row.pk: one.duplicates.row.pk for one in expected_rows if one.duplicates is not None},
        forced=held_for_others(
            expected.row for expected in expected_rows if expected.fingerprint != expected.row.fingerprint
        ),
    )


def _leave_one_key(sharing: Collection[ExpectedRow]) -> None:
    """Let only one of the jobs that hold a key keep it: the one that holds the unique key, else the oldest."""
    holding = [expected for expected in sharing if expected.key is not None and expected.row.state in HOLDING]
    if len(holding) > 1:
        first = next((expected for expected in holding if expected.holds_unique_key), holding[0])
        for expected in holding:
            if expected is not first:
                expected.kinds.append(Kind.KEY)
                expected.leave()


def _holds_now(expected: ExpectedRow, fingerprint: str) -> bool:
    row = expected.row
    return bool(row.fingerprint == fingerprint and row.state in row.unique_states)


def _is_left(expected: ExpectedRow) -> bool:
    """Whether a live job will go on without the unique key of its fingerprint."""
    is_live = expected.row.key is None and expected.row.state in INCOMPLETE
    return is_live and not expected.holds_unique_key and expected.duplicates is None


def _is_hexadecimal(text: str) -> bool:
    try:
        int(text, 16)
    except ValueError:
        return False
    return True


def go_through(
    spool: Spool, decide: Callable[[Sequence[Part]], list[list[ExpectedRow]]], bar: Any
) -> Iterator[ExpectedRow]:
    """Decide on the jobs in the spool, fingerprint by fingerprint; yield what becomes of each."""
    for parts in spool.parts():
        for (_, ids), expected_rows in zip(parts, decide(parts), strict=True):
            listed = set(ids)
            yield from (expected for expected in expected_rows if expected.row.pk in listed)
            bar.update(len(ids))
