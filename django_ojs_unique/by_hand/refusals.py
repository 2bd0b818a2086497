"""Which operations the state of a job allows, and the errors of those that it does not."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from .. import lifecycle
from ..exceptions import InvalidTransition
from ..ojs.states import ALL, INCOMPLETE, POSTPONED, REVIVABLE, TERMINAL, JobState

STATES: Mapping[str, frozenset[JobState]] = {
    "cancel": INCOMPLETE,
    "retry": POSTPONED,
    "activate": frozenset({JobState.PENDING}),
    "revive": REVIVABLE,
    "enqueue again": TERMINAL,
    "release": ALL,
    "delete": ALL - {JobState.ACTIVE},
}
"""In which states each operation is allowed."""

_NEEDS_PAYLOAD = {"revive", "enqueue again"}
_MENDS = {
    ("retry", JobState.DISCARDED): "Revive it.",
    ("retry", JobState.CANCELLED): "Revive it.",
    ("retry", JobState.COMPLETED): "Enqueue it again.",
    ("revive", JobState.COMPLETED): "Enqueue it again.",
    ("revive", JobState.CANCELLED): "Enqueue it again.",
    ("delete", JobState.ACTIVE): "Cancel it first.",
}


def allows(job: Any, operation: str) -> bool:
    """Tell whether a job is in a state in which the operation changes anything."""
    if operation == "release":
        return job.fingerprint is not None and (job.state in INCOMPLETE or job.is_guarding)
    if job.state not in STATES[operation] or (job.payload_pruned and operation in _NEEDS_PAYLOAD):
        return False
    return operation != "revive" or job.state != JobState.CANCELLED or job.replaced_by_id is None


def able(jobs: QuerySet[Any], operation: str) -> QuerySet[Any]:
    """Select those of the jobs that the operation may change."""
    match operation:
        case "revive":
            return lifecycle.revivable(jobs)
        case "release":
            return jobs.exclude(fingerprint=None)
        case "enqueue again":
            jobs = jobs.filter(payload_pruned=False)
    return jobs.filter(state__in=sorted(STATES[operation]))


def refusals(jobs: QuerySet[Any], ids: Collection[UUID], operation: str) -> dict[UUID, InvalidTransition]:
    """Return the error that the operation raises for each of these jobs. One query."""
    looked_at = ("state", "payload_pruned", "replaced_by", "fingerprint", "guarded_states")
    found = {job.pk: job for job in jobs.filter(pk__in=ids).only(*looked_at)} if ids else {}
    return {id: _refusal(id, operation, found.get(id), jobs.db) for id in ids}


def _refusal(id: UUID, operation: str, job: Any, using: str) -> InvalidTransition:
    if job is None:
        said = f"There is no job {id} in database {using!r}. It may have been pruned."
    elif operation == "release":
        said = f"Job {id} takes no part in uniqueness."
    elif allows(job, operation):
        said = f"Did not {operation} job {id}: it has changed meanwhile, and is {job.state}."
    else:
        said = f"Cannot {operation} job {id}: it is {job.state}{_besides(job, operation)}."
        mend = "" if job.payload_pruned else _MENDS.get((operation, job.state), "")
        said += f" {mend}" if mend else ""
    expected = sorted(map(str, STATES[operation]))
    details = {"job_id": str(id), "current_state": job and job.state, "expected_state": expected}
    return InvalidTransition(said, details=details)


def _besides(job: Any, operation: str) -> str:
    if job.payload_pruned:
        return ", and pruned"
    return f", and was replaced by job {job.replaced_by_id}" if operation == "revive" and job.replaced_by_id else ""
