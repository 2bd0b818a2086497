"""Enqueue: look for duplicates, act on them, insert; exact under concurrency (OJS unique jobs).

The query decides what is a duplicate, the constraint decides races: an insert that loses one looks again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any

from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Q, QuerySet
from django.utils import timezone

from . import lifecycle
from .admission import Admission
from .capabilities import STRONG, strength
from .conf import settings
from .constraints import guarding
from .events import recorded
from .exceptions import DuplicateJob, NotMigrated
from .keyed import enqueue_by_key
from .ojs.conflict import Action, Verdict, judge
from .ojs.policy import UniquePolicy
from .ojs.states import JobState
from .outcomes import EnqueueResult, Met, Outcome, Recorder, Suppression
from .races import LostRace, id_taken, ids_in_use, until_won
from .request import Incoming, date
from .signals import announce, job_cancelled, job_enqueued, job_suppressed
from .tracing import tracer
from .transactions import starting_over


def enqueue(jobs: QuerySet[Any], incoming: Incoming, record: Recorder) -> EnqueueResult:
    """Admit a job, or answer with its duplicate, in the caller's transaction on the database of ``jobs``.

    ``record`` notes suppressed attempts. Raises DuplicateJob (strategy reject), JobIdTaken, or
    Contended after losing 100 races in a row.
    """
    with tracer().enqueue(incoming.job) as answered:
        result = _answer(jobs, incoming, record)
        answered(result)
    return result


def _answer(jobs: QuerySet[Any], incoming: Incoming, record: Recorder) -> EnqueueResult:
    with saying_what_is_not_migrated(jobs):
        if incoming.key is not None:
            return recorded(jobs.db, partial(enqueue_by_key, jobs, incoming, record))
        verdict = recorded(jobs.db, partial(_enqueue, jobs, incoming, record))
    if verdict.action in (Action.REJECT, Action.IGNORE):
        assert verdict.existing is not None
        if verdict.action is Action.REJECT:
            raise DuplicateJob(verdict.existing, incoming.job.fingerprint)
        return EnqueueResult(verdict.existing, Outcome.DEDUPLICATED)
    return EnqueueResult(incoming.job, Outcome.REPLACED if verdict.cancel else Outcome.CREATED, verdict.cancel)


@contextmanager
def saying_what_is_not_migrated(jobs: QuerySet[Any]) -> Iterator[None]:
    """Turn the database's error about a missing table into one that says what to run."""
    try:
        yield
    except DatabaseError as error:
        if not _is_missing(jobs.model._meta.db_table, jobs.db):
            raise
        raise NotMigrated(
            f"The table {jobs.model._meta.db_table} does not exist in database {jobs.db!r}: run"
            f" `manage.py migrate --database {jobs.db}`."
        ) from error


def _is_missing(table: str, using: str) -> bool:
    try:
        return table not in connections[using].introspection.table_names()
    except DatabaseError:  # the failed statement ended the transaction: nothing can be asked
        return False


def stored_matches(jobs: QuerySet[Any], fingerprint: str, policy: UniquePolicy, now: datetime) -> QuerySet[Any]:
    """Select what a verdict must know of: jobs that the policy may count, and any that guard the fingerprint."""
    counted = Q(state__in=policy.states)
    if (start := policy.window_start(now)) is not None:
        counted &= Q(created_at__gt=start)
    return jobs.filter(counted | guarding(), fingerprint=fingerprint)


def may_replace_active(jobs: QuerySet[Any], stored: Iterable[Any]) -> bool:
    """Whether running duplicates may be cancelled: where the promise is strong, unless the project forbids it."""
    if not any(row.state == JobState.ACTIVE for row in stored):
        return True
    return settings.replace_active and strength(jobs.model, jobs.db) == STRONG


def _enqueue(jobs: QuerySet[Any], incoming: Incoming, record: Recorder) -> Verdict[Any]:
    verdict = _decide(jobs, incoming, record, connections[jobs.db])
    announce_verdict(jobs, incoming.job, verdict)
    return verdict


