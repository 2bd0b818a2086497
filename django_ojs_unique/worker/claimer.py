"""Claimer: claims jobs for the free places of a worker, and gives back those that must not wait there."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from django.db.models import QuerySet

from ..db.clock import DatabaseClock
from ..db.dialect import FEW_ROWS
from ..db.dialects import dialect_of
from ..execution.claim import claim, limited_queues
from ..execution.leases import Lease
from ..execution.run import Run
from ..registry import registry
from .claimed_runs import ClaimedRuns
from .meter import Meter
from .poller import LISTENING_POLL, Poller
from .pools import EventLoopPool, Pool, ThreadPool
from .summary import Summary
from .unanswered import Unanswered

SMALL_CLAIM, LARGEST_CLAIM = FEW_ROWS, 200
"""How many jobs to claim at once: few, which is prepared, until a claim has found as many as it asked for."""
LIMITS_SECONDS = LISTENING_POLL * 0.9
"""How long the claimer relies on which queues have a limit; every poll of a listening worker reads them again."""


class Claimer:
    """Claims jobs when the ``poller`` says so, adds them to the runs that are ``held``, and puts them into the pools.

    It counts what it gives back in ``summary`` and ``meter``.
    """

    def __init__(
        self,
        jobs: QuerySet[Any],
        worker_id: str,
        lease: timedelta,
        clock: DatabaseClock,
        *,
        threads: ThreadPool,
        event_loop: EventLoopPool,
        held: ClaimedRuns,
        poller: Poller,
        summary: Summary,
        max_jobs: int | None,
    ) -> None:
        self._jobs = jobs
        self._worker_id = worker_id
        self._lease = lease
        self._clock = clock
        self._threads = threads
        self._event_loop = event_loop
        self._held = held
        self._poller = poller
        self._summary = summary
        self.meter = Meter()
        self._max_jobs = max_jobs
        self._unanswered = Unanswered(jobs, lease)
        self._most: dict[Pool, int] = {}
        """How many jobs the next claim for a pool may ask for; SMALL_CLAIM if it is not here."""
        self._ready: dict[Pool, list[Run]] = {}
        """The runs that are held, but not yet in their pools."""
        self._limited: tuple[frozenset[str], float] = frozenset(), float("-inf")
        """The queues with a limit, and when they were read on the monotonic clock."""

    def claim(self, *, ask_for_limits: bool = False) -> bool:
        """Claim jobs for the free places in the pools; return whether there were any.

        Where one statement claims a batch, a full batch is not started before the next call has sent its statement. If
        there is no next call, `start_all` must be called. ``ask_for_limits``: do not rely on the last second's
        knowledge of which queues have a limit.
        """
        found = full = False
        began = self._poller.begin()
        for pool, types in self._types().items():
            if not types:
                continue
            room = min(pool.room(LARGEST_CLAIM), self._remaining(), self._most.get(pool, SMALL_CLAIM))
            if room > 0:
                limited = None if ask_for_limits else self._limited_queues()
                found = self._claim(pool, types, room, limited) or found
            else:
                self._start(pool)
                full = True
        self._poller.end(began, found=found, full=full)
        return found

    def start_all(self) -> None:
        """Let all claimed jobs start."""
        for pool in list(self._ready):
            self._start(pool)

    def give_back(self) -> None:
        """Give back the jobs that were taken back before they started."""
        self._note_released(self._held.give_back())

    def give_back_unanswered(self) -> None:
        """Give back the jobs of claims whose answer was lost."""
        if released := self._unanswered.give_back():
            self._note_released(released)
            self._poller.call()

    def _claim(self, pool: Pool, types: Sequence[str], room: int, limited: Collection[str] | None) -> bool:
        """Claim a batch for a pool, and start the batch before it; return whether there were any jobs."""
        try:
            queues, lease_from = self._poller.queues(), time.monotonic()
            with self._unanswered.claiming() as token:
                jobs = claim(
                    self._jobs,
                    queues=queues,
                    types=types,
                    limit=room,
                    worker_id=self._worker_id,
                    lease=self._lease,
                    now=self._clock.now(),
                    token=token,
                    limited=limited,
                    passed_over=self._poller.passed_over,
                    meanwhile=partial(self._start, pool) if pool in self._ready else None,
                )
        finally:
            self._start(pool)
        self._most[pool] = LARGEST_CLAIM if len(jobs) == room else SMALL_CLAIM
        if len(jobs) < room:
            self._poller.exhausted()
        if jobs:
            self._take_on(jobs, pool, lease_from)
        return bool(jobs)

    def _take_on(self, jobs: Sequence[Any], pool: Pool, lease_from: float) -> None:
        """Hold claimed jobs for a pool; give those back at once that must not wait there for their start."""
        self.meter.claimed(jobs)
        idle, runs, leases = pool.capacity - pool.held, [], Lease(self._lease)
        for job in jobs:
            lease = leases.of(job)
            until = lease_from + lease.total_seconds()
            run = Run(job, pool=pool, lease=lease, lease_until=until, clock=self._clock.now)
            self._held.add(run)
            runs.append(run)
        self._ready[pool] = runs
        pool.careful = any(_is_at_risk(job) for job in jobs)
        if pool.careful:
            self._held.take_back(run for run in runs[max(idle, 0) :] if _is_at_risk(run.job))
            self.give_back()  # before another job starts, which may kill the worker
        if pool.careful or len(jobs) < LARGEST_CLAIM or not dialect_of(self._jobs).claims_at_once:
            self._start(pool)
            time.sleep(0)  # lets another thread of this process go on at once, so that the first handlers start now

    def _start(self, pool: Pool) -> None:
        """Let the jobs start that were claimed last for a pool."""
        if pool in self._ready:
            for run in self._ready.pop(pool):
                pool.put(run)

    def _types(self) -> dict[Pool, list[str]]:
        pools: dict[Pool, list[str]] = {self._threads: [], self._event_loop: []}
        for definition in registry.definitions():
            pools[self._event_loop if definition.is_async else self._threads].append(definition.type)
        return pools

    def _limited_queues(self) -> frozenset[str] | None:
        """Return the queues with a limit, or None where each claim queries for the rules anyway."""
        if not dialect_of(self._jobs).claims_at_once:
            return None
        names, read_at = self._limited
        now = time.monotonic()
        if now - read_at > LIMITS_SECONDS:
            names = limited_queues(self._jobs.db)
            self._limited = names, now
        return names

    def _remaining(self) -> int:
        return LARGEST_CLAIM if self._max_jobs is None else self._max_jobs - self._summary.settled - len(self._held)

    def _note_released(self, count: int) -> None:
        self._summary.released += count
        self.meter.released(count)


def _is_at_risk(job: Any) -> bool:
    """Tell whether a job must not wait in a worker for its start.

    If the worker dies meanwhile, the attempt counts though nothing ran. A job that kills its worker again and again
    could use up all attempts of the jobs that wait beside it.
    """
    return bool(job.attempt > 1 or job.attempt >= job.max_attempts)
