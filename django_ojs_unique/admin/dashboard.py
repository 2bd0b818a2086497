"""The dashboard: queues, workers, and what happened over time."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import urlencode

from django.core.exceptions import PermissionDenied
from django.db import router
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from ..insight.activity import SPANS, Span
from ..insight.overview import Overview, QueueActivity, overview
from ..insight.queues import UNFINISHED
from ..insight.text import age, harmless
from ..insight.unknown_types import named
from ..insight.workers import WorkerInsight
from ..models import Job, WorkerProcess
from .base import may_view, render
from .charts import Chart, chart, jobs_chart, waits_chart
from .display import ago, badge, job_link
from .drawing import HEIGHT, WIDTH, can_draw, draw
from .queues import PAUSE, RESUME, jobs_url, may_pause, pause_or_resume, said_count
from .workers import held_link, said_patterns, worker_url

REFRESH_SECONDS = {"hour": 5, "day": 30, "week": 120}
"""Seconds between two refreshes of the page, by span: counting a week of jobs takes longer, and changes less."""


def dashboard(model_admin: Any, request: HttpRequest) -> HttpResponse:
    """Show everything on one page; a POST pauses or resumes a queue."""
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    span = SPANS.get(request.GET.get("span", ""), SPANS["hour"])
    if request.method == "POST":
        _pause_or_resume(model_admin, request)
        return HttpResponseRedirect(f"{request.path}?span={span.name}")
    now = timezone.now()
    seen = overview(_database(), span, now, with_workers=may_view(request, WorkerProcess))
    context = {
        "seen": seen,
        "span": span,
        "spans": SPANS,
        "since": seen.activity.edges[0],
        "seconds": REFRESH_SECONDS[span.name],
        "now": now,
        "states": UNFINISHED,
        "queues": [_queue_cells(queue, now) for queue in seen.queues],
        "stranded": [harmless(name) for name in seen.stranded],
        "misspelt": seen.misspelt,
        "unknown_types": named(seen.unknown_types) if seen.unknown_types else "",
        "workers": [_worker_cells(worker) for worker in seen.workers or ()],
        "charts": [_with_picture(each, span) for each in _charts(seen, span)],
        "can_draw": can_draw(),
        "may_pause": may_pause(request),
    }
    return render(model_admin, request, "dashboard.html", "Dashboard", **context)


def dashboard_urls(model_admin: Any) -> list[URLPattern]:
    """Return the URL patterns of the pictures; a browser may cache one, as its address changes with its numbers."""
    view: Any = model_admin.admin_site.admin_view(partial(_picture, model_admin), cacheable=True)
    return [path("dashboard/<slug:name>.svg", require_safe(view), name="django_ojs_unique_chart")]


def _picture(model_admin: Any, request: HttpRequest, name: str) -> HttpResponse:
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    span = SPANS.get(request.GET.get("span", ""), SPANS["hour"])
    try:
        numbers = chart(name, _database(), span, timezone.now())
        svg = draw(numbers)
    except (KeyError, ImportError):
        raise Http404 from None
    headers = {
        "Cache-Control": "private, max-age=300",
        # For a user who opens the picture by itself: it needs only its own inline style.
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
        "X-Content-Type-Options": "nosniff",
    }
    return HttpResponse(svg, content_type="image/svg+xml", headers=headers)


def _pause_or_resume(model_admin: Any, request: HttpRequest) -> None:
    if not may_pause(request):
        raise PermissionDenied
    for action in (PAUSE, RESUME):
        if action in request.POST:
            pause_or_resume(model_admin, request, action, [request.POST[action]])


def _database() -> str:
    return router.db_for_read(Job) or "default"


def _charts(seen: Overview, span: Span) -> list[Chart]:
    return [jobs_chart(seen.activity, span), waits_chart(seen.waits, span)]


def _with_picture(numbers: Chart, span: Span) -> dict[str, Any]:
    query = urlencode({"span": span.name, "v": numbers.version})
    url = reverse("admin:django_ojs_unique_chart", args=[numbers.name])
    return {"chart": numbers, "url": f"{url}?{query}", "width": WIDTH, "height": HEIGHT}


def _queue_cells(row: QueueActivity, now: datetime) -> dict[str, Any]:
    queue = row.queue
    return {
        "value": queue.name,
        "name": harmless(queue.name),
        "depth": [
            (said_count(count), jobs_url(queue.name, state) if count else "")
            for state in UNFINISHED
            for count in [queue.depth.get(state, 0)]
        ],
        "longest_wait": job_link(queue.oldest, age(queue.waits_since, now)) if queue.oldest else "",
        "completed": f"{row.completed:,}",
        "failed": f"{row.failed:,}",
        "failure_rate": "" if row.failure_rate is None else f"{row.failure_rate:.1%}",
        "paused_since": ago(queue.paused_at) if queue.paused_at else "",
        "limit": f"{said_count(queue.running)} of {queue.limit:,}" if queue.limit else "",
        "is_stranded": row.is_stranded,
    }


def _worker_cells(worker: WorkerInsight) -> dict[str, Any]:
    row = worker.row
    return {
        "id": harmless(row.pk),
        "url": worker_url(row.pk),
        "standing": badge(worker.standing),
        "heartbeat": ago(row.heartbeat_at),
        "started": ago(row.started_at),
        "queues": said_patterns(worker),
        "concurrency": row.concurrency,
        "held": held_link(row),
        "settled": f"{row.settled:,}",
    }
