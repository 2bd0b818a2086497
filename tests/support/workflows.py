"""What must hold over every row of every workflow, and deaths within a change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection

from django_ojs_unique.models import Job, Workflow, WorkflowMember
from django_ojs_unique.ojs.states import TERMINAL
from django_ojs_unique.workflows.advance import advance_due, fail_deleted


class Died(BaseException):
    """The process is gone: no code of the package catches this."""


@contextmanager
def dying(after: int) -> Iterator[None]:
    """Die instead of the statement number ``after`` of the block, counted from 0."""
    left = after

    def execute(execute: Any, *arguments: Any) -> Any:
        nonlocal left
        if not left:
            raise Died
        left -= 1
        return execute(*arguments)

    try:
        with connection.execute_wrapper(execute):
            yield
    except Died:
        connection.close()


def advance() -> None:
    """Advance all that is due."""
    fail_deleted("default")
    while advance_due("default") != (0, False):
        pass


def audit() -> list[Workflow]:
    """Check every workflow whose jobs have all ended; return them."""
    assert not Job.objects.filter(awaited=True).exists()
    workflows = list(Workflow.objects.order_by("created_at", "id"))
    for workflow in workflows:
        members = list(workflow.members)
        callbacks = {member.role: member for member in workflow.callbacks}
        assert workflow.state != "running", workflow
        assert workflow.finished_at is not None
        for member in [*members, *callbacks.values()]:
            _audit_member(workflow, member)
        outcomes = [member.outcome for member in members]
        failed = "failed" in outcomes
        if workflow.type == "chain":
            ended = outcomes.index("failed") if failed else len(outcomes)
            if workflow.state == "cancelled":
                assert set(outcomes) <= {"completed", "cancelled", "failed"}
            else:
                assert workflow.state == ("failed" if failed else "completed")
                # A nested workflow that waits for its turn fails when it is cancelled by its own id.
                assert set(outcomes[:ended]) <= {"completed"}
                assert set(outcomes[ended:]) <= {"failed", "cancelled"}
        elif workflow.state != "cancelled":
            assert set(outcomes) <= {"completed", "failed"}
            called = {role: member.outcome for role, member in callbacks.items()}
            if workflow.type == "batch":
                assert workflow.called_back_at is not None
                unfit = "on_success" if failed else "on_failure"
                assert called.pop(unfit, "skipped") == "skipped"
                assert set(called.values()) <= {"completed", "failed"}
                failed = "failed" in called.values() if called else failed
            assert workflow.state == ("failed" if failed else "completed")
        _audit_jobs(workflow)
    return workflows


def _audit_member(workflow: Workflow, member: WorkflowMember) -> None:
    assert member.outcome != "open", member
    assert member.finished_at is not None, member
    assert (member.error is not None) == (member.outcome == "failed"), member
    if member.child is not None:
        fits = {"completed": "completed", "failed": "failed", "cancelled": "failed"}[member.child.state]
        assert member.outcome in (fits, "cancelled"), member
    elif member.outcome == "completed":
        job = Job.objects.filter(pk=member.job_id).first()
        assert job is None or job.state == "completed"
    if member.outcome == "skipped":
        assert member.enqueued_at is None


def _audit_jobs(workflow: Workflow) -> None:
    """Each job that the workflow enqueued is the one of a member, or was replaced.

    A job from ``outside`` is left out: it belongs to the workflow of a job that it has replaced.
    """
    jobs = [job for job in Job.objects.filter(workflow_id=workflow.pk, replaced_by=None) if "outside" not in job.tags]
    assert {job.state for job in jobs} <= TERMINAL
    assert {job.pk for job in jobs} <= set(workflow.all_members.values_list("job_id", flat=True))
