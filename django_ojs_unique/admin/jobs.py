"""The admin of jobs: the list, its columns, and the URLs of the other pages."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import URLPattern, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..models import Job
from ..ojs.states import JobState
from ..reporting.suppressed import MOST_MET
from ..reporting.text import harmless
from .actions import JobActions
from .base import column, page_url
from .dates import PARAMETERS as DATES
from .display import ago, badge, brief
from .filters import FILTERS
from .filters import PARAMETERS as FILTERED
from .job_list import JobList, NewestFirst
from .job_page import JobPage
from .sentences import translate


@admin.register(Job)
class JobAdmin(JobPage, JobActions):
    list_display = ["shown_state", "shown_type", "shown_args", "holds", "age", "met"]
    list_display_links = ["shown_type"]
    list_filter = FILTERS
    list_max_show_all = 500
    paginator = NewestFirst
    ordering = ["-pk"]
    date_hierarchy = "created_at"
    search_fields = ["id"]  # shows the search field; what is searched is in `reporting.search`
    search_help_text = _(
        "An id, a key, or at least 6 digits of a fingerprint; else a queue or the beginning of a type; else a text"
        " in the args. Write user_id=42 for a member of the args, args:42 for any text in them."
    )
    sortable_by = ["age"]

    def get_urls(self) -> list[URLPattern]:
        from .dashboard import dashboard, dashboard_urls
        from .duplicates import duplicates, duplicates_urls
        from .explain import explain

        pages = {"dashboard": dashboard, "duplicates": duplicates, "explain": explain}
        own = [page_url(self, name, page) for name, page in pages.items()]
        return own + dashboard_urls(self) + duplicates_urls(self) + super().get_urls()

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return JobList

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        # Other lookups could read a million rows, or reveal values that no page shows.
        return lookup in DATES or lookup in FILTERED

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Job], search_term: str
    ) -> tuple[QuerySet[Job], bool]:
        """Find the job of an id, or the jobs of a key or a fingerprint; the list's own search finds more."""
        from ..reporting.search import exact

        return (exact(queryset, search_term) if search_term else queryset), False

    @admin.display(description=_("state"))
    def shown_state(self, job: Job) -> SafeString:
        tries = _tries(job) if job.attempt else ""
        return format_html("{} {} {}", badge(job.state), _below(tries), _progress(job))

    shown_type = column(
        _("type and queue"),
        lambda row: format_html("{} {}", brief(row.type), _below(gettext("on {queue}").format(queue=brief(row.queue)))),
    )

    @admin.display(description=_("args and last error"))
    def shown_args(self, job: Any) -> SafeString:
        error = format_html('<span class="ojs-below ojs-error">{}</span>', harmless(job.list_columns.error))
        return format_html("{} {}", harmless(translate(job.list_columns.args)), error if job.list_columns.error else "")

    @admin.display(description=_("age"), ordering="pk")
    def age(self, job: Job) -> SafeString | str:
        due = _below(format_html(gettext("due {when}"), when=ago(job.run_at))) if job.run_at else ""
        return format_html("{} {}", ago(job.created_at), due)

    @admin.display(description=_("times met"))
    def met(self, job: Any) -> SafeString | str:
        if not job.met:
            return "-"
        text = f"{job.met:,}" if job.met <= MOST_MET else gettext("more than {count}").format(count=f"{MOST_MET:,}")
        if not job.links_met:
            return text
        url = reverse("admin:django_ojs_unique_suppressedenqueue_changelist", query={"q": job.pk})
        return format_html('<a href="{}" title="{}">{}</a>', url, gettext("Enqueues that met this job"), text)

    @admin.display(description=_("key"))
    def holds(self, job: Any) -> SafeString:
        if not job.list_columns.key:
            return format_html('<span class="ojs-quiet">{}</span>', gettext("not unique"))
        title = gettext("Holds no fingerprint")
        if job.fingerprint:
            title = gettext("Fingerprint {fingerprint}").format(fingerprint=job.fingerprint)
        return format_html('<span title="{}">{}</span>', title, harmless(_key(job)))


def _below(text: str) -> SafeString | str:
    return format_html('<span class="ojs-below ojs-quiet">{}</span>', text) if text else ""


def _key(job: Any) -> str:
    text = job.list_columns.key
    if job.key is not None:
        return gettext("key {key}").format(key=text.removeprefix("key "))
    return translate(text)


def _tries(job: Job) -> str:
    return gettext("attempt {number} of {most}").format(number=job.attempt, most=job.most_attempts)


def _progress(job: Job) -> SafeString | str:
    if job.state != JobState.ACTIVE or job.progress is None:
        return ""
    percent = f"{job.progress:.0%}"
    return format_html(
        '<progress class="ojs-progress" max="1" value="{}" aria-label="{}">{}</progress> {} '
        '<span class="ojs-quiet">{}</span>',
        f"{job.progress:.3f}",
        gettext("Progress of {type}").format(type=brief(job.type)),
        percent,
        percent,
        brief(job.progress_note),
    )
