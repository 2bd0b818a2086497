"""A workflow's own page, which draws it: what became of each member, and what waits for what."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ..db.clock import database_now
from ..models import Job, Workflow
from ..ojs.workflows import Kind, MemberState, Role, WorkflowState
from ..reporting.text import distance, harmless
from .base import FROM_PAGE, ReadOnlyAdmin, may_view
from .display import badge, brief, plain_text, seconds, when
from .sentences import translate, translate_stored
from .visibility import Visibility, visibility_of

if TYPE_CHECKING:
    from ..reporting.workflows import JobCounts, Membership, Node

ROLES = {
    Role.ON_COMPLETE: _("When all have ended"),
    Role.ON_SUCCESS: _("If all complete"),
    Role.ON_FAILURE: _("If one fails"),
}


class WorkflowPage(ReadOnlyAdmin):
    """The page of one workflow, for the admin of workflows to inherit."""

    change_form_template = "admin/django_ojs_unique/workflow/change_form.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return visibility_of(self, request).workflows(super().get_queryset(request).filter(root=None))

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        # The page has its own template, so Django need not make a form of every column.
        return []

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """Whether the user may cancel workflows."""
        raise NotImplementedError

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **options: Any) -> Any:
        workflow: Any = context.get("original")
        if workflow is not None:
            from ..reporting.workflows import tree

            visibility, now = visibility_of(self, request), database_now(workflow._state.db)
            is_running = workflow.state == WorkflowState.RUNNING
            context |= {
                "title": gettext("Workflow"),
                "subtitle": harmless(name_of(workflow)),
                "state": badge(workflow.state),
                "facts": list(_facts(workflow)),
                "top": _drawn(visibility, tree(workflow), now, with_jobs=may_view(request, Job)),
                "may_cancel": is_running and self.has_cancel_permission(request),
                "changelist": reverse("admin:django_ojs_unique_workflow_changelist"),
                "from_page": FROM_PAGE,
            }
        answer: HttpResponse = super().render_change_form(request, context, *args, **options)
        return answer


def name_of(workflow: Any) -> str:
    """Return the name of a workflow, or its kind if it has none."""
    return workflow.name or translate(workflow.type)


def workflow_url(workflow: Any) -> str:
    """Return the address of the page on which a workflow is drawn: that of the outermost one."""
    url = reverse("admin:django_ojs_unique_workflow_change", args=[workflow.root_id or workflow.pk])
    return url if workflow.root_id is None else f"{url}#{_anchor(workflow)}"


def took(workflow: Any) -> str:
    """Say how long an ended workflow took."""
    if workflow.finished_at is None:
        return "-"
    return seconds((workflow.finished_at - (workflow.started_at or workflow.created_at)).total_seconds())


def progress_bar(progress: JobCounts) -> SafeString:
    """Draw how many jobs have completed and failed."""
    total = progress.total or 1
    completed, failed = 100 * progress.completed / total, 100 * progress.failed / total
    text = gettext("{count} of {total}").format(count=f"{progress.completed:,}", total=f"{progress.total:,}")
    message = ngettext("{count} failed", "{count} failed", progress.failed).format(count=f"{progress.failed:,}")
    below = format_html('<span class="ojs-below ojs-error">{}</span>', message) if progress.failed else ""
    return format_html(
        '<svg class="ojs-done" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="ojs-done-rest" width="100" height="10"/><rect class="ojs-done-part" width="{}" height="10"/>'
        '<rect class="ojs-done-failed" x="{}" width="{}" height="10"/></svg> {} {}',
        *(f"{number:.2f}" for number in (completed, completed, failed)),
        text,
        below,
    )


def places(visibility: Visibility, job: Any) -> Iterator[tuple[str, Any]]:
    """Yield which step of which workflow a job is, for its page."""
    from ..reporting.workflows import memberships_of

    found = memberships_of(job)
    if visibility.is_narrowed and found:
        roots = Workflow.objects.using(job._state.db).filter(pk__in=[place.root.pk for place in found])
        seen = set(visibility.workflows(roots).values_list("pk", flat=True))
        found = [place for place in found if place.root.pk in seen]
    for place in found:
        is_own = job.workflow_id == place.workflow.pk
        yield gettext("Workflow") if is_own else gettext("Stands in as"), _place(place)


def _place(place: Membership) -> SafeString:
    link = format_html('<a href="{}">{}</a>', workflow_url(place.workflow), brief(name_of(place.root)))
    if place.role is not Role.MEMBER:
        return format_html(gettext("the callback {name} of {workflow}"), name=place.role, workflow=link)
    if place.workflow.type == Kind.CHAIN:
        text = gettext("step {number} of {count} in {workflow}")
    else:
        text = gettext("job {number} of {count} in {workflow}")
    return format_html(text, number=f"{place.number:,}", count=f"{place.of:,}", workflow=link)


def _facts(workflow: Any) -> Iterator[tuple[str, Any]]:
    from ..reporting.workflows import job_counts

    yield gettext("Id"), format_html("<code>{}</code>", workflow.pk)
    yield gettext("Kind"), translate(workflow.type)
    yield gettext("Jobs done"), progress_bar(job_counts([workflow], workflow._state.db)[workflow.pk])
    yield gettext("Created"), when(workflow.created_at)
    for label, moment in ((gettext("Started"), workflow.started_at), (gettext("Finished"), workflow.finished_at)):
        if moment:
            yield label, when(moment)
    if workflow.finished_at:
        yield gettext("Took"), took(workflow)


def _drawn(visibility: Visibility, node: Node, now: datetime, *, with_jobs: bool) -> dict[str, Any]:
    """Return a node for ``workflow/_members.html``, with all that is in it; of jobs only their states, if wanted."""
    if not with_jobs:
        for one in node.walk():
            one.job, one.result, one.error = None, "", {}
    visibility.look(one.job.pk for one in node.walk() if one.job is not None)
    return _draw(visibility, node, now)


def _draw(visibility: Visibility, node: Node, now: datetime) -> dict[str, Any]:
    drawn: dict[str, Any] = {
        "name": brief(node.name if node.workflow is None else name_of(node.workflow)),
        "label": ROLES.get(node.role) or (f"{node.member.position + 1:,}" if node.member is not None else ""),
        "state": badge(node.state, gettext("not needed") if node.state is MemberState.SKIPPED else None),
        "waits": harmless(visibility.translate(node.waits)),
        "facts": [fact for fact in _node_facts(visibility, node, now) if fact],
        "result": plain_text(node.result) if node.result else "",
        "error": _error(visibility, node),
    }
    if node.workflow is not None:
        drawn |= {
            "kind": translate(node.type),
            "is_chain": node.type == Kind.CHAIN,
            "anchor": _anchor(node.workflow),
            "nodes": [_draw(visibility, one, now) for one in node.nodes],
            "callbacks": [_draw(visibility, one, now) for one in node.callbacks],
            "more": _more(node),
        }
    return drawn


def _node_facts(visibility: Visibility, node: Node, now: datetime) -> Iterator[Any]:
    job, length = node.job, node.duration(now)
    if node.workflow is None:
        yield format_html("<code>{}</code>", brief(node.type)) if node.name != node.type else ""
    if job is not None and job.attempt:
        yield gettext("attempt {number} of {most}").format(number=job.attempt, most=job.most_attempts)
    if job is not None and node.state is MemberState.PENDING:
        due = gettext("due {when}").format(when=translate(distance(job.run_at, now))) if job.run_at else ""
        yield f"{translate(job.state)} {due}"
    yield seconds(length.total_seconds()) if length is not None else ""
    if node.stands_in:
        yield _stand_in(visibility, node)
    if job is not None:
        yield visibility.link(job.pk, gettext("its job"))


def _stand_in(visibility: Visibility, node: Node) -> SafeString | str:
    if node.made_by is None or visibility.is_narrowed:
        return gettext("a duplicate that stands in")
    link = format_html('<a href="{}">{}</a>', workflow_url(node.made_by), brief(name_of(node.made_by)))
    return format_html(gettext("a duplicate that stands in, enqueued by {workflow}"), workflow=link)


def _error(visibility: Visibility, node: Node) -> str:
    type, message, code = (str(node.error.get(name) or "") for name in ("type", "message", "code"))
    return harmless(visibility.masked(": ".join(filter(None, [type, translate_stored(message)])) or code))


def _more(node: Node) -> str:
    if not node.more:
        return ""
    counts = ", ".join(
        f"{count:,} {gettext('unfinished') if name == 'open' else translate(name)}" for name, count in node.more.items()
    )
    return gettext("and {count} more: {counts}").format(count=f"{node.more.total():,}", counts=counts)


def _anchor(workflow: Any) -> str:
    return f"workflow-{workflow.pk}"
