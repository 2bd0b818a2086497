"""Duplicates: which fingerprints suppressed most enqueues, and which live jobs share a fingerprint."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import quote as urlquote

from django.contrib import messages
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import URLPattern, path, reverse
from django.utils.http import urlencode
from django.utils.translation import gettext

from ..db.clock import database_now
from ..db.holding import everything
from ..models import Job, SuppressedEnqueue
from ..reporting import duplicates as report
from ..reporting.text import harmless
from ..reporting.times import SPANS
from .base import may_view, render
from .display import IN_LAST, LAST, SHORT, ago, badge, brief, fingerprint_link, pretty
from .resolve import may_resolve, resolve_page
from .sentences import translate
from .visibility import Visibility, visibility_of

DEFAULT_SPAN = "day"


def duplicates_urls(model_admin: Any) -> list[URLPattern]:
    """Return the URL patterns of the pages below the page of duplicates."""
    view = model_admin.admin_site.admin_view
    return [
        path("duplicates/resolve/", view(partial(resolve_page, model_admin)), name="django_ojs_unique_resolve"),
        path("duplicates/<path:quoted>/", view(partial(of_one, model_admin)), name="django_ojs_unique_duplicates_of"),
    ]


def duplicates(model_admin: Any, request: HttpRequest) -> HttpResponse:
    """Show what was suppressed most in a span of time and the groups of live duplicates, or search a fingerprint."""
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    visibility = visibility_of(model_admin, request)
    jobs, attempts = visibility.jobs, visibility.attempts(SuppressedEnqueue.objects.all())
    sees_attempts = may_view(request, SuppressedEnqueue)
    term, matches = request.GET.get("q", "").strip(), []
    if term:
        found = report.match(jobs, attempts if sees_attempts else None, term)
        if len(found.fingerprints) == 1:
            return redirect("admin:django_ojs_unique_duplicates_of", quote(found.fingerprints[0]))
        matches = [fingerprint_link(each) for each in found.fingerprints]
        _say_what_was_found(request, term, found)
    span = request.GET.get("span", "")
    span = span if span in SPANS else DEFAULT_SPAN
    groups = report.groups_after(jobs, request.GET.get("after", "").replace("\0", ""))
    context = {
        "term": term,
        "matches": matches,
        "most_matches": report.MOST_MATCHES,
        "sees_attempts": sees_attempts,
        "span": span,
        "spans": LAST.items(),
        "in_last": IN_LAST[span],
        "met": _met(visibility, attempts, span) if sees_attempts else None,
        "groups": [members(visibility, group) for group in groups.groups],
        "after": request.GET.get("after", ""),
        "last": groups.last,
        "may_resolve": may_resolve(request),
    }
    return render(model_admin, request, "duplicates.html", gettext("Duplicates"), **context)


def _say_what_was_found(request: HttpRequest, term: str, found: report.Match) -> None:
    if found.problem:
        messages.warning(request, translate(found.problem))
    elif found.job:
        message = gettext("Job {id} takes no part in uniqueness: it has no fingerprint.")
        messages.info(request, message.format(id=found.job))
    elif not found.fingerprints:
        message = gettext("No job has {term} as its id or in its fingerprint. It may have been pruned.")
        messages.info(request, message.format(term=harmless(term[:80])))


def _met(visibility: Visibility, attempts: Any, span: str) -> dict[str, Any]:
    now = database_now(visibility.jobs.db)
    most = report.most_suppressed(attempts, everything(visibility.jobs), SPANS[span], now)
    visibility.look(met.holder.pk for met in most.fingerprints if met.holder)
    page = reverse("admin:django_ojs_unique_suppressedenqueue_changelist")
    rows = [
        {
            "fingerprint": fingerprint_link(met.fingerprint),
            "type": harmless(met.type),
            "args": brief(met.args),
            "count": met.count,
            "rejected": met.rejected,
            "deduplicated": met.deduplicated,
            "replaced": met.replaced,
            "last": ago(met.last_at),
            "holder": (
                visibility.link_and_state(met.holder.pk, met.holder.state)
                if met.holder
                else gettext("nobody holds it now")
            ),
            "attempts": f"{page}?{urlencode({'q': met.fingerprint})}",
        }
        for met in most.fingerprints
    ]
    return {
        "rows": rows,
        "since": ago(most.since),
        "is_cut": most.is_cut,
        "most": report.MOST_FINGERPRINTS,
        "most_attempts": f"{report.MOST_ATTEMPTS_COUNTED:,}",
    }


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
