"""Enqueue many: the answers of enqueues one by one, from a constant number of statements per thousand jobs.

A batch is decided in memory, in the order of its items, on what one look found; then it is written at once. The
constraint decides races, here too: a batch that loses one is rolled back and looks again.

Locks are taken in an order that all batches share, so that two of them do not wait for each other: turns, then stored
rows by their primary keys, and last the inserts by fingerprint. A batch that replaces what another one is about to
insert can still deadlock with it on PostgreSQL; it starts over then, unless it is in the caller's transaction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any
from uuid import UUID

from django.db import connections, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from .admission import ROWS_AT_ONCE, Admission, in_groups
from .enqueue import announce_verdict, saying_what_is_not_migrated
from .events import recorded
from .exceptions import InvalidRequest, OJSError, did_you_mean, shorten
from .keyed import announce_keyed, lock_slots
from .ledger import FREE, Entry, Ledger, located
from .ojs.policy import UniquePolicy
from .ojs.states import INCOMPLETE
from .outcomes import ItemResult, Outcome, Recorder
from .races import LostRace, ids_in_use, until_won
from .request import Incoming, Reader, Request, date, own
from .tracing import tracer
from .transactions import starting_over

_LOOKED_AT = ("id", "type", "queue", "state", "fingerprint", "guarded_states", "created_at", "scheduled_at")
_FRESH = timedelta(seconds=1)
_ARGUMENTS = [name for name in Request.__slots__ if name not in ("lease", "schema", "extra", "pending", "whole")]


def enqueue_in_parts(jobs: QuerySet[Any], items: Iterable[Any], record: Recorder) -> Iterator[ItemResult]:
    """Enqueue items a thousand at a time, each thousand in a transaction; yield the answer to each, in order.

    An item that is refused or invalid is an answer, and the others go on. Memory does not depend on their number.
    """
    numbered = enumerate(items)
    part = _Part(jobs, islice(numbered, ROWS_AT_ONCE))
    while part:
        following = _Part(jobs, islice(numbered, ROWS_AT_ONCE))  # before the transaction, as it runs the caller's code
        yield from _enqueue(jobs, part.read(), record, refuse=False, meanwhile=following.read if following else None)
        part = following


def enqueue_all(jobs: QuerySet[Any], items: Iterable[Any], record: Recorder) -> Iterator[ItemResult]:
    """Enqueue all items in one transaction, or none: raise the error of the first one that is refused or invalid."""
    yield from _enqueue(jobs, _Part(jobs, enumerate(items)).read(), record, refuse=True)


def enqueue_read(jobs: QuerySet[Any], incoming: Iterable[Incoming], record: Recorder) -> Iterator[ItemResult]:
    """Enqueue valid requests in one transaction; yield the answer to each, in order."""
    yield from _enqueue(jobs, [Entry(index, one) for index, one in enumerate(incoming)], record, refuse=False)


class _Part:
    """Some items of a batch, drawn from their source: what they say is copied at once, as it may change them."""

    def __init__(self, jobs: QuerySet[Any], numbered: Iterable[tuple[int, Any]]) -> None:
        self._reader = Reader(jobs.model)
        self._drawn: list[tuple[int, Request | OJSError]] = []
        self._answers: list[ItemResult | Entry] = []
        self._read_at = timezone.now()
        for index, item in numbered:
            try:
                self._drawn.append((index, own(_request(item))))
            except OJSError as error:
                self._drawn.append((index, located(index, error)))

    def __bool__(self) -> bool:
        return bool(self._drawn)

    def read(self) -> list[ItemResult | Entry]:
        """Return the valid items, and what is wrong with the others; needs no database, and is done once.

        And again when the caller took its time in between: jobs and windows are dated by it.
        """
        now = timezone.now()
        if not self._answers or now - self._read_at > _FRESH:
            self._read_at = now
            self._answers = [self._read(index, request) for index, request in self._drawn]
        return self._answers

    def _read(self, index: int, request: Request | OJSError) -> ItemResult | Entry:
        error = request
        if not isinstance(request, OJSError):
            try:
                return Entry(index, self._reader.build(request, self._read_at))
            except OJSError as mistake:
                error = located(index, mistake)
        assert isinstance(error, OJSError)
        return ItemResult(None, Outcome.INVALID, index=index, error=error)


def _enqueue(
    jobs: QuerySet[Any],
    answers: Sequence[ItemResult | Entry],
    record: Recorder,
    *,
    refuse: bool,
    meanwhile: Callable[[], object] | None = None,
) -> Iterator[ItemResult]:
    if refuse and (wrong := next((answer for answer in answers if isinstance(answer, ItemResult)), None)):
        assert wrong.error is not None
        raise wrong.error
    if entries := [entry for entry in answers if isinstance(entry, Entry)]:
        batch = _Batch(jobs, entries, record, refuse=refuse)

        def settle() -> None:
            until_won(lambda look: starting_over(jobs.db, lambda: batch.settle(look, meanwhile)))
            for entry in entries:  # all of them before the first answer, as the caller may stop there
                _announce(jobs, entry)

        with tracer().enqueue_many(entries), saying_what_is_not_migrated(jobs):
            recorded(jobs.db, settle)
    for answer in answers:
        if isinstance(answer, Entry):
            answer = ItemResult(answer.job, answer.outcome, answer.replaced, answer.index, answer.error)
        yield answer


class _Batch:
    """The valid items of a batch, which are settled together, and again after a lost race."""

    def __init__(self, jobs: QuerySet[Any], entries: Sequence[Entry], record: Recorder, *, refuse: bool) -> None:
        self._jobs = jobs
        self._entries = entries
        self._record = record
        self._refuse = refuse
        self._admission = Admission(jobs.model, connections[jobs.db])
        self._policies: dict[str, list[UniquePolicy]] = defaultdict(list)
        self._keyed: set[str] = set()
        self._was_tried = False
        self._has_ids = any(entry.incoming.has_id for entry in entries)
        for incoming in (entry.incoming for entry in entries):
            if incoming.policy is not None:
                policies = self._policies[incoming.job.fingerprint]
                if incoming.policy not in policies:
                    policies.append(incoming.policy)
            elif incoming.key is not None:
                self._keyed.add(incoming.job.fingerprint)
        self._counted = {
            fingerprint: {state for policy in policies for state in policy.states}
            for fingerprint, policies in self._policies.items()
        }
        """The states that the policies of a fingerprint count."""

    def settle(self, earlier_looks: int, meanwhile: Callable[[], object] | None) -> None:
        """Decide and write: all of it or, with LostRace, nothing."""
        jobs, admission = self._jobs, self._admission
        with transaction.atomic(using=jobs.db):
            admission.take_turns([*self._policies, *self._keyed])
            now = timezone.now()
            # After a lost race only a locking look is sure to see what a snapshot of the caller's transaction may not.
            stored = self._look(now, under_locks=earlier_looks > 0)
            slots = lock_slots(jobs, admission, self._keyed)
            taken = self._ids_in_use() if earlier_looks else ()
            ledger = Ledger(jobs, stored, slots, taken, self._counted, now)
            again, self._was_tried = self._was_tried, True  # after a lost race, or a deadlock
            for entry in self._entries:
                if again:
                    date(entry.incoming, now)
                ledger.decide(entry)
                if entry.error is not None and self._refuse:
                    raise entry.error
            if self._has_ids:
                _keep_order(self._entries)
            ledger.write(admission)
            new = ledger.new_jobs()
            if not admission.insert_all(new, meanwhile):
                raise LostRace
            if admission.can_be_overtaken:
                self._look_for_rivals(
                    {*(job.pk for job in new), *(row.pk for rows in stored.values() for row in rows)}, now
                )
            self._record([suppression for entry in self._entries if (suppression := entry.suppression) is not None])

    def _look(self, now: datetime, *, under_locks: bool) -> dict[str, list[Any]]:
        """Return the stored jobs that matter, by fingerprint: locked, if an item may change them."""
        found: dict[UUID, Any] = {}
        for fingerprints in in_groups(self._policies):
            matches = self._matches(fingerprints, now)
            if under_locks:
                matches = matches.filter(fingerprint__in=fingerprints)
                found |= {row.pk: row for row in self._admission.lock(matches, by_key=False)}
            else:
                found |= {row.pk: row for row in self._admission.find(matches, fingerprints)}
        if not under_locks and (mine := {pk for pk, row in found.items() if self._may_change(row, now)}):
            locked: dict[UUID, Any] = {}
            for pks in in_groups(sorted(mine)):
                rows = self._jobs.filter(pk__in=pks).only(*_LOOKED_AT)
                locked |= {row.pk: row for row in self._admission.lock(rows, by_key=False)}
            found = {pk: row for pk, row in found.items() if pk not in mine} | locked
        by_fingerprint: dict[str, list[Any]] = defaultdict(list)
        for row in found.values():
            by_fingerprint[row.fingerprint].append(row)
        return by_fingerprint

    def _matches(self, fingerprints: Collection[str], now: datetime) -> QuerySet[Any]:
        """Select what the policies of some fingerprints may count, and what may guard; among all fingerprints."""
        policies = {id(policy): policy for name in fingerprints for policy in self._policies[name]}.values()
        counted = Q(state__in=sorted(set().union(*(policy.states for policy in policies))))
        starts = [start for policy in policies if (start := policy.window_start(now)) is not None]
        if len(starts) == len(policies):
            counted &= Q(created_at__gt=min(starts))
        return self._jobs.filter(counted | ~Q(guarded_states=0)).only(*_LOOKED_AT)

    def _may_change(self, row: Any, now: datetime) -> bool:
        """Tell whether an item may replace a stored job, or release its guard."""
        return any(
            policy.replaces or (row.is_guarding and not policy.is_duplicate(row.state, row.created_at, now))
            for policy in self._policies[row.fingerprint]
        )

    def _look_for_rivals(self, known: Collection[UUID], now: datetime) -> None:
        """Raise LostRace for a job that came and went between the look and the insert, where finished jobs count.

        From the insert on, every other enqueue of these keys waits.
        """
        wary = [
            fingerprint
            for fingerprint, policies in self._policies.items()
            if not all(INCOMPLETE.issuperset(policy.states) for policy in policies)
        ]
        for fingerprints in in_groups(wary):
            for row in self._admission.find(self._matches(fingerprints, now), fingerprints):
                if row.pk not in known and any(
                    policy.is_duplicate(row.state, row.created_at, now) for policy in self._policies[row.fingerprint]
                ):
                    raise LostRace

    def _ids_in_use(self) -> set[UUID]:
        """Return which of the ids that the caller gave stored jobs have."""
        given = sorted({entry.incoming.job.pk for entry in self._entries if entry.incoming.has_id})
        return set().union(*(ids_in_use(self._jobs, ids) for ids in in_groups(given)))


def _keep_order(entries: Iterable[Entry]) -> None:
    """Let jobs come up in the order of their items also when callers chose ids, which do not ascend."""
    for number, entry in enumerate(entries):
        job = entry.incoming.job
        if job.enqueued_at is not None:
            job.enqueued_at += timedelta(microseconds=number)


def _announce(jobs: QuerySet[Any], entry: Entry) -> None:
    """Tell the receivers what became of an item, once it is stored."""
    if entry.holder is not None:
        announce_keyed(jobs, entry.incoming.job, entry.holder, entry.outcome)
    elif entry.verdict is not None or entry.error is None:
        announce_verdict(jobs, entry.incoming.job, entry.verdict or FREE)


def _request(item: Any) -> Request:
    """Read one item: what `enqueue` takes, as an object."""
    if isinstance(item, Request):
        return item
    if not isinstance(item, Mapping):
        raise InvalidRequest(
            f"must be an object with the arguments of enqueue() (got {shorten(item)}). Write {{'type': ...}}."
            " The item() of a handler makes one.",
            details={"value": shorten(item)},
        )
    for name in item:
        if name not in _ARGUMENTS:
            raise InvalidRequest.at(str(name), "is not an argument of enqueue()", mend=did_you_mean(name, _ARGUMENTS))
    if "type" not in item:
        raise InvalidRequest.at("type", "is missing", mend="Write {'type': 'email.send', ...}.")
    return Request(**item)
