"""Move one locked root workflow on, from the inside out: count what has ended, enqueue what is due, call back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

from django.db.models import OuterRef, Q, Subquery
from django.dispatch import Signal

from ..db.clock import database_now
from ..db.inserts import ROWS_AT_ONCE, in_groups
from ..enqueue.request import Request
from ..exceptions import DuplicateJob, OJSError
from ..lifecycle.events import flush
from ..ojs.states import JobState
from ..ojs.workflows import UNSUCCESSFUL, Kind, MemberOutcome, Role, WorkflowState
from ..signals import announce, workflow_called_back, workflow_finished, workflow_member_ended, workflow_started
from .create import enqueue
from .stored import from_json
from .tables import Tables, below

Ended: TypeAlias = Mapping[UUID, UUID | None]
"""Jobs that have ended, each with the job that has replaced it, or None. Only what is read under the locks counts."""

_READ = (
    "id", "type", "state", "attempt", "result", "errors", "started_at", "finished_at", "expires_at", "replaced_by",
    "payload_pruned",
)  # fmt: skip
_OPEN = MemberOutcome.OPEN


class Progress:
    """What is left to do in a workflow. Nothing that was read before the lock of its root counts."""

    def __init__(self, tables: Tables, root: Any) -> None:
        self._tables = tables
        self._root = root
        self._now = database_now(tables.jobs.db)
        nested = tables.workflows.filter(root=root)
        self.workflows: dict[UUID, Any] = {root.pk: root, **{workflow.pk: workflow for workflow in nested}}
        self._changed: set[UUID] = set()
        self._starting: list[Any] = []
        """The members whose jobs are enqueued next."""

    def run(self, ended: Ended, touched: Iterable[UUID] = ()) -> None:
        """Count jobs that have ``ended``, and enqueue what is due, until nothing is left.

        ``touched``: the workflows that have changed already.
        """
        self._changed |= set(touched)
        self._count_ended(ended)
        while self._changed:
            if parent := self._move_on(self.workflows[self._changed.pop()]):
                self._changed.add(parent)
            if not self._changed and self._starting:
                self._count_ended(self._enqueue())

    def ended(self) -> Ended:
        """Look for all jobs that have ended, and are not counted."""
        waiting = self._tables.waiting.filter(below(self._root.pk, "workflow"))
        ended = self._tables.ended.filter(pk__in=waiting.values("job_id"))
        return dict(ended.values_list("pk", "replaced_by"))

    def reopen(self) -> None:
        """Wait again for failed jobs that were retried meanwhile."""
        self._reopen(below(self._root.pk, "workflow"))

    def fail_deleted(self) -> set[UUID]:
        """Let the members fail whose jobs were deleted; return their workflows."""
        gone = self._tables.gone.filter(below(self._root.pk, "workflow"))
        members = list(gone.defer("request")[:ROWS_AT_ONCE])
        for member in members:
            self._fail(member, {"code": "deleted", "message": f"Job {member.job_id} was deleted."})
        return self._write(members, {})

    def begin(self, workflow: Any, at: datetime) -> None:
        """Note that the first job of a workflow, and so of those around it, started ``at`` this time or before."""
        while workflow.started_at is None or at < workflow.started_at:
            is_first, workflow.started_at = workflow.started_at is None, at
            workflow.save(update_fields=["started_at"])
            if is_first:
                _tell(self._tables, workflow_started, workflow)
            parent = self._tables.members.filter(child=workflow).values_list("workflow_id", flat=True).first()
            if parent is None:
                return
            workflow = self.workflows[parent]

    def end(self, workflow: Any, state: WorkflowState) -> UUID | None:
        """Give a workflow its final state, and its parent's member its outcome; return the parent."""
        workflow.state, workflow.finished_at = state, self._now
        workflow.save(update_fields=["state", "finished_at"])
        self._cancel_waiting(workflow)
        _tell(self._tables, workflow_finished, workflow)
        member = None if workflow is self._root else self._tables.members.filter(child=workflow, outcome=_OPEN).first()
        if member is None:
            return None
        member.started_at, member.finished_at = workflow.started_at, self._now
        if state is WorkflowState.COMPLETED:
            member.outcome = MemberOutcome.COMPLETED
        else:
            self._fail(member, {"code": "workflow_failed", "message": f"Workflow {workflow.pk} is {state}."})
        (parent,) = self._write([member], {})
        return parent

    def nested_in(self, workflow: Any) -> list[Any]:
        """Return a workflow and those nested in it, the outermost first."""
        found, ids = [workflow], [workflow.pk]
        while ids:
            children = self._tables.members.filter(workflow__in=ids, child__isnull=False)
            ids = list(children.values_list("child_id", flat=True))
            found += [self.workflows[id] for id in ids]
        return found

    def _count_ended(self, ended: Ended) -> None:
        """Count jobs that have ended."""
        for group in in_groups(ended.items()):
            jobs = self._lock(dict(group))
            waiting = self._tables.waiting.filter(below(self._root.pk, "workflow"), job_id__in=jobs)
            members = list(waiting.defer("request").order_by("workflow", "position"))
            for member in members:
                self._count(member, jobs)
            self._changed |= self._write(members, jobs)
            self._tables.release([job.pk for job in jobs.values() if job.finished_at is not None])

    def _lock(self, ended: Ended) -> dict[UUID, Any]:
        """Lock jobs and those that have replaced them, all in one order: two advances may need the same ones."""
        wanted, latest = set(ended), {id for id in ended.values() if id is not None}
        while latest:
            wanted |= latest
            replaced = self._tables.jobs.filter(pk__in=latest, replaced_by__isnull=False)
            latest = set(replaced.values_list("replaced_by", flat=True)) - wanted
        jobs: dict[UUID, Any] = {}
        asked: set[UUID] = set()
        while wanted:
            rows = self._tables.jobs.filter(pk__in=wanted).only(*_READ).order_by("pk").select_for_update()
            jobs |= {job.pk: job for job in rows}
            asked |= wanted
            # Those that were replaced since the query above.
            wanted = {job.replaced_by_id for job in jobs.values() if job.replaced_by_id is not None} - asked
        return jobs

    def _count(self, member: Any, jobs: dict[UUID, Any]) -> None:
        job = jobs[member.job_id]
        while job.replaced_by_id in jobs:  # else the job that replaced it was deleted
            job = jobs[job.replaced_by_id]
        if job.pk != member.job_id:
            member.job_id = job.pk
            member.save(update_fields=["job_id"])
        if job.finished_at is None:
            self._tables.adopt([job.pk])
            return
        member.started_at, member.finished_at = job.started_at, job.finished_at
        if job.state == JobState.COMPLETED:
            member.outcome, member.result = MemberOutcome.COMPLETED, job.result
        else:
            self._fail(member, error_of(job))
        if job.started_at is not None:
            self.begin(self.workflows[member.workflow_id], job.started_at)

    def _fail(self, member: Any, error: dict[str, Any]) -> None:
        job = {} if member.job_id is None else {"job_id": str(member.job_id)}
        member.outcome, member.error = MemberOutcome.FAILED, {**job, **error}
        member.finished_at = member.finished_at or self._now

    def _write(self, members: Collection[Any], jobs: dict[UUID, Any]) -> set[UUID]:
        """Write the outcomes of members, and tell of those that have ended; return their workflows."""
        write_outcomes(self._tables, members)
        ended = [member for member in members if member.outcome != _OPEN]
        for member in ended:
            workflow, job = self.workflows[member.workflow_id], jobs.get(member.job_id)
            _tell(self._tables, workflow_member_ended, workflow, member=member, job=job)
        return {member.workflow_id for member in ended}

    def _move_on(self, workflow: Any) -> UUID | None:
        """Do what is due in a workflow whose turn has come; return its parent if it has ended."""
        begun = self._tables.members.filter(child=workflow, enqueued_at__isnull=False)
        if workflow.state != WorkflowState.RUNNING or not (workflow is self._root or begun.exists()):
            return None
        state = self._next_step(workflow) if workflow.type == Kind.CHAIN else self._gather(workflow)
        return None if state is None else self.end(workflow, state)

    def _next_step(self, workflow: Any) -> WorkflowState | None:
        """Start the next step of a chain, unless one runs; return the chain's final state if it has one."""
        steps = self._members(workflow).exclude(outcome=MemberOutcome.COMPLETED)
        step = steps.order_by("position").first()
        if step is None:
            return WorkflowState.COMPLETED
        if step.outcome != _OPEN:
            return WorkflowState.FAILED
        if step.enqueued_at is None:
            self._start([step])
        return None

    def _gather(self, workflow: Any) -> WorkflowState | None:
        """Start the callbacks of a batch when all jobs have ended; return the final state of a group or a batch."""
        members = self._members(workflow)
        if members.filter(outcome=_OPEN).exists():
            return None
        if workflow.called_back_at is not None:
            callbacks = self._tables.members.filter(workflow=workflow).exclude(role=Role.MEMBER)
            if callbacks.filter(outcome=_OPEN).exists():
                return None
            failed = callbacks.filter(outcome__in=UNSUCCESSFUL).exists()
        else:
            failed = members.filter(outcome__in=UNSUCCESSFUL).exists()
            if failed and self._reopen(Q(workflow=workflow)):
                return None
            if workflow.type == Kind.BATCH and self._call_back(workflow, failed=failed):
                return None
        return WorkflowState.FAILED if failed else WorkflowState.COMPLETED

    def _reopen(self, where: Q) -> int:
        """Wait again for failed jobs that were retried; return how many there are."""
        ids = list(self._tables.retried.filter(where).values_list("pk", flat=True))
        return self._tables.members.filter(pk__in=ids).update(outcome=_OPEN, error=None, finished_at=None)

    def _call_back(self, workflow: Any, *, failed: bool) -> bool:
        """Start the callbacks that fit; return whether there are any."""
        fitting = (Role.ON_COMPLETE, Role.ON_FAILURE if failed else Role.ON_SUCCESS)
        callbacks = self._tables.members.filter(workflow=workflow).exclude(role=Role.MEMBER)
        callbacks.exclude(role__in=fitting).update(outcome=MemberOutcome.SKIPPED, finished_at=self._now)
        workflow.called_back_at = self._now
        workflow.save(update_fields=["called_back_at"])
        started = list(callbacks.filter(role__in=fitting).order_by("position"))
        self._start(started)
        return bool(started)

    def _start(self, members: Iterable[Any]) -> None:
        """Begin members: their jobs are enqueued together later."""
        members = list(members)
        for group in in_groups(members):
            self._tables.members.filter(pk__in=[member.pk for member in group]).update(enqueued_at=self._now)
        for member in members:
            if member.child_id is None:
                self._starting.append(member)
                continue
            child = self.workflows[member.child_id]
            first = self._members(child).order_by("position")
            # Some have ended already, if a nested workflow was cancelled before its turn.
            self._start(one for one in (first[:1] if child.type == Kind.CHAIN else first) if one.outcome == _OPEN)
            self._changed.add(child.pk)

    def _enqueue(self) -> Ended:
        """Enqueue the jobs of the members that begin; return the stand-ins that have ended already."""
        starting, self._starting = self._starting, []
        flush(self._tables.using)
        changed, failed, stand_ins = [], [], set()
        for member, result in zip(starting, enqueue(self._tables, list(map(self._request, starting))), strict=True):
            if result.error is not None:
                member.job_id = None
                self._fail(member, refusal(result.error))
                failed.append(member)
            elif not result.created:
                member.job_id = result.job.pk
                stand_ins.add(member.job_id)
            else:
                continue
            changed.append(member)
        self._tables.members.bulk_update(changed, ["job_id"], batch_size=500)
        for member in starting:
            if member.role != Role.MEMBER and member.outcome == _OPEN:
                _tell(self._tables, workflow_called_back, self.workflows[member.workflow_id], member=member)
        self._changed |= self._write(failed, {})
        ended = self._tables.ended.filter(pk__in=stand_ins)
        return dict(ended.values_list("pk", "replaced_by")) if stand_ins else {}

    def _request(self, member: Any) -> Request | OJSError:
        return from_json(member.request, id=member.job_id, workflow_id=member.workflow_id)

    def _members(self, workflow: Any) -> Any:
        return self._tables.members.filter(workflow=workflow, role=Role.MEMBER)

    def _cancel_waiting(self, workflow: Any) -> None:
        """Cancel the members of an ended workflow that have not begun, and all that is nested in them."""
        waiting = self._tables.members.filter(workflow=workflow, outcome=_OPEN, enqueued_at=None)
        children = [self.workflows[id] for id in waiting.exclude(child=None).values_list("child_id", flat=True)]
        waiting.update(outcome=MemberOutcome.CANCELLED, finished_at=self._now)
        for child in children:
            self.end(child, WorkflowState.CANCELLED)


