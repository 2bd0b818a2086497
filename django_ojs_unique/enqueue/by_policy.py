"""Enqueue by policy: look for duplicates, act on them, insert; exact under concurrency (OJS unique jobs).

The query decides what is a duplicate, the constraint decides races: after an insert that loses one, it queries again.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from .. import lifecycle
from ..db.dialect import Dialect
from ..db.dialects import dialect_of
from ..exceptions import DuplicateJob
from ..instrumentation import tracer
from ..ojs.conflict import Action, Verdict, judge
from ..ojs.policy import UniquePolicy
from ..signals import announce, job_cancelled, job_enqueued, job_suppressed
from ..unit_of_work import LostRace, UnitOfWork
from . import suppression
from .duplicates import may_replace_active, stored_matches
from .errors import id_taken, ids_in_use, naming_missing_tables
from .request import Incoming, set_times
from .results import EnqueueResult, Outcome
from .row import JobRow

ADMITTED: Verdict[JobRow] = Verdict(Action.ADMIT)


def enqueue(jobs: QuerySet[Any], incoming: Incoming) -> EnqueueResult:
    """Admit a job, or return its duplicate, in the caller's transaction on the database of ``jobs``.

    Raises DuplicateJob (strategy reject), JobIdTaken, or Contended after losing 100 races in a row.
    """
    with tracer().enqueue(incoming.job) as answered:
        with naming_missing_tables(jobs):
            for work in UnitOfWork(jobs.db):
                with work:
                    verdict = _decide(jobs, incoming, work)
                    announce_verdict(jobs, incoming.job, verdict)
        result = _answer(incoming.job, verdict)
        answered(result)
    return result


def _answer(job: JobRow, verdict: Verdict[JobRow]) -> EnqueueResult:
    if verdict.action is Action.ADMIT:
        return EnqueueResult(job, Outcome.REPLACED if verdict.cancel else Outcome.CREATED, verdict.cancel)
    assert verdict.existing is not None
    if verdict.action is Action.REJECT:
        raise DuplicateJob(verdict.existing, job.fingerprint)
    return EnqueueResult(verdict.existing, Outcome.DEDUPLICATED)


def _decide(jobs: QuerySet[Any], incoming: Incoming, work: UnitOfWork) -> Verdict[JobRow]:
    """Decide, carry out and record the verdict, and return it."""
    job, policy = incoming.job, incoming.policy
    dialect = dialect_of(jobs)
    if policy is None:
        if not dialect.insert(job):
            raise id_taken(job)
        return ADMITTED
    if not work.is_repeated and (verdict := _decide_at_once(dialect, incoming, policy)) is not None:
        suppression.record(jobs.db, [suppression.by_policy(job, policy, verdict)])
        return verdict
    with transaction.atomic(using=jobs.db):
        return _decide_under_locks(jobs, incoming, policy, dialect, work.lost_races)


def _decide_at_once(dialect: Dialect, incoming: Incoming, policy: UniquePolicy) -> Verdict[JobRow] | None:
    """Insert the job, or find the newest duplicate that keeps it out; None when only locks can tell.

    One statement admits a new job, and one more finds a duplicate. Where the last enqueue of this shape met one, the
    order is the other one: each order is exact.
    """
    job, shape = incoming.job, incoming.shape
    start = policy.window_start(job.created_at)
    may_insert = dialect.decides_at_once(policy)
    looks_first = shape.met_duplicate and not dialect.single_writer
    if may_insert and not looks_first and dialect.insert_unless_duplicate(job, policy, start):
        return ADMITTED
    existing = None
    if not policy.replaces:
        existing = dialect.find_duplicate(job.fingerprint, policy, start, full_row=incoming.full_row)
    shape.met_duplicate = existing is not None
    if existing is not None:
        verdict = judge([existing], policy, job.created_at, replace_active=False)
        return None if verdict.action is Action.ADMIT else verdict
    if may_insert and looks_first and dialect.insert_unless_duplicate(job, policy, start):
        return ADMITTED
    return None


def _decide_under_locks(
    jobs: QuerySet[Any], incoming: Incoming, policy: UniquePolicy, dialect: Dialect, lost_races: int
) -> Verdict[JobRow]:
    """Lock, decide and write everything, or raise LostRace and write nothing."""
    job = incoming.job
    dialect.lock_keys([job.fingerprint])
    now = timezone.now()
    # After a lost race, query with locks only: the snapshot of the caller's transaction may hide new rows.
    stored = dialect.lock(stored_matches(jobs, job.fingerprint, policy, now), by_key=not lost_races)
    verdict = judge(stored, policy, now, replace_active=may_replace_active(jobs, stored))
    if verdict.action is Action.ADMIT:
        _make_way(jobs, verdict, job, now)
        set_times(incoming, now, inherited_schedule=verdict.inherited_schedule)
        if not dialect.insert(job):
            raise id_taken(job) if ids_in_use(jobs, [job.pk]) else LostRace
        if dialect.lets_rivals_in:
            _look_for_rivals(jobs, job, policy, stored, now)
    suppression.record(jobs.db, [suppression.by_policy(job, policy, verdict)])
    for replaced in verdict.cancel:
        replaced.refresh_from_db(using=jobs.db)
    return verdict


def _make_way(jobs: QuerySet[Any], verdict: Verdict[JobRow], job: JobRow, now: datetime) -> None:
    if verdict.cancel:
        lifecycle.replace(jobs.filter(pk__in=[row.pk for row in verdict.cancel]), now, by=job.pk)
    if verdict.release:
        lifecycle.drop_guards(jobs.filter(pk__in=[row.pk for row in verdict.release]))


def _look_for_rivals(
    jobs: QuerySet[Any], job: JobRow, policy: UniquePolicy, stored: list[JobRow], now: datetime
) -> None:
    """Raise LostRace for a job that was inserted and finished between the query and the insert, and still counts.

    From the insert on, every other enqueue of the key waits.
    """
    known = [row.pk for row in stored]
    for rival in stored_matches(jobs, job.fingerprint, policy, now).exclude(pk__in=[*known, job.pk]):
        if policy.is_duplicate(rival.state, rival.created_at, now):
            raise LostRace


def announce_verdict(jobs: QuerySet[Any], job: JobRow, verdict: Verdict[JobRow]) -> None:
    """Mark an admitted ``job`` as stored; send the signals about its enqueue, in the order of events."""
    sender, using = jobs.model, jobs.db
    if verdict.action is Action.ADMIT:
        job._state.adding, job._state.db = False, using
    for replaced in verdict.cancel:
        announce(job_cancelled, sender, job=replaced, replaced_by=job.pk, using=using)
    if (outcome := suppression.outcome_of(verdict)) is not None:
        announce(job_suppressed, sender, outcome=outcome, existing_job=verdict.existing, job=job, using=using)
    if verdict.action is Action.ADMIT:
        announce(job_enqueued, sender, job=job, using=using)
