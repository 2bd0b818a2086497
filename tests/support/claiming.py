"""A claimer without a worker."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.db import connection

from django_ojs_unique.models import Job
from django_ojs_unique.worker.claimed_runs import ClaimedRuns
from django_ojs_unique.worker.claimer import Claimer
from django_ojs_unique.worker.poller import Poller
from django_ojs_unique.worker.pools import Pool
from django_ojs_unique.worker.queues import QueueFilter
from django_ojs_unique.worker.summary import Summary

LEASE = timedelta(seconds=30)


class IdlePool(Pool):
    """Runs nothing; ``given`` has the status of the driver's pipeline for each job that it got."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity, lambda run, finished: None, lambda run: True)
        self.given: list[str | None] = []

    def put(self, runs: Iterable[Any]) -> None:
        status = connection.connection.info.pipeline_status.name if connection.vendor == "postgresql" else None
        self.given += [status for _ in runs]


class Claiming(Claimer):
    """A claimer that every enqueue calls, and what it works with; its pools are idle."""

    def __init__(self, *, queues: Iterable[str] | None = None, concurrency: int = 100) -> None:
        jobs = Job.objects.all()
        self.threads, self.event_loop = IdlePool(concurrency), IdlePool(concurrency)
        self.runs = ClaimedRuns(jobs, LEASE, lambda run, finished: None)
        self.poller = Poller(jobs, QueueFilter(queues), lambda: True)
        self.summary = Summary()
        super().__init__(
            jobs,
            "w",
            LEASE,
            threads=self.threads,
            event_loop=self.event_loop,
            runs=self.runs,
            poller=self.poller,
            summary=self.summary,
            max_jobs=None,
        )

    def requeue_all(self) -> None:
        """Requeue all that was claimed."""
        self.hold_all()
        self.runs.take_back()
        self.requeue()
