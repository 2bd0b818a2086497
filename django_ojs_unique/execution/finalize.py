"""Finalize: store the outcomes of the runs; their lease tokens protect each change."""

from __future__ import annotations

import logging
import random
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext
from enum import StrEnum
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet

from .. import lifecycle
from ..db.dialects import dialect_of
from ..db.locking import unlocked
from ..exceptions import InvalidRetryPolicy
from ..handlers.carried import carries, restored
from ..handlers.control import Discard
from ..lifecycle import stopped
from ..ojs.retry import RetryPolicy
from ..ojs.states import JobState
from ..signals import announce, announce_failure, job_completed, job_discarded, job_failed
from .errors import past_errors, with_error
from .leases import still_leased
from .run import labels
from .run_result import RunResult

logger = logging.getLogger("django_ojs_unique.worker")


class Finalized(StrEnum):
    """The outcome of a run."""

    COMPLETED = "completed"
    SKIPPED = "skipped"
    RETRIED = "retried"
    DISCARDED = "discarded"
    REFUSED = "refused"


_SIGNALS = {
    Finalized.COMPLETED: job_completed,
    Finalized.SKIPPED: job_completed,
    Finalized.RETRIED: job_failed,
    Finalized.DISCARDED: job_discarded,
}


def finalize(
    jobs: QuerySet[Any], finished: Sequence[RunResult], doubtful: Collection[int] = ()
) -> list[tuple[RunResult, Finalized]]:
    """Finalize a batch in one transaction; return the outcome of each run that could be finalized.

    A run is refused when its token has no lease any more: the job was cancelled or replaced, or its lease ran out.
    Runs whose rows another transaction has locked are left out, to be finalized later: while this waited, other leases
    could run out. A second run of one job is left out, too: a worker may have begun it under a new lease while the
    first still ran.
    The ``job`` of each finalized run has its new state. ``doubtful`` has the ``id()`` of each run whose last commit
    failed: it may have been committed anyway, so its row is read before the run is refused. So is the row of a run
    that a transaction of its handler may have completed.
    """
    finished = list({run.job.id: run for run in reversed(finished)}.values())
    completed = [run for run in finished if run.error is None and not run.is_finalized]
    failed = [run for run in finished if run.error is not None]
    with transaction.atomic(using=jobs.db) if completed and failed else nullcontext():
        outcomes = [*_complete(jobs, completed), *_fail(jobs, failed)]
    outcomes = [
        (run, _committed_before(jobs, run, id(run) in doubtful) if outcome is Finalized.REFUSED else outcome)
        for run, outcome in outcomes
    ]
    if refused := [run.job for run, outcome in outcomes if outcome is Finalized.REFUSED]:
        stopped.let_go(jobs.db, [(job.pk, job.lease_token) for job in refused])
    outcomes += [(run, Finalized.COMPLETED) for run in finished if run.is_finalized]
    for run, outcome in outcomes:
        _update(run, outcome)
    return outcomes


def announce_outcome(run: RunResult, outcome: Finalized, using: str) -> None:
    """Send the signal about the outcome of a run; a refused run has none."""
    job = run.job
    if carries(job) and outcome in _SIGNALS and _SIGNALS[outcome].receivers:
        try:
            with restored(job):
                _announce(run, outcome, using)
        except Exception:
            logger.exception("No signal was sent about job %s: what it carries cannot be restored.", job.pk)
    else:
        _announce(run, outcome, using)


def _announce(run: RunResult, outcome: Finalized, using: str) -> None:
    job = run.job
    match outcome:
        case Finalized.COMPLETED | Finalized.SKIPPED:
            if job_completed.receivers:
                announce(job_completed, type(job), job=job, using=using)
        case Finalized.RETRIED:
            announce_failure(job_failed, job, run.exception, using)
        case Finalized.DISCARDED:
            announce_failure(job_discarded, job, run.exception, using)


def finalize_failure(jobs: QuerySet[Any], run: RunResult, stored: Any) -> Finalized:
    """Let a job run again, or discard it, as its retry policy says; ``stored`` is its locked row."""
    job = run.job
    row, token = jobs.filter(pk=job.pk), job.lease_token
    assert run.error is not None
    policy = retry_policy_of(stored)
    again = policy.allows(job.attempt) and not run.gives_up and not policy.gives_up_on(*run.error_types)
    error = {**run.error, "retryable": again}
    job.errors = with_error(stored, error)
    if not again:
        job.dead_letter = policy.on_exhaustion == "dead_letter"
        lifecycle.discard(row, run.at, token=token, errors=job.errors, dead_letter=job.dead_letter)
        return Finalized.DISCARDED
    delay = run.retry_after if run.retry_after is not None else policy.delay(job.attempt, random.random())
    error["retry_delay_ms"] = round(delay.total_seconds() * 1000)
    job.run_at = run.at + delay
    lifecycle.schedule_retry(row, job.run_at, token=token, errors=job.errors)
    return Finalized.RETRIED


