"""The dashboard: queues, workers, and what happened over time."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import urlencode

from django.core.exceptions import PermissionDenied
from django.db import router
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext, ngettext
from django.views.decorators.http import require_safe

from ..db.clock import database_now
from ..models import Job, LimitOverride, WorkerProcess
from ..ojs.states import JobState
from ..reporting import workers
from ..reporting.failures import MOST_FAILED
from ..reporting.limits import MOST_PARTITIONS, waiting_partitions
from ..reporting.overview import LONG_WAIT, Overview, overview
from ..reporting.queues import now as queues_now
from ..reporting.text import harmless
from ..reporting.times import SPANS, Span
from ..reporting.waits import SAMPLE, Spread
from .base import may_view, render
from .charts import HEIGHT, WIDTH, Chart, chart, draw, jobs_chart, waits_chart
from .dashboard_cells import (
    failure_cells,
    now_cells,
    partition_cells,
    queue_cells,
    run_cells,
    shown_states,
    worker_cells,
)
from .display import IN_LAST, LAST
from .filters import NO_ERROR
from .queues import PAUSE, RESUME, may_pause, pause_or_resume
from .sentences import translate
from .visibility import visibility_of

REFRESH_SECONDS = {"hour": 15, "day": 30, "week": 120}
"""Seconds between two refreshes of the page, by span: a week changes less."""

LIVE_SECONDS = 3
"""Seconds between two refreshes of its first lines, which cost one statement."""

MOST_TYPES = 30
MOST_WAITING_PARTITIONS = 5
"""How many of the partitions for which jobs wait are shown."""


def dashboard(model_admin: Any, request: HttpRequest) -> HttpResponse:
    """Show everything on one page, to who may see all jobs; a POST pauses or resumes a queue."""
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    if visibility_of(model_admin, request).is_narrowed:
        answer = render(model_admin, request, "dashboard_refused.html", gettext("Dashboard"))
        answer.status_code = 403
        return answer
    span = SPANS.get(request.GET.get("span", ""), SPANS["hour"])
    if request.method == "POST":
        _pause_or_resume(model_admin, request)
        return HttpResponseRedirect(f"{request.path}?span={span.name}")
    now = database_now(_database())
    seen = overview(_database(), span, now, with_workers=may_view(request, WorkerProcess))
    states = shown_states(seen.now)
    minutes = round(LONG_WAIT.total_seconds() / 60)
    waits = seen.now.depth.get(JobState.AVAILABLE)
    partitions = waiting_partitions(_database(), MOST_WAITING_PARTITIONS) if waits else []
    context = {
        "seen": seen,
        "span": span,
        "spans": LAST.items(),
        "in_last": IN_LAST[span.name],
        "since": seen.activity.edges[0],
        "seconds": REFRESH_SECONDS[span.name],
        "now": now,
        "states": list(map(translate, states)),
        "live": now_cells(seen.now, now),
        "live_url": reverse("admin:django_ojs_unique_dashboard_now"),
        "live_seconds": LIVE_SECONDS,
        "failures": failure_cells(seen.failures, span),
        "most_failed": MOST_FAILED,
        "no_error": translate(NO_ERROR),
        "long_wait": ngettext("{count} minute", "{count} minutes", minutes).format(count=minutes),
        "long_waits": [harmless(queue.queue.name) for queue in seen.queues if queue.waits_long(now)],
        "queues": [queue_cells(queue, states, span, seen.observed_since, now) for queue in seen.queues],
        "waiting_partitions": partition_cells(partitions, with_links=may_view(request, LimitOverride)),
        "most_partitions": f"{MOST_PARTITIONS:,}",
        "runs": [
            run_cells(type, runs, span) for type, runs in sorted(seen.waits.runs.items(), key=_by_median)[:MOST_TYPES]
        ],
        "more_types": len(seen.waits.runs) - MOST_TYPES,
        "sample": SAMPLE,
        "stranded": [harmless(name) for name in seen.stranded],
        "misspelt": list(map(translate, seen.misspelt)),
        "unknown_types": translate(seen.unknown.named) if seen.unknown.types else "",
        "workers": [worker_cells(worker, seen.running.get(worker.row.pk, ()), now) for worker in seen.workers or ()],
        "most_workers": workers.MOST_WORKERS,
        "workers_cut": len(seen.workers or ()) >= workers.MOST_WORKERS,
        "most_running": workers.MOST_RUNNING,
        "running_cut": sum(map(len, seen.running.values())) >= workers.MOST_RUNNING,
        "charts": [_with_picture(each, span) for each in _charts(seen, span)],
        "may_pause": may_pause(request),
    }
    return render(model_admin, request, "dashboard.html", gettext("Dashboard"), **context)


def dashboard_urls(model_admin: Any) -> list[URLPattern]:
    """Return the URL patterns of the page's first lines, and of the pictures.

    A browser may cache a picture, as its address changes with its numbers.
    """
    now: Any = model_admin.admin_site.admin_view(partial(_now, model_admin))
    view: Any = model_admin.admin_site.admin_view(partial(_picture, model_admin), cacheable=True)
    return [
        path("dashboard/now/", require_safe(now), name="django_ojs_unique_dashboard_now"),
        path("dashboard/<slug:name>.svg", require_safe(view), name="django_ojs_unique_chart"),
    ]


def _now(model_admin: Any, request: HttpRequest) -> HttpResponse:
    """Return the first lines of the dashboard only."""
    _check_visibility(model_admin, request)
    context = {"live": now_cells(queues_now(_database()), database_now(_database()))}
    return TemplateResponse(request, "admin/django_ojs_unique/dashboard_now.html", context)


def _picture(model_admin: Any, request: HttpRequest, name: str) -> HttpResponse:
    _check_visibility(model_admin, request)
    span = SPANS.get(request.GET.get("span", ""), SPANS["hour"])
    try:
        numbers = chart(name, _database(), span, database_now(_database()))
        svg = draw(numbers)
    except KeyError:
        raise Http404 from None
    headers = {
        "Cache-Control": "private, max-age=300",
        # For a user who opens the picture by itself: it needs only its own inline style.
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
        "X-Content-Type-Options": "nosniff",
    }
    return HttpResponse(svg, content_type="image/svg+xml", headers=headers)


def _check_visibility(model_admin: Any, request: HttpRequest) -> None:
    if not model_admin.has_view_permission(request) or visibility_of(model_admin, request).is_narrowed:
        raise PermissionDenied


def _pause_or_resume(model_admin: Any, request: HttpRequest) -> None:
    if not may_pause(request):
        raise PermissionDenied
    for action in (PAUSE, RESUME):
        if action in request.POST:
            pause_or_resume(model_admin, request, action, [request.POST[action]])


def _database() -> str:
    return router.db_for_read(Job) or "default"


def _by_median(row: tuple[str, Spread]) -> tuple[float, str]:
    return -row[1].median, row[0]


def _charts(seen: Overview, span: Span) -> list[Chart]:
    return [jobs_chart(seen.activity, span), waits_chart(seen.waits, span)]


def _with_picture(numbers: Chart, span: Span) -> dict[str, Any]:
    query = urlencode({"span": span.name, "v": numbers.version})
    url = reverse("admin:django_ojs_unique_chart", args=[numbers.name])
    return {"chart": numbers, "url": f"{url}?{query}", "width": WIDTH, "height": HEIGHT}
