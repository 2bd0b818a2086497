"""Settle: write down what became of the runs, fenced by their lease tokens."""

from __future__ import annotations

import logging
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from enum import StrEnum
from typing import Any
from uuid import UUID

from django.db import connections, transaction
from django.db.models import QuerySet

from .. import lifecycle
from ..exceptions import InvalidRetryPolicy
from ..ojs.retry import RetryPolicy
from ..ojs.states import JobState
from ..signals import announce, job_completed, job_discarded, job_failed
from . import postgres
from .errors import with_error
from .hold import still_held
from .rows import unlocked
from .run import Finished, labels

logger = logging.getLogger("django_ojs_unique.worker")


class Settled(StrEnum):
    """What became of a run."""

    COMPLETED = "completed"
    SKIPPED = "skipped"
    RETRIED = "retried"
    DISCARDED = "discarded"
    REFUSED = "refused"


def settle(jobs: QuerySet[Any], finished: Sequence[Finished]) -> list[tuple[Finished, Settled]]:
    """Settle a batch in one transaction; return what became of each run that could be settled.

    A run is refused when its job is no longer held under its token: it was cancelled or replaced, or its lease ran out.
    Runs whose rows somebody else has locked are left out, to be settled later: to wait would let other leases run out.
    So is a second run of one job, which a worker may have begun under a new lease while the first still ran.
    The ``job`` of each settled run has its new state.
    """
    finished = list({run.job.pk: run for run in reversed(finished)}.values())
    completed = [run for run in finished if run.error is None]
    failed = [run for run in finished if run.error is not None]
    with transaction.atomic(using=jobs.db) if completed and failed else nullcontext():
        outcomes = [*_complete(jobs, completed), *_fail(jobs, failed)]
    for run, outcome in outcomes:
        _update(run, outcome)
    return outcomes


def announce_outcome(job: Any, outcome: Settled, using: str) -> None:
    """Send the signal of what became of a run; a refused one has none."""
    match outcome:
        case Settled.COMPLETED | Settled.SKIPPED:
            announce(job_completed, type(job), job=job, using=using)
        case Settled.RETRIED:
            announce(job_failed, type(job), job=job, error=job.errors[-1], using=using)
        case Settled.DISCARDED:
            announce(job_discarded, type(job), job=job, error=job.errors[-1], using=using)


def settle_failure(jobs: QuerySet[Any], run: Finished, stored: Any) -> Settled:
    """Let a job run again, or discard it, as its retry policy says; ``stored`` is its row, which is locked."""
    job = run.job
    row, token = jobs.filter(pk=job.pk), job.lease_token
    assert run.error is not None
    policy = retry_policy_of(stored)
    again = policy.allows(job.attempt) and not run.gives_up and not policy.gives_up_on(*run.error_types)
    error = {**run.error, "retryable": again}
    job.errors = with_error(stored.errors, error)
    if not again:
        job.dead_letter = policy.on_exhaustion == "dead_letter"
        lifecycle.discard(row, run.at, token=token, errors=job.errors, dead_letter=job.dead_letter)
        return Settled.DISCARDED
    delay = run.retry_after if run.retry_after is not None else policy.delay(job.attempt, random.random())
    error["retry_delay_ms"] = round(delay.total_seconds() * 1000)
    job.run_at = run.at + delay
    lifecycle.retry(row, job.run_at, token=token, errors=job.errors)
    return Settled.RETRIED


def _complete(jobs: QuerySet[Any], runs: Sequence[Finished]) -> Iterator[tuple[Finished, Settled]]:
    if not runs:
        return
    if connections[jobs.db].vendor == "postgresql":
        done = postgres.complete(jobs, runs)
        ours, locked = done, _locked(jobs, [run for run in runs if run.job.pk not in done])
    else:
        with transaction.atomic(using=jobs.db):
            ours, locked = _hold(jobs, runs)
            plain: dict[UUID, list[Finished]] = defaultdict(list)
            for run in runs:
                if run.job.pk not in ours:
                    continue
                if run.result is None and not run.skipped:
                    plain[run.job.lease_token].append(run)
                else:
                    row = jobs.filter(pk=run.job.pk)
                    lifecycle.complete(row, run.at, token=run.job.lease_token, result=run.result, skipped=run.skipped)
            for token, alike in plain.items():
                rows = jobs.filter(pk__in=[run.job.pk for run in alike])
                lifecycle.complete(rows, max(run.at for run in alike), token=token)
    for run in runs:
        if run.job.pk in ours:
            yield run, Settled.SKIPPED if run.skipped else Settled.COMPLETED
        elif run.job.pk not in locked:
            yield run, Settled.REFUSED


def _fail(jobs: QuerySet[Any], runs: Sequence[Finished]) -> Iterator[tuple[Finished, Settled]]:
    if not runs:
        return
    with transaction.atomic(using=jobs.db):
        ours, locked = _hold(jobs, runs)
        history = jobs.in_bulk(ours, field_name="pk") if ours else {}
        outcomes = {run.job.pk: settle_failure(jobs, run, history[run.job.pk]) for run in runs if run.job.pk in ours}
    for run in runs:
        if run.job.pk not in locked:
            yield run, outcomes.get(run.job.pk, Settled.REFUSED)


def _hold(jobs: QuerySet[Any], runs: Sequence[Finished]) -> tuple[set[UUID], set[UUID]]:
    """Lock the rows of those runs that still hold them; return their keys, and those that others have locked."""
    ours = _still_held(unlocked(jobs), runs)
    return ours, _locked(jobs, [run for run in runs if run.job.pk not in ours])


def _locked(jobs: QuerySet[Any], missing: Sequence[Finished]) -> set[UUID]:
    """Return the keys of the runs that hold their jobs, though a look that passes over locked rows missed them."""
    return _still_held(jobs, missing) if missing else set()


def _still_held(jobs: QuerySet[Any], runs: Sequence[Finished]) -> set[UUID]:
    return {pk for pk, _ in still_held(jobs, [run.job for run in runs])}


def retry_policy_of(job: Any) -> RetryPolicy:
    """Return the job's retry policy; one that somebody made invalid in the row allows no further attempt."""
    try:
        policy: RetryPolicy = job.retry_policy
    except InvalidRetryPolicy as error:
        logger.error("Job %s (%s) has an invalid retry policy: %s", job.pk, job.type, error, extra=labels(job))
        return RetryPolicy(max_attempts=0)
    return policy


def _update(run: Finished, outcome: Settled) -> None:
    """Let the job in memory say what its row says, and the log what became of it."""
    said = run.job.pk, run.job.type
    match outcome:
        case Settled.REFUSED:
            logger.warning(
                "Result of job %s (%s) refused: it was cancelled or replaced, or its lease ran out.",
                *said,
                extra=labels(run.job),
            )
            return
        case Settled.RETRIED:
            run.job.state = JobState.RETRYABLE
            logger.info("Job %s (%s) runs again at %s.", *said, run.job.run_at, extra=labels(run.job))
        case Settled.DISCARDED:
            run.job.state, run.job.finished_at = JobState.DISCARDED, run.at
            logger.warning(
                "Job %s (%s) discarded after attempt %d of %d.",
                *said,
                run.job.attempt,
                run.job.max_attempts,
                extra=labels(run.job),
            )
        case _:
            logger.info("Job %s (%s) %s.", *said, outcome, extra=labels(run.job))
            run.job.state, run.job.finished_at = JobState.COMPLETED, run.at
            run.job.result, run.job.skipped = run.result, run.skipped
    run.job.lease_token = run.job.lease_expires_at = None
