"""The loop: one thread that claims jobs and keeps their leases, beside the pools where handlers run."""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any
from uuid import uuid4

from ..checks.database import CONCURRENCY
from ..db.clock import seconds_ahead
from ..db.inserts import INBOX
from ..db.session_limits import SessionLimits
from ..db.transactions import is_busy, open_here
from ..execution.finalize import Finalized
from ..execution.leases import confirm
from ..execution.run import Run
from ..execution.run_result import RunResult
from ..limits.slots import LONGEST_LEFT
from ..models import Job
from . import heartbeat, hints, preload
from .claimed_runs import ClaimedRuns
from .claimer import Claimer
from .control import Control, Inbox
from .finalizer import Finalizer, Outcomes
from .housekeeper import LONGEST_WAIT, Housekeeper
from .listen import Listener
from .outages import DATABASE_FAILED, Outages, drop
from .poller import LONGEST_POLL, SHORTEST_POLL, Poller
from .pools import EventLoopPool, ThreadPool
from .promoter import Promoter
from .queues import QueueFilter
from .summary import Meter, Summary
from .timetable import Timetable

logger = logging.getLogger("django_ojs_unique.worker")

LEASE = timedelta(seconds=30)
SHUTDOWN_SECONDS = 25.0
ASYNC_CONCURRENCY = 100
WATCH_SECONDS = 1.0
FINALIZE_SECONDS = 5.0
"""When the worker ends: how long storing the last outcomes may take, and the last maintenance task."""


def refuse_open_transactions() -> None:
    """Raise RuntimeError if this thread has a transaction open, which a worker would end."""
    if aliases := open_here():
        raise RuntimeError(
            f"A worker cannot run inside a transaction, and one is open on {', '.join(map(repr, aliases))}: it would"
            " be lost. Call run_jobs() of django_ojs_unique.testing, which runs the jobs inside it; or, in tests, use"
            " a TransactionTestCase."
        )


