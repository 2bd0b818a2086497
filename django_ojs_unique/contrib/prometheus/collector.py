"""Gauges that are read from the database."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime

from django.db import router
from django.utils import timezone
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from ...models import Job, SuppressedEnqueue, WorkerProcess
from ...reporting.gauges import Levels, levels
from ...reporting.limits import LimitReport
from ...reporting.queues import UNFINISHED, QueueReport
from ...reporting.text import MOST_COUNTED
from ...reporting.workers import SILENT

MOST_QUEUES, MOST_LIMITS = 100, 100
"""How many queues and limits have their own series: callers can invent them, and each would have it for ever."""
OTHERS = "(others)"
"""The label of all others together; no queue can have this name, and a limit of this name is one of them."""

_CAPPED = f"counted up to {MOST_COUNTED:,}; {MOST_COUNTED + 1:,} means more"


class JobsCollector(Collector):
    """Reads the jobs of one database at each scrape; by default, of the one from which the router reads jobs.

    To serve it at an endpoint that you have already: ``REGISTRY.register(JobsCollector())``.
    """

    def __init__(self, using: str | None = None) -> None:
        self._using = using

    def collect(self) -> Iterator[GaugeMetricFamily]:
        now = timezone.now()
        found = levels(self._using or router.db_for_read(Job), now)
        yield from _gauges(found, now)

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Name the gauges without a query: a registry asks for the names when the project starts."""
        return _gauges(Levels((), (), (), (), {}, {}, {}), timezone.now())


def _gauges(found: Levels, now: datetime) -> Iterator[GaugeMetricFamily]:
    yield from _of_queues(found, now)
    yield from _of_limits(found)
    yield from _of_the_rest(found)


def _of_queues(found: Levels, now: datetime) -> Iterator[GaugeMetricFamily]:
    jobs = GaugeMetricFamily("ojs_jobs", f"Unfinished jobs, {_CAPPED}.", labels=["queue", "state"])
    waits = GaugeMetricFamily(
        "ojs_queue_oldest_waiting_seconds", "For how long the first available job waits, 0 for none.", labels=["queue"]
    )
    paused = GaugeMetricFamily("ojs_queue_paused", "Whether the queue is paused.", labels=["queue"])
    stranded = GaugeMetricFamily(
        "ojs_queue_stranded", "Whether jobs wait that no living worker takes.", labels=["queue"]
    )
    for name, queues in _labelled(found.queues, found.declared):
        depth = sum((Counter(queue.depth) for queue in queues), Counter())
        for state in UNFINISHED:
            jobs.add_metric([name, state], depth[state])
        since = [queue.waits_since for queue in queues if queue.waits_since is not None]
        waits.add_metric([name], max(0.0, (now - min(since)).total_seconds()) if since else 0)
        paused.add_metric([name], any(queue.paused_at is not None for queue in queues))
        stranded.add_metric([name], any(queue.name in found.stranded for queue in queues))
    yield from (jobs, waits, paused, stranded)


def _labelled(queues: Sequence[QueueReport], declared: Collection[str]) -> Iterator[tuple[str, Sequence[QueueReport]]]:
    """Yield queues by label: those that handlers declare, then those with most jobs, and the rest under one label."""
    ordered = sorted(queues, key=lambda queue: (queue.name not in declared, -queue.unfinished, queue.name))
    for queue in ordered[:MOST_QUEUES]:
        yield queue.name, [queue]
    if len(ordered) > MOST_QUEUES:
        yield OTHERS, ordered[MOST_QUEUES:]


def _of_limits(found: Levels) -> Iterator[GaugeMetricFamily]:
    running = GaugeMetricFamily("ojs_limit_running_jobs", "Jobs that run under a limit, by its name.", labels=["limit"])
    waiting = GaugeMetricFamily(
        "ojs_limit_waiting_jobs", f"Jobs that wait for slots of a limit, {_CAPPED}.", labels=["limit"]
    )
    full = GaugeMetricFamily("ojs_limit_full_keys", "Partitions of a limit for which jobs wait.", labels=["limit"])
    ordered = sorted(found.limits, key=lambda one: (one.name == OTHERS, -one.waiting, -one.running, one.name))
    by_label: dict[str, list[LimitReport]] = defaultdict(list)
    for number, limit in enumerate(ordered):
        by_label[limit.name if number < MOST_LIMITS else OTHERS].append(limit)
    for name, limits in by_label.items():
        running.add_metric([name], sum(limit.running for limit in limits))
        waiting.add_metric([name], sum(limit.waiting for limit in limits))
        full.add_metric([name], sum(limit.full for limit in limits))
    yield from (running, waiting, full)


def _of_the_rest(found: Levels) -> Iterator[GaugeMetricFamily]:
    standings = Counter(worker.standing for worker in found.workers)
    yield _gauge(
        "ojs_workers",
        "Worker processes by state; silent ones have missed three heartbeats.",
        "state",
        {state: standings[state] for state in (*WorkerProcess.State.values, SILENT)},
    )
    dead_letters = {str(dead).lower(): count for dead, count in found.discarded.items()}
    yield _gauge("ojs_discarded_jobs", f"Discarded jobs that are kept, {_CAPPED}.", "dead_letter", dead_letters)
    finished = f"Jobs that finished in the last minute, {_CAPPED}."
    yield _gauge("ojs_recently_finished_jobs", finished, "state", found.finished)
    met = f"Enqueues of the last minute that met a duplicate, {_CAPPED}."
    counts = {outcome: found.suppressed.get(outcome, 0) for outcome in SuppressedEnqueue.Outcome.values}
    yield _gauge("ojs_recently_suppressed_enqueues", met, "outcome", counts)


def _gauge(name: str, documentation: str, label: str, counts: Mapping[str, float]) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(name, documentation, labels=[label])
    for value, count in counts.items():
        gauge.add_metric([value], count)
    return gauge
