"""Gauges that are read from the database: the state of the system, for a monitor that asks every few seconds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from django.db import router
from django.utils import timezone
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from ...db.clock import database_now
from ...models import Job, SuppressedEnqueue, WorkerProcess
from ...ojs.states import JobState
from ...reporting.limits import LimitReport, limits
from ...reporting.queues import UNFINISHED, QueueReport, declared, queues
from ...reporting.text import MOST_COUNTED
from ...reporting.workers import SILENT, WorkerReport, is_stranded, workers

MOST_QUEUES, MOST_LIMITS = 100, 100
"""How many queues and limits have their own series: callers can invent them, and each would have it for ever."""
OTHERS = "(others)"
"""The label of all others together; no queue can have this name, and a limit of this name is one of them."""

RECENT = timedelta(minutes=1)
_FINISHED = (JobState.COMPLETED, JobState.CANCELLED, JobState.DISCARDED)

_CAPPED = f"counted up to {MOST_COUNTED:,}; {MOST_COUNTED + 1:,} means more"


class JobsCollector(Collector):
    """Reads the jobs of one database at each scrape; by default, of the one from which the router reads jobs.

    To serve it at an endpoint that you have already: ``REGISTRY.register(JobsCollector())``.
    """

    def __init__(self, using: str | None = None) -> None:
        self._using = using

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Read the gauges in twelve statements, with limits in up to sixteen; each reads a bounded part of an index."""
        using, most = self._using or router.db_for_read(Job), MOST_COUNTED + 1
        now = database_now(using)
        named = declared()
        found, present = queues(using, named), workers(using, now)
        # The filter names every leading column of the index ojs_job_finished, so that only the index is read.
        ended = Job.objects.using(using).filter(payload_pruned__in=[False, True], finished_at__isnull=False).order_by()
        lately = ended.filter(dead_letter__in=[False, True], finished_at__gte=now - RECENT)
        suppressed = SuppressedEnqueue.objects.using(using).filter(created_at__gte=now - RECENT)
        yield from _of_queues(found, named, present, now)
        yield from _of_limits(limits(using))
        yield from _of_the_rest(
            present,
            {dead: ended.filter(state=JobState.DISCARDED, dead_letter=dead)[:most].count() for dead in (False, True)},
            {state: lately.filter(state=state)[:most].count() for state in _FINISHED},
            Counter(suppressed.values_list("outcome", flat=True)[:most]),
        )

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Name the gauges without a query: a registry asks for the names when the project starts."""
        yield from _of_queues((), (), (), timezone.now())
        yield from _of_limits(())
        yield from _of_the_rest((), {}, {}, {})


def _of_queues(
    found: Sequence[QueueReport], named: Collection[str], present: Sequence[WorkerReport], now: datetime
) -> Iterator[GaugeMetricFamily]:
    jobs = GaugeMetricFamily("ojs_jobs", f"Unfinished jobs, {_CAPPED}.", labels=["queue", "state"])
    waits = GaugeMetricFamily(
        "ojs_queue_oldest_waiting_seconds", "For how long the first available job waits, 0 for none.", labels=["queue"]
    )
    paused = GaugeMetricFamily("ojs_queue_paused", "Whether the queue is paused.", labels=["queue"])
    stranded = GaugeMetricFamily(
        "ojs_queue_stranded", "Whether jobs wait that no living worker takes.", labels=["queue"]
    )
    for name, together in _labelled(found, named):
        depth = sum((Counter(queue.depth) for queue in together), Counter())
        for state in UNFINISHED:
            jobs.add_metric([name, state], depth[state])
        since = [queue.waits_since for queue in together if queue.waits_since is not None]
        waits.add_metric([name], max(0.0, (now - min(since)).total_seconds()) if since else 0)
        paused.add_metric([name], any(queue.paused_at is not None for queue in together))
        stranded.add_metric([name], any(is_stranded(queue, present) for queue in together))
    yield from (jobs, waits, paused, stranded)


def _labelled(found: Sequence[QueueReport], declared: Collection[str]) -> Iterator[tuple[str, Sequence[QueueReport]]]:
    """Yield queues by label: those that handlers declare, then those with most jobs, and the rest under one label."""
    ordered = sorted(found, key=lambda queue: (queue.name not in declared, -queue.unfinished, queue.name))
    for queue in ordered[:MOST_QUEUES]:
        yield queue.name, [queue]
    if len(ordered) > MOST_QUEUES:
        yield OTHERS, ordered[MOST_QUEUES:]


def _of_limits(found: Sequence[LimitReport]) -> Iterator[GaugeMetricFamily]:
    running = GaugeMetricFamily("ojs_limit_running_jobs", "Jobs that run under a limit, by its name.", labels=["limit"])
    waiting = GaugeMetricFamily(
        "ojs_limit_waiting_jobs", f"Jobs that wait for slots of a limit, {_CAPPED}.", labels=["limit"]
    )
    full = GaugeMetricFamily("ojs_limit_full_keys", "Partitions of a limit for which jobs wait.", labels=["limit"])
    ordered = sorted(found, key=lambda one: (one.name == OTHERS, -one.waiting, -one.running, one.name))
    by_label: dict[str, list[LimitReport]] = defaultdict(list)
    for number, limit in enumerate(ordered):
        by_label[limit.name if number < MOST_LIMITS else OTHERS].append(limit)
    for name, together in by_label.items():
        running.add_metric([name], sum(limit.running for limit in together))
        waiting.add_metric([name], sum(limit.waiting for limit in together))
        full.add_metric([name], sum(limit.full for limit in together))
    yield from (running, waiting, full)


def _of_the_rest(
    present: Sequence[WorkerReport],
    discarded: Mapping[bool, int],
    finished: Mapping[str, int],
    suppressed: Mapping[str, int],
) -> Iterator[GaugeMetricFamily]:
    standings = Counter(worker.standing for worker in present)
    yield _gauge(
        "ojs_workers",
        "Worker processes by state; silent ones have missed three heartbeats.",
        "state",
        {state: standings[state] for state in (*WorkerProcess.State.values, SILENT)},
    )
    dead_letters = {str(dead).lower(): count for dead, count in discarded.items()}
    yield _gauge("ojs_discarded_jobs", f"Discarded jobs that are kept, {_CAPPED}.", "dead_letter", dead_letters)
    yield _gauge("ojs_recently_finished_jobs", f"Jobs that finished in the last minute, {_CAPPED}.", "state", finished)
    met = f"Enqueues of the last minute that met a duplicate, {_CAPPED}."
    counts = {outcome: suppressed.get(outcome, 0) for outcome in SuppressedEnqueue.Outcome.values}
    yield _gauge("ojs_recently_suppressed_enqueues", met, "outcome", counts)


def _gauge(name: str, documentation: str, label: str, counts: Mapping[str, float]) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(name, documentation, labels=[label])
    for value, count in counts.items():
        gauge.add_metric([value], count)
    return gauge
