"""Gauges that are read from the database: the state of the system, for a monitor that asks every few seconds."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from django.db import router
from django.db.models import Count, QuerySet
from django.utils import timezone
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from ...db.clock import database_now
from ...db.time_limit import TimeLimitReached, time_limit
from ...models import Job, SuppressedEnqueue, WorkerProcess
from ...ojs.states import JobState
from ...reporting.inbox import InboxReport, inbox
from ...reporting.limits import LimitReport, counted
from ...reporting.queues import UNFINISHED, QueueReport, declared, queues
from ...reporting.workers import SILENT, Taken, is_stranded, standings, taken_by_running

logger = logging.getLogger("django_ojs_unique")

MOST_QUEUES, MOST_LIMITS = 100, 100
"""How many queues and limits have their own series: callers can invent them, and each would have it for ever."""
OTHERS = "(others)"
"""The label of all others together; no queue can have this name, and a limit of this name is one of them."""

RECENT = timedelta(minutes=1)
_FINISHED = (JobState.COMPLETED, JobState.CANCELLED, JobState.DISCARDED)

LONGEST = timedelta(seconds=5)
"""How long one part of the gauges may take."""

T = TypeVar("T")


class JobsCollector(Collector):
    """Reads the jobs of one database at each scrape; by default, of the one from which the router reads jobs.

    To serve it at an endpoint that you have already: ``REGISTRY.register(JobsCollector())``.
    """

    def __init__(self, using: str | None = None) -> None:
        self._using = using

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Read the gauges in fourteen statements, or fifteen. Each number is exact.

        What takes longer than `LONGEST` is left out, and ``ojs_scrape_errors`` names it.
        """
        using = self._using or router.db_for_read(Job)
        now, named = database_now(using), declared()
        errors: dict[str, int] = {}

        def ask(name: str, question: Callable[[], T]) -> T | None:
            try:
                with time_limit(using, LONGEST.total_seconds()):
                    answer: T | None = question()
            except TimeLimitReached:
                logger.warning("The gauges of %s took longer than %s and are left out.", name, LONGEST)
                answer = None
            errors[name] = answer is None
            return answer

        ended = Job.objects.using(using).filter(payload_pruned__in=[False, True], finished_at__isnull=False).order_by()
        lately = ended.filter(dead_letter__in=[False, True], finished_at__gte=now - RECENT, state__in=_FINISHED)
        suppressed = SuppressedEnqueue.objects.using(using).filter(created_at__gte=now - RECENT).order_by()
        dead = ended.filter(state=JobState.DISCARDED, dead_letter__in=[False, True])
        stands = ask("workers", lambda: (standings(using, now), taken_by_running(using, now)))
        found = ask("queues", lambda: queues(using, named, exact=True))
        if stands is not None:
            yield _of_workers(stands[0])
            if found is not None:
                yield from _of_queues(found, named, stands[1], now)
        if (limited := ask("limits", lambda: counted(using))) is not None:
            yield from _of_limits(limited)
        if (requests := ask("inbox", lambda: inbox(using))) is not None:
            yield from _of_the_inbox(requests, now)
        for name, rows, field, gauge in (
            ("discarded_jobs", dead, "dead_letter", _of_discarded),
            ("recently_finished_jobs", lately, "state", _of_finished),
            ("recently_suppressed_enqueues", suppressed, "outcome", _of_suppressed),
        ):
            if (counts := ask(name, partial(_counted, rows, field))) is not None:
                yield gauge(counts)
        yield _of_errors(errors)

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Name the gauges without a query: a registry asks for the names when the project starts."""
        yield _of_workers({})
        yield from _of_queues((), (), (), timezone.now())
        yield from _of_limits(())
        yield from _of_the_inbox(InboxReport(0, 0, None), timezone.now())
        yield from (_of_discarded({}), _of_finished({}), _of_suppressed({}), _of_errors({}))


def _counted(rows: QuerySet[Any], field: str) -> dict[Any, int]:
    """Count rows by a field."""
    return dict(rows.values_list(field).annotate(number=Count("*")))


def _of_queues(
    found: Sequence[QueueReport], named: Collection[str], taken: Sequence[Taken], now: datetime
) -> Iterator[GaugeMetricFamily]:
    jobs = GaugeMetricFamily("ojs_jobs", "Unfinished jobs.", labels=["queue", "state"])
    waits = GaugeMetricFamily(
        "ojs_queue_oldest_waiting_seconds",
        "For how long the available job waits that has waited longest, 0 for none.",
        labels=["queue"],
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
        waits.add_metric([name], _waited(min(since, default=None), now))
        paused.add_metric([name], any(queue.paused_at is not None for queue in together))
        stranded.add_metric([name], any(is_stranded(queue, taken) for queue in together))
    yield from (jobs, waits, paused, stranded)


def _waited(since: datetime | None, now: datetime) -> float:
    return 0.0 if since is None else max(0.0, (now - since).total_seconds())


def _labelled(found: Sequence[QueueReport], declared: Collection[str]) -> Iterator[tuple[str, Sequence[QueueReport]]]:
    """Yield queues by label: those that handlers declare, then those with most jobs, and the rest under one label."""
    ordered = sorted(found, key=lambda queue: (queue.name not in declared, -queue.unfinished, queue.name))
    for queue in ordered[:MOST_QUEUES]:
        yield queue.name, [queue]
    if len(ordered) > MOST_QUEUES:
        yield OTHERS, ordered[MOST_QUEUES:]


def _of_limits(found: Sequence[LimitReport]) -> Iterator[GaugeMetricFamily]:
    running = GaugeMetricFamily("ojs_limit_running_jobs", "Jobs that run under a limit, by its name.", labels=["limit"])
    waiting = GaugeMetricFamily("ojs_limit_waiting_jobs", "Jobs that wait for slots of a limit.", labels=["limit"])
    partitions = GaugeMetricFamily(
        "ojs_limit_waiting_partitions", "Partitions of a limit for which jobs wait.", labels=["limit"]
    )
    ordered = sorted(found, key=lambda one: (one.name == OTHERS, -one.waiting, -one.running, one.name))
    by_label: dict[str, list[LimitReport]] = defaultdict(list)
    for number, limit in enumerate(ordered):
        by_label[limit.name if number < MOST_LIMITS else OTHERS].append(limit)
    for name, together in by_label.items():
        running.add_metric([name], sum(limit.running for limit in together))
        waiting.add_metric([name], sum(limit.waiting for limit in together))
        partitions.add_metric([name], sum(limit.waiting_partitions for limit in together))
    yield from (running, waiting, partitions)


def _of_the_inbox(report: InboxReport, now: datetime) -> Iterator[GaugeMetricFamily]:
    counts = {"waiting": report.waiting, "refused": report.refused}
    yield _gauge("ojs_inbox_requests", "Requests in the inbox.", "state", counts)
    waits = GaugeMetricFamily(
        "ojs_inbox_oldest_waiting_seconds", "For how long the first request waits that is not decided, 0 for none."
    )
    waits.add_metric([], _waited(report.waits_since, now))
    yield waits


def _of_workers(standings: Mapping[str, int]) -> GaugeMetricFamily:
    counts = {state: standings.get(state, 0) for state in (*WorkerProcess.State.values, SILENT)}
    return _gauge(
        "ojs_workers", "Worker processes by state; silent ones have missed three heartbeats.", "state", counts
    )


def _of_discarded(counts: Mapping[bool, int]) -> GaugeMetricFamily:
    by_label = {str(dead).lower(): counts.get(dead, 0) for dead in (False, True)}
    return _gauge("ojs_discarded_jobs", "Discarded jobs that are kept: failed or expired.", "dead_letter", by_label)


def _of_finished(counts: Mapping[str, int]) -> GaugeMetricFamily:
    by_state = {str(state): counts.get(state, 0) for state in _FINISHED}
    return _gauge("ojs_recently_finished_jobs", "Jobs that finished in the last minute.", "state", by_state)


def _of_suppressed(counts: Mapping[str, int]) -> GaugeMetricFamily:
    by_outcome = {outcome: counts.get(outcome, 0) for outcome in SuppressedEnqueue.Outcome.values}
    met = "Enqueues of the last minute that met a duplicate."
    return _gauge("ojs_recently_suppressed_enqueues", met, "outcome", by_outcome)


def _of_errors(errors: Mapping[str, int]) -> GaugeMetricFamily:
    return _gauge("ojs_scrape_errors", "Gauges that took too long to read, and are left out.", "what", errors)


def _gauge(name: str, documentation: str, label: str, counts: Mapping[str, float]) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(name, documentation, labels=[label])
    for value, count in counts.items():
        gauge.add_metric([value], count)
    return gauge
