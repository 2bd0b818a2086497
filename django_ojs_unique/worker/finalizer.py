"""The finalizer: store together the outcomes of all runs that have ended while it stored the ones before."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Event
from typing import Any

from django.db import connections
from django.db.models import QuerySet

from ..db import sessions
from ..db.dialects import dialect_of
from ..db.session_limits import SessionLimits
from ..db.transactions import is_transient
from ..execution.finalize import Finalized, announce_outcome, finalize
from ..execution.run import labels
from ..execution.run_result import RunResult
from ..lifecycle.events import collected
from .outages import DATABASE_FAILED, Outages
from .threads import WatchedThread

logger = logging.getLogger("django_ojs_unique.worker")

LARGEST_BATCH = 200
GATHER_SECONDS = 0.003
"""How long to wait for more runs to end, while there are some: a statement costs more than its rows."""
MOST_FAILURES = 3
"""How often a batch may fail before its runs are finalized one by one."""
LOCKED_SECONDS = 0.1
"""How many seconds to leave a row alone that another transaction has locked."""

Outcomes = Sequence[tuple[RunResult, Finalized]]


class Finalizer:
    """Takes runs that have ended from any thread, finalizes them in batches, and calls ``report`` with the outcomes.

    It has a thread and a connection of its own, so that the next claim does not wait for it. On SQLite, which has one
    writer at a time, the loop calls `finalize_waiting` instead. ``runs`` returns how many runs the worker has, those
    that have ended included.
    """

    def __init__(
        self, jobs: QuerySet[Any], report: Callable[[Outcomes], None], runs: Callable[[], int] = lambda: 0
    ) -> None:
        self.is_thread = not dialect_of(jobs).single_writer
        self._jobs = jobs
        self._report = report
        self._runs = runs
        self._ended: SimpleQueue[RunResult | None] = SimpleQueue()
        self._batch: list[RunResult] = []
        self._doubtful: set[int] = set()
        """The ``id()`` of each run in the batch that failed: the answer to its commit may have been lost."""
        self._thread = WatchedThread("ojs-finalize", self._serve)
        self._stopping = Event()

    def start(self) -> None:
        """Start the thread, if there is one."""
        if self.is_thread:
            self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether no exception has ended the thread, if there is one."""
        return not self._thread.died

    def put(self, finished: RunResult) -> None:
        """Finalize a run as soon as possible."""
        self._ended.put(finished)

    def finalize_waiting(self, *, singly: bool = False) -> bool:
        """Finalize the runs that have ended, up to a batch; return whether any was finalized.

        Raises what the database raises. ``singly`` is for a batch that has failed again and again: the database may
        refuse one run in it.
        """
        self._collect(self._ended.get_nowait)
        if not self._batch:
            return False
        try:
            outcomes: Outcomes = self._finalize_singly() if singly else self._finalize(self._batch[:LARGEST_BATCH])
        except DATABASE_FAILED:
            raise
        except Exception:
            outcomes = self._finalize_singly()
        finalized = {id(finished) for finished, _ in outcomes}
        self._batch = [finished for finished in self._batch if id(finished) not in finalized]
        self._doubtful -= finalized
        _announce(outcomes, self._jobs.db)
        self._report(outcomes)
        return bool(outcomes)

    def stop(self, timeout: float) -> None:
        """Finalize the remaining runs and end; give up after ``timeout`` seconds."""
        self._stopping.set()
        self._ended.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _finalize(self, batch: Sequence[RunResult]) -> Outcomes:
        try:
            return finalize(self._jobs, batch, self._doubtful)
        except DATABASE_FAILED:
            self._doubtful.update(map(id, batch))
            raise

    def _finalize_singly(self) -> Outcomes:
        """Finalize run by run, so that one that fails blocks no other; its job is rescued when its lease runs out."""
        outcomes: list[tuple[RunResult, Finalized]] = []
        for finished in self._batch[:LARGEST_BATCH]:
            try:
                outcomes += self._finalize([finished])
            except DATABASE_FAILED:
                self._batch.append(self._batch.pop(self._batch.index(finished)))  # let the others go first
                if outcomes:
                    break
                raise
            except Exception:
                logger.exception("Cannot finalize job %s.", finished.job.pk, extra=labels(finished.job))
                outcomes.append((finished, Finalized.REFUSED))
        return outcomes

    def _collect(self, first: Callable[[], RunResult | None]) -> None:
        try:
            ended = first()
            while True:
                if ended is not None:
                    self._batch.append(ended)
                ended = self._ended.get_nowait()
        except Empty:
            return

    def _serve(self) -> None:
        outages = Outages(self._jobs.db, "The database %r failed; finalizing again")
        limits = SessionLimits(self._jobs.db)
        try:
            while True:
                if not self._batch:
                    self._collect(self._ended.get)
                if len(self._batch) < min(self._runs(), LARGEST_BATCH):
                    self._stopping.wait(GATHER_SECONDS)
                try:
                    limits.ensure()
                    progress = self.finalize_waiting(singly=outages.failures >= MOST_FAILURES)
                    outages.answered()
                except DATABASE_FAILED as error:
                    if is_transient(error):
                        continue
                    outages.failed(error)
                    self._stopping.wait(outages.pause)
                    if self._stopping.is_set():
                        time.sleep(LOCKED_SECONDS)
                    continue
                if self._batch and not progress:
                    time.sleep(LOCKED_SECONDS)
                if self._stopping.is_set() and not self._batch:
                    return
        finally:
            limits.end()
            connections.close_all()


def _announce(outcomes: Outcomes, using: str) -> None:
    with sessions.watched(), collected(using):
        for finished, outcome in outcomes:
            try:
                announce_outcome(finished, outcome, using)
            except BaseException:  # Django catches all but SystemExit and its like
                logger.exception("A receiver tried to end the worker.")
        sessions.renew_after_receivers()  # before the events are written, or they would be undone too
