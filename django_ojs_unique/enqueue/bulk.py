"""Enqueue many: the results of single enqueues, with a few statements per thousand jobs.

Where an INSERT alone can decide, it does; see `optimistic`. Otherwise one query finds the stored jobs, the batch is
decided in memory in the order of its items, and then it is written at once. The constraint decides races here, too: a
batch that loses a race is rolled back and queries again.

All batches take locks in the same order, so that two of them do not wait for each other: first `lock_keys`, then stored
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

from django.db import transaction
from django.db.models import QuerySet

from ..db import holding
from ..db.constraints import of_fingerprint
from ..db.dialects import dialect_of
from ..db.inserts import ROWS_AT_ONCE, in_groups
from ..exceptions import InvalidRequest, did_you_mean, shorten
from ..handlers.redaction import redacted
from ..hooks import tracer
from ..ojs.states import INCOMPLETE
from ..unique.conflict import FREE
from ..unique.policy import UniquePolicy, ended_states
from . import suppression
from .bulk_plan import Answer, BulkEntry, BulkPlan, result_of
from .by_key import announce_keyed, lock_held_keys
from .by_policy import announce_verdict
from .duplicates import left_without, stored_matches_of_any
from .errors import ids_in_use, naming_missing_tables
from .items import read_items
from .new_job import NewJob
from .optimistic import insert_all_or_none, insert_new, refresh_times
from .results import BulkEnqueueResult, ItemResult, Outcome
from .row import JobRow
from .unit_of_work import LostRace, UnitOfWork

_LOOKED_AT = (
    "id", "type", "queue", "state", "key", "fingerprint", "unique_states", "created_at", "scheduled_at", "workflow_id",
    "awaited",
)  # fmt: skip
_MODES = ("partial", "atomic")


def enqueue_many(
    jobs: QuerySet[Any], items: Iterable[Any], mode: str, each: Callable[[ItemResult], Any] | None
) -> BulkEnqueueResult:
    """Enqueue items; see `JobQuerySet.enqueue_many`."""
    if not isinstance(mode, str) or mode not in _MODES:
        raise InvalidRequest.at("mode", "is not a known choice", value=mode, hint=did_you_mean(mode, _MODES))
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
        if isinstance(items, Mapping):
            items = redacted(items.get("type"), items)
        hint = f"Write [{shorten(items)}]." if isinstance(items, Mapping) else "Write [{'type': ...}, ...]."
        raise InvalidRequest.at("items", "must be a list or an iterator of objects", value=items, hint=hint)
    if each is not None and not callable(each):
        raise InvalidRequest.at("each", "must be a function that takes one answer", value=each)
    result = BulkEnqueueResult()
    for answer in _in_parts(jobs, items) if mode == "partial" else _all(jobs, items):
        result.counts[answer.outcome] += 1
        if each is None:
            result.results.append(answer)
        else:
            each(answer)
    return result


def enqueue_read(jobs: QuerySet[Any], new_job: Iterable[NewJob]) -> Iterator[ItemResult]:
    """Enqueue valid requests in one transaction; yield the result of each, in order."""
    yield from _enqueue(jobs, [BulkEntry(index, one) for index, one in enumerate(new_job)], refuse=False)


def _in_parts(jobs: QuerySet[Any], items: Iterable[Any]) -> Iterator[ItemResult]:
    """Enqueue items, at most a thousand in a transaction; yield the result of each item, in order.

    A refused or invalid item gives a result with an error; the others go on. Memory does not depend on their number.
    """
    numbered = enumerate(items)
    while answers := read_items(jobs, islice(numbered, ROWS_AT_ONCE)):
        with naming_missing_tables(jobs):
            insert_new(jobs, [answer for answer in answers if isinstance(answer, BulkEntry)])
        yield from _enqueue(jobs, answers, refuse=False)


def _all(jobs: QuerySet[Any], items: Iterable[Any]) -> Iterator[ItemResult]:
    """Enqueue all items in one transaction, or none: raise the error of the first one that is refused or invalid."""
    yield from _enqueue(jobs, read_items(jobs, enumerate(items)), refuse=True)


def _enqueue(jobs: QuerySet[Any], answers: Sequence[Answer], *, refuse: bool) -> Iterator[ItemResult]:
    if refuse and (wrong := next((answer for answer in answers if isinstance(answer, ItemResult)), None)):
        assert wrong.error is not None
        raise wrong.error
    valid = [answer for answer in answers if isinstance(answer, BulkEntry)]
    if entries := [entry for entry in valid if not entry.new_job.is_stored]:
        with tracer().enqueue_many(entries), naming_missing_tables(jobs):
            for work in UnitOfWork(jobs.db):
                with work:
                    if work.is_repeated or not insert_all_or_none(jobs, entries):
                        _BulkEnqueue(jobs, entries, refuse=refuse).decide(work)
                    for entry in valid:  # before the first result, because the caller may stop there
                        _announce(jobs, entry)
    else:
        for entry in valid:
            _announce(jobs, entry)
    yield from map(result_of, answers)


class _BulkEnqueue:
    """The valid items of a batch, which are decided together, and again after a lost race."""

    def __init__(self, jobs: QuerySet[Any], entries: Sequence[BulkEntry], *, refuse: bool) -> None:
        self._jobs = jobs
        self._entries = entries
        self._refuse = refuse
        self._dialect = dialect_of(jobs)
        self._policies: dict[str, list[UniquePolicy]] = defaultdict(list)
        self._keyed: set[str] = set()
        self._adopting = {
            entry.new_job.values["fingerprint"]
            for entry in entries
            if entry.new_job.policy is not None and "workflow_id" in entry.new_job.values
        }
        """The fingerprints of jobs whose workflow will wait for a duplicate instead, and write its row."""
        self._has_ids = any(entry.new_job.has_id for entry in entries)
        for new_job in (entry.new_job for entry in entries):
            if new_job.policy is not None:
                policies = self._policies[new_job.values["fingerprint"]]
                if new_job.policy not in policies:
                    policies.append(new_job.policy)
            elif new_job.key is not None:
                self._keyed.add(new_job.values["fingerprint"])
        self._counted = {
            fingerprint: {state for policy in policies for state in policy.states}
            for fingerprint, policies in self._policies.items()
        }
        """By fingerprint: the states that its policies count."""

    def decide(self, work: UnitOfWork) -> None:
        """Decide and write everything, or raise LostRace and write nothing."""
        jobs, dialect = self._jobs, self._dialect
        with transaction.atomic(using=jobs.db):
            dialect.read_anew()
            dialect.lock_keys([*self._policies, *self._keyed])
            now = refresh_times(self._entries, is_late=work.is_repeated)
            # After a lost race, query with locks: the snapshot of the caller's transaction may hide new rows.
            stored = self._look(now, under_locks=work.lost_races > 0 or dialect.reads_old)
            if any(row.created_at >= now for rows in stored.values() for row in rows):
                refresh_times(self._entries, is_late=True)
            held_keys = lock_held_keys(jobs, dialect, self._keyed)
            taken = self._ids_in_use() if work.lost_races else ()
            if self._has_ids or self._keyed:
                _keep_order(self._entries)
            left = left_without(jobs, holding.held_for_others(row for rows in stored.values() for row in rows))
            plan = BulkPlan(jobs, stored, held_keys, taken, self._counted, left, now)
            for entry in self._entries:
                plan.decide(entry)
                if entry.error is not None and self._refuse:
                    raise entry.error
            plan.write(dialect)
            new = plan.new_jobs()
            if not dialect.insert_all([job.__dict__ for job in new]):
                raise LostRace
            if dialect.lets_rivals_in:
                self._look_for_rivals(
                    {*(job.pk for job in new), *(row.pk for rows in stored.values() for row in rows)}, now
                )
            suppression.record(jobs.db, [entry.suppression for entry in self._entries])
        for entry in self._entries:
            entry.new_job.options.met_duplicate = entry.outcome is not Outcome.CREATED

    def _look(self, now: datetime, *, under_locks: bool) -> dict[str, list[JobRow]]:
        """Return the stored jobs that matter, by fingerprint; those that an item may change are locked."""
        found: dict[UUID, JobRow] = {}
        for fingerprints in in_groups(self._policies):
            matches = self._matches(fingerprints, now)
            if under_locks:
                matches = matches.filter(of_fingerprint(fingerprint__in=fingerprints))
                found |= {row.pk: row for row in self._dialect.lock(matches, by_key=False)}
            else:
                found |= {row.pk: row for row in self._find(matches, fingerprints)}
        if not under_locks and (changeable := {pk for pk, row in found.items() if self._may_change(row, now)}):
            locked: dict[UUID, JobRow] = {}
            for pks in in_groups(sorted(changeable)):
                rows = self._jobs.filter(pk__in=pks).only(*_LOOKED_AT)
                locked |= {row.pk: row for row in self._dialect.lock(rows, by_key=False)}
            found = {pk: row for pk, row in found.items() if pk not in changeable} | locked
        by_fingerprint: dict[str, list[JobRow]] = defaultdict(list)
        for row in found.values():
            by_fingerprint[row.fingerprint].append(row)
        return by_fingerprint

    def _matches(self, fingerprints: Collection[str], now: datetime) -> QuerySet[Any]:
        """Select the jobs that the policies of these fingerprints may count, or that hold one of them."""
        return stored_matches_of_any(self._jobs, self._policies_of(fingerprints), now).only(*_LOOKED_AT)

    def _find(self, matches: QuerySet[Any], fingerprints: Sequence[str]) -> Iterable[JobRow]:
        found: Iterable[JobRow] = self._dialect.find(
            matches, fingerprints, ended_states(self._policies_of(fingerprints))
        )
        return found

    def _policies_of(self, fingerprints: Collection[str]) -> Collection[UniquePolicy]:
        return {id(policy): policy for name in fingerprints for policy in self._policies[name]}.values()

    def _may_change(self, row: JobRow, now: datetime) -> bool:
        """Tell whether an item may replace a stored job, release its unique key, or let a workflow wait for it."""
        return row.fingerprint in self._adopting or any(
            policy.replaces or (row.holds_unique_key and not policy.is_duplicate(row.state, row.created_at, now))
            for policy in self._policies[row.fingerprint]
        )

    def _look_for_rivals(self, known: Collection[UUID], now: datetime) -> None:
        """Raise LostRace for a job that was inserted and finished between the query and the insert, if such jobs count.

        From the insert on, every other enqueue of these keys waits.
        """
        counting_finished = [
            fingerprint
            for fingerprint, policies in self._policies.items()
            if not all(INCOMPLETE.issuperset(policy.states) for policy in policies)
        ]
        for fingerprints in in_groups(counting_finished):
            for row in self._find(self._matches(fingerprints, now), fingerprints):
                if row.pk not in known and any(
                    policy.is_duplicate(row.state, row.created_at, now) for policy in self._policies[row.fingerprint]
                ):
                    raise LostRace

    def _ids_in_use(self) -> set[UUID]:
        """Return the ids chosen by the caller that stored jobs already have."""
        given = sorted({entry.new_job.job.pk for entry in self._entries if entry.new_job.has_id})
        return set().union(*(ids_in_use(self._jobs, ids) for ids in in_groups(given)))


def _keep_order(entries: Iterable[BulkEntry]) -> None:
    """Keep the order of the items by ``enqueued_at``: a caller's ids, and those of rewritten jobs, do not ascend."""
    for number, entry in enumerate(entries):
        job = entry.new_job.job
        if job.enqueued_at is not None:
            job.enqueued_at += timedelta(microseconds=number)


def _announce(jobs: QuerySet[Any], entry: BulkEntry) -> None:
    """Send the signals about an item after it is stored."""
    if entry.holder is not None:
        announce_keyed(jobs, entry.new_job.job, entry.holder, entry.outcome)
    elif entry.verdict is not None or entry.error is None:
        announce_verdict(jobs, entry.new_job, entry.verdict or FREE)