def _tell(tables: Tables, signal: Signal, workflow: Any, **more: Any) -> None:
    announce(signal, type(workflow), workflow=workflow, **more, using=tables.using)


def write_outcomes(tables: Tables, members: Collection[Any]) -> None:
    """Write the outcomes of members. The database copies the results of completed jobs, in one statement for many."""
    completed = [member for member in members if member.outcome == MemberOutcome.COMPLETED and member.child_id is None]
    of_job = tables.jobs.filter(pk=OuterRef("job_id"))
    copied = {name: Subquery(of_job.values(name)[:1]) for name in ("result", "started_at", "finished_at")}
    for group in in_groups(completed):
        rows = tables.members.filter(pk__in=[member.pk for member in group])
        rows.update(outcome=MemberOutcome.COMPLETED, **copied)
    others = [member for member in members if member.outcome != MemberOutcome.COMPLETED or member.child_id is not None]
    tables.members.bulk_update(others, ["outcome", "error", "started_at", "finished_at"], batch_size=200)


def error_of(job: Any) -> dict[str, Any]:
    """Return what a member shows of a job that did not complete."""
    if job.state == JobState.CANCELLED:
        return {"code": "cancelled", "message": "The job was cancelled."}
    if job.payload_pruned:
        return {"code": "pruned", "message": "The job failed, and its errors were pruned."}
    last = job.errors[-1] if job.errors else {}
    if last.get("attempt") == job.attempt or last.get("code") == "superseded":
        return {name: last[name] for name in ("code", "type", "message", "attempt") if last.get(name) is not None}
    return {"code": "expired", "message": "The job expired before it started."}


def refusal(error: OJSError) -> dict[str, Any]:
    existing = {"job_id": str(error.existing_job_id)} if isinstance(error, DuplicateJob) else {}
    return {**existing, "code": error.code, "message": error.message}
