"""Workers."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..db.clock import database_now, is_off
from ..models import Job, WorkerProcess
from ..reporting.text import harmless
from ..reporting.workers import SILENT, SILENT_AFTER, WorkerReport, claimed_by, standing
from .base import ReadOnlyAdmin, column, may_view
from .display import ago, badge
from .sentences import translate

MOST_CLAIMED = 100


class StandingFilter(admin.SimpleListFilter):
    title = _("state")
    parameter_name = "standing"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, translate(name)) for name in ("running", "quiet", "stopping", SILENT)]

    def queryset(self, request: HttpRequest, rows: QuerySet[WorkerProcess]) -> QuerySet[WorkerProcess]:
        overdue = database_now(rows.db) - SILENT_AFTER
        if self.value() == SILENT:
            return rows.filter(heartbeat_at__lt=overdue)
        return rows.filter(heartbeat_at__gte=overdue, state=self.value()) if self.value() else rows


@admin.register(WorkerProcess)
class WorkerProcessAdmin(ReadOnlyAdmin):
    list_display = ["worker", "standing", "heartbeat", "takes", "concurrency", "holds", "finalized", "runs_since"]
    list_filter = [StandingFilter]
    search_fields = ["id", "hostname"]
    ordering = ["-heartbeat_at"]
    fields = ["worker", "standing", "heartbeat", "runs_since", "hostname", "pid", "takes", "concurrency", "finalized"]
    readonly_fields = ["worker", "standing", "heartbeat", "runs_since", "takes", "claimed_jobs"]

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        # The list of its jobs is only for users who may view jobs.
        return [*self.fields, "claimed_jobs" if may_view(request, Job) else "claimed"]

    worker = column(_("worker"), lambda row: harmless(row.pk), ordering="id")
    standing = column(_("state"), lambda row: _badges(row), ordering="state")
    heartbeat = column(_("heartbeat"), lambda row: ago(row.heartbeat_at), ordering="heartbeat_at")
    runs_since = column(_("started"), lambda row: ago(row.started_at), ordering="started_at")
    takes = column(
        _("queues"), lambda row: patterns_text(WorkerReport(row, standing(row, database_now(row._state.db))))
    )
    holds = column(_("claimed jobs"), lambda row: claimed_link(row), ordering="claimed")

    @admin.display(description=_("claimed jobs"))
    def claimed_jobs(self, row: Any) -> SafeString | str:
        jobs = claimed_by(row.visibility.jobs, row, MOST_CLAIMED + 1)
        if not jobs and row.visibility.is_narrowed:
            return gettext("It has claimed no job that you may see.")
        if not jobs:
            return gettext("It has claimed no job now.")
        text = gettext("{job} {type} on {queue}, started {when}")
        lines = [
            format_html(
                text,
                job=row.visibility.link(job.pk),
                type=harmless(job.type),
                queue=harmless(job.queue),
                when=ago(job.started_at),
            )
            for job in jobs
        ]
        listed = format_html_join("", "<li>{}</li>", ((line,) for line in lines[:MOST_CLAIMED]))
        cut = gettext("These are the first {count}; there are more.")
        more = format_html("<p>{}</p>", cut.format(count=MOST_CLAIMED)) if len(jobs) > MOST_CLAIMED else ""
        return format_html('<ul class="ojs-held">{}</ul>{}', listed, more)


def _badges(row: WorkerProcess) -> SafeString:
    """Show the state of a worker, and that the clock of its host is wrong."""
    shown = badge(standing(row, database_now(str(row._state.db))))
    if not is_off(row.clock_ahead):
        return shown
    text = gettext("clock {seconds} s ahead") if row.clock_ahead > 0 else gettext("clock {seconds} s behind")
    return format_html("{} {}", shown, badge(SILENT, text.format(seconds=f"{abs(row.clock_ahead):,.0f}")))


def patterns_text(worker: WorkerReport) -> str:
    """Write which queues a worker takes."""
    return harmless(", ".join(worker.patterns)) or gettext("none")


def claimed_link(row: WorkerProcess) -> SafeString:
    """Show how many jobs a worker has claimed, with a link to their list."""
    return format_html('<a href="{}">{}</a>', worker_url(row.pk), f"{row.claimed:,}")


def worker_url(id: str) -> str:
    """Return the address of a worker's page; the worker need not exist any more."""
    return reverse("admin:django_ojs_unique_workerprocess_change", args=[quote(id)])
