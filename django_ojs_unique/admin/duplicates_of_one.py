"""The duplicates of one fingerprint."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote as urlquote

from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.utils.http import urlencode
from django.utils.translation import gettext

from ..models import Job, SuppressedEnqueue
from ..reporting import duplicates as report
from ..reporting.text import harmless
from .base import may_view, render
from .display import SHORT, ago, badge, brief, fingerprint_link, pretty
from .resolve import may_resolve
from .visibility import Visibility, visibility_of

MOST_ATTEMPTS = 50
"""How many of the newest suppressed enqueues the page lists; their own list has all."""


def of_one(model_admin: Any, request: HttpRequest, quoted: str) -> HttpResponse:
    """Show the jobs of a fingerprint in the order of time, and the enqueues that met them."""
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    fingerprint, visibility = unquote(quoted).replace("\0", ""), visibility_of(model_admin, request)
    history = report.history(visibility.jobs, fingerprint)
    groups = report.groups_of(visibility.jobs, [fingerprint])
    sees_attempts = may_view(request, SuppressedEnqueue)
    shown = visibility.attempts(SuppressedEnqueue.objects.all())
    attempts = list(report.attempts_of(shown, fingerprint, MOST_ATTEMPTS)) if sees_attempts else []
    visibility.look([*(job.replaced_by_id for job in history.jobs), *(attempt.existing_job_id for attempt in attempts)])
    newest = history.newest
    context = {
        "fingerprint": harmless(fingerprint),
        "type": harmless(newest.type) if newest else "",
        "key": harmless(newest.key) if newest and newest.key else "",
        "policy": pretty(newest.unique) if newest and newest.unique is not None else "",
        "jobs": [_job_row(visibility, job) for job in history.jobs],
        "is_cut": history.is_cut,
        "groups": [members(visibility, group) for group in groups],
        "may_resolve": may_resolve(request),
        "sees_attempts": sees_attempts,
        "attempts": [_attempt_row(visibility, attempt) for attempt in attempts],
        "most_attempts": MOST_ATTEMPTS,
        "query": urlencode({"q": fingerprint}),
    }
    return render(model_admin, request, "duplicates_of_one.html", gettext("Jobs of one fingerprint"), **context)


def members(visibility: Visibility, group: report.Group) -> dict[str, Any]:
    """Describe a group of live duplicates for the table in which the user chooses one of them."""
    return {
        # Quoted, because browsers change line ends in form values.
        "value": urlquote(group.fingerprint, safe=""),
        "link": fingerprint_link(group.fingerprint),
        "short": harmless(group.fingerprint[:SHORT]),
        "jobs": [_job_row(visibility, job) for job in group.jobs],
        "count": len(group.jobs) + group.more,
        "more": group.more,
    }


def _job_row(visibility: Visibility, job: Job) -> dict[str, Any]:
    return {
        "id": job.pk,
        "link": visibility.link(job.pk),
        "state": badge(job.state),
        "type": harmless(job.type),
        "queue": harmless(job.queue),
        "age": ago(job.created_at),
        "holds": job.holds_unique_key,
        "replaced_by": visibility.link(job.replaced_by_id) if job.replaced_by_id else "",
        "revision": job.revision,
    }


def _attempt_row(visibility: Visibility, attempt: Any) -> dict[str, Any]:
    return {
        "created": ago(attempt.created_at),
        "outcome": attempt.get_outcome_display(),
        "met": visibility.link_and_state(attempt.existing_job_id, attempt.existing_state),
        "args": brief(report.readable(attempt.type, attempt.start)),
        "queue": harmless(attempt.queue),
    }
