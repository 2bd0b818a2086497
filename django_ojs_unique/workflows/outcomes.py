"""What became of members: their errors, and their rows."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.db.models import OuterRef, Subquery

from ..db.inserts import in_groups
from ..exceptions import DuplicateJob, OJSError
from ..ojs.states import JobState
from ..ojs.workflows import MemberOutcome
from .tables import Tables


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
    last = job.errors[-1] if job.errors else {}
    if last.get("attempt") == job.attempt or last.get("code") == "superseded":
        return {name: last[name] for name in ("code", "type", "message", "attempt") if last.get(name) is not None}
    return {"code": "expired", "message": "The job expired before it started."}


def refusal(error: OJSError) -> dict[str, Any]:
    existing = {"job_id": str(error.existing_job_id)} if isinstance(error, DuplicateJob) else {}
    return {**existing, "code": error.code, "message": error.message}
