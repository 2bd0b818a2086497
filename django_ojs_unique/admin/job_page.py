"""A job's own page: everything about it, and the actions on it; its fields cannot be edited."""

from __future__ import annotations

import json
from typing import Any

from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext

from ..db.clock import database_now
from ..handlers.redaction import redacted_member
from ..models import Job
from ..operations.operation import CANCEL, DELETE, ENQUEUE_AGAIN, RELEASE, RETRY
from ..reporting.text import harmless
from .base import FROM_PAGE, ReadOnlyAdmin
from .visibility import visibility_of

DOWNLOADS = ("args", "meta", "tags", "extra", "retry_options", "unique", "steps", "result", "errors")
"""The members whose beginning the page shows, and that can be downloaded as a whole."""

OPERATIONS = {
    "cancel": CANCEL,
    "retry": RETRY,
    "enqueue_again": ENQUEUE_AGAIN,
    "release_unique_key": RELEASE,
    "delete_selected": DELETE,
}
"""What the actions do, by their names. Those that a project adds are not here."""


class JobPage(ReadOnlyAdmin):
    """The page of one job, for the admin of jobs to inherit."""

    change_form_template = "admin/django_ojs_unique/job/change_form.html"

    def get_urls(self) -> list[URLPattern]:
        view: Any = self.admin_site.admin_view(self.download)
        return [
            path("<path:object_id>/<slug:member>.json", view, name="django_ojs_unique_job_json"),
            *super().get_urls(),
        ]

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        # The page has its own template, so Django need not make a form of every column.
        return []

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Any = None,
    ) -> HttpResponse:
        if obj is not None:
            from .job_panels import panels

            context |= {
                "title": gettext("Job"),
                "subtitle": harmless(obj.type),
                "page_actions": self._page_actions(request, obj),
                "changelist": reverse("admin:django_ojs_unique_job_changelist"),
                "from_page": FROM_PAGE,
                **panels(visibility_of(self, request), request, obj, database_now(obj._state.db)),
            }
        return super().render_change_form(request, context, add, change, form_url, obj)

    def download(self, request: HttpRequest, object_id: str, member: str) -> HttpResponse:
        """Return one member of a job as a JSON file."""
        job: Any = self.get_object(request, unquote(object_id))
        if not self.has_view_permission(request, job):
            raise PermissionDenied
        if member not in DOWNLOADS:
            raise Http404
        if job is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined,no-any-return]
        # UTF-8 cannot encode a lone surrogate; it is written as its JSON escape.
        text = json.dumps(redacted_member(job, member), ensure_ascii=False, indent=2).encode(errors="backslashreplace")
        headers = {
            "Content-Disposition": f'attachment; filename="job-{job.pk}-{member}.json"',
            "X-Content-Type-Options": "nosniff",
        }
        return HttpResponse(text, content_type="application/json", headers=headers)

    def _page_actions(self, request: HttpRequest, job: Job) -> list[tuple[str, str]]:
        """List the names and labels of the actions that the user may use and that the job's state allows."""
        choices = self.get_action_choices(request, [])
        return [(name, label) for name, label in choices if name not in OPERATIONS or OPERATIONS[name].allows(job)]
