"""A workflow as it is shown, with all that is nested in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import chain
from typing import Any
from uuid import UUID

from django.db.models import Count, F, Min, Q, Sum
from django.db.models.fields.json import KT
from django.db.models.functions import Coalesce
from django.db.models.lookups import IsNull

from ..db.sizes import bytes_of
from ..ojs.states import WAITING, JobState
from ..ojs.workflows import MemberOutcome, MemberState, Role, WorkflowState
from .tables import Tables, below

_STARTED = (JobState.ACTIVE, JobState.RETRYABLE)
_ENDED = {outcome: MemberState(outcome) for outcome in MemberOutcome if outcome is not MemberOutcome.OPEN}


class Tree:
    """A workflow and those nested in it, read in a constant number of queries.

    Results that together have more than ``max_bytes`` are left out: then ``has_results`` is false. ``is_whole``: if it
    is false, of an outermost workflow only those members are read that have failed, and what is nested.
    """

    def __init__(self, workflow: Any, *, max_bytes: int, is_whole: bool = True) -> None:
        tables, root = Tables.on(workflow._state.db), workflow.root_id or workflow.pk
        self.workflow = workflow
        self._counts = None if is_whole or workflow.root_id else counts_of([workflow], tables.using)[workflow.pk]
        self._workflows = {one.pk: one for one in tables.workflows.filter(below(root))}
        members = tables.members.filter(below(root, "workflow"))
        size = members.aggregate(bytes=Sum(bytes_of(("result",))))["bytes"] if max_bytes else None
        self.has_results = size is not None and size <= max_bytes
        found = members.annotate(job_type=KT("request__type")).order_by("position")
        found = found.defer("request", *(() if self.has_results else ("result",)))
        if self._counts is not None:
            found = found.filter(Q(outcome=MemberOutcome.FAILED) | Q(child__isnull=False) | ~Q(role=Role.MEMBER))
        self._members: dict[UUID, list[Any]] = {}
        self._callbacks: dict[UUID, list[Any]] = {}
        self._parents: dict[UUID, UUID] = {}
        for member in found:
            side = self._members if member.role == Role.MEMBER else self._callbacks
            side.setdefault(member.workflow_id, []).append(member)
            if member.child_id is not None:
                self._parents[member.child_id] = member.workflow_id
        open_ones = tables.waiting.filter(below(root, "workflow"))
        jobs = tables.jobs.filter(pk__in=open_ones.values("job_id"))
        self._first_start = None
        if self._counts is not None:
            self._first_start = jobs.filter(state__in=_STARTED).aggregate(first=Min("started_at"))["first"]
            jobs = tables.jobs.filter(pk__in=open_ones.exclude(role=Role.MEMBER).values("job_id"))
        self._jobs = {job.pk: job for job in jobs.only("id", "state", "started_at")}

    @property
    def parent_id(self) -> UUID | None:
        """The workflow around this one."""
        return self._parents.get(self.workflow.pk)

    def nested(self, member: Any) -> Any | None:
        """Return the workflow that a member is, or None."""
        return self._workflows.get(member.child_id)

    def members(self, workflow: Any) -> Sequence[Any]:
        """Return the steps or jobs of a workflow."""
        return self._members.get(workflow.pk, ())

    def callbacks(self, workflow: Any) -> Sequence[Any]:
        """Return the callbacks of a workflow."""
        return self._callbacks.get(workflow.pk, ())

    def leaves(self, workflow: Any) -> Iterator[Any]:
        """Yield the jobs of a workflow and of those nested in it, without callbacks."""
        for member in self.members(workflow):
            child = self.nested(member)
            yield from [member] if child is None else self.leaves(child)

    def state(self, member: Any) -> MemberState:
        """Return the state of a member or a callback (OJS workflows, "Step States")."""
        child = self.nested(member)
        begun = child is not None and self.started_at(child) is not None
        return member_state(member, child, self._jobs.get(member.job_id), begun=begun)

    def member_started_at(self, member: Any) -> datetime | None:
        """Return when a member's job started, as far as it runs or has run."""
        if member.started_at is not None or member.outcome != MemberOutcome.OPEN:
            return member.started_at  # type: ignore[no-any-return]
        child = self.nested(member)
        if child is not None:
            return self.started_at(child)
        job = self._jobs.get(member.job_id)
        return job.started_at if job is not None and job.state in _STARTED else None

    def started_at(self, workflow: Any) -> datetime | None:
        """Return when the first job of a workflow started."""
        if workflow.started_at is not None:
            return workflow.started_at  # type: ignore[no-any-return]
        if self._first_start is not None and workflow is self.workflow:
            return self._first_start  # type: ignore[no-any-return]
        members = chain(self.members(workflow), self.callbacks(workflow))
        return min((at for member in members if (at := self.member_started_at(member)) is not None), default=None)

    def counts(self) -> tuple[Counter[str], Counter[str]]:
        """Count the members, and all jobs with those of nested workflows, by outcome."""
        return self._counts or (
            Counter(member.outcome for member in self.members(self.workflow)),
            Counter(member.outcome for member in self.leaves(self.workflow)),
        )


def member_state(member: Any, workflow: Any, job: Any, *, begun: bool) -> MemberState:
    """Return the state of a member: of a job, if it is stored, or of a nested workflow, whose jobs have ``begun``."""
    if workflow is not None and workflow.state != WorkflowState.RUNNING:
        return MemberState(workflow.state)
    if member is not None and member.outcome != MemberOutcome.OPEN:
        return _ENDED[member.outcome]
    if member is not None and member.enqueued_at is None:
        return MemberState.WAITING
    if workflow is None:
        begun = job is not None and job.state not in WAITING
    return MemberState.ACTIVE if begun else MemberState.PENDING


def counts_of(roots: Iterable[Any], using: str) -> dict[UUID, tuple[Counter[str], Counter[str]]]:
    """Return what `Tree.counts` returns for outermost workflows, in one query."""
    ids = [root.pk for root in roots]
    found: dict[UUID, tuple[Counter[str], Counter[str]]] = {id: (Counter(), Counter()) for id in ids}
    if not ids:
        return found
    # Both conditions are about the workflow's row, so that each finds its rows by an index.
    within = Tables.on(using).workflows.filter(Q(pk__in=ids) | Q(root__in=ids)).order_by()
    groups = within.filter(all_members__role=Role.MEMBER).values_list(
        Coalesce("root", "pk"), "root", IsNull(F("all_members__child"), True), "all_members__outcome"
    )
    for root, is_nested, is_job, outcome, count in groups.annotate(Count("all_members")):
        direct, jobs = found[root]
        if is_nested is None:
            direct[outcome] += count
        if is_job:
            jobs[outcome] += count
    return found