class Worker:
    """Runs jobs of some queues (None: all; ``*`` matches any text) on one database, until it is stopped.

    ``concurrency`` plain handlers run at once, each in a thread, and ``async_concurrency`` async ones in one event
    loop. It may be silent for a ``lease`` before its jobs go to others. After `stop`, or after ``max_jobs`` runs,
    running jobs have ``shutdown_timeout`` seconds to finish.
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
        on_finalized: Callable[[Summary], None] | None = None,
    ) -> None:
        self.id = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        self.queues = QueueFilter(queues, exclude)
        self.summary = Summary()
        self._using = using
        self._jobs = Job.objects.using(using)
        self._max_jobs = max_jobs
        self._health = heartbeat.HealthFile(health_file) if health_file else None
        self._on_finalized = on_finalized or (lambda summary: None)
        self._control = Control(shutdown_timeout)
        self._inbox = Inbox()
        self._threads = ThreadPool(concurrency, self._hear_of, self._confirm)
        self._event_loop = EventLoopPool(async_concurrency, self._hear_of, self._confirm)
        self._finalizer = Finalizer(self._jobs, self._inbox.put, lambda: len(self._runs))
        self._listener = Listener(using, self._wake)
        self._poller = Poller(self._jobs, self.queues, lambda: self.listening)
        self._runs = ClaimedRuns(self._jobs, lease, self._hear_of)
        self._claimer = Claimer(
            self._jobs,
            self.id,
            lease,
            threads=self._threads,
            event_loop=self._event_loop,
            runs=self._runs,
            poller=self._poller,
            summary=self.summary,
            max_jobs=max_jobs,
        )
        self._housekeeper = Housekeeper(
            self._jobs,
            self.id,
            self.queues,
            found=self._wake,
            listening=lambda: self.listening,
            facts=self._facts,
            obey=self._obey,
        )
        self._promoter = Promoter(self._jobs, self._poller, self._housekeeper.see)
        self._timetable = Timetable((self._promoter.promote, self._watch, self._requeue_uncertain))
        """The periodic tasks that need only the rows of jobs; the housekeeper does the others."""
        self._helpers: tuple[tuple[Any, str], ...] = (
            (self._finalizer, "finalizes"),
            (self._housekeeper, "does the upkeep"),
            (self._threads, "runs plain handlers"),
            (self._event_loop, "runs async handlers"),
            (self._listener, "listens"),
        )
        """The objects with threads, and what these do."""
        self._outages = Outages(using, still_fails=lambda: self._timetable.failing)
        self._lock_wait = min(LONGEST_WAIT, lease.total_seconds() / 6)
        self._limits = SessionLimits(using, lock_wait=self._lock_wait)
        self._missed_since = math.inf
        """Since when a drain finds jobs that it cannot claim, on the monotonic clock."""

    @property
    def meter(self) -> Meter:
        """The object that counts what this worker does."""
        return self._claimer.meter

    @meter.setter
    def meter(self, meter: Meter) -> None:
        self._claimer.meter = meter

    @property
    def left_behind(self) -> int:
        """How many handlers did not end in time, so that the worker went on or stopped without them."""
        return self._runs.left_behind

    @property
    def seconds_left(self) -> float:
        """How many seconds of the shutdown timeout are left for what handlers have started and not ended."""
        return self._control.seconds_left

    @property
    def listening(self) -> bool:
        """Whether each enqueue wakes this worker; while it does not, the worker polls."""
        return self._listener.listening

    @property
    def is_idle(self) -> bool:
        """Whether this worker has no run, and found none when it last looked."""
        return not (self._runs or self._poller.woken or self._poller.polling)

    def run(self, *, drain: bool = False) -> Summary:
        """Work until `stop`, or with ``drain`` until no job is due; finish the running jobs and return the summary.

        Raises RuntimeError inside of a transaction: the worker needs connections of its own.
        """
        refuse_open_transactions()
        preload.import_all(self._jobs.db)
        logger.info("Worker %s started: queues %s.", self.id, ", ".join(self.queues.to_list()))
        self._control.draining = drain
        if drain and self._outages.through(lambda: hints.has_work(self._jobs, self.queues)) is False:
            return self.summary
        self._threads.start()
        self._finalizer.start()
        if not drain:
            self._listener.start()
        self._housekeeper.start(drain=drain, limits=self._limits)
        try:
            while True:
                done = drain and self._housekeeper.is_idle
                busy = self._outages.through(self._turn)
                if not (busy and self._control.may_claim):  # else the next turn claims, and starts them
                    self._claimer.start_all()
                if busy:
                    self._missed_since = math.inf
                if not self._runs and (self._control.stopping or (done and busy is False and self._is_drained())):
                    break
                if self._control.is_late:
                    self._runs.abandon()
                    break
                if not busy:
                    self._collect(self._pause())
        except BaseException:
            self._claimer.hold_all()
            self._runs.abandon()  # nobody extends their leases from here on
            raise
        finally:
            self._end()
        logger.info("Worker %s stopped: %s.", self.id, self.summary)
        return self.summary

    def stop(self) -> None:
        """Claim no more, requeue jobs that have not started, let running ones finish. Safe in a signal handler."""
        self._control.stop()
        self._threads.closed = self._event_loop.closed = True
        self._inbox.put()

    def _turn(self) -> bool:
        """Do all that can be done without waiting; return whether anything was claimed, finalized or requeued."""
        for helper, does in self._helpers:
            if not helper.is_alive:
                raise RuntimeError(f"The thread that {does} died; its last words are in the log.")
        self._runs.enforce_time_limits()  # first: a handler may hold the lock that the other steps wait for
        self._limits.ensure()
        if (now := time.monotonic()) >= min(self._runs.extend_at, self._timetable.due, self._housekeeper.due):
            self._claimer.start_all()  # what is due may take a while
        if now >= self._runs.extend_at:
            self._runs.extend()
        if not self._finalizer.is_thread:
            self._finalizer.finalize_waiting()
        heard = self._collect(0)
        if self._control.stopping:
            self._runs.take_back()
        self._claimer.requeue()
        self._timetable.keep()
        if not self._housekeeper.is_thread:
            self._housekeeper.keep_house()
        is_time = self._poller.due <= time.monotonic() or bool(self._runs) or self._control.draining
        claimed = is_time and self._control.may_claim and self._claimer.claim(ask_for_rules=self._control.draining)
        return heard or claimed

    def _is_drained(self) -> bool:
        """Tell whether a claim in vain was the last. A drain waits a while for locked jobs, and for those of others."""
        if not self._control.may_claim:
            return True
        if self._outages.through(self._claimer.has_jobs_without_slots):
            self._missed_since = math.inf
            return False  # the runs that have them will end, and then nobody else may look
        rests = (self._claimer.has_missed_jobs, self._housekeeper.has_requests)  # a job may have inserted a request
        if all(self._outages.through(has_more) is False for has_more in rests):
            return True
        now = time.monotonic()
        self._missed_since = min(self._missed_since, now)
        return now >= self._missed_since + self._lock_wait + LONGEST_LEFT.total_seconds()

    # For the other threads

    def _confirm(self, run: Run) -> bool:
        try:
            return confirm(self._jobs, [run.job])
        except DATABASE_FAILED as error:
            if not is_busy(error):
                drop(self._using)  # a new connection may reach a server that writes
        except Exception:  # of a receiver of the project, as when the thread connects
            logger.exception("Job %s cannot begin yet.", run.job.pk, extra=run.labels())
            drop(self._using)
        return False

    def _hear_of(self, run: Run, finished: RunResult | None) -> None:
        """Pass on, from any thread, how a run ended; ``finished`` is None if it never started."""
        if finished is None or finished.is_requeued:
            self._inbox.put(run)
            return
        self._finalizer.put(finished)
        if not self._finalizer.is_thread:
            self._inbox.put()

    def _wake(self, queue: str = "") -> None:
        """Look for jobs at once, called from any thread: there may be some in this queue, or with "" in any queue."""
        if queue == INBOX:
            self._housekeeper.hear_of_requests()
            if not self._housekeeper.is_thread:
                self._inbox.put()
        elif not queue or queue in self.queues:
            self._poller.call(queue)
            self._inbox.put()

    def _collect(self, timeout: float) -> bool:
        """Read the messages, and wait up to ``timeout`` seconds for the first; return whether runs were over."""
        heard = False
        for message in self._inbox.take(timeout):
            if isinstance(message, Run):
                self._runs.not_started(message)
            elif message is not None:
                self._count(message)
            heard = heard or message is not None
        return heard

    def _count(self, outcomes: Outcomes) -> None:
        self.summary.add(outcome for _, outcome in outcomes)
        self._housekeeper.hear_of(finished.job for finished, _ in outcomes)
        for finished, outcome in outcomes:
            if (run := self._runs.forget(finished.job)) is not None:
                self.meter.finalized(run, outcome)
            self._claimer.made_room(finished.job.queue)
            if outcome is Finalized.RETRIED:
                seconds = self._promoter.seconds_until(finished.job.run_at)
                self._timetable.hasten(self._promoter.promote, time.monotonic() + seconds)
        if self._max_jobs is not None and self.summary.finalized >= self._max_jobs and not self._control.stopping:
            self.stop()
        self._on_finalized(self.summary)

    # Periodic tasks. Each returns in how many seconds it is due again.

    def _watch(self) -> float:
        """Cancel handlers whose job is lost, store progress, take back stale jobs, and write the health file."""
        self._runs.cancel_lost(longer_than=WATCH_SECONDS / 2)
        self._runs.store_progress()
        self._runs.take_back_stale()
        if self._health is not None and not self._housekeeper.failing:
            held, ahead = len(self._runs), seconds_ahead(self._using)
            self._health.write(
                worker=self.id, pid=os.getpid(), held=held, finalized=self.summary.finalized, clock_ahead=ahead
            )
        return WATCH_SECONDS

    def _requeue_uncertain(self) -> float:
        self._claimer.requeue_uncertain()
        return WATCH_SECONDS

    # For operators; the housekeeper calls these in its thread
    def _facts(self) -> dict[str, Any]:
        return {
            "queues": self.queues.to_list(),
            "concurrency": self._threads.capacity,
            "state": self._control.state,
            "claimed": len(self._runs),
            "finalized": self.summary.finalized,
            "clock_ahead": seconds_ahead(self._using),
        }

    def _obey(self, directive: str) -> bool:
        """Claim jobs or none, or stop, as an operator wants; return whether that is a change."""
        is_new, ends = self._control.obey(directive)
        if ends:
            self.stop()
        if is_new:
            self._wake()
            logger.info("Worker %s was told: %s.", self.id, directive or "go on")
        return is_new

    def _pause(self) -> float:
        """Return how many seconds there is nothing to do, unless a run ends or another thread wakes the loop."""
        now = time.monotonic()
        if self._outages.failures:
            soonest = min([self._control.give_up_at, *self._runs.time_limits()])
            return min(self._outages.pause, max(0.001, soonest - now))
        moments = [self._runs.extend_at, self._timetable.due, self._housekeeper.due, *self._runs.time_limits()]
        if self._runs:
            moments.append(now + LONGEST_POLL)
        elif self._control.draining:
            moments.append(now + SHORTEST_POLL)  # only the housekeeper has something to do
        elif not self._control.quiet:
            moments.append(self._poller.due)
        if self._control.stopping:
            moments.append(self._control.give_up_at)
        return max(0.001, min(moments) - now)

    def _end(self) -> None:
        self._listener.stop()
        self._threads.stop()
        self._event_loop.stop()
        self._finalizer.stop(FINALIZE_SECONDS)
        if not self._finalizer.is_thread:
            self._at_last(self._finalizer.finalize_waiting)
        self._collect(0)
        self._housekeeper.stop(FINALIZE_SECONDS)
        if self._health is not None:
            self._health.remove()
        self._at_last(self._claimer.requeue)  # last: their handlers may still run
        if not self._outages.failures:
            self._at_last(self._claimer.requeue_uncertain)
            self._at_last(lambda: heartbeat.say_goodbye(self._using, self.id))
        self._limits.end()

    def _at_last(self, step: Callable[[], object]) -> None:
        def limited() -> None:
            self._limits.ensure()  # the connection may be a new one, after an outage
            step()

        self._outages.through(limited)
