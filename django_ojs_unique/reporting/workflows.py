"""A workflow as a tree, for people: each member with its state, its job, and what it waits for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Case, Count, Exists, OuterRef, Q, When
from django.db.models.fields.json import KT

from ..exceptions import Message
from ..handlers.redaction import redacted, redacted_beginning
from ..models import Job, Workflow, WorkflowMember
from ..ojs.states import JobState
from ..ojs.workflows import Kind, MemberOutcome, MemberState, Role, WorkflowState
from ..workflows.cancel import for_workflows, replaced_for_others
from ..workflows.tables import Tables, below
from ..workflows.tree import counts_of, member_state
from .list_columns import TOO_LONG, Begin
from .text import shortened

MOST_MEMBERS = 100
"""How many members of one workflow are shown at most: those that failed first, then those that have not ended."""
MOST_IN_ALL = 1000
LONGEST = 200
"""How many characters of a result and of an error are shown."""

_TIMES = ("started_at", "finished_at")
_LIGHT = ("workflow_id", "role", "position", "name", "child_id", "job_id", "outcome", "enqueued_at", *_TIMES)
_OF_JOBS = ("id", "type", "state", "attempt", "max_attempts", "run_at", "workflow_id", *_TIMES)
_FIRST = {MemberOutcome.FAILED: 0, MemberOutcome.OPEN: 1}
_CALLED = {
    Role.ON_COMPLETE: Message("when all jobs have ended"),
    Role.ON_SUCCESS: Message("when all jobs have completed"),
    Role.ON_FAILURE: Message("when all jobs have ended and one has failed"),
}


@dataclass(slots=True)
class Node:
    """A workflow, or a member of one.

    ``member``: None for the outermost one. ``workflow``: what it is, if it is one. ``job``: its row; None if it has
    none yet, or it was pruned. ``waits``: what a waiting member waits for, in English, such as
    ``after step 1 (ledger.close)``. ``stands_in``: the job was enqueued by others; ``made_by`` is the workflow that did
    so, None if none did. ``result``: as JSON, redacted and cut to `LONGEST` characters; empty if there is none.
    ``error``: its members, redacted. ``nodes`` and ``callbacks``: the shown ones, in order; ``more``: how many members
    are not shown, by outcome.
    """

    state: MemberState
    member: Any = None
    workflow: Any = None
    job: Any = None
    type: str = ""
    waits: str = ""
    stands_in: bool = False
    made_by: Any = None
    result: str = ""
    error: dict[str, Any] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    callbacks: list[Node] = field(default_factory=list)
    total: int = 0
    more: Counter[str] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        """Its name, else its type."""
        own = self.workflow.name if self.member is None else self.member.name
        return own or self.type

    @property
    def role(self) -> Role:
        """What it is in the workflow around it."""
        return Role.MEMBER if self.member is None else Role(self.member.role)

    @property
    def span(self) -> tuple[datetime | None, datetime | None]:
        """When it started, and when it ended, as far as it has."""
        if self.workflow is not None:
            starts = [start for one in self.nodes if (start := one.span[0]) is not None]
            return self.workflow.started_at or min(starts, default=None), self.workflow.finished_at
        row = (self.member if self.member.finished_at else self.job) or self.member
        return row.started_at, row.finished_at

    def duration(self, now: datetime) -> timedelta | None:
        """How long it took, or has run by now; None if it has not started."""
        start, end = self.span
        if start is None or (end is None and self.state is not MemberState.ACTIVE):
            return None
        return max((end or now) - start, timedelta())

    def walk(self) -> Iterator[Node]:
        """Yield it, and all nodes below it."""
        yield self
        for node in (*self.nodes, *self.callbacks):
            yield from node.walk()


def tree(workflow: Any) -> Node:
    """Read a workflow with all that is nested in it: in five queries, whatever its size."""
    return _Tree(workflow).build()


class _Tree:
    def __init__(self, workflow: Any) -> None:
        using, root = workflow._state.db, workflow.root_id or workflow.pk
        self._workflow, self._using = workflow, using
        self._left = MOST_IN_ALL
        found = Workflow.objects.using(using).filter(below(root)).defer("extra")
        self._workflows: dict[UUID, Any] = {one.pk: one for one in found}
        members = WorkflowMember._default_manager.using(using)
        self._members: dict[UUID, list[Any]] = {}
        for member in members.filter(below(root, "workflow")).only(*_LIGHT).order_by("position"):
            self._members.setdefault(member.workflow_id, []).append(member)
        self._details: dict[int, Any] = {}
        self._jobs: dict[UUID, Any] = {}
        self._makers: dict[UUID, Any] = {}

    def build(self) -> Node:
        top = self._choose(self._workflows.get(self._workflow.pk, self._workflow), None)
        leaves = [node for node in top.walk() if node.workflow is None]
        details: Any = WorkflowMember._default_manager.using(self._using).filter(
            pk__in=[node.member.pk for node in leaves]
        )
        details = details.annotate(job_type=KT("request__type"), said=Begin("result"), erred=Begin("error"))
        is_long = Case(When(result__isnull=False, said__isnull=True, then=True), default=False)
        rows: Any = details.values("pk", "job_type", "said", "erred", is_long=is_long)
        self._details = {row["pk"]: row for row in rows}
        jobs = Job.objects.using(self._using).filter(pk__in={node.member.job_id for node in leaves} - {None})
        self._jobs = {job.pk: job for job in jobs.only(*_OF_JOBS)}
        makers = {job.workflow_id for job in self._jobs.values()} - self._workflows.keys() - {None}
        if makers:
            found = Workflow.objects.using(self._using).filter(pk__in=makers).only("id", "name", "type", "root_id")
            self._makers = {one.pk: one for one in found}
        for node in leaves:
            self._tell(node)
        self._finalize(top, "")
        return top

    def _choose(self, workflow: Any, member: Any) -> Node:
        """Return the node of a workflow with the members that are shown."""
        node = Node(MemberState.PENDING, member, workflow, type=workflow.type)
        all_of_it = self._members.get(workflow.pk, [])
        members = [one for one in all_of_it if one.role == Role.MEMBER]
        node.total = len(members)
        urgent = sorted(members, key=lambda one: (_FIRST.get(one.outcome, 2), one.enqueued_at is None, one.position))
        shown = {one.pk for one in urgent[: min(MOST_MEMBERS, self._left)]}
        node.more = Counter(one.outcome for one in members if one.pk not in shown)
        self._left -= len(shown)
        for one in all_of_it:
            if one.role != Role.MEMBER:
                node.callbacks.append(Node(MemberState.PENDING, one))
            elif one.pk in shown:
                child = self._workflows.get(one.child_id)
                node.nodes.append(Node(MemberState.PENDING, one) if child is None else self._choose(child, one))
        node.callbacks.sort(key=lambda one: one.member.position)
        return node

    def _tell(self, node: Node) -> None:
        """Say of a member that is a job what its rows say."""
        details = self._details.get(node.member.pk, {})
        node.job = self._jobs.get(node.member.job_id)
        node.type = node.job.type if node.job else details.get("job_type") or "?"
        node.result = _result(node.type, details)
        node.error = _error(node.type, details.get("erred"))
        if node.job is not None and node.job.workflow_id != node.member.workflow_id:
            node.stands_in = True
            node.made_by = self._workflows.get(node.job.workflow_id) or self._makers.get(node.job.workflow_id)

    def _finalize(self, node: Node, outer: str) -> None:
        """Give the states, from the inside out, and what each waits for; ``outer``: what all of ``node`` waits for."""
        shown = {one.member.position: one for one in node.nodes}
        for place, one in shown.items():
            is_next = node.type == Kind.CHAIN and place
            self._finalize_one(one, _after(place, shown.get(place - 1)) if is_next else outer)
        for one in node.callbacks:
            self._finalize_one(one, _CALLED[one.role])
        if node.workflow is not None:
            node.state = _state_of(node)

    def _finalize_one(self, node: Node, waits: str) -> None:
        member = node.member
        if member.outcome == MemberOutcome.OPEN and member.enqueued_at is None:
            node.waits = waits
        if node.workflow is None:
            node.state = _state_of(node)
        else:
            self._finalize(node, node.waits)


def _after(place: int, before: Node | None) -> str:
    if before is None:
        return Message("after step {number}", number=place)
    return Message("after step {number} ({name})", number=place, name=shortened(before.name, LONGEST))


def _state_of(node: Node) -> MemberState:
    begun = node.workflow is not None and (
        node.workflow.started_at is not None
        or any(one.state not in (MemberState.PENDING, MemberState.WAITING) for one in node.nodes)
    )
    return member_state(node.member, node.workflow, node.job, begun=begun)


def _result(type: str, details: dict[str, Any]) -> str:
    text = details.get("said")
    if text in (None, "null"):
        return TOO_LONG if details.get("is_long") else ""
    try:
        text = json.dumps(redacted(type, json.loads(text)), ensure_ascii=False)
    except (ValueError, RecursionError):  # it was cut
        text = redacted_beginning(type, text)
    return shortened(text, LONGEST)


def _error(type: str, text: str | None) -> dict[str, Any]:
    if text in (None, "null"):
        return {}
    try:
        error = redacted(type, json.loads(text))
    except (ValueError, RecursionError):
        return {"message": shortened(redacted_beginning(type, text), LONGEST)}
    if not isinstance(error, dict):
        return {"message": shortened(str(error), LONGEST)}
    return {name: shortened(value, LONGEST) if isinstance(value, str) else value for name, value in error.items()}


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

    ``shared``: jobs that go on, as another workflow or a caller needs them.
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
    alive = tables.workflows.filter(state=WorkflowState.RUNNING)
    within = list(alive.filter(_within(tables, workflow)).values_list("pk", flat=True))
    waiting = tables.waiting.filter(workflow__in=within).values("job_id")
    unfinished = tables.jobs.filter(pk__in=waiting, finished_at__isnull=True)
    others = tables.waiting.filter(job_id=OuterRef("pk"), workflow__in=alive).exclude(workflow__in=within)
    own = for_workflows(tables, within).filter(finished_at__isnull=True).exclude(Exists(others))
    own = own.exclude(pk__in=replaced_for_others(tables, within)).order_by()
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
