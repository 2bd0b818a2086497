"""Limits: what runs and waits in each partition, and the numbers that operators set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied
from django.db import router
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..models import LimitOverride
from ..ojs.limits import LARGEST
from ..ojs.names import LONGEST_LIMIT
from ..reporting.text import count_text, harmless
from .base import column, render
from .numbers_form import LimitField, NumbersAdmin, NumbersForm
from .sentences import translate
from .visibility import Visibility, visibility_of

if TYPE_CHECKING:
    from ..reporting.limits import LimitReport

MOST_PARTITIONS = 20
"""How many partitions the page of a limit shows."""


class OverrideForm(NumbersForm):
    """The numbers of an operator for a limit; empty: as the code says."""

    shown = {"running": "shown_running", "rate": "shown_rate"}
    running = LimitField(
        label=_("At once"),
        max_value=LARGEST,
        help_text=_("How many jobs of each partition may run at once, over all workers. Empty: as the code says."),
    )
    rate = LimitField(
        label=_("Rate"),
        max_value=LARGEST,
        help_text=_(
            "How many jobs of each partition may start in the second, minute or hour that the code says."
            " Empty: as the code says."
        ),
    )
    shown_running = forms.CharField(required=False, label="", widget=forms.HiddenInput)
    shown_rate = forms.CharField(required=False, label="", widget=forms.HiddenInput)

    class Meta:
        model = LimitOverride
        fields = ["running", "rate"]


@admin.register(LimitOverride)
class LimitOverrideAdmin(NumbersAdmin):
    """All limits by name: also those for which no operator has set a number, which have no row."""

    form = OverrideForm
    readonly_fields = ["shown_name", "in_code", "in_force", "now", "busiest_partitions"]
    happened = {
        "running": ("Let the code say how many are at once.", "Limited to {} at once."),
        "rate": ("Let the code say how many are started in its time.", "Limited to {} started in its time."),
    }

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        numbers = [*OverrideForm.shown, *OverrideForm.shown.values()]
        changed = numbers if self.has_change_permission(request, obj) else ["in_force"]
        return ["shown_name", "in_code", *changed, "now", "busiest_partitions"]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        visibility = visibility_of(self, request)
        from ..reporting.limits import limits

        rows = [_cells(each, visibility) for each in limits(_database())]
        return render(self, request, "limits.html", gettext("Limits"), rows=rows, is_narrowed=visibility.is_narrowed)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        stored = super().get_object(request, object_id, from_field)
        from ..reporting.limits import LimitReport, limits

        report = next((one for one in limits(_database()) if one.name == object_id), None)
        if stored is None and (report is None or len(object_id) > LONGEST_LIMIT):
            return None
        found: Any = stored or LimitOverride(name=object_id)
        found.visibility, found.report = visibility_of(self, request), report or LimitReport(object_id, override=stored)
        return found

    shown_name = column(_("name"), lambda row: harmless(row.name))
    in_code = column(_("in the code"), lambda row: numbers_text(row.report.given))
    in_force = column(_("in force"), lambda row: numbers_text(row.report.numbers))

    @admin.display(description=_("now"))
    def now(self, row: Any) -> str:
        if row.visibility.is_narrowed:
            return "-"
        report = row.report
        message = gettext("running: {running}, waiting: {waiting}, partitions with waiting jobs: {partitions}")
        return message.format(
            running=count_text(report.running, report.is_cut),
            waiting=count_text(report.waiting, report.is_cut),
            partitions=count_text(report.waiting_partitions, report.is_cut),
        )

    @admin.display(description=_("partitions"))
    def busiest_partitions(self, row: Any) -> SafeString | str:
        if row.visibility.is_narrowed:
            return gettext("Only who may see all jobs may see the partitions.")
        from ..reporting.limits import partitions_of

        partitions = partitions_of(_database(), row.name, MOST_PARTITIONS)
        if not partitions:
            return gettext("No job runs under it or waits for it now.")
        message = gettext("{partition}: running: {running}, waiting: {waiting}")
        lines = (
            (
                message.format(
                    partition=harmless(one.text),
                    running=count_text(one.running, one.is_cut),
                    waiting=count_text(one.waiting, one.is_cut),
                ),
                row.visibility.link(one.first) if one.first else "",
            )
            for one in partitions
        )
        return format_html('<ul class="ojs-held">{}</ul>', format_html_join("", "<li>{} {}</li>", lines))

    def save_model(self, request: HttpRequest, obj: LimitOverride, form: Any, change: bool) -> None:
        LimitOverride.objects.set(obj.name, running=obj.running, rate=obj.rate)


def numbers_text(numbers: Any) -> str:
    """Write the numbers of a limit in the visitor's language; several, if jobs say different ones."""
    return " / ".join(filter(None, map(translate, numbers))) or gettext("not known here")


def limit_url(name: str) -> str:
    """Return the address of a limit's page."""
    return reverse("admin:django_ojs_unique_limitoverride_change", args=[quote(name)])


def _cells(one: LimitReport, visibility: Visibility) -> dict[str, Any]:
    counts = (one.partitions, one.running, one.waiting, one.waiting_partitions)
    return {
        "name": harmless(one.name),
        "url": limit_url(one.name),
        "in_force": numbers_text(one.numbers),
        "in_code": numbers_text(one.given) if one.override else "",
        "counts": ["-" if visibility.is_narrowed else count_text(count, one.is_cut) for count in counts],
    }


def _database() -> str:
    return router.db_for_read(LimitOverride) or "default"
