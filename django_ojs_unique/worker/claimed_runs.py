"""The runs that a worker has claimed and not yet finalized: their leases, time limits, progress and cancellation."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from ..db import sessions
from ..execution import leases
from ..execution.run import Run
from ..execution.run_result import RunResult, timed_out
from ..ojs.states import JobState
from ..signals import job_requeued
from .pools import LONGEST_UNSTARTED

logger = logging.getLogger("django_ojs_unique.worker")

WRITE_OFF_SECONDS = 5.0
"""How long a handler may go on after it was interrupted at its time limit."""


class ClaimedRuns:
    """The runs of a worker. It calls ``ended`` for a run that it gives up, as a pool does for any other."""

    def __init__(self, jobs: QuerySet[Any], lease: timedelta, ended: Callable[[Run, RunResult], None]) -> None:
        self.left_behind = 0
        """How many handlers did not end, so that the worker went on without them."""
        self.extend_at = 0.0
        """When to extend the leases, on the monotonic clock."""
        self._jobs = jobs
        self._lease = lease
        self._ended = ended
        self._runs: dict[int, Run] = {}
        """By the ``id()`` of the job in memory: one job may be here twice, under a lost lease and under a new one."""
        self._timed: dict[int, Run] = {}
        """Those of them that have a time limit."""
        self._unstarted: list[Run] = []

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, run: Run) -> None:
        """Add a run that was just claimed for its pool."""
        self._runs[id(run.job)] = run
        if run.timeout is not None:
            self._timed[id(run.job)] = run
        run.pool.runs += 1
        if run.lease < self._lease:  # it may run out before the next extension
            self.extend_at = min(self.extend_at, run.lease_until - run.lease.total_seconds() * 2 / 3)

    def forget(self, job: Any) -> Run | None:
        """Drop a job that is finalized or requeued; return its run, if there is one."""
        run = self._runs.pop(id(job), None)
        self._timed.pop(id(job), None)
        if run is not None:
            run.pool.runs -= 1
        return run

    # Back to the other workers

    def take_back(self, runs: Iterable[Run] | None = None) -> None:
        """Keep these runs (by default: all) from starting, if they have not started; `requeue` requeues them."""
        self._unstarted += [run for run in (list(self._runs.values()) if runs is None else runs) if run.take_back()]

    def not_started(self, run: Run) -> None:
        """Note a run that its pool did not start, or that ended at a checkpoint, so that `requeue` requeues it."""
        self._unstarted.append(run)

    def requeue(self) -> int:
        """Requeue the jobs that did not start, except locked rows; return how many were requeued."""
        if not self._unstarted:
            return 0
        begun = {run.job.pk for run in self._unstarted if run.started_at is not None}
        with _after_receivers() if begun and job_requeued.has_listeners(self._jobs.model) else nullcontext():
            requeued, locked = leases.requeue(self._jobs, [run.job for run in self._unstarted], begun)
        for run in self._unstarted:
            if _claim_of(run) not in locked:
                self.forget(run.job)
        self._unstarted = [run for run in self._unstarted if _claim_of(run) in locked]
        return requeued

    def abandon(self) -> None:
        """Go on without handlers that did not end in time; `requeue` requeues their jobs, attempts uncounted."""
        self.take_back()
        for run in list(self._runs.values()):
            if run.end():
                logger.warning("Requeuing job %s (%s): it did not end in time.", run.job.pk, run.job.type)
                self.left_behind += 1
                run.cancelled = True
                run.pool.cancel(run)
                run.pool.write_off(run)
                self._unstarted.append(run)

    # Periodic tasks

    def extend(self) -> None:
        """Extend all leases, and set when to do it again.

        That is in a third of the shortest lease, or in a thirtieth when a row was skipped because it was locked.
        """
        began = time.monotonic()
        alike: dict[tuple[timedelta, bool], list[Run]] = {}
        passed_over = False
        for run in self._runs.values():
            alike.setdefault((run.lease, run.started_at is not None), []).append(run)
        for (lease, begun), runs in alike.items():
            until = time.monotonic() + lease.total_seconds()
            kept = leases.extend(self._jobs, [run.job for run in runs], lease, begun=begun)
            for run in runs:
                if _claim_of(run) in kept:
                    run.lease_until = until
                elif not run.cancelled and run.completion is None:
                    passed_over = True
        shortest = min([self._lease, *(lease for lease, _ in alike)])
        self.extend_at = began + shortest.total_seconds() / (30 if passed_over else 3)

    def cancel_lost(self, longer_than: float) -> None:
        """Cancel the runs whose lease is lost; look only at those that run for longer than so many seconds."""
        now = time.monotonic()
        running = [
            run for run in self._runs.values() if run.started_at is not None and now - run.started_at > longer_than
        ]
        if running:
            lost = leases.lost(self._jobs, [run.job for run in running])
            gone = [run for run in running if _claim_of(run) in lost and not run.cancelled and not run.over]
            completed = self._completed(run for run in gone if run.completion is not None)
            for run in gone:
                if run.job.pk not in completed:
                    run.cancelled = True
                    run.pool.cancel(run)

    def _completed(self, runs: Iterable[Run]) -> set[UUID]:
        """Return the jobs that their handlers have completed: a completion may have been rolled back, too."""
        keys = {run.job.pk for run in runs}
        taken = self._jobs.filter(pk__in=keys).exclude(state=JobState.COMPLETED) if keys else self._jobs.none()
        return keys.difference(taken.values_list("pk", flat=True))

    def store_progress(self) -> None:
        """Store the progress that handlers have reported."""
        reported = []
        for run in self._runs.values():
            progress, run.progress = run.progress, None  # in one step: the handler may report more at any time
            if progress is not None and not run.over:
                reported.append((run.job, progress))
        if reported:
            leases.store_progress(self._jobs, reported)

    def take_back_stale(self) -> None:
        """Take back jobs that have waited here too long for their start, so that other workers can run them."""
        now = time.monotonic()
        stale = [
            run for run in self._runs.values() if run.started_at is None and now - run.claimed_at > LONGEST_UNSTARTED
        ]
        for run in stale:
            run.pool.slow_down()
        self.take_back(stale)

    def enforce_time_limits(self) -> None:
        """Interrupt handlers whose time is up, and go on without those that still do not end."""
        now = time.monotonic()
        for run in list(self._timed.values()):
            if run.started_at is None or run.over or (timeout := run.timeout) is None:
                continue
            late = now - run.started_at - timeout
            if late >= 0 and not run.interrupted:
                run.interrupted = True
                run.pool.interrupt(run)
            if late >= WRITE_OFF_SECONDS and run.end():
                logger.error("Job %s (%s) does not end; going on without it.", run.job.pk, run.job.type)
                self.left_behind += 1
                run.pool.write_off(run)
                self._ended(run, timed_out(run))

    def time_limits(self) -> Iterator[float]:
        """Yield when to enforce time limits again, on the monotonic clock."""
        for run in self._timed.values():
            if run.started_at is not None and run.timeout is not None and not run.over:
                yield run.started_at + run.timeout + (WRITE_OFF_SECONDS if run.interrupted else 0)


@contextmanager
def _after_receivers() -> Iterator[None]:
    """Close what receivers of signals leave open on the connections of this thread."""
    with sessions.watched():
        try:
            yield
        finally:
            sessions.renew_after_receivers()


def _claim_of(run: Run) -> leases.Claim:
    return run.job.pk, run.job.lease_token
