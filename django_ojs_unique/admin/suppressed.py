"""The list of suppressed enqueues."""

from __future__ import annotations

import re
from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..handlers.redaction import redacted_member
from ..models import Job, SuppressedEnqueue
from ..reporting.parse import fingerprint_begins, read_id
from ..reporting.suppressed import MOST_DIFFERENCES, differences, kept
from ..reporting.text import harmless
from ..unique.keys import KeyMode
from ..unique.policy import OnConflict
from .base import BoundedList, ChoiceFilter, ReadOnlyAdmin, column, may_view
from .display import (
    ago,
    badge,
    difference_texts,
    fingerprint_link,
    plain_text,
    pretty,
    strategy,
    when,
)
from .sentences import translate
from .visibility import hidden, visibility_of

_BEGINNING = re.compile(r"[0-9a-f]{8,64}")


class StrategyFilter(ChoiceFilter):
    title = _("strategy")
    parameter_name, field = "strategy", "on_conflict"
    names = (*OnConflict, KeyMode.UNSAFE_DEDUPE)


def _payload(row: Any, name: str) -> Any:
    shown = kept(getattr(row, name))
    return plain_text(translate(shown)) if isinstance(shown, str) else pretty(redacted_member(row, name))


class AttemptList(BoundedList):
    """The list; it shows no payloads, so it does not read them."""

    def get_queryset(self, *args: Any, **kwargs: Any) -> QuerySet[Any]:
        return super().get_queryset(*args, **kwargs).defer("args", "meta")


@admin.register(SuppressedEnqueue)
class SuppressedEnqueueAdmin(ReadOnlyAdmin):
    list_display = ["at", "shown_type", "short", "strategy", "met", "admitted"]
    list_filter = ["outcome", StrategyFilter, "created_at"]
    search_fields = ["type"]  # shows the search field; what is searched is below
    search_help_text = _("A job's id, at least 8 characters of a fingerprint's beginning, or the beginning of a type.")
    ordering = ["-id"]
    sortable_by = ["at"]
    names_jobs = ("existing_job_id", "job_id")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return visibility_of(self, request).attempts(super().get_queryset(request))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[BoundedList]:
        return AttemptList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        from ..reporting.search import of_types

        term = search_term.strip()
        # Without dashes, an id could also be the beginning of a fingerprint.
        if "-" in term and (id := read_id(term)) is not None:
            found = queryset.filter(Q(existing_job=id) | Q(job=id))
            # While the job exists, the enqueues that met it are found by its fingerprint.
            fingerprint = Job.objects.filter(pk=id).values_list("fingerprint", flat=True).first()
            return (found if fingerprint is None else found.filter(fingerprint=fingerprint)), False
        if _BEGINNING.fullmatch(term):
            return queryset.filter(**fingerprint_begins(term)), False
        return (of_types(queryset, term) if term else queryset), False

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        happened = ["created", "became", "strategy", "met", "admitted", "group"]
        asked = ["shown_type", "shown_queue", "shown_args", "shown_meta"]
        if may_view(request, Job):
            asked.append("compared")
        return [(None, {"fields": happened}), (_("What was asked"), {"fields": asked})]

    at = column(_("when"), lambda row: ago(row.created_at), ordering="id")
    created = column(_("when"), lambda row: when(row.created_at))
    shown_type = column(_("type"), lambda row: harmless(row.type))
    shown_queue = column(_("queue"), lambda row: harmless(row.queue))
    short = column(_("outcome"), lambda row: badge(row.outcome))
    strategy = column(_("strategy"), lambda row: strategy(row.on_conflict))
    became = column(_("what became of it"), lambda row: badge(row.outcome, row.get_outcome_display()))
    met = column(
        _("met job, and its state then"),
        lambda row: row.visibility.link_and_state(row.existing_job_id, row.existing_state),
    )
    admitted = column(_("admitted job"), lambda row: row.visibility.link(row.job_id) if row.job_id else gettext("none"))
    group = column(_("fingerprint"), lambda row: fingerprint_link(row.fingerprint, whole=True))
    shown_args = column(_("args"), lambda row: _payload(row, "args"))
    shown_meta = column(_("meta"), lambda row: _payload(row, "meta"))

    @admin.display(description=_("compared with the met job"))
    def compared(self, attempt: Any) -> Any:
        if not attempt.visibility.sees(attempt.existing_job_id):
            return hidden()
        job = Job.objects.using(attempt._state.db).filter(pk=attempt.existing_job_id).first()
        if job is None or job.payload_pruned:
            gone = gettext("The job that it met is gone.")
            return gone if job is None else gettext("The args of the job that it met were pruned.")
        found = differences(job, attempt.type, attempt.args, attempt.meta)
        context = {
            "compared": True,
            "differences": [difference_texts(each) for each in found[:MOST_DIFFERENCES]],
            "more": len(found) > MOST_DIFFERENCES,
        }
        return render_to_string("admin/django_ojs_unique/job/_differences.html", context)
