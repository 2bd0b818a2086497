"""Periodic jobs: those declared in code can be viewed, enabled and disabled; the others can be changed as well."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.actions import delete_selected
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ..db.clock import database_now
from ..exceptions import InvalidRequest, OJSError
from ..handlers.redaction import redacted_member
from ..models import CronJob, Job
from ..reporting.text import harmless
from .base import FROM_PAGE, BoundedAdmin, ChoiceFilter, column, may_view
from .cron_form import CronJobForm
from .display import ago, ago_text, badge, pretty, when
from .sentences import translate
from .visibility import Visibility, visibility_of

FORM = ["name", "description", "expression", "timezone", "overlap_policy", "enabled", "type", "args", "options"]
HAPPENED = ["next_run", "last_run", "last_job", "last_result", "run_count"]


class OutcomeFilter(ChoiceFilter):
    title = _("last outcome")
    parameter_name, field = "outcome", "last_outcome"
    names = ("created", "replaced", "deduplicated", "rejected", "skipped", "already", "failed")


@admin.register(CronJob)
class CronJobAdmin(BoundedAdmin):
    form = CronJobForm
    list_display = ["name", "shown_type", "schedule", "enabled", "declared", "next_run_ago", "last_result", "last_ago"]
    list_filter = ["enabled", "declared", "overlap_policy", OutcomeFilter]
    search_fields = ["name", "type"]
    ordering = ["name"]
    actions = ["run_now", "enable", "disable", "delete_selected"]
    names_jobs = ("last_job_id",)
    change_form_template = "admin/django_ojs_unique/cronjob/change_form.html"

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return not _is_declared(obj) and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return not _is_declared(obj) and super().has_delete_permission(request, obj)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request)
        # A worker that is about to fire the entry waits until the form is saved.
        return rows.select_for_update() if request.method == "POST" and _is_form(request) else rows

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return [(None, {"fields": FORM})]
        if self.has_change_permission(request, obj):
            fields = FORM
        else:
            shown = {"type": "shown_type", "args": "shown_args", "options": "shown_options"}
            fields = [shown.get(name, name) for name in FORM]
        declared = gettext(
            "Declared in code: change it there. It can be enabled and disabled in the list of cron jobs."
        )
        return [
            (None, {"fields": fields, "description": declared if obj.declared else ""}),
            (_("So far"), {"fields": [*HAPPENED, "history"] if may_view(request, Job) else HAPPENED}),
        ]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return [*HAPPENED, "history"] if obj is not None else []

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, change=change, **kwargs)
        if change and "name" in form.base_fields:
            form.base_fields["name"].disabled = True  # another name would be another entry
        return form

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **options: Any) -> Any:
        may_run = context.get("original") is not None and self.has_change_permission(request)
        return super().render_change_form(
            request, context | {"may_run": may_run, "from_page": FROM_PAGE}, *args, **options
        )

    def save_model(self, request: HttpRequest, obj: CronJob, form: Any, change: bool) -> None:
        """Write only the fields that the form changed; workers write the others."""
        if not change:
            obj.save()
        elif form.changed_data:
            obj.save(update_fields=[*form.changed_data, "next_run_at"])

    @admin.action(description=_("Run now"), permissions=["change"])
    def run_now(self, request: HttpRequest, entries: QuerySet[CronJob]) -> None:
        for entry in entries:
            message, happened, level = _run(visibility_of(self, request), entry, entries.db)
            self.message_user(request, message, level)
            self.log_change(request, entry, happened)

    @admin.action(description=_("Enable"), permissions=["change"])
    def enable(self, request: HttpRequest, entries: QuerySet[CronJob]) -> None:
        self._switch(request, entries, True)

    @admin.action(description=_("Disable"), permissions=["change"])
    def disable(self, request: HttpRequest, entries: QuerySet[CronJob]) -> None:
        self._switch(request, entries, False)

    @admin.action(description=_("Delete selected cron jobs"), permissions=["delete"])
    def delete_selected(self, request: HttpRequest, entries: QuerySet[CronJob]) -> Any:
        declared = [harmless(name) for name in entries.filter(declared=True).values_list("name", flat=True)]
        if not declared:
            return delete_selected(self, request, entries)
        message = gettext("Declared in code: {names}. Remove it there, or disable it here. Nothing was deleted.")
        self.message_user(request, message.format(names=", ".join(declared)), messages.WARNING)
        return None

    def _switch(self, request: HttpRequest, entries: QuerySet[CronJob], enabled: bool) -> None:
        count = 0
        for entry in entries:
            try:
                changed = entry.switch(enabled)
            except InvalidRequest as error:
                message = gettext("{name} cannot be enabled: {reason}")
                self.message_user(
                    request, message.format(name=entry, reason=translate(error.message)), messages.WARNING
                )
                continue
            if changed:
                self.log_change(request, entry, "Enabled." if enabled else "Disabled.")
                count += 1
        if count:
            if enabled:
                message = ngettext("Enabled: {count} cron job.", "Enabled: {count} cron jobs.", count)
            else:
                message = ngettext("Disabled: {count} cron job.", "Disabled: {count} cron jobs.", count)
            self.message_user(request, message.format(count=count), messages.SUCCESS)
        else:
            self.message_user(request, gettext("Nothing was changed."), messages.INFO)

    shown_type = column(_("type"), lambda row: harmless(row.type), ordering="type")
    shown_args = column(_("args"), lambda row: pretty(redacted_member(row, "args")))
    shown_options = column(_("options"), lambda row: pretty(redacted_member(row, "options")))
    schedule = column(_("schedule"), lambda row: harmless(f"{row.expression} {row.timezone}"))
    next_run_ago = column(
        _("next run"), lambda row: ago(row.next_run_at) if row.enabled else gettext("disabled"), ordering="next_run_at"
    )
    next_run = column(_("next run"), lambda row: when(row.next_run_at) if row.enabled else gettext("It is disabled."))
    last_run = column(_("last run"), lambda row: when(row.last_run_at))
    last_job = column(
        _("job of the last run"), lambda row: row.visibility.link(row.last_job_id) if row.last_job_id else "-"
    )

    @admin.display(description=_("last jobs"))
    def history(self, entry: Any) -> Any:
        from .cron_history import history

        return render_to_string("admin/django_ojs_unique/cronjob/history.html", history(entry.visibility, entry))

    @admin.display(description=_("last outcome"), ordering="last_outcome_at")
    def last_result(self, entry: Any) -> Any:
        if not entry.last_outcome:
            return "-"
        when_text = ago(entry.last_outcome_at) if entry.last_outcome_at else ""
        if entry.outcome_count < 2:
            return format_html("{} {}", badge(entry.last_outcome), when_text)
        times = gettext("{count} times in a row").format(count=f"{entry.outcome_count:,}")
        return format_html("{} {}, {}", badge(entry.last_outcome), when_text, times)

    @admin.display(description=_("last run"), ordering="last_run_at")
    def last_ago(self, entry: Any) -> Any:
        text = ago_text(entry.last_run_at) if entry.last_run_at else gettext("its job")
        return entry.visibility.link(entry.last_job_id, text) if entry.last_job_id else ago(entry.last_run_at)


def _run(visibility: Visibility, entry: CronJob, using: str) -> tuple[Any, str, int]:
    """Run an entry now; return what came out for the user and for the log, and the level of the message."""
    from ..maintenance.cron import run_now
    from .cron_history import ENQUEUED, RAN

    try:
        ran = run_now(entry.pk, database_now(using), using)
    except OJSError as error:
        reason = harmless(error.message)
        message = gettext("Cron job {name} enqueued nothing: {reason}")
        return (
            message.format(name=entry, reason=harmless(visibility.translate(error.message))),
            f"{RAN}: failed. {reason}",
            messages.ERROR,
        )
    if ran is None:
        return gettext("{name} is gone.").format(name=entry), f"{RAN}: it is gone.", messages.ERROR
    outcome, id = ran
    if outcome in ENQUEUED:
        message = gettext("Cron job {name} ran now: {job} ({outcome}).")
        return (
            format_html(message, name=entry, outcome=translate(outcome), job=visibility.link(id)),
            f"{RAN}: {outcome} job {id}.",
            messages.SUCCESS,
        )
    message = gettext("Cron job {name} enqueued nothing: {outcome}, because of {job}.")
    return (
        format_html(message, name=entry, outcome=translate(outcome), job=visibility.link(id)),
        f"{RAN}: {outcome} because of job {id}.",
        messages.WARNING,
    )


def _is_declared(entry: CronJob | None) -> bool:
    return entry is not None and entry.declared


def _is_form(request: HttpRequest) -> bool:
    match = request.resolver_match
    return match is not None and match.url_name == "django_ojs_unique_cronjob_change"
