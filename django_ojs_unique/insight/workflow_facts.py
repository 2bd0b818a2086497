"""What lists and other pages say of workflows: their progress, the places of a job, what a cancellation would stop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Count, Exists, OuterRef, Q
from django.db.models.functions import Coalesce

from ..models import Job, Workflow, WorkflowMember
from ..ojs.states import JobState
from ..ojs.workflows import MemberOutcome, Role, WorkflowState

MOST_PLACES = 5

_OPEN = MemberOutcome.OPEN


@dataclass(frozen=True, slots=True)
class Progress:
    """How many ``jobs`` workflows have, with those that are nested in them, without callbacks; how many have ended."""

    total: int
    completed: int
    failed: int
    cancelled: int

    def __str__(self) -> str:
        failed = f", {self.failed:,} failed" if self.failed else ""
        return f"{self.completed:,} of {self.total:,}{failed}"


@dataclass(frozen=True, slots=True)
class Place:
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


def progress_of(workflows: Iterable[Any], using: str) -> dict[UUID, Progress]:
    """Count the jobs of outermost workflows by outcome, in one query."""
    ids = [workflow.pk for workflow in workflows]
    found: dict[UUID, Counter[str]] = {id: Counter() for id in ids}
    # Both conditions are about the workflow's row, so that each finds its rows by an index.
    within = Workflow.objects.using(using).filter(Q(pk__in=ids) | Q(root__in=ids)).order_by()
    jobs = within.filter(all_members__role=Role.MEMBER, all_members__child=None)
    groups = jobs.values_list(Coalesce("root", "pk"), "all_members__outcome").annotate(Count("all_members"))
    for root, outcome, count in groups if ids else ():
        found[root][outcome] += count
    return {
        id: Progress(
            sum(counts.values()),
            counts[MemberOutcome.COMPLETED],
            counts[MemberOutcome.FAILED],
            counts[MemberOutcome.CANCELLED],
        )
        for id, counts in found.items()
    }


def places_of(job: Any) -> list[Place]:
    """Find the workflows in which a job is a member, or stands in for one: the first `MOST_PLACES`. Two queries."""
    members = WorkflowMember._default_manager.using(job._state.db)
    found = members.filter(job_id=job.pk).only("workflow", "role", "position").select_related("workflow__root")
    mine = list(found.order_by("pk")[:MOST_PLACES])
    if not mine:
        return []
    siblings = members.filter(workflow__in={one.workflow_id for one in mine}, role=Role.MEMBER).order_by()
    totals = dict(siblings.values_list("workflow").annotate(Count("pk")))
    return [
        Place(
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
    using = workflow._state.db
    members = WorkflowMember._default_manager.using(using)
    ids = _within(workflow)
    mine = members.filter(workflow__in=ids, workflow__state=WorkflowState.RUNNING, child=None, outcome=_OPEN)
    jobs = Job.objects.using(using).filter(pk__in=mine.filter(enqueued_at__isnull=False).values("job_id"))
    unfinished = jobs.filter(finished_at__isnull=True)
    others = members.filter(outcome=_OPEN, enqueued_at__isnull=False, job_id=OuterRef("pk")).exclude(workflow__in=ids)
    own = unfinished.filter(workflow_id__in=ids).exclude(Exists(others)).order_by()
    counts = Counter(dict(own.values_list("state").annotate(Count("pk"))))
    shared = unfinished.count() - counts.total()
    running = counts.pop(JobState.ACTIVE, 0)
    return Stops(counts.total(), running, mine.filter(enqueued_at=None).count(), shared)


def _within(workflow: Any) -> Any:
    """Return the ids of a workflow and of all that are nested in it, or the query for them."""
    using = workflow._state.db
    if workflow.root_id is None:
        return Workflow.objects.using(using).filter(Q(pk=workflow.pk) | Q(root=workflow.pk)).values("pk")
    nested = WorkflowMember._default_manager.using(using).filter(child__isnull=False)
    ids, outer = [workflow.pk], [workflow.pk]
    while outer:
        outer = list(nested.filter(workflow__in=outer).values_list("child", flat=True))
        ids += outer
    return ids
