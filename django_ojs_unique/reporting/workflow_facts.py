"""What lists and other pages say of workflows: their progress, the places of a job, what a cancellation would stop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Count, Exists, OuterRef, Q

from ..models import WorkflowMember
from ..ojs.states import JobState
from ..ojs.workflows import MemberOutcome, Role, WorkflowState
from ..workflows.tables import Tables, below
from ..workflows.tree import counts_of

MOST_PLACES = 5


@dataclass(frozen=True, slots=True)
class JobCounts:
    """How many ``jobs`` workflows have, with those that are nested in them, without callbacks; how many have ended."""

    total: int
    completed: int
    failed: int
    cancelled: int

    def __str__(self) -> str:
        failed = f", {self.failed:,} failed" if self.failed else ""
        return f"{self.completed:,} of {self.total:,}{failed}"


@dataclass(frozen=True, slots=True)
class Membership:
    """The place of a job in a workflow: ``number`` ``of`` so many, or the callback ``role``; and its ``root``."""

    workflow: Any
    root: Any
    role: Role
    number: int
    of: int


@dataclass(frozen=True, slots=True)
class Stops:
    """What a cancellation would stop: ``waiting`` jobs, ``running`` ones, and ``unborn`` ones that are not stored yet.

    ``shared``: jobs that go on, as another workflow waits for them or has enqueued them.
    """

    waiting: int
    running: int
    unborn: int
    shared: int


def job_counts(workflows: Iterable[Any], using: str) -> dict[UUID, JobCounts]:
    """Count the jobs of outermost workflows by outcome, in one query."""
    return {
        id: JobCounts(
            sum(jobs.values()),
            jobs[MemberOutcome.COMPLETED],
            jobs[MemberOutcome.FAILED],
            jobs[MemberOutcome.CANCELLED],
        )
        for id, (_, jobs) in counts_of(workflows, using).items()
    }


def memberships_of(job: Any) -> list[Membership]:
    """Find the workflows in which a job is a member, or stands in for one: the first `MOST_PLACES`. Two queries."""
    members = WorkflowMember._default_manager.using(job._state.db)
    found = members.filter(job_id=job.pk).only("workflow", "role", "position").select_related("workflow__root")
    mine = list(found.order_by("pk")[:MOST_PLACES])
    if not mine:
        return []
    siblings = members.filter(workflow__in={one.workflow_id for one in mine}, role=Role.MEMBER).order_by()
    totals = dict(siblings.values_list("workflow").annotate(Count("pk")))
    return [
        Membership(
            one.workflow,
            one.workflow.root or one.workflow,
            Role(one.role),
            one.position + 1,
            totals.get(one.workflow_id, 0),
        )
        for one in mine
    ]


def stops(workflow: Any) -> Stops:
    """Count what `Workflow.cancel` would stop now. Nothing is locked."""
    tables = Tables.on(workflow._state.db)
    within = tables.workflows.filter(_within(tables, workflow), state=WorkflowState.RUNNING).values("pk")
    unfinished = tables.jobs.filter(
        pk__in=tables.waiting.filter(workflow__in=within).values("job_id"), finished_at__isnull=True
    )
    others = tables.waiting.filter(job_id=OuterRef("pk")).exclude(workflow__in=within)
    own = unfinished.filter(workflow_id__in=within).exclude(Exists(others)).order_by()
    counts = Counter(dict(own.values_list("state").annotate(Count("pk"))))
    shared = unfinished.count() - counts.total()
    running = counts.pop(JobState.ACTIVE, 0)
    unborn = tables.members.filter(workflow__in=within, child=None, outcome=MemberOutcome.OPEN, enqueued_at=None)
    return Stops(counts.total(), running, unborn.count(), shared)


def _within(tables: Tables, workflow: Any) -> Q:
    """Return the condition for a workflow and all that are nested in it."""
    if workflow.root_id is None:
        return below(workflow.pk)
    nested = tables.members.filter(child__isnull=False)
    ids, outer = [workflow.pk], [workflow.pk]
    while outer:
        outer = list(nested.filter(workflow__in=outer).values_list("child", flat=True))
        ids += outer
    return Q(pk__in=ids)
