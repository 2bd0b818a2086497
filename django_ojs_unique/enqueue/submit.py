"""Submit jobs: look for duplicates, judge, write; exact under concurrency (OJS unique jobs).

The query decides what is a duplicate, the constraint decides races: an enqueue that loses a race looks again.
All take locks in the same order, so that two of them do not wait for each other: first the keys, where the database
locks them, then stored rows by their primary keys, and last the inserts by fingerprint. An enqueue that replaces what
another one is about to insert can still deadlock with it on PostgreSQL; it starts over then, unless it is in the
caller's transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from datetime import timedelta
from functools import cache
from typing import Any, Final
from uuid import UUID

from django.db import DatabaseError, transaction
from django.db.models import QuerySet

from ..db.dialects import dialect_of
from ..db.holding import held_for_others
from ..db.inserts import in_groups
from ..exceptions import DuplicateJob
from ..hooks import is_traced, tracer
from ..unique.conflict import Action
from ..unique.plan import Family, Plan
from . import announcements
from .duplicates import left_without, may_replace_active
from .entry import Entry, outcome_of, refresh_times
from .errors import ids_in_use, name_what_is_missing
from .look import Look
from .new_job import NewJob
from .optimistic import at_once
from .results import EnqueueResult
from .unit_of_work import UnitOfWork
from .write import write

_NO_POLICY_OR_KEY: Final = Family()
_UNTRACED: Final = nullcontext(lambda result: None)


def enqueue(jobs: QuerySet[Any], new_job: NewJob) -> EnqueueResult:
    """Admit a job, or return its duplicate, in the caller's transaction on the database of ``jobs``.

    Raises DuplicateJob (strategy reject), JobIdTaken, InvalidRequest if it cannot rewrite the job that holds its key,
    or Contended after losing 100 races in a row.
    """
    with tracer().enqueue(new_job.job) if is_traced() else _UNTRACED as answered:
        entry = None
        try:
            for work in UnitOfWork(jobs.db):
                with work:
                    verdict = None if work.is_repeated else at_once(dialect_of(jobs), new_job)
                    if verdict is None:
                        entry = entry or Entry(None, new_job)
                        decide_under_locks(jobs, [entry], work)
                        if (verdict := entry.verdict) is None:
                            assert entry.error is not None
                            raise entry.error
                    announcements.announce(jobs.model, jobs.db, new_job, verdict)
        except DatabaseError as error:
            name_what_is_missing(jobs, error)
            raise
        assert verdict is not None
        if verdict.action is Action.ADMIT:
            result = EnqueueResult(new_job, outcome_of(verdict), verdict.cancel)
        elif verdict.action is Action.REJECT:
            raise DuplicateJob(verdict.existing, new_job.values["fingerprint"], policy=new_job.policy)
        else:
            result = EnqueueResult(verdict.existing, outcome_of(verdict))
        answered(result)
    return result


def decide_under_locks(
    jobs: QuerySet[Any], entries: Sequence[Entry], work: UnitOfWork, *, refuse: bool = False
) -> None:
    """Decide on all entries in their order, and write everything, or raise LostRace and write nothing.

    With ``refuse``, raise the error of the first entry that has one, and write nothing.
    """
    dialect, look = dialect_of(jobs), Look(jobs, entries)
    with transaction.atomic(using=jobs.db):
        look.lock_keys()
        judged_at = look.judged_at
        now = refresh_times(entries, jobs.db, is_late=work.is_repeated or judged_at is not None)
        families = look.families(now, is_lost=work.lost_races > 0)
        stored = [row for family in families.values() for row in family.rows]
        # The look may have waited.
        is_late = judged_at is not None or any(row.created_at >= now for row in stored)
        now = refresh_times(entries, jobs.db, is_late=is_late)
        _keep_order(entries)

        @cache
        def left() -> dict[str, set[UUID]]:
            return left_without(jobs, held_for_others(stored))

        plan = Plan(
            now,
            judged_at=judged_at,
            replace_active=may_replace_active(jobs, (row for row in stored if row.key is None)),
            taken=_ids_in_use(jobs, entries) if work.lost_races else (),
            left=left,
        )
        for entry in entries:
            entry.decide(plan, families.get(entry.job.fingerprint, _NO_POLICY_OR_KEY))
            if entry.error is not None and refuse:
                raise entry.error
        write(jobs, dialect, plan.effects, now)
        if dialect.lets_rivals_in:
            look.for_rivals(families, {*plan.effects.new, *(row.pk for row in stored)}, now)
        announcements.record(jobs.db, [(entry.new_job, entry.verdict) for entry in entries if entry.verdict])


def _keep_order(entries: Sequence[Entry]) -> None:
    """Keep the order of the items by ``enqueued_at``: a caller's ids, and those of rewritten jobs, do not ascend."""
    if any(entry.new_job.has_id or entry.new_job.key is not None for entry in entries):
        for number, entry in enumerate(entries):
            if entry.job.enqueued_at is not None:
                entry.job.enqueued_at += timedelta(microseconds=number)


def _ids_in_use(jobs: QuerySet[Any], entries: Sequence[Entry]) -> set[UUID]:
    """Return the ids chosen by the caller that stored jobs already have."""
    given = sorted({entry.job.pk for entry in entries if entry.new_job.has_id})
    return set().union(*(ids_in_use(jobs, ids) for ids in in_groups(given)))
