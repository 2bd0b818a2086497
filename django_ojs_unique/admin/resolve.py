"""Keep one of several live duplicates: a page first shows which jobs would be cancelled, and asks for confirmation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote
from uuid import UUID

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext

from ..models import Job
from ..ojs.states import JobState
from ..operations.duplicates import NEWEST, OLDEST, Decision, Resolved, decide, resolve
from ..reporting import duplicates as report
from ..reporting.parse import read_id
from ..reporting.text import harmless
from .base import may, render
from .display import SHORT, ago, badge
from .sentences import translate
from .visibility import Visibility, visibility_of

MOST_OF_ONE = 100
"""The most jobs that are resolved at once in a single group; of several groups, only those in their list."""

PAGE = "admin:django_ojs_unique_duplicates"


def may_resolve(request: HttpRequest) -> bool:
    """Whether the user may cancel jobs."""
    return may(request, "cancel_job")


def resolve_page(model_admin: Any, request: HttpRequest) -> HttpResponse:
    """Ask for confirmation of what was chosen on the page of duplicates, or carry out what was confirmed."""
    if not (model_admin.has_view_permission(request) and may_resolve(request)):
        raise PermissionDenied
    if request.method != "POST":
        return redirect(PAGE)
    return (_carry_out if "decision" in request.POST else _confirm)(model_admin, request)


def _confirm(model_admin: Any, request: HttpRequest) -> HttpResponse:
    wanted = dict(list(_wanted(request.POST))[: report.MOST_GROUPS])
    most = MOST_OF_ONE if len(wanted) == 1 else report.MOST_IN_GROUP
    plans, visibility = [], visibility_of(model_admin, request)
    for group in report.groups_of(visibility.jobs, list(wanted), most):
        if decision := decide(group.fingerprint, group.jobs, wanted.get(group.fingerprint)):
            plans.append(_plan(visibility, group, decision))
            wanted.pop(group.fingerprint)
    if None in wanted.values():
        messages.warning(request, gettext("Choose the job to keep first."))
    elif wanted:
        gone = ", ".join(harmless(fingerprint[:SHORT]) for fingerprint in wanted)
        messages.warning(request, gettext("Changed meanwhile: {names}. Look again.").format(names=gone))
    elif not plans:
        message = gettext("Nothing was chosen. Select a fingerprint, or use the buttons below one.")
        messages.warning(request, message)
    if not plans:
        return redirect(PAGE)
    count = sum(len(plan["cancel"]) for plan in plans)
    return render(model_admin, request, "resolve.html", gettext("Resolve duplicates"), plans=plans, count=count)


def _wanted(form: QueryDict) -> Iterator[tuple[str, Any]]:
    """Read which fingerprints to resolve, and which job of each to keep: a rule or an id."""
    if (rule := form.get("each")) in (NEWEST, OLDEST):
        for fingerprint in form.getlist("group"):
            yield unquote(fingerprint).replace("\0", ""), rule
        return
    rule, _, fingerprint = form.get("keep", "").partition(":")
    if fingerprint:
        chosen = rule if rule in (NEWEST, OLDEST) else read_id(form.get(f"chosen:{fingerprint}", ""))
        yield unquote(fingerprint).replace("\0", ""), chosen


def _plan(visibility: Visibility, group: report.Group, decision: Decision) -> dict[str, Any]:
    rows = {job.pk: job for job in group.jobs}
    kept = rows[decision.keep]
    value = {"fingerprint": decision.fingerprint, "keep": str(decision.keep), "cancel": list(map(str, decision.cancel))}
    return {
        "short": harmless(group.fingerprint[:SHORT]),
        "type": harmless(kept.type),
        "keep": _described(visibility, kept),
        "holds": kept.holds_unique_key,
        "cancel": [
            {"job": _described(visibility, rows[id]), "is_active": rows[id].state == JobState.ACTIVE}
            for id in decision.cancel
        ],
        "more": group.more,
        "value": json.dumps(value),
    }


def _described(visibility: Visibility, job: Job) -> SafeString:
    return format_html("{} {}", visibility.link_and_state(job.pk, job.state), ago(job.created_at))


def _carry_out(model_admin: Any, request: HttpRequest) -> HttpResponse:
    decisions = [_decision(text) for text in request.POST.getlist("decision")[: report.MOST_GROUPS]]
    if None in decisions:
        messages.error(request, gettext("The form came back damaged. Nothing was cancelled; choose again."))
        return redirect(PAGE)
    done, count = [], 0
    visibility = visibility_of(model_admin, request)
    for resolved in resolve(visibility.jobs, [decision for decision in decisions if decision]):
        for job, _ in resolved.cancelled:
            model_admin.log_change(request, job, f"Cancelled as a duplicate of {resolved.decision.keep}.")
        count += len(resolved.cancelled)
        done.append(_row(visibility, resolved))
    message = ngettext("Cancelled: {count} job.", "Cancelled: {count} jobs.", count).format(count=count)
    (messages.success if count else messages.warning)(request, message)
    return render(model_admin, request, "resolve_done.html", gettext("Duplicates resolved"), groups=done)


def _decision(text: str) -> Decision | None:
    """Read a decision that the confirmation page posted; None if it is malformed."""
    try:
        value = json.loads(text)
        fingerprint, cancel = value["fingerprint"], value["cancel"]
        if not isinstance(cancel, list) or "\0" in fingerprint or not fingerprint.encode():
            return None
        return Decision(fingerprint, UUID(value["keep"]), tuple(map(UUID, cancel[:MOST_OF_ONE])))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _row(visibility: Visibility, resolved: Resolved) -> dict[str, Any]:
    return {
        "short": harmless(resolved.decision.fingerprint[:SHORT]),
        "keep": visibility.link(resolved.decision.keep),
        "refusal": translate(resolved.refusal),
        "cancelled": [
            {"job": visibility.link(job.pk), "was": badge(before), "was_active": before == JobState.ACTIVE}
            for job, before in resolved.cancelled
        ],
        "spared": list(map(translate, resolved.spared)),
        "unseen": resolved.unseen,
    }
