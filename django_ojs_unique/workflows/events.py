"""Record what happens to workflows as events (OJS events, "Workflow Events"); `lifecycle.events` says when."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models.fields.json import KT

from .. import signals
from ..conf import settings
from ..db.dialects import dialect_of
from ..lifecycle.events import LONGEST_MESSAGE, RECEIVERS, connect, disconnect, duration_ms, write
from ..ojs.workflows import UNSUCCESSFUL, Kind, MemberOutcome, Role, WorkflowState
from .advance import lock_root
from .progress import Progress
from .tables import Tables


def _job_started(job: Any, using: str, **kwargs: Any) -> None:
    """Let the workflow of its first job begin; if its root is locked, its advance does that when the job has ended."""
    if job.workflow_id is None:
        return
    tables = Tables.on(using)
    waiting = tables.workflows.filter(pk=job.workflow_id, state=WorkflowState.RUNNING, started_at=None)
    root_id = next((root or job.workflow_id for root in waiting.values_list("root_id", flat=True)), None)
    if root_id is None:
        return
    with transaction.atomic(using=using):
        dialect_of(tables.jobs).take_write_lock()
        if (root := lock_root(tables, root_id, waits=False)) is not None:
            progress = Progress(tables, root)
            progress.begin(progress.workflows[job.workflow_id], job.started_at)


def _created(workflow: Any, using: str, **kwargs: Any) -> None:
    total = _members(workflow, using).count()
    _note("workflow.created", workflow, using, total_steps=total, total_jobs=total)


def _started(workflow: Any, using: str, **kwargs: Any) -> None:
    _note("workflow.started", workflow, using, total_steps=_members(workflow, using).count())


def _member_ended(workflow: Any, member: Any, job: Any, using: str, **kwargs: Any) -> None:
    if member.role != Role.MEMBER:
        return
    noun = "step" if workflow.type == Kind.CHAIN else "job"
    word = "completed" if member.outcome == MemberOutcome.COMPLETED else "failed"
    type_ = _type(member, using) if job is None else job.type
    left = _members(workflow, using).filter(outcome=MemberOutcome.OPEN).count()
    _note(
        f"workflow.{noun}_{word}",
        workflow,
        using,
        type_,
        step_id=_step_id(member),
        step_index=member.position,
        step_type=type_,
        **({} if member.job_id is None else {"job_id": str(member.job_id)}),
        duration_ms=duration_ms(member.started_at, member.finished_at),
        steps_remaining=left,
        remaining_steps=left,
        **({} if member.error is None else {"error": _error(member.error)}),
    )


def _called_back(workflow: Any, member: Any, using: str, **kwargs: Any) -> None:
    _note("workflow.callback_fired", workflow, using, callback=member.role, job_id=str(member.job_id))


def _finished(workflow: Any, using: str, **kwargs: Any) -> None:
    members = _members(workflow, using)
    if workflow.state == WorkflowState.CANCELLED:
        cancelled = members.filter(outcome=MemberOutcome.CANCELLED).count()
        _note("workflow.cancelled", workflow, using, steps_cancelled=cancelled)
        return
    took = duration_ms(workflow.created_at, workflow.finished_at)
    if workflow.state == WorkflowState.COMPLETED:
        _note("workflow.completed", workflow, using, total_steps=members.count(), duration_ms=took)
    else:
        _note("workflow.failed", workflow, using, duration_ms=took, **_failure(workflow, using))


def _failure(workflow: Any, using: str) -> dict[str, Any]:
    """Tell of the callback that failed, else of the first member that did."""
    everyone = Tables.on(using).members.filter(workflow=workflow, outcome__in=UNSUCCESSFUL).defer("request", "result")
    callback = everyone.exclude(role=Role.MEMBER).order_by("position").first()
    member = callback or everyone.filter(outcome=MemberOutcome.FAILED).order_by("position").first()
    if member is None:
        return {}
    step = {"failed_step_id": _step_id(member)} if callback is None else {"failed_callback": callback.role}
    return {**step, "failed_step_type": _type(member, using), "error": _error(member.error or {})}


def _members(workflow: Any, using: str) -> Any:
    return Tables.on(using).members.filter(workflow=workflow, role=Role.MEMBER)


def _type(member: Any, using: str) -> str:
    """Return the type of a member's job, or the kind of the nested workflow; its request can be large."""
    if member.child_id is not None:
        return member.child.type  # type: ignore[no-any-return]
    rows = Tables.on(using).members.filter(pk=member.pk).annotate(job_type=KT("request__type"))
    return rows.values_list("job_type", flat=True).first() or ""


def _step_id(member: Any) -> str:
    return member.name or str(member.position)


def _error(error: dict[str, Any]) -> dict[str, str]:
    return {name: str(error[name])[:LONGEST_MESSAGE] for name in ("code", "message") if name in error}


def _note(type: str, workflow: Any, using: str, job_type: str = "", **data: Any) -> None:
    record = {"workflow_id": str(workflow.pk), "workflow_name": workflow.name, "workflow_type": workflow.type}
    if workflow.root_id is not None:
        record["root_workflow_id"] = str(workflow.root_id)
    write(using, type=type, subject=str(workflow.pk), job_type=job_type, data={**record, **data})


RECEIVERS += [
    (signals.job_started, _job_started),
    (signals.workflow_created, _created),
    (signals.workflow_started, _started),
    (signals.workflow_member_ended, _member_ended),
    (signals.workflow_called_back, _called_back),
    (signals.workflow_finished, _finished),
]


def obey_setting() -> None:
    """Record events, of jobs too, or stop it, as the setting says."""
    (connect if settings.events else disconnect)()