def _decide(jobs: QuerySet[Any], incoming: Incoming, record: Recorder, connection: BaseDatabaseWrapper) -> Verdict[Any]:
    """Return the verdict, carried out and recorded."""
    job, policy, using = incoming.job, incoming.policy, jobs.db
    admission = Admission(jobs.model, connection)
    if policy is None:
        if not starting_over(using, partial(admission.insert, job)):
            raise id_taken(job)
        return Verdict(Action.ADMIT)
    now = job.created_at
    inserted, newest = starting_over(
        using,
        partial(admission.insert_unless_duplicate, job, policy, policy.window_start(now), whole=incoming.whole),
    )
    if inserted:
        return Verdict(Action.ADMIT)
    if newest is not None and not policy.replaces:
        verdict = judge([newest], policy, now, replace_active=False)
        if verdict.action is not Action.ADMIT:
            starting_over(using, partial(_record, record, job, policy, verdict))
            return verdict
    return until_won(
        lambda look: starting_over(using, partial(_settle, jobs, incoming, policy, record, admission, look))
    )


def _settle(
    jobs: QuerySet[Any],
    incoming: Incoming,
    policy: UniquePolicy,
    record: Recorder,
    admission: Admission,
    earlier_looks: int,
) -> Verdict[Any]:
    """Look under locks, act, insert: all of it or, with LostRace, nothing."""
    job = incoming.job
    with transaction.atomic(using=jobs.db):
        admission.take_turns([job.fingerprint])
        now = timezone.now()
        # After a lost race only a locking look is sure to see what a snapshot of the caller's transaction may not.
        stored = admission.lock(stored_matches(jobs, job.fingerprint, policy, now), by_key=not earlier_looks)
        verdict = judge(stored, policy, now, replace_active=may_replace_active(jobs, stored))
        if verdict.action is Action.ADMIT:
            _make_way(jobs, verdict, job, now)
            date(incoming, now, inherited_schedule=verdict.inherited_schedule)
            if not admission.insert(job):
                raise id_taken(job) if ids_in_use(jobs, [job.pk]) else LostRace
            if admission.can_be_overtaken:
                # From here on every other enqueue of the key waits; one that came and went since the look still counts.
                known = [row.pk for row in stored]
                for rival in stored_matches(jobs, job.fingerprint, policy, now).exclude(pk__in=[*known, job.pk]):
                    if policy.is_duplicate(rival.state, rival.created_at, now):
                        raise LostRace
        _record(record, job, policy, verdict)
        for replaced in verdict.cancel:
            replaced.refresh_from_db(using=jobs.db)
    return verdict


def _make_way(jobs: QuerySet[Any], verdict: Verdict[Any], job: Any, now: datetime) -> None:
    if verdict.cancel:
        lifecycle.replace(jobs.filter(pk__in=[row.pk for row in verdict.cancel]), now, by=job.pk)
    if verdict.release:
        lifecycle.release_guard(jobs.filter(pk__in=[row.pk for row in verdict.release]))


def suppression_of(job: Any, policy: UniquePolicy, verdict: Verdict[Any]) -> Suppression | None:
    """Return what to record of a verdict on ``job``; None when it suppressed nothing."""
    outcome = _outcome_of_suppression(verdict)
    if outcome is None:
        return None
    met: tuple[Any, ...] = verdict.cancel or (verdict.existing,)
    return Suppression(job, policy.on_conflict, tuple(Met(row.pk, row.state) for row in met), outcome)


def _record(record: Recorder, job: Any, policy: UniquePolicy, verdict: Verdict[Any]) -> None:
    if (suppression := suppression_of(job, policy, verdict)) is not None:
        record([suppression])


def announce_verdict(jobs: QuerySet[Any], job: Any, verdict: Verdict[Any]) -> None:
    """Mark an admitted ``job`` as stored; tell the receivers what its enqueue has done, in the order of events."""
    sender, using = jobs.model, jobs.db
    if verdict.action is Action.ADMIT:
        job._state.adding, job._state.db = False, using
    for replaced in verdict.cancel:
        announce(job_cancelled, sender, job=replaced, replaced_by=job.pk, using=using)
    outcome = _outcome_of_suppression(verdict)
    if outcome is not None:
        announce(job_suppressed, sender, outcome=outcome, existing_job=verdict.existing, job=job, using=using)
    if verdict.action is Action.ADMIT:
        announce(job_enqueued, sender, job=job, using=using)


def _outcome_of_suppression(verdict: Verdict[Any]) -> str | None:
    match verdict.action:
        case Action.REJECT:
            return "rejected"
        case Action.IGNORE:
            return "ignored"
    return "replaced" if verdict.cancel else None
