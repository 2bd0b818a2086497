"""Remote worker: the HTTP worker that makes a call about a job, and whether it has claimed that job.

The token of a lease contains the account for which it was made, so that no column has to store it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from ..exceptions import InvalidTransition
from ..ojs.states import JobState

_HALF = 8


def new_token(account: str) -> UUID:
    """Return the token of a new lease, in which `RemoteWorker.has_fetched` recognises the account."""
    return _token(uuid4().bytes[:_HALF], account)


@dataclass(frozen=True, slots=True)
class RemoteWorker:
    """What is known of an HTTP worker: its ``account``, which it cannot choose, and the members of its request.

    ``token`` and ``attempt`` are those of the job as it was fetched. A member that is None is not compared.
    """

    account: str
    worker_id: str | None = None
    token: UUID | None = None
    attempt: int | None = None

    def has_fetched(self, job: Any) -> bool:
        """Tell whether an active job was fetched with this account."""
        token = job.lease_token
        return token is not None and token == _token(token.bytes[:_HALF], self.account)

    def runs(self, stopped: Any) -> bool:
        """Tell whether this worker may report about a stopped run."""
        return (
            self.has_fetched(stopped)
            and self.token in (None, stopped.lease_token)
            and (None in (self.worker_id, stopped.worker_id) or self.worker_id == stopped.worker_id)
        )

    def refusal(self, job: Any) -> InvalidTransition | None:
        """Return the error why this worker may not finalize a locked job, or None if it may."""
        problem = self._problem(job)
        if problem is None:
            return None
        details = {"job_id": str(job.pk), "current_state": str(job.state), "expected_state": str(JobState.ACTIVE)}
        return InvalidTransition(f"Job {job.pk} {problem}.", details=details)

    def _problem(self, job: Any) -> str | None:
        if job.state != JobState.ACTIVE or job.lease_token is None:
            return f"is {job.state}: no worker has its lease"
        if not self.has_fetched(job):
            return "was not fetched with this account"
        if self.token is not None and self.token != job.lease_token:
            return "has a newer lease: yours has ended, so drop what you have of it"
        if self.attempt is not None and self.attempt != job.attempt:
            return f"is in attempt {job.attempt}, not {self.attempt}: your lease has ended, so drop what you have of it"
        if self.worker_id is not None and job.worker_id is not None and self.worker_id != job.worker_id:
            return "has been leased to another worker"
        return None


def _token(noise: bytes, account: str) -> UUID:
    mark = hashlib.sha256(noise + account.encode(errors="replace")).digest()
    return UUID(bytes=noise + mark[:_HALF], version=4)  # MariaDB refuses a UUID without a version
