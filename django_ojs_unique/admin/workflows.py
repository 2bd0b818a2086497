"""Workflows: the list of the outermost ones, and their cancellation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin import helpers
from django.contrib.admin.views.main import ChangeList
from django.db.models import Q, QuerySet
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ..exceptions import InvalidTransition
from ..models import Workflow, WorkflowMember
from ..ojs.workflows import Kind, WorkflowState
from ..reporting.parse import read_id
from ..reporting.text import harmless
from .base import FROM_PAGE, BoundedList, ChoiceFilter, column, may, render
from .display import ago, badge, brief
from .sentences import translate
from .visibility import visibility_of
from .workflow_page import WorkflowPage, name_of, progress_bar, took, workflow_url

if TYPE_CHECKING:
    from ..reporting.workflows import Stops

MOST_CANCELLED = 100
"""How many workflows are cancelled at once."""
ACTIVE = "active"


class StateFilter(ChoiceFilter):
    title = _("state")
    parameter_name = field = "state"
    names = WorkflowState


class KindFilter(ChoiceFilter):
    title = _("kind")
    parameter_name = field = "type"
    names = Kind


class WorkflowList(BoundedList):
    """The list; the jobs of all its workflows are counted in one query."""

    def get_queryset(self, *args: Any, **kwargs: Any) -> QuerySet[Any]:
        return super().get_queryset(*args, **kwargs).defer("extra")

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows: list[Any] = list(self.result_list)
        from ..reporting.workflows import job_counts

        counts = job_counts(rows, self.root_queryset.db)
        for row in rows:
            row.jobs_done = counts[row.pk]
        self.result_list = rows


@admin.register(Workflow)
class WorkflowAdmin(WorkflowPage):
    list_display = ["shown_name", "kind", "shown_state", "jobs_done", "age", "took"]
    list_display_links = ["shown_name"]
    list_filter = [StateFilter, KindFilter, "created_at"]
    search_fields = ["name"]  # shows the search field; what is searched is below
    search_help_text = _("A part of a workflow's name, its id, or the id of one of its jobs.")
    ordering = ["-pk"]
    sortable_by = ["age"]
    actions = ["cancel"]
    no_id = _("Nothing was done: a row that was chosen has no workflow's id.")

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return may(request, "cancel_workflow")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return WorkflowList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        if (id := read_id(term)) is not None:
            mine = WorkflowMember._default_manager.using(queryset.db).filter(Q(job_id=id) | Q(child=id))
            return queryset.filter(Q(pk=id) | Q(pk__in=mine.values(root=Coalesce("workflow__root", "workflow")))), False
        return (queryset.filter(name__icontains=term) if term else queryset), False

    @admin.action(description=_("Cancel"), permissions=["cancel"])
    def cancel(self, request: HttpRequest, workflows: QuerySet[Workflow]) -> HttpResponse | None:
        """Say what it would stop, then cancel."""
        chosen = list(workflows[: MOST_CANCELLED + 1])
        if len(chosen) > MOST_CANCELLED:
            message = gettext("Nothing was done: choose {count} workflows at most.").format(count=MOST_CANCELLED)
            self.message_user(request, message, messages.WARNING)
            return None
        if "_confirmed" not in request.POST:
            return self._ask(request, chosen)
        self._cancel(request, chosen, active=ACTIVE in request.POST)
        return None

    def _ask(self, request: HttpRequest, chosen: list[Workflow]) -> HttpResponse:
        from ..reporting.workflows import stops

        found = {workflow.pk: stops(workflow) for workflow in chosen}
        kept = [("action", "cancel"), *((helpers.ACTION_CHECKBOX_NAME, workflow.pk) for workflow in chosen)]
        changelist = reverse("admin:django_ojs_unique_workflow_changelist")
        back = workflow_url(chosen[0]) if FROM_PAGE in request.POST and chosen else changelist
        if FROM_PAGE in request.POST:
            kept.append((FROM_PAGE, "yes"))
        return render(
            self,
            request,
            "workflow/cancel.html",
            gettext("Cancel workflows"),
            consequences=[_consequence(workflow, found[workflow.pk]) for workflow in chosen],
            nothing=all(workflow.state != WorkflowState.RUNNING for workflow in chosen),
            running=sum(one.running for one in found.values()),
            kept=kept,
            confirmed="_confirmed",
            active=ACTIVE,
            back=back,
        )

    def _cancel(self, request: HttpRequest, chosen: list[Workflow], *, active: bool) -> None:
        count = jobs = 0
        for workflow in chosen:
            try:
                done = workflow.cancel(active=active)
            except InvalidTransition as error:
                message = visibility_of(self, request).translate(error.message, workflow.pk)
                self.message_user(request, harmless(message), messages.WARNING)
                continue
            self.log_change(request, workflow, f"Cancelled with {done.jobs:,} jobs.")
            count, jobs = count + 1, jobs + done.jobs
        if count:
            message = ngettext("Cancelled: {count} workflow.", "Cancelled: {count} workflows.", count).format(
                count=count
            )
            stopped = ngettext("{count} job was cancelled.", "{count} jobs were cancelled.", jobs)
            self.message_user(request, f"{message} {stopped.format(count=f'{jobs:,}')}", messages.SUCCESS)

    shown_name = column(_("name"), lambda row: brief(name_of(row)))
    kind = column(_("kind"), lambda row: translate(row.type))
    shown_state = column(_("state"), lambda row: badge(row.state))
    jobs_done = column(_("jobs done"), lambda row: progress_bar(row.jobs_done))
    age = column(_("age"), lambda row: ago(row.created_at), ordering="pk")
    took = column(_("took"), took)


def _consequence(workflow: Workflow, found: Stops) -> dict[str, Any]:
    """Return the row of a workflow in ``workflow/cancel.html``."""
    is_running = workflow.state == WorkflowState.RUNNING
    sentences = [
        (found.waiting, ngettext("{count} job is cancelled.", "{count} jobs are cancelled.", found.waiting)),
        (
            found.running,
            ngettext(
                "{count} running job goes on, without another attempt.",
                "{count} running jobs go on, without another attempt.",
                found.running,
            ),
        ),
        (found.unborn, ngettext("{count} job is never enqueued.", "{count} jobs are never enqueued.", found.unborn)),
        (
            found.shared,
            ngettext(
                "{count} job goes on, as others enqueued it or wait for it.",
                "{count} jobs go on, as others enqueued them or wait for them.",
                found.shared,
            ),
        ),
    ]
    return {
        "link": format_html('<a href="{}">{}</a>', workflow_url(workflow), brief(name_of(workflow))),
        "type": translate(workflow.type),
        "state": badge(workflow.state),
        "refusal": "" if is_running else gettext("It has ended."),
        "sentences": [message.format(count=f"{count:,}") for count, message in sentences if count]
        if is_running
        else [],
    }
