"""What the jobs of workflows have returned, and what the later ones learn of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any
from uuid import UUID

from django.db.models import Exists, OuterRef, Q

from ..db.inserts import in_groups
from ..ojs.workflows import Kind, MemberOutcome, Role
from .tables import Tables


def parent_results(job: Any) -> list[Any] | None:
    """Return the results of the jobs before this one; None for a job that no workflow has enqueued.

    For a step of a chain: those of all steps before it. For a callback: those of all jobs of its batch. For the others:
    what their workflow itself would have received in its place. A job that failed has ``{"error": {...}}`` there.
    """
    if job.workflow_id is None:
        return None
    tables = Tables.on(job._state.db)
    member = _member(tables, job)
    return [] if member is None else _before(tables, member)


def result_of_workflow(workflow: Any) -> Any:
    """Return the result of a workflow: for a chain that of its last step, else those of all jobs in an array."""
    found = _by_workflow(Tables.on(workflow._state.db), [workflow.pk])[workflow.pk]
    return found[-1] if workflow.type == Kind.CHAIN else found


def _member(tables: Tables, job: Any) -> Any | None:
    members = tables.members.filter(workflow=job.workflow_id).order_by("pk")
    if (member := members.filter(job_id=job.pk).first()) is not None:
        return member
    # Until the next advance, the member names a job that this one has replaced.
    replaced = tables.jobs.filter(replaced_by__isnull=False)
    first = replaced.filter(pk__in=members.filter(outcome=MemberOutcome.OPEN).order_by().values("job_id"))
    origins = {by: id for id, by in first.values_list("pk", "replaced_by")}
    while origins and job.pk not in origins:
        later = replaced.filter(pk__in=origins).values_list("pk", "replaced_by")
        origins = {by: origins[id] for id, by in later}
    return members.filter(job_id=origins[job.pk]).first() if origins else None


def _before(tables: Tables, member: Any) -> list[Any]:
    steps = tables.members.filter(workflow=member.workflow_id, role=Role.MEMBER).defer("request")
    if member.role == Role.MEMBER:
        workflow = tables.workflows.get(pk=member.workflow_id)
        if workflow.type != Kind.CHAIN or member.position == 0:
            outer = tables.members.filter(child=workflow).first()
            return [] if outer is None else _before(tables, outer)
        steps = steps.filter(position__lt=member.position)
    return _results(tables, steps.select_related("child").order_by("position"))


def _by_workflow(tables: Tables, ids: Collection[UUID]) -> dict[UUID, list[Any]]:
    """Return the results of all jobs of some workflows, but of chains only the last: a few queries for each level."""
    found: dict[UUID, list[Any]] = {id: [] for id in ids}
    later = tables.members.filter(workflow=OuterRef("workflow"), role=Role.MEMBER, position__gt=OuterRef("position"))
    counts = ~Q(workflow__type=Kind.CHAIN) | ~Exists(later)
    for group in in_groups(found):
        rows = tables.members.filter(counts, workflow__in=group, role=Role.MEMBER).defer("request")
        members = list(rows.select_related("child").order_by("workflow", "position"))
        for member, result in zip(members, _results(tables, members), strict=True):
            found[member.workflow_id].append(result)
    return found


def _results(tables: Tables, members: Iterable[Any]) -> list[Any]:
    members = list(members)
    nested = _by_workflow(tables, [member.child_id for member in members if member.child is not None])
    return [_result(member, nested) for member in members]


def _result(member: Any, nested: Mapping[UUID, list[Any]]) -> Any:
    if member.outcome in (MemberOutcome.FAILED, MemberOutcome.CANCELLED):
        return {"error": member.error or {"code": "cancelled", "message": "It was never enqueued."}}
    if member.child is None:
        return member.result
    found = nested[member.child_id]
    return found[-1] if member.child.type == Kind.CHAIN else found
