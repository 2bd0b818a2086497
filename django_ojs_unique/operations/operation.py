"""The operations on stored jobs: which jobs each one may change, and why it refuses the others."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet

from ..exceptions import InvalidTransition, Message
from ..ojs.states import ALL, INCOMPLETE, POSTPONED, TERMINAL, UNSUCCESSFUL, JobState


@dataclass(frozen=True, slots=True)
class Operation:
    """What is done to jobs.

    ``verb`` is what an error says, with the place of the job's ``id``; ``done``, what a surface says afterwards.
    ``states`` are those in which a job may be changed. ``hints`` are the refusals for some others: what to do instead.
    """

    name: str
    verb: str
    done: str
    states: frozenset[JobState]
    hints: tuple[tuple[JobState, Message], ...] = ()

    def able(self, jobs: QuerySet[Any]) -> QuerySet[Any]:
        """Select those of the jobs that it may change."""
        if self is RELEASE:
            return jobs.exclude(fingerprint=None)
        if self is RETRY:
            from .. import lifecycle

            return jobs.filter(Q(state__in=sorted(POSTPONED)) | lifecycle.unsuccessful())
        if self is ENQUEUE_AGAIN:
            jobs = jobs.filter(payload_pruned=False)
        if self.states <= INCOMPLETE:
            jobs = jobs.filter(finished_at__isnull=True)  # implied: there for the partial index
        return jobs.filter(state__in=sorted(self.states))

    def allows(self, job: Any) -> bool:
        """Tell whether it would change a job, in the job's present state."""
        if self is RELEASE:
            return job.fingerprint is not None and (job.state in INCOMPLETE or job.holds_unique_key)
        if job.state not in self.states or (job.payload_pruned and self in (RETRY, ENQUEUE_AGAIN)):
            return False
        return not (self is RETRY and job.state == JobState.CANCELLED and job.replaced_by_id is not None)

    def refusals(self, jobs: QuerySet[Any], ids: Collection[UUID]) -> dict[UUID, InvalidTransition]:
        """Return the error that it raises for each of these jobs. One query."""
        looked_at = ("state", "payload_pruned", "replaced_by", "fingerprint", "unique_states")
        found = {job.pk: job for job in jobs.filter(pk__in=ids).only(*looked_at)} if ids else {}
        return {id: self._refusal(id, found.get(id), jobs.db) for id in ids}

    def missing(self, id: UUID, using: str) -> InvalidTransition:
        """Return the error about a job that does not exist."""
        return self._error(Message(_MISSING, id=id, name=repr(using)), id, None)

    def _refusal(self, id: UUID, job: Any, using: str) -> InvalidTransition:
        if job is None:
            return self.missing(id, using)
        if self is RELEASE:
            return self._error(Message("Job {id} takes no part in uniqueness.", id=id), id, job.state)
        other = job.replaced_by_id if self is RETRY else None
        if self.allows(job):
            template = Message("Did not {verb}: it has changed meanwhile, and is {state}.")
        elif job.payload_pruned:
            template = Message("Cannot {verb}: it is {state}, and pruned.")
        elif other is not None:
            template = Message("Cannot {verb}: it is {state}, and was replaced by job {other}. Enqueue it again.")
        else:
            template = dict(self.hints).get(job.state, Message("Cannot {verb}: it is {state}."))
        message = Message(template, verb=Message(self.verb, id=id), state=job.state, other=other)
        return self._error(message, id, job.state)

    def _error(self, message: str, id: UUID, state: str | None) -> InvalidTransition:
        expected = sorted(map(str, self.states))
        return InvalidTransition(
            message, details={"job_id": str(id), "current_state": state, "expected_state": expected}
        )


_MISSING = Message("There is no job {id} in database {name}. It may have been pruned.")
CANCEL = Operation("cancel", "cancel job {id}", "Cancelled", INCOMPLETE)
ACTIVATE = Operation("activate", "activate job {id}", "Activated", frozenset({JobState.PENDING}))
RETRY = Operation(
    "retry",
    "retry job {id}",
    "Retried",
    POSTPONED | UNSUCCESSFUL,
    ((JobState.COMPLETED, Message("Cannot {verb}: it is {state}. Enqueue it again.")),),
)
ENQUEUE_AGAIN = Operation("enqueue again", "enqueue job {id} again", "Enqueued again", TERMINAL)
RELEASE = Operation("release", "release job {id}", "Taken out of uniqueness", ALL)
DELETE = Operation(
    "delete",
    "delete job {id}",
    "Deleted",
    ALL - {JobState.ACTIVE},
    ((JobState.ACTIVE, Message("Cannot {verb}: it is {state}. Cancel it first.")),),
)
