"""Enqueue by policy: look for duplicates, act on them, insert; exact under concurrency (OJS unique jobs).

The query decides what is a duplicate, the constraint decides races: an enqueue that loses a race queries again.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import DatabaseError, transaction
from django.db.models import Model, QuerySet
from django.utils import timezone

from .. import lifecycle
from ..db.dialect import Dialect
from ..db.dialects import dialect_of
from ..exceptions import DuplicateJob
from ..hooks import is_traced, tracer
from ..ojs.states import ALL
from ..signals import announce, job_cancelled, job_enqueued, job_suppressed
from ..unique.conflict import FREE, Action, Verdict, judge
from ..unique.policy import UniquePolicy
from . import suppression
from .duplicates import by_id, holds_for_others, left_without, may_replace_active, newest_finished, stored_matches
from .errors import id_taken, ids_in_use, name_missing_table
from .new_job import NewJob, set_times
from .results import EnqueueResult, Outcome
from .row import JobRow, take_place
from .unit_of_work import LostRace, UnitOfWork


def enqueue(jobs: QuerySet[Any], new_job: NewJob) -> EnqueueResult:
    """Admit a job, or return its duplicate, in the caller's transaction on the database of ``jobs``.

    Raises DuplicateJob (strategy reject), JobIdTaken, or Contended after losing 100 races in a row.
    """
    if not is_traced():
        return _enqueue(jobs, new_job)
    with tracer().enqueue(new_job.job) as answered:
        result = _enqueue(jobs, new_job)
        answered(result)
    return result


def _enqueue(jobs: QuerySet[Any], new_job: NewJob) -> EnqueueResult:
    try:
        for work in UnitOfWork(jobs.db):
            with work:
                verdict = _decide(jobs, new_job, work)
                announce_verdict(jobs, new_job, verdict)
    except DatabaseError as error:
        name_missing_table(jobs, error)
        raise
    if verdict.action is Action.ADMIT:
        return EnqueueResult(new_job, Outcome.REPLACED if verdict.cancel else Outcome.CREATED, verdict.cancel)
    assert verdict.existing is not None
    if verdict.action is Action.REJECT:
        raise DuplicateJob(verdict.existing, new_job.values["fingerprint"])
    return EnqueueResult(verdict.existing, Outcome.DEDUPLICATED)


def _decide(jobs: QuerySet[Any], new_job: NewJob, work: UnitOfWork) -> Verdict[JobRow]:
    """Decide, carry out and record the verdict, and return it."""
    policy = new_job.policy
    dialect = dialect_of(jobs)
    if policy is None:
        if not dialect.insert(new_job.values):
            raise id_taken(new_job.job)
        return FREE
    if not work.is_repeated and (verdict := _decide_at_once(dialect, new_job, policy)) is not None:
        return verdict
    with transaction.atomic(using=jobs.db):
        return _decide_under_locks(jobs, new_job, policy, dialect, work.lost_races)


def _decide_at_once(dialect: Dialect, new_job: NewJob, policy: UniquePolicy) -> Verdict[JobRow] | None:
    """Insert the job, or find and record the newest duplicate; return None when only locks can decide.

    The first statement inserts a new job, and the second one finds a duplicate. If the last enqueue of this shape met a
    duplicate, the look-up comes first. Both orders are exact. The usual duplicate is the only unfinished job of its
    fingerprint, and one index search finds it; the others are left to the locks.
    """
    job, options = new_job.values, new_job.options
    now = job["created_at"]
    start = policy.window_start(now)
    may_insert = dialect.decides_at_once(policy)
    looks_first = options.met_duplicate and not dialect.single_writer
    if may_insert and not looks_first and dialect.insert_unless_duplicate(job, policy, start):
        return FREE
    existing, is_recorded = None, False
    if not policy.replaces:
        existing, is_recorded = suppression.find_and_record(dialect, new_job, policy, start)
    options.met_duplicate = existing is not None
    if existing is not None:
        verdict = judge([existing], policy, now, replace_active=False)
        if verdict.action is Action.ADMIT:
            return None
        if not is_recorded:
            suppression.record(dialect.connection.alias, [suppression.by_policy(new_job, policy, verdict)])
        return verdict
    if may_insert and looks_first and dialect.insert_unless_duplicate(job, policy, start):
        return FREE
    return None


def _decide_under_locks(
    jobs: QuerySet[Any], new_job: NewJob, policy: UniquePolicy, dialect: Dialect, lost_races: int
) -> Verdict[JobRow]:
    """Lock, decide and write everything, or raise LostRace and write nothing."""
    job = new_job.job
    dialect.read_anew()
    dialect.lock_keys([job.fingerprint])
    stored = _look(jobs, job.fingerprint, policy, dialect, lost_races)
    now = timezone.now()  # after the query: the new job must be newer than those beside which it is admitted
    verdict = judge(stored, policy, now, replace_active=may_replace_active(jobs, stored))
    if verdict.action is Action.ADMIT:
        _make_way(jobs, verdict, job, now)
        set_times(new_job, now, inherited_schedule=verdict.inherited_schedule)
        if holds_for_others(verdict, lambda: left_without(jobs, [job.fingerprint])):
            job.unique_states = ALL
        if not dialect.insert(new_job.values):
            raise id_taken(job) if ids_in_use(jobs, [job.pk]) else LostRace
        if dialect.lets_rivals_in:
            _look_for_rivals(jobs, job, policy, stored, now)
    suppression.record(jobs.db, [suppression.by_policy(new_job, policy, verdict)])
    for replaced in verdict.cancel:
        replaced.refresh_from_db(using=jobs.db)
    return verdict


def _look(
    jobs: QuerySet[Any], fingerprint: str, policy: UniquePolicy, dialect: Dialect, lost_races: int
) -> list[JobRow]:
    """Return the stored jobs that matter; those that this enqueue may change are locked."""
    now = timezone.now()
    matches, ended = stored_matches(jobs, fingerprint, policy, now), newest_finished(jobs, fingerprint, policy)
    # After a lost race, query with locks only: the snapshot of the caller's transaction may hide new rows.
    is_hidden = lost_races > 0 or dialect.reads_old
    if ended and not policy.replaces and not is_hidden:
        stored = by_id([matches, *ended])
        if all(policy.is_duplicate(row.state, row.created_at, now) for row in stored.values() if row.holds_unique_key):
            return [*stored.values()]  # nothing is released
    # First the unfinished ones: one that ends before its lock is among the finished ones then.
    stored = {row.pk: row for row in dialect.lock(matches, by_key=not lost_races)}
    for query in ended:
        stored = {row.pk: row for row in (query.select_for_update() if is_hidden else query)} | stored
    return [*stored.values()]


def _make_way(jobs: QuerySet[Any], verdict: Verdict[JobRow], job: JobRow, now: datetime) -> None:
    if verdict.cancel:
        take_place(job, verdict.cancel)
        lifecycle.replace(jobs.filter(pk__in=[row.pk for row in verdict.cancel]), now, by=job.pk)
    if verdict.release:
        lifecycle.release_unique_keys(jobs.filter(pk__in=[row.pk for row in verdict.release]))


def _look_for_rivals(
    jobs: QuerySet[Any], job: JobRow, policy: UniquePolicy, stored: list[JobRow], now: datetime
) -> None:
    """Raise LostRace for a job that was inserted and finished between the query and the insert, and still counts.

    From the insert on, every other enqueue of the key waits.
    """
    known = {job.pk, *(row.pk for row in stored)}
    matches = stored_matches(jobs, job.fingerprint, policy, now).exclude(pk__in=known)
    for rival in by_id([matches, *newest_finished(jobs, job.fingerprint, policy)]).values():
        if rival.pk not in known and policy.is_duplicate(rival.state, rival.created_at, now):
            raise LostRace


def announce_verdict(jobs: QuerySet[Any], new_job: NewJob, verdict: Verdict[JobRow]) -> None:
    """Mark an admitted job as stored; send the signals about its enqueue, in the order of events."""
    sender, using = jobs.model, jobs.db
    is_admitted = verdict.action is Action.ADMIT
    if is_admitted:
        new_job.mark_stored(using)
    for replaced in verdict.cancel:
        announce(job_cancelled, sender, job=replaced, replaced_by=new_job.values["id"], using=using)
    if job_suppressed.receivers and (outcome := suppression.outcome_of(verdict)) is not None:
        met = verdict.existing
        announce(job_suppressed, sender, outcome=outcome, existing_job=met, job=new_job.job, using=using)
    if is_admitted:
        announce_new(sender, using, new_job)


def announce_new(sender: type[Model], using: str, new_job: NewJob) -> None:
    """Send the signal about a new job."""
    if job_enqueued.receivers:
        announce(job_enqueued, sender, job=new_job.job, using=using)
