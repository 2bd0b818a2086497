"""The loop: one thread that talks to the database about jobs, and a pool of threads that run handlers."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any
from uuid import UUID, uuid4

from django.db import InterfaceError, OperationalError, connections
from django.utils import timezone

from ..models import Job, SuppressedAttempt
from ..registry import registry
from . import maintain
from .claim import claim, waiting_queues
from .run import Finished, execute
from .settle import settle

logger = logging.getLogger("django_ojs_unique.worker")

LEASE = timedelta(seconds=30)
POLL_SECONDS = 0.5
SWEEP_SECONDS = 10
LONGEST_OUTAGE_PAUSE = 10
LARGEST_CLAIM = 100
WORK_AHEAD_SECONDS = 0.05
"""How much work to hold claimed but not started: enough to batch short jobs, too little to hoard long ones."""


@dataclass(slots=True)
class Summary:
    """What a worker has done: how many runs ended in which way."""

    completed: int = 0
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
        return self.completed + self.failed + self.refused

    def add(self, outcomes: Counter[str]) -> None:
        """Count the outcomes of a batch."""
        for name, count in outcomes.items():
            setattr(self, name, getattr(self, name) + count)


class Worker:
    """Runs jobs of some queues (None: all) on one database, ``concurrency`` at a time, until it is stopped."""

    def __init__(
        self,
        *,
        queues: Iterable[str] | None = None,
        concurrency: int = 4,
        using: str = "default",
        lease: timedelta = LEASE,
        on_settled: Callable[[Summary], None] | None = None,
    ) -> None:
        self.id = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        self.queues = None if queues is None else list(queues)
        self.concurrency = concurrency
        self.lease = lease
        self.summary = Summary()
        self._using = using
        self._on_settled = on_settled or (lambda summary: None)
        self._jobs = Job.objects.using(using)
        self._stopping = False
        self._held: dict[UUID, Any] = {}
        self._todo: SimpleQueue[Any | None] = SimpleQueue()
        self._ended: SimpleQueue[Finished | Any | None] = SimpleQueue()
        self._unsettled: list[Finished] = []
        self._unstarted: list[Any] = []
        self._mean_seconds = 1.0
        self._outages = 0
        self._next_promotion = self._next_heartbeat = self._next_sweep = 0.0

    def run(self, *, drain: bool = False) -> Summary:
        """Work until `stop`, or with ``drain`` until no job is due; finish what runs, then return the summary."""
        logger.info("Worker %s started: queues %s.", self.id, ", ".join(self.queues or ["(all)"]))
        threads = [Thread(target=self._serve, name=f"ojs-{number}") for number in range(self.concurrency)]
        for thread in threads:
            thread.start()
        try:
            while True:
                busy = self._through_outages(self._turn)
                if not self._held and (self._stopping or (drain and busy is False)):
                    break
                if not busy:
                    self._collect(self._pause())
        finally:
            for _ in threads:
                self._todo.put(None)
            for thread in threads:
                thread.join()
        logger.info("Worker %s stopped: %s.", self.id, self.summary)
        return self.summary

    def stop(self) -> None:
        """Claim no more, give back what has not started, let running jobs finish. Safe in a signal handler."""
        self._stopping = True
        self._ended.put(None)

    def _turn(self) -> bool:
        """Do all that can be done without waiting; return whether anything was claimed or settled."""
        self._collect(0)
        settled = self._settle()
        self._keep_time()
        if self._stopping:
            return settled
        claimed = self._claim()
        for job in claimed:
            self._held[job.pk] = job
            self._todo.put(job)
        return settled or bool(claimed)

    def _serve(self) -> None:
        """Run jobs in this thread, on database connections of its own, until told to end."""
        try:
            while (job := self._todo.get()) is not None:
                self._run(job)
        finally:
            connections.close_all()

    def _run(self, job: Any) -> None:
        """Run a job, unless the worker is stopping."""
        if self._stopping:
            self._ended.put(job)
            return
        began = time.monotonic()
        finished = execute(job)
        self._mean_seconds += (time.monotonic() - began - self._mean_seconds) / 10
        self._ended.put(finished)

    def _claim(self) -> list[Any]:
        ahead = int(self.concurrency * WORK_AHEAD_SECONDS / max(self._mean_seconds, 1e-6))
        room = min(self.concurrency + ahead, LARGEST_CLAIM) - len(self._held)
        types = list(registry)
        if room <= 0 or not types or (self._held and room < self.concurrency / 2):
            return []
        return claim(
            self._jobs,
            queues=list(waiting_queues(self._jobs)) if self.queues is None else self.queues,
            types=types,
            limit=room,
            worker_id=self.id,
            lease=self.lease,
            now=timezone.now(),
        )

    def _collect(self, timeout: float) -> None:
        """Take in what ended, waiting up to ``timeout`` seconds for the first."""
        try:
            ended = self._ended.get(timeout=timeout) if timeout else self._ended.get_nowait()
            while True:
                if isinstance(ended, Finished):
                    self._unsettled.append(ended)
                elif ended is not None:
                    self._unstarted.append(ended)
                ended = self._ended.get_nowait()
        except Empty:
            return

    def _settle(self) -> bool:
        """Settle what has ended while the last settle was on its way, all together."""
        if not self._unsettled and not self._unstarted:
            return False
        if self._unsettled:
            self.summary.add(settle(self._jobs, self._unsettled))
            self._forget([run.job for run in self._unsettled])
            self._unsettled = []
        if self._unstarted:
            self.summary.released += maintain.give_back(self._jobs, self._unstarted, timezone.now())
            self._forget(self._unstarted)
            self._unstarted = []
        self._on_settled(self.summary)
        return True

    def _forget(self, jobs: Iterable[Any]) -> None:
        for job in jobs:
            del self._held[job.pk]

    def _keep_time(self) -> None:
        """Do what is due: promotion twice a second, the heartbeat three times a lease, the sweeps every ten seconds."""
        now = time.monotonic()
        if now >= self._next_promotion:
            maintain.promote(self._jobs, timezone.now())
            self._next_promotion = now + POLL_SECONDS
        if now >= self._next_heartbeat and self._held:
            maintain.extend(self._jobs, self._held.values(), self.lease)
            self._next_heartbeat = now + self.lease.total_seconds() / 3
        if now >= self._next_sweep:
            maintain.rescue(self._jobs, timezone.now())
            maintain.expire(self._jobs, timezone.now())
            SuppressedAttempt.objects.using(self._using).prune(timezone.now())
            self._next_sweep = now + SWEEP_SECONDS

    def _pause(self) -> float:
        return min(2**self._outages, LONGEST_OUTAGE_PAUSE) if self._outages else POLL_SECONDS

    def _through_outages(self, turn: Callable[[], bool]) -> bool | None:
        """Take a turn; when the database fails, say so, drop the connection and return None: the next turn retries."""
        try:
            busy = turn()
        except (OperationalError, InterfaceError) as error:
            logger.warning("The database %r failed; trying again: %s", self._using, error)
            connections[self._using].close()
            self._outages += 1
            return None
        self._outages = 0
        return busy
