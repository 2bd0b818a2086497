"""Cancel a workflow (OJS workflows, "Cancellation")."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet

from .. import lifecycle
from ..db.clock import database_now
from ..db.dialects import dialect_of
from ..enqueue.unit_of_work import UnitOfWork
from ..exceptions import InvalidTransition, Message
from ..lifecycle.announcing import announce_each
from ..ojs.states import WAITING, JobState
from ..ojs.workflows import MemberOutcome, WorkflowState
from ..signals import job_cancelled
from .advance import lock_root
from .progress import Progress
from .tables import Tables


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What a cancellation has done: how many jobs it cancelled, and how many are ``running`` without another attempt.

    These are claimed by a worker; some may not have begun yet.
    """

    jobs: int
    running: int


def cancel(workflows: QuerySet[Any], id: UUID, *, active: bool = False) -> Cancelled:
    """Cancel a workflow; see `Workflow.cancel`. Raises InvalidTransition if it has ended, or is gone."""
    tables = Tables.on(workflows.db)
    row = tables.workflows.filter(pk=id).only("root_id").first()
    for work in UnitOfWork(tables.using):
        with work, transaction.atomic(using=tables.using):
            dialect_of(tables.jobs).take_write_lock()
            root = row and lock_root(tables, row.root_id or id, waits=True)
            if root is None:
                raise InvalidTransition(Message("Workflow {id} does not exist any more.", id=id))
            progress = Progress(tables, root)
            progress.run(progress.ended())  # what has ended before the cancellation counts
            workflow = progress.workflows[id]
            if workflow.state != WorkflowState.RUNNING:
                raise InvalidTransition(
                    Message(_ENDED, id=id, state=workflow.state),
                    details={"workflow_id": str(id), "current_state": workflow.state, "expected_state": "running"},
                )
            done = _cancel(tables, progress, workflow, active=active)
    return done


_ENDED = Message("Workflow {id} is {state}; only a running one can be cancelled.")


def for_workflows(tables: Tables, ids: Collection[UUID]) -> QuerySet[Any]:
    """Select the jobs that workflows wait for, without those that a caller of `enqueue` needs."""
    return tables.jobs.filter(pk__in=tables.waiting.filter(workflow__in=ids).values("job_id"), workflow_only=True)


def replaced_for_others(tables: Tables, ids: Collection[UUID]) -> set[UUID]:
    """Return the jobs that have replaced one that a workflow not in ``ids`` waits for, until that takes note."""
    replaced = dict(tables.ended.filter(replaced_by__isnull=False).values_list("pk", "replaced_by"))
    others = tables.waiting.filter(job_id__in=replaced, workflow__state=WorkflowState.RUNNING).exclude(workflow__in=ids)
    found, latest = set[UUID](), {replaced[id] for id in others.values_list("job_id", flat=True)}
    while latest:
        found |= latest
        again = tables.jobs.filter(pk__in=latest, replaced_by__isnull=False)
        latest = set(again.values_list("replaced_by", flat=True)) - found
    return found


def _cancel(tables: Tables, progress: Progress, workflow: Any, *, active: bool) -> Cancelled:
    within = [one for one in progress.nested_in(workflow) if one.state == WorkflowState.RUNNING]
    ids = [one.pk for one in within]
    members = tables.waiting.filter(workflow__in=ids)
    own = for_workflows(tables, ids)
    jobs = {job.pk: job for job in own.only("id", "state").order_by("pk").select_for_update()}
    shared = _needed_by_others(tables, ids, jobs)
    stoppable = WAITING | {JobState.ACTIVE} if active else WAITING
    stopped = [pk for pk, job in jobs.items() if job.state in stoppable and pk not in shared]
    running = [pk for pk, job in jobs.items() if job.state == JobState.ACTIVE and pk not in {*stopped, *shared}]
    now = database_now(tables.jobs.db)
    lifecycle.cancel(tables.jobs.filter(pk__in=stopped), now)
    lifecycle.last_attempt(tables.jobs.filter(pk__in=running))
    ended = members.exclude(job_id__in=running)
    awaited = sorted(set(ended.values_list("job_id", flat=True)))
    ended.update(outcome=MemberOutcome.CANCELLED, finished_at=now)
    without_job = tables.members.filter(Q(enqueued_at=None) | Q(child__isnull=False), workflow__in=ids)
    without_job.filter(outcome=MemberOutcome.OPEN).update(outcome=MemberOutcome.CANCELLED, finished_at=now)
    list(tables.jobs.filter(pk__in=awaited).order_by("pk").select_for_update().values_list("pk"))
    tables.release(awaited)
    announce_each(job_cancelled, tables.jobs, stopped)
    # The innermost first; the outermost one's parent goes on without it.
    for one in reversed(within):
        parent = progress.end(one, WorkflowState.CANCELLED)
    if parent is not None:
        progress.run({}, [parent])
    return Cancelled(len(stopped), len(running))


def _needed_by_others(tables: Tables, ids: Collection[UUID], jobs: Collection[UUID]) -> set[UUID]:
    """Return those of the locked jobs that another running workflow waits for.

    That has locked the job, too, when it changes its member. The lock of the member is for old snapshots.
    """
    others = tables.waiting.filter(job_id__in=jobs).exclude(workflow__in=ids).select_for_update()
    waits = list(others.values_list("job_id", "workflow_id"))
    running = tables.workflows.filter(pk__in={workflow for _, workflow in waits}, state=WorkflowState.RUNNING)
    alive = set(running.values_list("pk", flat=True))
    return {job for job, workflow in waits if workflow in alive} | replaced_for_others(tables, ids)
