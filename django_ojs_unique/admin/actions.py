"""The admin actions on jobs: each has its own permission, is logged, and reports what became of each job."""

from __future__ import annotations

from itertools import islice
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin import helpers
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db import router
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..db.clock import database_now
from ..models import Job
from ..ojs.states import UNSUCCESSFUL
from ..operations.operation import CANCEL, DELETE, ENQUEUE_AGAIN, RELEASE, RETRY, Operation
from ..operations.results import BulkResult
from ..reporting.parse import read_id
from .base import FROM_PAGE, ReadOnlyAdmin, may, render
from .visibility import Visibility, visibility_of

RESOLUTIONS: dict[str, dict[str, bool]] = {"skip": {}, "replace": {"replace": True}, "force": {"force": True}}
"""What the retry of a finished job does about live duplicates."""
FINISHED = "_finished"
"""The field with the jobs that had finished when the page asked: a page that is sent twice retries none twice."""
MOST_LINKS = 10
"""How many new jobs a message links to."""
TITLES = {
    "retry": _("Retry"),
    "enqueue_again": _("Enqueue again"),
    "release_unique_key": _("Release unique key"),
    "delete_selected": _("Delete"),
}
"""The titles of the pages that ask about ticked jobs; the other actions ask nothing."""


class JobActions(ReadOnlyAdmin):
    """The actions on jobs, for the admin of jobs to inherit.

    They act on the jobs that were ticked, whatever their state is now; or on all that match the list's filters, after
    a page that says how many these are.
    """

    no_id = _("Nothing was done: a row that was chosen has no job's id.")
    actions = ["cancel", "retry", "enqueue_again", "release_unique_key", "delete_selected"]

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return may(request, "cancel_job")

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return may(request, "retry_job")

    def has_enqueue_again_permission(self, request: HttpRequest) -> bool:
        return may(request, "enqueue_again_job")

    def has_release_permission(self, request: HttpRequest) -> bool:
        return may(request, "release_job")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, "delete_job")

    @admin.action(description=_("Cancel"), permissions=["cancel"])
    def cancel(self, request: HttpRequest, jobs: QuerySet[Job]) -> HttpResponse | None:
        return self._act(request, jobs, CANCEL)

    @admin.action(description=_("Retry"), permissions=["retry"])
    def retry(self, request: HttpRequest, jobs: QuerySet[Job]) -> HttpResponse | None:
        """Make waiting jobs available at once; for finished ones, ask first what to do about live duplicates."""
        from .bulk import ACROSS

        options = RESOLUTIONS.get(request.POST.get("resolution", ""))
        is_confirmed = options is not None
        if not is_confirmed and request.POST.get(ACROSS) != "1":
            ticked = visibility_of(self, request).jobs.filter(pk__in=_ticked(request))
            is_confirmed = not ticked.filter(state__in=sorted(UNSUCCESSFUL)).exists()
        return self._act(request, jobs, RETRY, options, is_confirmed=is_confirmed)

    @admin.action(description=_("Enqueue again"), permissions=["enqueue_again"])
    def enqueue_again(self, request: HttpRequest, jobs: QuerySet[Job]) -> HttpResponse | None:
        return self._act(request, jobs, ENQUEUE_AGAIN)

    @admin.action(description=_("Release unique key"), permissions=["release"])
    def release_unique_key(self, request: HttpRequest, jobs: QuerySet[Job]) -> HttpResponse | None:
        return self._act(request, jobs, RELEASE)

    @admin.action(description=_("Delete"), permissions=["delete"])
    def delete_selected(self, request: HttpRequest, jobs: QuerySet[Job]) -> HttpResponse | None:
        return self._act(request, jobs, DELETE)

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Ask for confirmation, then delete one job by the rules of the action."""
        from .bulk import CONFIRMED
        from .carry_out import carry_out

        if not self.has_delete_permission(request):
            raise PermissionDenied
        id, visibility = read_id(unquote(object_id)), visibility_of(self, request)
        # Not from a replica, which may not have the job yet.
        if id is None or not visibility.jobs.using(router.db_for_write(Job)).filter(pk=id).exists():
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined,no-any-return]
        if request.method != "POST" or CONFIRMED not in request.POST:
            return self._ask(request, "delete_selected", DELETE, [id])
        self._tell(request, visibility, DELETE, carry_out(request, visibility, [id], DELETE)[0])
        return HttpResponseRedirect(reverse("admin:django_ojs_unique_job_changelist"))

    def response_action(self, request: HttpRequest, queryset: QuerySet[Job], *args: Any, **options: Any) -> Any:
        from .bulk import ACROSS

        # For ticked rows the list's filters are ignored: a job that has changed since the page was loaded is reported.
        jobs = queryset if request.POST.get(ACROSS) == "1" else visibility_of(self, request).jobs
        return super().response_action(request, jobs, *args, **options)

    def _act(
        self,
        request: HttpRequest,
        matching: QuerySet[Job],
        operation: Operation,
        options: dict[str, bool] | None = None,
        *,
        is_confirmed: bool | None = None,
    ) -> HttpResponse | None:
        """Do something to the ticked jobs, or to all that match, once the user has seen what it means."""
        from .bulk import ACROSS, CONFIRMED, bulk_action
        from .carry_out import carry_out

        if is_confirmed is None:
            is_confirmed = CONFIRMED in request.POST
        visibility, ids, action = visibility_of(self, request), _ticked(request), request.POST["action"]
        if request.POST.get(ACROSS) == "1":
            return bulk_action(self, request, matching, visibility, operation, options or {}, is_confirmed=is_confirmed)
        if action in TITLES and not is_confirmed:
            return self._ask(request, action, operation, ids)
        finished = _ids(request, FINISHED)
        result, found = carry_out(request, visibility, ids, operation, finished, **(options or {}))
        if operation is RETRY and options is not None:
            return self._show(request, visibility, ids, result, found)
        self._tell(request, visibility, operation, result)
        return None

    def _show(
        self, request: HttpRequest, visibility: Visibility, ids: list[UUID], result: BulkResult, found: dict[UUID, Job]
    ) -> HttpResponse:
        """Show what became of each job that was to be retried."""
        from ..reporting.preview import live_duplicates
        from .carry_out import outcome_row

        jobs, changed = visibility.jobs, [found[id] for id in result.changed if id in found]
        beside = live_duplicates(jobs, changed, database_now(jobs.db))
        return render(
            self,
            request,
            "job/retried.html",
            gettext("Retry"),
            outcomes=[outcome_row(visibility, id, found.get(id), result, beside.get(id, [])) for id in ids],
            done=len(result.changed),
            refused=len(result.refused),
            back=_back(request),
        )

    def _tell(self, request: HttpRequest, visibility: Visibility, operation: Operation, result: BulkResult) -> None:
        """Show how many were changed, and the first few refusals."""
        from .bulk import done_note, refusal_note

        if result.changed:
            message: Any = done_note(operation, len(result.changed))
            if result.new:
                new = format_html_join(
                    ", ", "{}", ((visibility.link(id),) for id in islice(result.new.values(), MOST_LINKS))
                )
                more = ", ..." if len(result.new) > MOST_LINKS else ""
                message = format_html(gettext("{done} New: {jobs}"), done=message, jobs=format_html("{}{}", new, more))
            self.message_user(request, message, messages.SUCCESS)
        if result.refused:
            self.message_user(request, refusal_note(visibility, result), messages.WARNING)

    def _ask(self, request: HttpRequest, action: str, operation: Operation, ids: list[UUID]) -> HttpResponse:
        """Show what an action would mean for each job."""
        from ..reporting.preview import consequences
        from .bulk import CONFIRMED
        from .carry_out import consequence_row

        kept = [("action", action), *((helpers.ACTION_CHECKBOX_NAME, id) for id in ids)]
        if FROM_PAGE in request.POST and operation is not DELETE:  # a deleted job has no page to return to
            kept.append((FROM_PAGE, "yes"))
        visibility = visibility_of(self, request)
        replaceable = visibility.jobs if visibility.is_narrowed else None
        found = consequences(operation, visibility.jobs, ids, database_now(visibility.jobs.db), replaceable=replaceable)
        if operation is RETRY:
            kept += [(FINISHED, one.id) for one in found if one.job is not None and one.job.state in UNSUCCESSFUL]
        return render(
            self,
            request,
            f"job/{action}.html",
            str(TITLES[action]),
            consequences=[consequence_row(visibility, consequence) for consequence in found],
            nothing=all(consequence.refusal for consequence in found),
            kept=kept,
            confirmed=CONFIRMED,
            back=_back(request),
        )


def _ticked(request: HttpRequest) -> list[UUID]:
    return _ids(request, helpers.ACTION_CHECKBOX_NAME)


def _ids(request: HttpRequest, field: str) -> list[UUID]:
    ids = map(read_id, request.POST.getlist(field))
    return list(dict.fromkeys(id for id in ids if id is not None))


def _back(request: HttpRequest) -> str:
    """Return the address of the page that the user came from: a job's page, or the list with its filters."""
    ids = _ticked(request)
    if FROM_PAGE in request.POST and ids:
        return reverse("admin:django_ojs_unique_job_change", args=[ids[0]])
    changelist = reverse("admin:django_ojs_unique_job_changelist")
    return request.get_full_path() if request.path == changelist else changelist
