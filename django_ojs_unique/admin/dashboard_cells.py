"""The cells of the dashboard's tables. Each count of jobs links to their list."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..models import Job
from ..ojs.states import JobState
from ..reporting.failures import Cause, Failures
from ..reporting.limits import PartitionReport
from ..reporting.overview import QueueActivity
from ..reporting.queues import UNFINISHED, Now, QueueReport
from ..reporting.text import age, count_text, harmless
from ..reporting.times import Span
from ..reporting.waits import Spread
from ..reporting.workers import WorkerReport
from .display import ago, badge, brief, job_link, seconds
from .filters import NO_ERROR
from .limits import limit_url
from .queues import jobs_url
from .sentences import translate
from .workers import claimed_link, patterns_text, worker_url

SHORTEST_OBSERVED = timedelta(minutes=1)
"""No rate is told of a shorter time."""

MOST_SHOWN = 3
"""How many of the jobs that a worker runs a cell shows."""


def shown_states(seen: Now) -> list[JobState]:
    """Return the states that are shown: those of unfinished jobs, pending only if a job is."""
    return [state for state in UNFINISHED if state != JobState.PENDING or seen.depth.get(state)]


def now_cells(seen: Now, now: datetime) -> dict[str, Any]:
    """Return what `dashboard_now.html` shows: how many jobs are in each state, and the one that has waited longest."""

    def number(state: JobState) -> SafeString:
        return _count(seen.depth.get(state, 0), seen.is_cut, state=state)

    return {
        "states": [(translate(state), number(state)) for state in shown_states(seen)],
        "wait": _longest_wait(seen, now),
        "queue": harmless(seen.queue),
    }


def failure_cells(seen: Failures, span: Span) -> dict[str, Any]:
    """Return the rows of the causes of failures, and what was left out."""
    return {
        "rows": [_cause(cause, span) for cause in seen.causes],
        "more": seen.more,
        "failed_cut": seen.failed_cut,
        "retrying_cut": seen.retrying_cut,
    }


def queue_cells(
    row: QueueActivity, states: Sequence[JobState], span: Span, since: datetime, now: datetime
) -> dict[str, Any]:
    """Return the cells of a queue. ``since``: since when it is known what happened in the span."""
    queue, waited = row.queue, row.waited
    return {
        "value": queue.name,
        "name": harmless(queue.name),
        "depth": [_count(queue.depth.get(state, 0), queue=queue.name, state=state) for state in states],
        "longest_wait": _longest_wait(queue, now),
        "waits_long": row.waits_long(now),
        "waited": [seconds(length) for length in ((waited.median, waited.p95) if waited else (None, None))],
        "completed": f"{row.completed:,}",
        "rate": _rate(row.completed, now - since) if row.completed else "",
        "failed": _link(row.failed, f"{row.failed:,}", queue=queue.name, state="failed", finished=span.name),
        "failure_rate": "" if row.failure_rate is None else f"{row.failure_rate:.1%}",
        "paused_since": ago(queue.paused_at) if queue.paused_at else "",
        "limit": gettext("{running} of {limit}").format(running=count_text(queue.running), limit=f"{queue.limit:,}")
        if queue.limit
        else "",
        "is_stranded": row.is_stranded,
    }


def run_cells(type: str, runs: Spread, span: Span) -> dict[str, Any]:
    """Return the cells of a type's runs."""
    return {
        "type": harmless(type),
        "url": jobs_url(type=type, state=JobState.COMPLETED, finished=span.name),
        "count": f"{runs.count:,}",
        "lengths": [seconds(runs.median), seconds(runs.p95), seconds(runs.longest)],
    }


def partition_cells(partitions: Sequence[PartitionReport], *, with_links: bool) -> list[dict[str, Any]]:
    """Return the cells of the partitions for which most jobs wait; ``with_links``: to the pages of their limits."""
    return [
        {
            "name": harmless(one.name),
            "url": limit_url(one.name) if with_links else "",
            "partition": brief(one.text),
            "waiting": count_text(one.waiting, one.is_cut),
            "since": ago(one.since) if one.since else "",
            "first": job_link(one.first) if one.first else "",
        }
        for one in partitions
    ]


def worker_cells(worker: WorkerReport, running: Sequence[Job], now: datetime) -> dict[str, Any]:
    """Return the cells of a worker."""
    row = worker.row
    return {
        "id": harmless(row.pk),
        "url": worker_url(row.pk),
        "standing": badge(worker.standing),
        "heartbeat": ago(row.heartbeat_at),
        "started": ago(row.started_at),
        "queues": patterns_text(worker),
        "concurrency": row.concurrency,
        "claimed": claimed_link(row),
        "finalized": f"{row.finalized:,}",
        "runs": format_html_join("", "<li>{} {}</li>", (_run(job, now) for job in running[:MOST_SHOWN])),
        "more_runs": len(running) - MOST_SHOWN,
    }


def _longest_wait(seen: Now | QueueReport, now: datetime) -> SafeString | str:
    if seen.oldest is None:
        return ""
    more = "+" if seen.waits_cut else ""
    return job_link(seen.oldest, f"{translate(age(seen.waits_since, now))}{more}")


def _count(count: int, is_cut: bool = False, /, **filters: str) -> SafeString:
    return _link(count, count_text(count, is_cut), **filters)


def _link(count: int, text: str, **filters: str) -> SafeString:
    if not count:
        return format_html('<span class="ojs-quiet">{}</span>', 0)
    return format_html('<a href="{}">{}</a>', jobs_url(**filters), text)


def _rate(count: int, length: timedelta) -> str:
    if length < SHORTEST_OBSERVED:
        return ""
    for unit, each in ((_("{number}/s"), timedelta(seconds=1)), (_("{number}/min"), timedelta(minutes=1))):
        if (rate := count * each / length) >= 1:
            return str(unit).format(number=f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}")
    return gettext("{number}/h").format(number=f"{count * timedelta(hours=1) / length:.1f}")


def _cause(cause: Cause, span: Span) -> dict[str, Any]:
    filters = {"type": cause.type, "error": cause.error or NO_ERROR}
    return {
        "type": harmless(cause.type),
        "error": brief(cause.error),
        "message": brief(cause.message),
        "failed": _count(cause.failed, **filters, state="failed", finished=span.name),
        "retrying": _count(cause.retrying, **filters, state=JobState.RETRYABLE),
        "newest": job_link(cause.newest, ago(cause.at) if cause.at else gettext("one of them")),
    }


def _run(job: Job, now: datetime) -> tuple[Any, str]:
    progress = "" if job.progress is None else f", {job.progress:.0%}"
    return job_link(job.pk, brief(job.type)), f"{translate(age(job.started_at, now))}{progress}"
