"""The counters of a worker process, served on their own port."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, start_http_server

from ...execution.finalize import Finalized
from ...execution.run import Run
from ...worker.summary import Meter
from .collector import MOST_QUEUES, OTHERS

DURATIONS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
WAITS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 21_600)


class WorkerMetrics(Meter):
    """Counters and histograms of one worker. A worker claims only types with a handler, so types are safe labels."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry
        self._queues: set[str] = set()
        self._claimed = Counter(
            "ojs_worker_claimed_jobs",
            "Jobs claimed; one that is requeued and claimed again counts again.",
            ["queue"],
            registry=registry,
        )
        self._runs = Counter(
            "ojs_worker_runs",
            "Runs that ended, by what became of them; refused: the job was cancelled, replaced, or its lease ran out.",
            ["type", "queue", "outcome"],
            registry=registry,
        )
        self._requeued = Counter(
            "ojs_worker_requeued_jobs",
            "Claimed jobs that were requeued; the attempt does not count.",
            registry=registry,
        )
        self._duration = Histogram(
            "ojs_worker_run_duration_seconds", "How long handlers ran.", ["type"], registry=registry, buckets=DURATIONS
        )
        self._wait = Histogram(
            "ojs_worker_wait_seconds",
            "How long jobs waited from when they last became available to the start of their handler.",
            ["queue"],
            registry=registry,
            buckets=WAITS,
        )

    def claimed(self, jobs: Sequence[Any]) -> None:
        for job in jobs:
            self._claimed.labels(self._label(job.queue)).inc()

    def finalized(self, run: Run, outcome: Finalized) -> None:
        job, queue = run.job, self._label(run.job.queue)
        self._runs.labels(job.type, queue, outcome.value).inc()
        if run.started_at is None or run.ended_at is None:
            return
        self._duration.labels(job.type).observe(run.ended_at - run.started_at)
        if job.enqueued_at is not None:
            until_claim = (job.started_at - job.enqueued_at).total_seconds()  # by the clocks of two machines
            self._wait.labels(queue).observe(max(0.0, until_claim) + run.started_at - run.claimed_at)

    def requeued(self, count: int) -> None:
        self._requeued.inc(count)

    def unregister(self) -> None:
        """Remove the metrics from the registry."""
        for metric in (self._claimed, self._runs, self._requeued, self._duration, self._wait):
            self._registry.unregister(metric)

    def _label(self, queue: str) -> str:
        if queue not in self._queues:
            if len(self._queues) >= MOST_QUEUES:
                return OTHERS
            self._queues.add(queue)
        return queue


@contextmanager
def serving(address: str, port: int) -> Iterator[WorkerMetrics]:
    """While the block runs, serve the metrics of this process: a worker's, and those that handlers register.

    Raises OSError if the port is in use.
    """
    server, thread = start_http_server(port, address)
    metrics = WorkerMetrics()
    try:
        yield metrics
    finally:
        metrics.unregister()
        server.shutdown()
        server.server_close()
        thread.join()