def _complete(jobs: QuerySet[Any], runs: Sequence[RunResult]) -> Iterator[tuple[RunResult, Finalized]]:
    if not runs:
        return
    dialect = dialect_of(jobs)
    if dialect.claims_at_once:
        done = dialect.complete(runs)
        ours, locked = done, _locked(jobs, [run for run in runs if run.job.id not in done])
    else:
        with transaction.atomic(using=jobs.db):
            ours, locked = _hold(jobs, runs)
            plain: dict[UUID, list[RunResult]] = defaultdict(list)
            for run in runs:
                if run.job.id not in ours:
                    continue
                if run.result is None and not run.skipped:
                    plain[run.job.lease_token].append(run)
                else:
                    row = jobs.filter(pk=run.job.id)
                    lifecycle.complete(row, run.at, token=run.job.lease_token, result=run.result, skipped=run.skipped)
            for token, alike in plain.items():
                rows = jobs.filter(pk__in=[run.job.id for run in alike])
                lifecycle.complete(rows, max(run.at for run in alike), token=token)
    for run in runs:
        if run.job.id in ours:
            yield run, Finalized.SKIPPED if run.skipped else Finalized.COMPLETED
        elif run.job.id not in locked:
            yield run, Finalized.REFUSED


def _fail(jobs: QuerySet[Any], runs: Sequence[RunResult]) -> Iterator[tuple[RunResult, Finalized]]:
    if not runs:
        return
    with transaction.atomic(using=jobs.db):
        ours, locked = _hold(jobs, runs)
        history = jobs.in_bulk(ours, field_name="pk") if ours else {}
        outcomes = {run.job.id: finalize_failure(jobs, run, history[run.job.id]) for run in runs if run.job.id in ours}
    for run in runs:
        if run.job.id not in locked:
            yield run, outcomes.get(run.job.id, Finalized.REFUSED)


def _committed_before(jobs: QuerySet[Any], run: RunResult, is_doubtful: bool) -> Finalized:
    """Return the outcome of a refused run that a commit has stored whose answer was lost; else REFUSED."""
    outcome = _finalized_before(jobs, run) if is_doubtful else Finalized.REFUSED
    done = run.in_doubt
    if outcome is Finalized.REFUSED and done is not None and _finalized_before(jobs, done) is Finalized.COMPLETED:
        run.result, run.at, run.error, run.skipped = done.result, done.at, None, ""
        return Finalized.COMPLETED
    return outcome


def _finalized_before(jobs: QuerySet[Any], run: RunResult) -> Finalized:
    """Return the outcome of a refused run that was finalized by a commit whose answer was lost; else REFUSED."""
    row = jobs.filter(pk=run.job.id).first()
    if row is None:
        return Finalized.REFUSED
    if run.error is None:
        same = (
            row.state == JobState.COMPLETED
            and (row.attempt, row.started_at, row.worker_id) == (run.job.attempt, run.job.started_at, run.job.worker_id)
            and (row.result, bool(row.skipped)) == (run.result, bool(run.skipped))
        )
        outcome = Finalized.SKIPPED if run.skipped else Finalized.COMPLETED
        return outcome if same else Finalized.REFUSED
    for error in past_errors(row):  # the last one, unless the job has failed again since
        if run.error.items() <= error.items():
            return Finalized.RETRIED if error.get("retryable") else Finalized.DISCARDED
    return Finalized.REFUSED


def _hold(jobs: QuerySet[Any], runs: Sequence[RunResult]) -> tuple[set[UUID], set[UUID]]:
    """Lock the rows of the runs whose leases go on; return their ids, and the ids that others have locked."""
    ours = _still_leased(unlocked(jobs), runs)
    return ours, _locked(jobs, [run for run in runs if run.job.id not in ours])


def _locked(jobs: QuerySet[Any], missing: Sequence[RunResult]) -> set[UUID]:
    """Return the ids of the jobs that are still leased, but whose locked rows the query has skipped."""
    return _still_leased(jobs, missing) if missing else set()


def _still_leased(jobs: QuerySet[Any], runs: Sequence[RunResult]) -> set[UUID]:
    return {pk for pk, _ in still_leased(jobs, [run.job for run in runs])}


def retry_policy_of(job: Any) -> RetryPolicy:
    """Return the job's retry policy; if the row has an invalid one, allow no further attempt."""
    try:
        policy: RetryPolicy = job.retry_policy
    except InvalidRetryPolicy as error:
        logger.error("Job %s (%s) has an invalid retry policy: %s", job.pk, job.type, error, extra=labels(job))
        return RetryPolicy(max_attempts=0)
    return policy


def _update(run: RunResult, outcome: Finalized) -> None:
    """Give the job in memory the values of its row, and log the outcome."""
    named = run.job.id, run.job.type
    match outcome:
        case Finalized.REFUSED:
            logger.warning(
                "Result of job %s (%s) refused: it was cancelled or replaced, or its lease ran out.",
                *named,
                extra=labels(run.job),
            )
            return
        case Finalized.RETRIED:
            run.job.state = JobState.RETRYABLE
            logger.info("Job %s (%s) runs again at %s.", *named, run.job.run_at, extra=labels(run.job))
        case Finalized.DISCARDED:
            run.job.state, run.job.finished_at = JobState.DISCARDED, run.at
            on_purpose = isinstance(run.exception, Discard)
            logger.log(
                logging.WARNING if on_purpose else logging.ERROR,
                "Job %s (%s) discarded after attempt %d of %d.",
                *named,
                run.job.attempt,
                run.job.most_attempts,
                exc_info=None if on_purpose else run.exception,
                extra=labels(run.job),
            )
        case _:
            if logger.isEnabledFor(logging.INFO):
                logger.info("Job %s (%s) %s.", *named, outcome, extra=labels(run.job))
            run.job.state, run.job.finished_at = JobState.COMPLETED, run.at
            run.job.result, run.job.skipped = run.result, run.skipped
    run.job.lease_token = run.job.lease_expires_at = None
