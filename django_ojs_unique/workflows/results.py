"""What the jobs of workflows have returned, and what the later ones learn of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db.models import F
from django.db.models.fields.json import KT

from ..ojs.workflows import UNSUCCESSFUL, Kind, MemberOutcome, Role
from .tables import Tables

Reader = Callable[[str, Any], Any]
"""What is shown of a result, or of an error, of a job of a type."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a job in its workflow. ``step``: its index; None for a callback, which has its ``role``.

    ``parent_results``: see `places_of`.
    """

    workflow_id: UUID
    root_id: UUID | None
    role: str
    step: int | None
    parent_results: list[Any] = field(repr=False)


def places_of(jobs: Sequence[Any], read: Reader | None = None) -> dict[UUID, Place]:
    """Return the places of those jobs that workflows have enqueued, by the ids of the jobs.

    The number of queries does not depend on the number of jobs, and is zero if no workflow has enqueued any.

    The parent results of a step of a chain: those of all steps before it. Of a callback: those of all jobs of its
    batch. Of the others: what their workflow itself would have received in its place. A job that failed has
    ``{"error": {...}}`` there.
    """
    own, received = _members_of(jobs)
    if not own:
        return {}
    ahead = _Results(Tables.on(jobs[0]._state.db), read)
    ahead.read({workflow for workflow, _ in received.values()})
    return {
        job: Place(
            member.workflow_id,
            member.workflow.root_id,
            member.role,
            member.position if member.role == Role.MEMBER else None,
            ahead.of(*received[job]) if job in received else [],
        )
        for job, member in own.items()
    }


def receivers(jobs: Sequence[Any]) -> set[UUID]:
    """Return the ids of those jobs that have parent results, or had: a workflow that is gone tells nothing.

    The number of queries is that of `places_of`.
    """
    own, received = _members_of(jobs)
    return {job.pk for job in jobs if job.pk in received or (job.workflow_id is not None and job.pk not in own)}


def parent_results(job: Any) -> list[Any] | None:
    """Return the results of the jobs before this one; None for a job that no workflow has enqueued."""
    if job.workflow_id is None:
        return None
    place = places_of([job]).get(job.pk)
    return [] if place is None else place.parent_results


def result_of_workflow(workflow: Any) -> Any:
    """Return the result of a workflow: for a chain that of its last step, else those of all jobs in an array."""
    results = _Results(Tables.on(workflow._state.db), None)
    results.read({workflow.pk})
    return results.of_workflow(workflow.pk)


def _members_of(jobs: Sequence[Any]) -> tuple[dict[UUID, Any], dict[UUID, tuple[UUID, int | None]]]:
    """Return the members that jobs are, and what these receive; both by the ids of the jobs."""
    made_by = {job.pk: job.workflow_id for job in jobs if job.workflow_id is not None}
    if not made_by:
        return {}, {}
    tables = Tables.on(jobs[0]._state.db)
    members = tables.members.defer("request", "result", "error").select_related("workflow")
    found = members.filter(job_id__in=made_by, workflow__in=set(made_by.values())).order_by("-pk")
    own = {member.job_id: member for member in found if member.workflow_id == made_by[member.job_id]}
    for job in jobs:
        if job.pk in made_by and job.pk not in own and (replaced := _replaced(tables, members, job)) is not None:
            own[job.pk] = replaced
    return own, _received(members, own)


def _replaced(tables: Tables, members: Any, job: Any) -> Any | None:
    """Return the member that names, until the next advance, a job that this one has replaced."""
    members = members.filter(workflow=job.workflow_id).order_by("pk")
    replaced = tables.jobs.filter(replaced_by__isnull=False)
    first = replaced.filter(pk__in=members.filter(outcome=MemberOutcome.OPEN).order_by().values("job_id"))
    origins = {by: id for id, by in first.values_list("pk", "replaced_by")}
    while origins and job.pk not in origins:
        later = replaced.filter(pk__in=origins).values_list("pk", "replaced_by")
        origins = {by: origins[id] for id, by in later}
    return members.filter(job_id=origins[job.pk]).first() if origins else None


def _received(members: Any, own: dict[UUID, Any]) -> dict[UUID, tuple[UUID, int | None]]:
    """Return for each job the workflow whose results it receives, and how many of them, or None for all.

    Jobs that receive nothing are left out. One query for each level of workflows.
    """
    received: dict[UUID, tuple[UUID, int | None]] = {}
    while own:
        nested = {}
        for job, member in own.items():
            workflow = member.workflow
            if member.role != Role.MEMBER:
                received[job] = workflow.pk, None
            elif workflow.type == Kind.CHAIN and member.position:
                received[job] = workflow.pk, member.position
            elif workflow.root_id is not None:
                nested[job] = workflow.pk
        outer = {one.child_id: one for one in members.filter(child__in=set(nested.values()))} if nested else {}
        own = {job: outer[workflow] for job, workflow in nested.items() if workflow in outer}
    return received


class _Results:
    """The results of workflows, and of those nested in them."""

    def __init__(self, tables: Tables, read: Reader | None) -> None:
        self._members = tables.members.filter(role=Role.MEMBER).defer("request")
        self._members = self._members.annotate(job_type=KT("request__type"), kind=F("workflow__type"))
        self._read = read
        self._of: dict[UUID, list[Any]] = {}

    def read(self, workflows: Iterable[UUID]) -> None:
        """Read the results of workflows: one query for each level."""
        ahead = set(workflows)
        while ahead:
            found = list(self._members.filter(workflow__in=ahead).order_by("position"))
            for member in found:
                self._of.setdefault(member.workflow_id, []).append(member)
            ahead = {member.child_id for member in found if member.child_id is not None}

    def of(self, workflow: UUID, count: int | None = None) -> list[Any]:
        """Return the results of the first members of a workflow, or of all."""
        return [self._result(member) for member in self._of.get(workflow, ())[:count]]

    def of_workflow(self, workflow: UUID) -> Any:
        """Return the result of a workflow."""
        members = self._of.get(workflow, ())
        if members and members[0].kind == Kind.CHAIN:
            return self._result(members[-1])
        return [self._result(member) for member in members]

    def _result(self, member: Any) -> Any:
        nested = self._of.get(member.child_id)
        if member.outcome in UNSUCCESSFUL and (nested is None or nested[0].kind == Kind.CHAIN):
            return {"error": self._shown(member, member.error or _NEVER)}
        return self._shown(member, member.result) if member.child_id is None else self.of_workflow(member.child_id)

    def _shown(self, member: Any, value: Any) -> Any:
        return value if self._read is None else self._read(member.job_type, value)


_NEVER = {"code": "cancelled", "message": "It was never enqueued."}
