"""Queues: pause, resume, limit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ..exceptions import InvalidRequest
from ..models import Queue
from ..models.queue import HIGHEST_LIMIT
from ..ojs.names import queue_name
from ..reporting.text import count_text, harmless, limits_text
from .base import column, may
from .display import ago
from .numbers_form import LimitField, NumbersAdmin, NumbersForm
from .sentences import translate
from .visibility import Visibility, visibility_of

PAUSE, RESUME = "pause", "resume"
SHOWN = {"concurrency_limit": "shown_limit", "max_per_second": "shown_rate"}
"""The limits, and for each the hidden field with the value that the form showed."""


class LimitForm(NumbersForm):
    """The limits of a queue."""

    shown = SHOWN
    concurrency_limit = LimitField(
        label=_("Limit"),
        max_value=HIGHEST_LIMIT,
        help_text=_("How many of its jobs may run at once, over all workers. Empty: any number."),
    )
    max_per_second = LimitField(
        label=_("Limit per second"),
        max_value=HIGHEST_LIMIT,
        help_text=_("How many of its jobs may be handed out in a second, over all workers. Empty: any number."),
    )
    shown_limit = forms.CharField(required=False, label="", widget=forms.HiddenInput)
    shown_rate = forms.CharField(required=False, label="", widget=forms.HiddenInput)

    class Meta:
        model = Queue
        fields = list(SHOWN)

    def clean(self) -> dict[str, Any] | None:
        try:
            queue_name(self.instance.name)
        except InvalidRequest as error:  # the name in the row was changed manually
            raise ValidationError(harmless(translate(error.message))) from None
        return super().clean()


class PausedFilter(admin.SimpleListFilter):
    title = _("paused")
    parameter_name = "paused"
    field = "paused_at"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", gettext("yes")), ("no", gettext("no"))]

    def queryset(self, request: HttpRequest, rows: QuerySet[Queue]) -> QuerySet[Queue]:
        return rows.filter(**{f"{self.field}__isnull": self.value() == "no"}) if self.value() else rows


class LimitedFilter(PausedFilter):
    title = _("limited")
    parameter_name = "limited"

    def queryset(self, request: HttpRequest, rows: QuerySet[Queue]) -> QuerySet[Queue]:
        unlimited = Q(concurrency_limit=None, max_per_second=None)
        return rows.filter(unlimited if self.value() == "no" else ~unlimited) if self.value() else rows


@admin.register(Queue)
class QueueAdmin(NumbersAdmin):
    list_display = ["shown_name", "paused_since", "limit", "unfinished_jobs"]
    list_filter = [PausedFilter, LimitedFilter]
    search_fields = ["name"]
    search_help_text = _(
        "Only queues that are, or were, paused or limited are listed: the dashboard has them all."
        " To limit another one: manage.py jobs limit QUEUE N."
    )
    ordering = ["name"]
    actions = ["pause", "resume"]
    form = LimitForm
    fields = ["shown_name", "paused_since", *SHOWN, *SHOWN.values()]
    readonly_fields = ["shown_name", "paused_since"]
    happened = {
        "concurrency_limit": ("Took the limit away.", "Limited to {}."),
        "max_per_second": ("Took the limit per second away.", "Limited to {} per second."),
    }

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.fields if self.has_change_permission(request, obj) else [*self.fields[:2], "limit"]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return [*self.readonly_fields, "limit"]

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return may_pause(request)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        response = super().changelist_view(request, extra_context)
        listed = getattr(response, "context_data", None) or {}
        if "cl" in listed:
            visibility, rows = visibility_of(self, request), listed["cl"].result_list
            from ..reporting.queues import unfinished

            names, using = [row.name for row in rows], listed["cl"].queryset.db
            counts = _seen(visibility, names) if visibility.is_narrowed else unfinished(using, names)
            for row in rows:
                row.unfinished = counts.get(row.name, 0)
        return response

    shown_name = column(_("name"), lambda row: harmless(row.name), ordering="name")
    paused_since = column(
        _("paused"),
        lambda row: format_html(gettext("since {when}"), when=ago(row.paused_at)) if row.paused_at else gettext("no"),
        ordering="paused_at",
    )
    limit = column(
        _("limit"),
        lambda row: limits_text(row.concurrency_limit, row.max_per_second) or gettext("none"),
        ordering="concurrency_limit",
    )
    unfinished_jobs = column(
        _("unfinished jobs"),
        lambda row: format_html(
            '<a href="{}">{}</a>', jobs_url(queue=row.name, state="unfinished"), count_text(row.unfinished)
        ),
    )

    @admin.action(description=_("Pause"), permissions=["pause"])
    def pause(self, request: HttpRequest, rows: QuerySet[Queue]) -> None:
        pause_or_resume(self, request, PAUSE, rows.values_list("pk", flat=True))

    @admin.action(description=_("Resume"), permissions=["pause"])
    def resume(self, request: HttpRequest, rows: QuerySet[Queue]) -> None:
        pause_or_resume(self, request, RESUME, rows.values_list("pk", flat=True))

    def save_model(self, request: HttpRequest, obj: Queue, form: Any, change: bool) -> None:
        Queue.objects.limit(obj.name, obj.concurrency_limit)
        Queue.objects.rate_limit(obj.name, obj.max_per_second)


def may_pause(request: HttpRequest) -> bool:
    """Whether the user may pause and resume queues."""
    return may(request, "pause_queue")


def pause_or_resume(model_admin: Any, request: HttpRequest, action: str, names: Iterable[str]) -> None:
    """Pause or resume queues, log each change, and show which changed and which were in that state already."""
    change = Queue.objects.pause if action == PAUSE else Queue.objects.resume
    changed: list[str] = []
    unchanged: list[str] = []
    for name in names:
        try:
            did = change(name)
        except InvalidRequest as error:
            model_admin.message_user(request, harmless(translate(error.message)), messages.ERROR)
            continue
        (changed if did else unchanged).append(harmless(name))
        if did:
            model_admin.log_change(request, Queue(name=name), "Paused." if action == PAUSE else "Resumed.")
    if changed:
        if action == PAUSE:
            message = ngettext("Paused {names}.", "Paused {count} queues: {names}.", len(changed))
        else:
            message = ngettext("Resumed {names}.", "Resumed {count} queues: {names}.", len(changed))
        model_admin.message_user(request, _named(message, changed), messages.SUCCESS)
    if unchanged:
        if action == PAUSE:
            message = ngettext(
                "Was paused already: {names}.", "Were paused already: {count} queues: {names}.", len(unchanged)
            )
        else:
            message = ngettext("Was not paused: {names}.", "Were not paused: {count} queues: {names}.", len(unchanged))
        model_admin.message_user(request, _named(message, unchanged), messages.WARNING)


def jobs_url(**filters: str) -> str:
    """Return the address of the list of jobs, filtered."""
    return f"{reverse('admin:django_ojs_unique_job_changelist')}?{urlencode(filters)}"


def _named(message: str, names: list[str]) -> str:
    return message.format(count=len(names), names=", ".join(names))


def _seen(visibility: Visibility, names: Iterable[str]) -> dict[str, int]:
    """Count the unfinished jobs of some queues that somebody may see who may not see all."""
    jobs = visibility.jobs.filter(queue__in=names, finished_at=None).order_by()
    return dict(jobs.values_list("queue").annotate(count=Count("*")))
