"""Holdings: the runs that a worker has claimed and not settled, and what becomes of them as time goes by."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import timedelta
from typing import Any

from django.db.models import QuerySet

from . import hold
from .lanes import LONGEST_UNSTARTED
from .run import Finished, Run, timed_out

logger = logging.getLogger("django_ojs_unique.worker")

WRITE_OFF_SECONDS = 5.0
"""How long a handler may go on after it was told that its time is up."""


class Holdings:
    """The runs that a worker holds; what gives one up says so to ``ended``, as the lanes do."""

    def __init__(self, jobs: QuerySet[Any], ended: Callable[[Run, Finished], None]) -> None:
        self.left_behind = 0
        """Handlers that did not end, and without which the worker went on."""
        self._jobs = jobs
        self._ended = ended
        self._runs: dict[int, Run] = {}
        """By the identity of the job in memory: one job may be here twice, under a lease that was lost and a new
        one."""
        self._unstarted: list[Run] = []

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, run: Run) -> None:
        """Hold a run that was just claimed for its lane."""
        self._runs[id(run.job)] = run
        run.lane.held += 1

    def forget(self, job: Any) -> Run | None:
        """Hold no longer what is settled or given back; return its run, if it was held."""
        run = self._runs.pop(id(job), None)
        if run is not None:
            run.lane.held -= 1
        return run

    # Back to the other workers

    def take_back(self, runs: Iterable[Run] | None = None) -> None:
        """Let these (by default: all) runs not start if they have not started, and give them back soon."""
        self._unstarted += [run for run in (list(self._runs.values()) if runs is None else runs) if run.take_back()]

    def not_started(self, run: Run) -> None:
        """Give back soon what its lane did not start."""
        self._unstarted.append(run)

    def give_back(self) -> int:
        """Give back what did not start, but for rows that somebody has locked; return how many jobs were."""
        if not self._unstarted:
            return 0
        released, locked = hold.give_back(self._jobs, [run.job for run in self._unstarted])
        for run in self._unstarted:
            if _holding(run) not in locked:
                self.forget(run.job)
        self._unstarted = [run for run in self._unstarted if _holding(run) in locked]
        return released

    def abandon(self) -> None:
        """Go on without the handlers that did not end in time; their jobs go back at the end, uncounted."""
        self.take_back()
        for run in list(self._runs.values()):
            if run.end():
                logger.warning("Giving back job %s (%s): it did not end in time.", run.job.pk, run.job.type)
                self.left_behind += 1
                run.cancelled = True
                run.lane.cancel(run)
                run.lane.write_off(run)
                self._unstarted.append(run)

    # What time brings

    def extend(self) -> Collection[timedelta]:
        """Extend all leases; return their lengths."""
        by_length: dict[timedelta, list[Run]] = {}
        for run in self._runs.values():
            by_length.setdefault(run.lease, []).append(run)
        for lease, runs in by_length.items():
            until = time.monotonic() + lease.total_seconds()
            kept = hold.extend(self._jobs, [run.job for run in runs], lease)
            for run in runs:
                if _holding(run) in kept:
                    run.lease_until = until
        return by_length.keys()

    def cancel_lost(self, longer_than: float) -> None:
        """Tell handlers that have run for longer than so many seconds when their job is no longer held."""
        now = time.monotonic()
        running = [
            run for run in self._runs.values() if run.started_at is not None and now - run.started_at > longer_than
        ]
        if running:
            lost = hold.lost(self._jobs, [run.job for run in running])
            for run in running:
                if _holding(run) in lost and not run.cancelled and not run.over:
                    run.cancelled = True
                    run.lane.cancel(run)

    def store_progress(self) -> None:
        """Store what handlers have said about their progress."""
        said = []
        for run in self._runs.values():
            progress, run.progress = run.progress, None  # at once, as the handler may say more at any time
            if progress is not None and not run.over:
                said.append((run.job, progress))
        if said:
            hold.store_progress(self._jobs, said)

    def take_back_stale(self) -> None:
        """Hoard nothing that others could run."""
        now = time.monotonic()
        stale = [
            run for run in self._runs.values() if run.started_at is None and now - run.claimed_at > LONGEST_UNSTARTED
        ]
        for run in stale:
            run.lane.slow_down()
        self.take_back(stale)

    def enforce_time_limits(self) -> None:
        """Interrupt handlers whose time is up, and go on without those that do not heed it."""
        now = time.monotonic()
        for run in list(self._runs.values()):
            if run.started_at is None or run.over or (timeout := run.timeout) is None:
                continue
            late = now - run.started_at - timeout
            if late >= 0 and not run.interrupted:
                run.interrupted = True
                run.lane.interrupt(run)
            if late >= WRITE_OFF_SECONDS and run.end():
                logger.error("Job %s (%s) does not end; going on without it.", run.job.pk, run.job.type)
                self.left_behind += 1
                run.lane.write_off(run)
                self._ended(run, timed_out(run))

    def time_limits(self) -> Iterator[float]:
        """Yield when to enforce time limits again, on the monotonic clock."""
        for run in self._runs.values():
            if run.started_at is not None and run.timeout is not None and not run.over:
                yield run.started_at + run.timeout + (WRITE_OFF_SECONDS if run.interrupted else 0)


def _holding(run: Run) -> hold.Holding:
    return run.job.pk, run.job.lease_token
