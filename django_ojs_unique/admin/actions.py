"""The admin actions on jobs: each has its own permission, is logged, and reports what became of each job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin import helpers
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db import router
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone

from ..insight.typed import read_id
from ..models import Job
from ..operations.bulk import Attempted, Resolution, Revived, on_each, release, revive
from .base import ReadOnlyAdmin, may, render
from .job_page import FROM_PAGE

REFUSALS_NAMED = 3
CONFIRMED = "_confirmed"


class TickedOnly(helpers.ActionForm):
    """Acts on the ticked rows only, never on all pages: the user has not seen the other rows or their number."""

    def clean_select_across(self) -> bool:
        return False


class JobActions(ReadOnlyAdmin):
    """The actions on jobs, for the admin of jobs to inherit.

    They act on the jobs that were ticked, whatever their state is now.
    """

    actions = ["cancel", "retry_now", "revive", "release_guard", "delete_selected"]
    action_form = TickedOnly

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

    @admin.action(description="Cancel", permissions=["cancel"])
    def cancel(self, request: HttpRequest, jobs: QuerySet[Job]) -> None:
        self._do(request, _ticked(request), Job.cancel, "Cancelled")

    @admin.action(description="Retry now", permissions=["retry"])
    def retry_now(self, request: HttpRequest, jobs: QuerySet[Job]) -> None:
        self._do(request, _ticked(request), Job.retry_now, "Made available")

    @admin.action(description="Revive", permissions=["revive"])
    def revive(self, request: HttpRequest, jobs: QuerySet[Job]) -> HttpResponse:
        """Ask what to do about live duplicates, then show what became of each job."""
        from .rows import outcome_row

        try:
            resolution = Resolution(request.POST.get("resolution", ""))
        except ValueError:
            return self._ask(request, "revive", "Revive", _ticked(request))
        attempts = list(on_each(self._jobs(request), _ticked(request), partial(revive, resolution=resolution)))
        self._log(request, CHANGE, _events(attempts))
        refused = sum(bool(attempted.refusal) for attempted in attempts)
        return render(
            self,
            request,
            "job/revived.html",
            "Revive",
            attempts=[outcome_row(attempted) for attempted in attempts],
            done=len(attempts) - refused,
            refused=refused,
            back=_back(request),
        )

    @admin.action(description="Release guard", permissions=["release"])
    def release_guard(self, request: HttpRequest, jobs: QuerySet[Job]) -> HttpResponse | None:
        if CONFIRMED not in request.POST:
            return self._ask(request, "release_guard", "Release guard", _ticked(request))
        self._do(request, _ticked(request), release, "Taken out of uniqueness")
        return None

    @admin.action(description="Delete", permissions=["delete"])
    def delete_selected(self, request: HttpRequest, jobs: QuerySet[Job]) -> HttpResponse | None:
        if CONFIRMED not in request.POST:
            return self._ask(request, "delete_selected", "Delete", _ticked(request))
        self._do(request, _ticked(request), Job.remove, "Deleted", DELETION)
        return None

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Ask for confirmation, then delete one job by the rules of the action."""
        if not self.has_delete_permission(request):
            raise PermissionDenied
        id = read_id(unquote(object_id))
        if id is None or not self._jobs(request).filter(pk=id).exists():
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined,no-any-return]
        if request.method != "POST" or CONFIRMED not in request.POST:
            return self._ask(request, "delete_selected", "Delete", [id])
        self._do(request, [id], Job.remove, "Deleted", DELETION)
        return HttpResponseRedirect(reverse("admin:django_ojs_unique_job_changelist"))

    def response_action(self, request: HttpRequest, queryset: QuerySet[Job], *args: Any, **options: Any) -> Any:
        if any(read_id(text) is None for text in request.POST.getlist(helpers.ACTION_CHECKBOX_NAME)):
            self.message_user(request, "Nothing was done: a row that was chosen has no job's id.", messages.WARNING)
            return None
        # The list's filters are ignored: a job that has changed since the page was loaded is reported, not left out.
        return super().response_action(request, self._jobs(request), *args, **options)

    def _jobs(self, request: HttpRequest) -> QuerySet[Job]:
        return self.get_queryset(request).using(router.db_for_write(Job))

    def _ask(self, request: HttpRequest, action: str, title: str, ids: list[UUID]) -> HttpResponse:
        from ..insight import preview
        from .rows import consequence_row

        consequences = {
            "revive": preview.of_revivals,
            "release_guard": preview.of_releases,
            "delete_selected": preview.of_deletions,
        }
        kept = [("action", action), *((helpers.ACTION_CHECKBOX_NAME, id) for id in ids)]
        if FROM_PAGE in request.POST and action != "delete_selected":  # a deleted job has no page to return to
            kept.append((FROM_PAGE, "yes"))
        said = consequences[action](self._jobs(request), ids, timezone.now())
        return render(
            self,
            request,
            f"job/{action}.html",
            title,
            consequences=[consequence_row(consequence) for consequence in said],
            nothing=all(consequence.refusal for consequence in said),
            kept=kept,
            confirmed=CONFIRMED,
            back=_back(request),
        )

    def _do(
        self, request: HttpRequest, ids: list[UUID], act: Callable[[Job], object], done: str, flag: int = CHANGE
    ) -> None:
        """Call ``act`` on each job, log what was done, and show it with the first few refusals."""
        attempts = list(on_each(self._jobs(request), ids, act))
        jobs = [attempted.job for attempted in attempts if not attempted.refusal]
        refusals = [attempted.refusal for attempted in attempts if attempted.refusal]
        self._log(request, flag, [(job, f"{done}.") for job in jobs if job is not None])
        if jobs:
            self.message_user(request, f"{done}: {len(jobs)} job(s).", messages.SUCCESS)
        if refusals:
            named = " ".join(refusals[:REFUSALS_NAMED])
            more = f" And {len(refusals) - REFUSALS_NAMED} more." if len(refusals) > REFUSALS_NAMED else ""
            self.message_user(request, f"Refused: {len(refusals)} job(s). {named}{more}", messages.WARNING)

    def _log(self, request: HttpRequest, flag: int, events: Iterable[tuple[Job, str]]) -> None:
        by_message = defaultdict(list)
        for job, message in events:
            by_message[message].append(job)
        for message, jobs in by_message.items():
            LogEntry.objects.log_actions(request.user.pk, jobs, flag, message)  # type: ignore[arg-type]


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


def _events(attempts: Iterable[Attempted]) -> Iterable[tuple[Job, str]]:
    """Yield the log messages about revivals: of the revived jobs, and of the duplicates cancelled for them."""
    for attempted in attempts:
        if attempted.job is None or not isinstance(attempted.answer, Revived):
            continue
        yield attempted.job, f"Revived{'; a live duplicate was cancelled' * bool(attempted.answer.cancelled)}."
        for rival in attempted.answer.cancelled:
            yield rival, f"Cancelled for job {attempted.id}, which was revived."
