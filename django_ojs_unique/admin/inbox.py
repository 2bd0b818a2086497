"""The list of requests in the inbox."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ..handlers.redaction import redacted_member
from ..models import InboxRequest
from ..reporting.text import harmless
from .base import ReadOnlyAdmin, column, may
from .display import ago, badge, brief, pretty, when
from .visibility import visibility_of


class RefusedFilter(admin.SimpleListFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("refused", gettext("refused")), ("waiting", gettext("waiting"))]

    def queryset(self, request: HttpRequest, rows: QuerySet[InboxRequest]) -> QuerySet[InboxRequest]:
        return rows.filter(refused_at__isnull=self.value() == "waiting") if self.value() else rows


@admin.register(InboxRequest)
class InboxRequestAdmin(ReadOnlyAdmin):
    change_list_template = "admin/django_ojs_unique/inbox.html"
    list_display = ["id", "shown_state", "shown_action", "shown_type", "asked", "brief_reason"]
    list_filter = [RefusedFilter]
    ordering = ["-id"]
    sortable_by = ["id"]
    actions = ["retry"]
    fields = ["shown_state", "reason", "shown_action", "shown_type", "shown_args", "shown_options", "requested"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request)
        # Whose job it would be is not known: who may see some jobs only sees none of the requests.
        return rows.none() if visibility_of(self, request).is_narrowed else rows

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return may(request, "change_inboxrequest")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, "delete_inboxrequest")

    @admin.action(description=_("Retry"), permissions=["retry"])
    def retry(self, request: HttpRequest, rows: Any) -> None:
        refused = list(rows.refused())
        count = rows.retry()
        for one in refused:
            self.log_change(request, one, "Retried.")
        message = ngettext("Retried: {count} request.", "Retried: {count} requests.", count)
        self.message_user(request, message.format(count=count), messages.SUCCESS if count else messages.WARNING)

    shown_state = column(
        _("state"), lambda row: badge("discarded", gettext("refused")) if row.refused_at else gettext("waiting")
    )
    shown_action = column(_("action"), lambda row: harmless(row.get_action_display()))
    shown_type = column(_("type"), lambda row: harmless(row.type or "-"))
    asked = column(_("requested"), lambda row: ago(row.requested_at))
    requested = column(_("requested"), lambda row: when(row.requested_at))
    brief_reason = column(_("why it was refused"), lambda row: brief(row.reason))
    reason = column(_("why it was refused"), lambda row: harmless(row.reason))
    shown_args = column(_("args"), lambda row: pretty(redacted_member(row, "args")))
    shown_options = column(_("options"), lambda row: pretty(redacted_member(row, "options")))
