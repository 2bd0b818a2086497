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
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..models import Job
from ..operations.operation import CANCEL, DELETE, ENQUEUE_AGAIN, RELEASE, RETRY_NOW, REVIVE, Operation
from ..operations.results import BulkResult
from ..reporting.typed import read_id
from .base import FROM_PAGE, ReadOnlyAdmin, may, render
from .sight import Sight, sight_of

RESOLUTIONS: dict[str, dict[str, bool]] = {"skip": {}, "replace": {"replace": True}, "force": {"force": True}}
"""What a revival does about live duplicates."""
MOST_LINKS = 10
"""How many new jobs a message links to."""
TITLES = {
    "revive": _("Revive"),
    "enqueue_again": _("Enqueue again"),
    "release_guard": _("Release guard"),
    "delete_selected": _("Delete"),
}
"""The titles of the pages that ask about ticked jobs; the other actions ask nothing."""


class JobActions(ReadOnlyAdmin):
    """The actions on jobs, for the admin of jobs to inherit.

    They act on the jobs that were ticked, whatever their state is now; or on all that match the list's filters, after
    a page that says how many these are.
    """

    actions = ["cancel", "retry_now", "revive", "enqueue_again", "release_guard", "delete_selected"]

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return may(request, "cancel_job")

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return may(request, "retry_job")

    def has_revive_permission(self, request: HttpRequest) -> bool:
        return may(request, "revive_job")

    def has_release_permission(self, request: HttpRequest) -> bool:
        return may(request, "release_job")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, "delete_job")

    @admin.action(description=_("Cancel"), permissions=["cancel"])
    def cancel(self, request: HttpRequest, jobs: QuerySet[Job]) -> HttpResponse | None:
        return self._act(request, jobs, CANCEL)

    @admin.action(description=_("Retry now"), permissions=["retry"])
    def retry_now(self, request: HttpRequest, jobs: QuerySet[Job]) -> HttpResponse | None:
        return self._act(request, jobs, RETRY_NOW)

    @admin.action(description=_("Revive"), permissions=["revive"])
    def revive(self, request: HttpRequest, jobs: QuerySet[Job]) -> HttpResponse | None:
        """Ask what to do about live duplicates, then show what became of each job."""
        options = RESOLUTIONS.get(request.POST.get("resolution", ""))
        return self._act(request, jobs, REVIVE, options, is_confirmed=options is not None)

    @admin.action(description=_("Enqueue again"), permissions=["revive"])
    def enqueue_again(self, request: HttpRequest, jobs: QuerySet[Job]) -> HttpResponse | None:
        return self._act(request, jobs, ENQUEUE_AGAIN)

    @admin.action(description=_("Release guard"), permissions=["release"])
    def release_guard(self, request: HttpRequest, jobs: QuerySet[Job]) -> HttpResponse | None:
        return self._act(request, jobs, RELEASE)

    @admin.action(description=_("Delete"), permissions=["delete"])
    def delete_selected(self, request: HttpRequest, jobs: QuerySet[Job]) -> HttpResponse | None:
        return self._act(request, jobs, DELETE)

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Ask for confirmation, then delete one job by the rules of the action."""
        from .carry_out import carry_out
        from .sweep import CONFIRMED

        if not self.has_delete_permission(request):
            raise PermissionDenied
        id, sight = read_id(unquote(object_id)), sight_of(self, request)
        # Not from a replica, which may not have the job yet.
        if id is None or not sight.jobs.using(router.db_for_write(Job)).filter(pk=id).exists():
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined,no-any-return]
        if request.method != "POST" or CONFIRMED not in request.POST:
            return self._ask(request, "delete_selected", [id])
        self._tell(request, sight, DELETE, carry_out(request, sight, [id], DELETE)[0])
        return HttpResponseRedirect(reverse("admin:django_ojs_unique_job_changelist"))

    def response_action(self, request: HttpRequest, queryset: QuerySet[Job], *args: Any, **options: Any) -> Any:
        from .sweep import ACROSS

        if any(read_id(text) is None for text in request.POST.getlist(helpers.ACTION_CHECKBOX_NAME)):
            self.message_user(
                request, gettext("Nothing was done: a row that was chosen has no job's id."), messages.WARNING
            )
            return None
        # For ticked rows the list's filters are ignored: a job that has changed since the page was loaded is reported.
        jobs = queryset if request.POST.get(ACROSS) == "1" else sight_of(self, request).jobs
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
        from .carry_out import carry_out
        from .sweep import ACROSS, CONFIRMED, sweep

        if is_confirmed is None:
            is_confirmed = CONFIRMED in request.POST
        sight, ids, action = sight_of(self, request), _ticked(request), request.POST["action"]
        if request.POST.get(ACROSS) == "1":
            return sweep(self, request, matching, sight, operation, options or {}, is_confirmed=is_confirmed)
        if action in TITLES and not is_confirmed:
            return self._ask(request, action, ids)
        result, found = carry_out(request, sight, ids, operation, **(options or {}))
        if operation is REVIVE:
            return self._show(request, sight, ids, result, found)
        self._tell(request, sight, operation, result)
        return None

    def _show(
        self, request: HttpRequest, sight: Sight, ids: list[UUID], result: BulkResult, found: dict[UUID, Job]
    ) -> HttpResponse:
        """Show what became of each job that was to be revived."""
        from ..reporting.preview import live_duplicates
        from .rows import outcome_row

        beside = live_duplicates(sight.jobs, [found[id] for id in result.changed if id in found], timezone.now())
        return render(
            self,
            request,
            "job/revived.html",
            gettext("Revive"),
            outcomes=[outcome_row(sight, id, found.get(id), result, beside.get(id, [])) for id in ids],
            done=len(result.changed),
            refused=len(result.refused),
            back=_back(request),
        )

    def _tell(self, request: HttpRequest, sight: Sight, operation: Operation, result: BulkResult) -> None:
        """Show how many were changed, and the first few refusals."""
        from .sweep import done_note, refusal_note

        if result.changed:
            said: Any = done_note(operation, len(result.changed))
            if result.new:
                new = format_html_join(
                    ", ", "{}", ((sight.link(id),) for id in islice(result.new.values(), MOST_LINKS))
                )
                more = ", ..." if len(result.new) > MOST_LINKS else ""
                said = format_html(gettext("{done} New: {jobs}"), done=said, jobs=format_html("{}{}", new, more))
            self.message_user(request, said, messages.SUCCESS)
        if result.refused:
            self.message_user(request, refusal_note(sight, result), messages.WARNING)

    def _ask(self, request: HttpRequest, action: str, ids: list[UUID]) -> HttpResponse:
        """Show what an action would mean for each job."""
        from ..reporting import preview
        from .rows import consequence_row
        from .sweep import CONFIRMED

        consequences: dict[str, Any] = {
            "revive": preview.of_revivals,
            "enqueue_again": preview.of_enqueues_again,
            "release_guard": preview.of_releases,
            "delete_selected": preview.of_deletions,
        }
        kept = [("action", action), *((helpers.ACTION_CHECKBOX_NAME, id) for id in ids)]
        if FROM_PAGE in request.POST and action != "delete_selected":  # a deleted job has no page to return to
            kept.append((FROM_PAGE, "yes"))
        sight, options = sight_of(self, request), {}
        if action == "enqueue_again" and sight.is_narrowed:
            options["replaceable"] = sight.jobs
        said = consequences[action](sight.jobs, ids, timezone.now(), **options)
        return render(
            self,
            request,
            f"job/{action}.html",
            str(TITLES[action]),
            consequences=[consequence_row(sight, consequence) for consequence in said],
            nothing=all(consequence.refusal for consequence in said),
            kept=kept,
            confirmed=CONFIRMED,
            back=_back(request),
        )


def _ticked(request: HttpRequest) -> list[UUID]:
    ids = map(read_id, request.POST.getlist(helpers.ACTION_CHECKBOX_NAME))
    return list(dict.fromkeys(id for id in ids if id is not None))


def _back(request: HttpRequest) -> str:
    """Return the address of the page that the user came from: a job's page, or the list with its filters."""
    ids = _ticked(request)
    if FROM_PAGE in request.POST and ids:
        return reverse("admin:django_ojs_unique_job_change", args=[ids[0]])
    changelist = reverse("admin:django_ojs_unique_job_changelist")
    return request.get_full_path() if request.path == changelist else changelist
