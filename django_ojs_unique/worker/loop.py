"""The loop: one thread that talks to the database about jobs, beside the lanes where handlers run."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from queue import Empty, SimpleQueue
from typing import Any
from uuid import uuid4

from ..models import Event, Job, SuppressedAttempt, WorkerProcess
from ..registry import registry
from ..transactions import is_transient
from . import maintain, presence, schedule
from .claim import claim
from .clock import DatabaseClock
from .holdings import Holdings
from .lanes import EventLoop, Lane, Threads
from .lease import Lease
from .listen import Listener
from .meter import Meter
from .outages import DATABASE_FAILED, drop, pause_after
from .queues import QueueFilter
from .retention import prune
from .run import Finished, Run
from .settle import Settled
from .settler import Outcomes, Settler

logger = logging.getLogger("django_ojs_unique.worker")

LEASE = timedelta(seconds=30)
SHUTDOWN_SECONDS = 25.0
CONCURRENCY = 4
ASYNC_CONCURRENCY = 100
LARGEST_CLAIM = 200
SHORTEST_POLL, LONGEST_POLL = 0.01, 0.5
"""Seconds between two looks for jobs: the shorter after work, growing to the longer while there is none."""
LISTENING_POLL = 1.0
"""The same, where every enqueue wakes the worker: only for a notification that went astray."""
WATCH_SECONDS = 1.0
CRON_SECONDS = 5.0
SWEEP_SECONDS = 10.0
UNKNOWN_SECONDS = 60.0
SETTLE_SECONDS = 5.0
"""How long the last outcomes may take to be written when the worker ends."""


@dataclass(slots=True)
class Summary:
    """What a worker has done: how many runs ended in which way."""

    completed: int = 0
    skipped: int = 0
    retried: int = 0
    discarded: int = 0
    refused: int = 0
    released: int = 0

    @property
    def failed(self) -> int:
        """Runs that raised."""
        return self.retried + self.discarded

    @property
    def settled(self) -> int:
        """All runs that ended."""
        return self.completed + self.skipped + self.failed + self.refused


class Worker:
    """Runs jobs of some queues (None: all; ``*`` matches any text) on one database, until it is stopped.

    ``concurrency`` plain handlers run at once, each in a thread, and ``async_concurrency`` async ones in one event
    loop. ``lease`` is how long the worker may be silent before its jobs go to others; ``shutdown_timeout`` how many
    seconds running jobs have to finish once it is stopped; ``max_jobs`` after how many runs it stops by itself.
    """

    def __init__(
        self,
        *,
        queues: Iterable[str] | None = None,
        exclude: Iterable[str] = (),
        concurrency: int = CONCURRENCY,
        async_concurrency: int = ASYNC_CONCURRENCY,
        using: str = "default",
        lease: timedelta = LEASE,
        shutdown_timeout: float = SHUTDOWN_SECONDS,
        max_jobs: int | None = None,
        health_file: str | None = None,
        on_settled: Callable[[Summary], None] | None = None,
    ) -> None:
        self.id = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        self.queues = QueueFilter(queues, exclude)
        self.summary = Summary()
        self.meter = Meter()
        """Who counts what this worker does."""
        self._using = using
        self._jobs = Job.objects.using(using)
        self._lease = lease
        self._shutdown_timeout = shutdown_timeout
        self._max_jobs = max_jobs
        self._health = presence.HealthFile(health_file) if health_file else None
        self._on_settled = on_settled or (lambda summary: None)
        self._clock = DatabaseClock(using)
        self._news: SimpleQueue[Run | Outcomes | None] = SimpleQueue()
        """What the other threads tell: a run that never started, what was settled, or just to look."""
        self._threads = Threads(concurrency, self._hear_of)
        self._event_loop = EventLoop(async_concurrency, self._hear_of)
        self._settler = Settler(self._jobs, self._news.put)
        self._listener = Listener(using, self._wake)
        self._held = Holdings(self._jobs, self._hear_of)
        self._draining = False
        self._stopping = False
        self._quiet = False
        """Whether an operator wants no more jobs taken."""
        self._give_up_at = float("inf")
        self._woken = True
        self._looked_at = float("-inf")
        self._outages = 0
        self._poll = SHORTEST_POLL
        self._waiting: list[str] = []
        self._called: set[str] = set()
        self._seen = True
        """Whether the last look found jobs, or there may be some that nobody calls for."""
        self._due: dict[Callable[[], float], float] = {}

    @property
    def left_behind(self) -> int:
        """Handlers that did not end in time, and without which the worker went on or stopped."""
        return self._held.left_behind

    def run(self, *, drain: bool = False) -> Summary:
        """Work until `stop`, or with ``drain`` until no job is due; finish what runs, then return the summary."""
        logger.info("Worker %s started: queues %s.", self.id, ", ".join(self.queues.to_list()))
        self._draining = drain
        self._threads.start()
        self._settler.start()
        if not drain:
            self._listener.start()
        self._due = dict.fromkeys(
            (
                self._extend,  # first, so that no other task that fails or waits can starve it
                self._read_clock,
                self._declare,
                self._rescue,
                self._promote,
                self._tick,
                self._watch,
                self._sweep,
            ),
            0.0,
        )
        self._due[self._report_unknown] = time.monotonic() + UNKNOWN_SECONDS
        try:
            while True:
                busy = self._through_outages(self._turn)
                if not self._held and (self._stopping or (drain and busy is False)):
                    break
                if self._stopping and time.monotonic() >= self._give_up_at:
                    self._held.abandon()
                    break
                if not busy:
                    self._collect(self._pause())
        except BaseException:
            self._held.abandon()  # nobody extends their leases from here on
            raise
        finally:
            self._end()
        logger.info("Worker %s stopped: %s.", self.id, self.summary)
        return self.summary

    def stop(self) -> None:
        """Claim no more, give back what has not started, let running jobs finish. Safe in a signal handler."""
        self._stopping = self._threads.closed = self._event_loop.closed = True
        self._give_up_at = min(self._give_up_at, time.monotonic() + self._shutdown_timeout)
        self._news.put(None)

    def _turn(self) -> bool:
        """Do all that can be done without waiting; return whether anything was claimed, settled or given back."""
        if not self._settler.is_alive:
            raise RuntimeError("The thread that settles died; its last words are in the log.")
        if not self._settler.is_thread:
            self._settler.settle_waiting()
        heard = self._collect(0)
        self._held.enforce_time_limits()
        if self._stopping:
            self._held.take_back()
        self._give_back()
        self._keep_time()
        claimed = not self._stopping and not self._quiet and self._claim()
        return heard or claimed

    def _claim(self) -> bool:
        """Fill the lanes; return whether there was anything to fill them with."""
        now = time.monotonic()
        if self._idle_until() > now and not self._held:
            return False
        found = full = self._woken = False
        for lane, types in self._types().items():
            room = min(lane.room(LARGEST_CLAIM), self._remaining())
            if not types or room <= 0:
                full = full or bool(types)
                continue
            if not self._waiting:
                self._waiting = self._look()
            lease_from = time.monotonic()
            jobs = claim(
                self._jobs,
                queues=self._waiting,
                types=types,
                limit=room,
                worker_id=self.id,
                lease=self._lease,
                now=self._clock.now(),
            )
            self._take_on(jobs, lane, lease_from)
            found = found or bool(jobs)
            if len(jobs) < room:
                self._waiting = []  # other queues may have jobs by now
        self._poll = SHORTEST_POLL if found else min(self._poll * 2, LONGEST_POLL)
        self._seen = found or full  # there may be more, and nobody calls for it again
        self._woken = self._woken or self._seen
        self._looked_at = now
        return found

    def _take_on(self, jobs: Sequence[Any], lane: Lane, lease_from: float) -> None:
        """Hand claimed jobs to a lane; give those back at once that must not wait there for their start."""
        self.meter.claimed(jobs)
        idle, runs, leases = lane.capacity - lane.held, [], Lease(self._lease)
        for job in jobs:
            lease = leases.of(job)
            until = lease_from + lease.total_seconds()
            run = Run(job, lane=lane, lease=lease, lease_until=until, clock=self._clock.now)
            self._held.add(run)
            runs.append(run)
            if job.visibility_timeout_ms is not None:  # it may be shorter than what the next extension is due for
                soon = lease_from + lease.total_seconds() / 3
                self._due[self._extend] = min(self._due[self._extend], soon)
        lane.careful = any(_is_at_risk(job) for job in jobs)
        self._held.take_back(run for run in runs[max(idle, 0) :] if _is_at_risk(run.job))
        self._give_back()  # before any other begins, as that may be the one that kills the worker
        for run in runs:
            lane.put(run)

    def _look(self) -> list[str]:
        """Return the queues to claim from: if nothing but calls has happened since the last look, those that called."""
        called = set(self._called)
        self._called -= called
        if called and "" not in called and not self._seen and time.monotonic() < self._looked_at + LISTENING_POLL:
            return sorted(called)
        return self.queues.waiting(self._jobs)

    def _types(self) -> dict[Lane, list[str]]:
        lanes: dict[Lane, list[str]] = {self._threads: [], self._event_loop: []}
        for definition in registry.definitions():
            lanes[self._event_loop if definition.is_async else self._threads].append(definition.type)
        return lanes

    def _idle_until(self) -> float:
        """Return when to look for jobs again, on the monotonic clock."""
        if self._woken or self._called or self._draining:
            return 0
        return self._looked_at + (LISTENING_POLL if self._listener.listening else self._poll)

    def _remaining(self) -> int:
        return LARGEST_CLAIM if self._max_jobs is None else self._max_jobs - self.summary.settled - len(self._held)

    # What the other threads tell

    def _hear_of(self, run: Run, finished: Finished | None) -> None:
        """Pass on, from any thread, that a run is over."""
        if finished is None:
            self._news.put(run)
            return
        self._settler.put(finished)
        if not self._settler.is_thread:
            self._news.put(None)

    def _wake(self, queue: str) -> None:
        if not queue or queue in self.queues:
            self._called.add(queue)
            self._woken = True
            self._news.put(None)

    def _collect(self, timeout: float) -> bool:
        """Take in the news, waiting up to ``timeout`` seconds for the first; return whether runs were over."""
        heard = False
        try:
            news = self._news.get(timeout=timeout) if timeout else self._news.get_nowait()
            while True:
                if isinstance(news, Run):
                    self._held.not_started(news)
                elif news is not None:
                    self._count(news)
                heard = heard or news is not None
                news = self._news.get_nowait()
        except Empty:
            return heard

    def _count(self, outcomes: Outcomes) -> None:
        for finished, outcome in outcomes:
            setattr(self.summary, outcome, getattr(self.summary, outcome) + 1)
            run = self._held.forget(finished.job)
            if run is not None:
                self.meter.settled(run, outcome)
            if outcome is Settled.RETRIED:
                self._expect(finished.job.run_at)
        if self._max_jobs is not None and self.summary.settled >= self._max_jobs and not self._stopping:
            self.stop()
        self._on_settled(self.summary)

    def _give_back(self) -> None:
        released = self._held.give_back()
        self.summary.released += released
        self.meter.released(released)

    # What time brings

    def _keep_time(self) -> None:
        """Do what is due. Each task returns in how many seconds it is due again."""
        for task, due in self._due.items():
            if time.monotonic() >= due:
                try:
                    again = task()
                except DATABASE_FAILED:
                    raise
                except Exception:  # a row that somebody changed, a receiver: no reason to end
                    logger.exception("A task of the worker failed; trying again later.")
                    again = SWEEP_SECONDS
                self._due[task] = time.monotonic() + again

    def _read_clock(self) -> float:
        self._clock.read()
        return SWEEP_SECONDS

    def _declare(self) -> float:
        schedule.sync(self._using, self._clock.now())
        return float("inf")

    def _promote(self) -> float:
        """Make available what is due; come back when the next is, or to see what was enqueued meanwhile."""
        now = self._clock.now()
        due = maintain.next_due(self._jobs)
        if due is not None and due <= now:
            self._find(maintain.promote(self._jobs, now))
            due = maintain.next_due(self._jobs)
        self._waiting = []
        if due is None or due <= now:  # what is still due is locked by somebody
            return LONGEST_POLL
        return min(LONGEST_POLL, (due - now).total_seconds())

    def _find(self, count: int) -> None:
        """Look for jobs if some have become available for which nobody calls."""
        if count:
            self._woken = self._seen = True

    def _expect(self, moment: Any) -> None:
        """Promote in time what is due at a moment that is known beforehand."""
        soon = time.monotonic() + max(0.0, (moment - self._clock.now()).total_seconds())
        self._due[self._promote] = min(self._due[self._promote], soon)

    def _tick(self) -> float:
        now = self._clock.now()
        due = schedule.tick(self._using, now)
        return CRON_SECONDS if due is None else min(CRON_SECONDS, max(0.0, (due - now).total_seconds()))

    def _extend(self) -> float:
        """Extend all leases three times as often as the shortest one needs it."""
        return min([self._lease, *self._held.extend()]).total_seconds() / 3

    def _watch(self) -> float:
        """Tell handlers whose job is lost, store their progress, and hoard nothing that others could run."""
        self._held.cancel_lost(longer_than=WATCH_SECONDS / 2)
        self._held.store_progress()
        self._held.take_back_stale()
        if self._health is not None:
            self._health.write(worker=self.id, pid=os.getpid(), held=len(self._held), settled=self.summary.settled)
        return WATCH_SECONDS

    def _rescue(self) -> float:
        """Take back what dead workers held, and discard what expired before it started."""
        now = self._clock.now()
        self._find(maintain.rescue(self._jobs, now))
        maintain.expire(self._jobs, now)
        return WATCH_SECONDS

    def _sweep(self) -> float:
        now = self._clock.now()
        prune(self._jobs, now)
        SuppressedAttempt.objects.using(self._using).prune(now)
        Event.objects.using(self._using).prune(now)
        self._obey(self._say_hello(now))
        return SWEEP_SECONDS

    def _say_hello(self, now: datetime) -> str:
        """Write who this is and what it does; return what an operator wants of it."""
        return presence.say_hello(
            self._using,
            self.id,
            now,
            hostname=socket.gethostname(),
            pid=os.getpid(),
            queues=self.queues.to_list(),
            concurrency=self._threads.capacity,
            state="stopping" if self._stopping else "quiet" if self._quiet else "running",
            held=len(self._held),
            settled=self.summary.settled,
        )

    def _obey(self, directive: str) -> None:
        """Take jobs or none, or stop, as an operator wants; say at once what has changed."""
        quiet = directive == WorkerProcess.Directive.QUIET
        ends = directive == WorkerProcess.Directive.TERMINATE and not self._stopping
        if quiet == self._quiet and not ends:
            return
        self._quiet, self._woken = quiet, True
        if ends:
            self.stop()
        logger.info("Worker %s was told: %s.", self.id, directive or "go on")
        self._say_hello(self._clock.now())

    def _report_unknown(self) -> float:
        strangers = maintain.unknown_types(self._jobs, list(registry), self.queues.waiting(self._jobs))
        if strangers:
            logger.warning("Jobs wait for handlers that are not here: %s.", ", ".join(strangers[:10]))
        return UNKNOWN_SECONDS

    def _pause(self) -> float:
        """Return for how long there is nothing to do, unless something ends or somebody calls."""
        if self._outages:
            return min(pause_after(self._outages), max(0.001, self._give_up_at - time.monotonic()))
        now = time.monotonic()
        moments = [*self._due.values(), *self._held.time_limits()]
        if self._held:
            moments.append(now + LONGEST_POLL)
        elif not self._quiet:
            moments.append(self._idle_until())
        if self._stopping:
            moments.append(self._give_up_at)
        return max(0.001, min(moments) - now)

    # The end, and what comes between

    def _end(self) -> None:
        self._listener.stop()
        self._threads.stop()
        self._event_loop.stop()
        self._settler.stop(SETTLE_SECONDS)
        if not self._settler.is_thread:
            self._through_outages(self._settler.settle_waiting)
        self._collect(0)
        if self._health is not None:
            self._health.remove()
        self._through_outages(self._give_back)  # last: their handlers may still run
        if not self._outages:
            self._through_outages(lambda: presence.say_goodbye(self._using, self.id))

    def _through_outages(self, turn: Callable[[], Any]) -> Any:
        """Take a turn; when the database fails, say so, drop the connection and return None: the next turn retries."""
        try:
            busy = turn()
        except DATABASE_FAILED as error:
            if is_transient(error):  # a deadlock, or a serialisation failure: the other one went first
                return True
            logger.warning("The database %r failed; trying again: %s", self._using, error)
            drop(self._using)
            self._outages += 1
            return None
        self._outages = 0
        return busy


def _is_at_risk(job: Any) -> bool:
    """Tell whether a job must not wait in a worker for its start.

    If the worker dies meanwhile, the attempt counts though nothing ran: beside a job that kills its worker again and
    again, the others would be discarded without one run.
    """
    return bool(job.attempt > 1 or job.attempt >= job.max_attempts)
