"""The list of suppressed enqueues."""

from __future__ import annotations

import re
from collections.abc import Iterable
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
from ..reporting.suppressed import MOST_DIFFERENCES, differences
from ..reporting.text import harmless
from ..unique.keys import KeyMode
from ..unique.policy import OnConflict
from .base import BoundedList, ReadOnlyAdmin, may_view
from .display import (
    ago,
    badge,
    difference_texts,
    fingerprint_link,
    pretty,
    strategy,
    when,
)
from .visibility import hidden, visibility_of

_BEGINNING = re.compile(r"[0-9a-f]{8,64}")


class StrategyFilter(admin.SimpleListFilter):
    """Filters by strategy; it offers all that exist, without a query for those that occur."""

    title = _("strategy")
    parameter_name = "strategy"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return [(str(name), str(name)) for name in (*OnConflict, KeyMode.UNSAFE_DEDUPE)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset if self.value() is None else queryset.filter(on_conflict=self.value())


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
    show_facets = admin.ShowFacets.NEVER
    names_jobs = ("existing_job_id", "job_id")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return visibility_of(self, request).attempts(super().get_queryset(request))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[BoundedList]:
        return AttemptList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        # Without dashes, an id could also be the beginning of a fingerprint.
        if "-" in term and (id := read_id(term)) is not None:
            found = queryset.filter(Q(existing_job=id) | Q(job=id))
            # While the job exists, the enqueues that met it are found by its fingerprint.
            fingerprint = Job.objects.filter(pk=id).values_list("fingerprint", flat=True).first()
            return (found if fingerprint is None else found.filter(fingerprint=fingerprint)), False
        if _BEGINNING.fullmatch(term):
            return queryset.filter(**fingerprint_begins(term)), False
        return (queryset.filter(type__startswith=term) if term else queryset), False

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        happened = ["created", "became", "strategy", "met", "admitted", "group"]
        asked = ["shown_type", "shown_queue", "shown_args", "shown_meta"]
        if may_view(request, Job):
            asked.append("compared")
        return [(None, {"fields": happened}), (_("What was asked"), {"fields": asked})]

    @admin.display(description=_("when"), ordering="id")
    def at(self, attempt: SuppressedEnqueue) -> Any:
        return ago(attempt.created_at)

    @admin.display(description=_("when"))
    def created(self, attempt: SuppressedEnqueue) -> Any:
        return when(attempt.created_at)

    @admin.display(description=_("type"))
    def shown_type(self, attempt: SuppressedEnqueue) -> str:
        return harmless(attempt.type)

    @admin.display(description=_("queue"))
    def shown_queue(self, attempt: SuppressedEnqueue) -> str:
        return harmless(attempt.queue)

    @admin.display(description=_("outcome"))
    def short(self, attempt: SuppressedEnqueue) -> Any:
        return badge(attempt.outcome)

    @admin.display(description=_("strategy"))
    def strategy(self, attempt: SuppressedEnqueue) -> Any:
        return strategy(attempt.on_conflict)

    @admin.display(description=_("what became of it"))
    def became(self, attempt: SuppressedEnqueue) -> Any:
        return badge(attempt.outcome, attempt.get_outcome_display())

    @admin.display(description=_("met job, and its state then"))
    def met(self, attempt: Any) -> Any:
        return attempt.visibility.link_and_state(attempt.existing_job_id, attempt.existing_state)

    @admin.display(description=_("admitted job"))
    def admitted(self, attempt: Any) -> Any:
        return attempt.visibility.link(attempt.job_id) if attempt.job_id else gettext("none")

    @admin.display(description=_("fingerprint"))
    def group(self, attempt: SuppressedEnqueue) -> Any:
        return fingerprint_link(attempt.fingerprint, whole=True)

    @admin.display(description=_("args"))
    def shown_args(self, attempt: SuppressedEnqueue) -> Any:
        return pretty(redacted_member(attempt, "args"))

    @admin.display(description=_("meta"))
    def shown_meta(self, attempt: SuppressedEnqueue) -> Any:
        return pretty(redacted_member(attempt, "meta"))

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
