"""The settler: settle what has ended while the last settle was on its way, all together."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any

from django.db import connections
from django.db.models import QuerySet

from ..events import collected
from ..transactions import is_transient
from .outages import DATABASE_FAILED, drop, pause_after
from .run import Finished, drop_broken_connections, labels
from .settle import Settled, announce_outcome, settle

logger = logging.getLogger("django_ojs_unique.worker")

LARGEST_BATCH = 200
MOST_FAILURES = 3
"""How often a batch may fail before its runs are settled one by one."""
LOCKED_SECONDS = 0.1
"""How long to leave a row alone that somebody else has locked."""

Outcomes = Sequence[tuple[Finished, Settled]]


class Settler:
    """Takes runs that have ended from any thread, settles them in batches, and tells ``report`` what became of them.

    It has a thread and a connection of its own, so that the next claim need not wait for it; on SQLite, which has one
    writer at a time, the loop calls `settle_waiting` instead.
    """

    def __init__(self, jobs: QuerySet[Any], report: Callable[[Outcomes], None]) -> None:
        self.is_thread = connections[jobs.db].vendor != "sqlite"
        self._jobs = jobs
        self._report = report
        self._ended: SimpleQueue[Finished | None] = SimpleQueue()
        self._batch: list[Finished] = []
        self._thread = Thread(target=self._serve, name="ojs-settle", daemon=True)
        self._stopping = Event()

    def start(self) -> None:
        """Begin."""
        if self.is_thread:
            self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether what is put will be settled."""
        return not self.is_thread or self._thread.is_alive()

    def put(self, finished: Finished) -> None:
        """Settle a run as soon as possible."""
        self._ended.put(finished)

    def settle_waiting(self, *, singly: bool = False) -> bool:
        """Settle what has ended, up to a batch; return whether there was anything. Raises what the database raises.

        ``singly`` is for when a batch has failed again and again: one run in it may be what the database refuses.
        """
        self._collect(self._ended.get_nowait)
        if not self._batch:
            return False
        try:
            outcomes: Outcomes = self._settle_singly() if singly else settle(self._jobs, self._batch[:LARGEST_BATCH])
        except DATABASE_FAILED:
            raise
        except Exception:
            outcomes = self._settle_singly()
        settled = {id(finished) for finished, _ in outcomes}
        self._batch = [finished for finished in self._batch if id(finished) not in settled]
        _announce(outcomes, self._jobs.db)
        self._report(outcomes)
        return bool(outcomes)

    def stop(self, timeout: float) -> None:
        """Settle what is left and end; give up after ``timeout`` seconds."""
        self._stopping.set()
        self._ended.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _settle_singly(self) -> Outcomes:
        """Settle run by run, so that one that cannot be settled holds up no other; leave it to its lease."""
        outcomes: list[tuple[Finished, Settled]] = []
        for finished in self._batch[:LARGEST_BATCH]:
            try:
                outcomes += settle(self._jobs, [finished])
            except DATABASE_FAILED:
                self._batch.append(self._batch.pop(self._batch.index(finished)))  # let the others go first
                if outcomes:
                    break
                raise
            except Exception:
                logger.exception("Cannot settle job %s.", finished.job.pk, extra=labels(finished.job))
                outcomes.append((finished, Settled.REFUSED))
        return outcomes

    def _collect(self, first: Callable[[], Finished | None]) -> None:
        try:
            ended = first()
            while True:
                if ended is not None:
                    self._batch.append(ended)
                ended = self._ended.get_nowait()
        except Empty:
            return

    def _serve(self) -> None:
        failures = 0
        try:
            while True:
                if not self._batch:
                    self._collect(self._ended.get)
                try:
                    progress = self.settle_waiting(singly=failures >= MOST_FAILURES)
                    failures = 0
                except DATABASE_FAILED as error:
                    if is_transient(error):
                        continue
                    logger.warning("The database %r failed; settling again: %s", self._jobs.db, error)
                    drop(self._jobs.db)
                    failures += 1
                    self._stopping.wait(pause_after(failures))
                    if self._stopping.is_set():
                        time.sleep(LOCKED_SECONDS)
                    continue
                if self._batch and not progress:
                    time.sleep(LOCKED_SECONDS)
                if self._stopping.is_set() and not self._batch:
                    return
        finally:
            connections.close_all()


def _announce(outcomes: Outcomes, using: str) -> None:
    with collected(using):
        for finished, outcome in outcomes:
            try:
                announce_outcome(finished.job, outcome, using)
            except BaseException:  # SystemExit is what Django lets through
                logger.exception("A receiver tried to end the worker.")
    drop_broken_connections()  # what a receiver may have left
