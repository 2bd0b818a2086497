"""What is done to one job, as the methods of `Job` document it; `operations.bulk` does it to many."""

from __future__ import annotations

from typing import Any, NoReturn
from uuid import UUID

from django.utils import timezone

from .. import lifecycle
from ..enqueue.unit_of_work import UnitOfWork
from ..exceptions import InvalidTransition
from ..signals import announce, job_activated, job_cancelled
from . import bulk
from .again import request_of
from .operation import ACTIVATE, CANCEL, DELETE, ENQUEUE_AGAIN, RETRY, Operation
from .rows import everything


def cancel(jobs: Any, job: Any) -> None:
    """Cancel a job; ``jobs``: the queryset of all, on the database that it is written to. So in all functions here."""
    for work in UnitOfWork(jobs.db):
        with work:
            if not lifecycle.cancel(_row(jobs, job), timezone.now()):
                _refuse(CANCEL, jobs, job)
            job.refresh_from_db(using=jobs.db)
            announce(job_cancelled, jobs.model, job=job, replaced_by=None, using=jobs.db)


def activate(jobs: Any, job: Any) -> None:
    """Make a pending job available."""
    for work in UnitOfWork(jobs.db):
        with work:
            if not lifecycle.activate(_row(jobs, job), timezone.now()):
                _refuse(ACTIVATE, jobs, job)
            job.refresh_from_db(using=jobs.db)
            announce(job_activated, jobs.model, job=job, using=jobs.db)


def retry(jobs: Any, job: Any, *, force: bool = False, replace: bool = False) -> dict[UUID, UUID]:
    """Make a job run again, if it is one of ``jobs``; return the jobs that were cancelled for it, with its id."""
    for work in UnitOfWork(jobs.db):
        with work:
            result = bulk.retry(jobs, [job.pk], work, known=job, force=force, replace=replace)
            if not result.changed:
                raise result.refused.get(job.pk) or _refusal(RETRY, jobs, job)
            job.refresh_from_db(using=jobs.db)
    return result.replaced


def enqueue_again(jobs: Any, job: Any) -> Any:
    """Enqueue a finished job again, as a new one."""
    stored = ENQUEUE_AGAIN.able(_row(jobs, job)).first()
    if stored is None:
        _refuse(ENQUEUE_AGAIN, jobs, job)
    return jobs.enqueue_request(request_of(stored))


def release_unique_key(jobs: Any, job: Any) -> bool:
    """Take a job out of uniqueness; return whether it had a fingerprint."""
    released = lifecycle.leave_uniqueness(_row(jobs, job))
    job.refresh_from_db(using=jobs.db)
    return bool(released)


def remove(jobs: Any, job: Any) -> None:
    """Delete the row of a job that does not run."""
    if not lifecycle.remove(_row(jobs, job)):
        _refuse(DELETE, jobs, job)


def _row(jobs: Any, job: Any) -> Any:
    return jobs.filter(pk=job.pk)


def _refusal(operation: Operation, jobs: Any, job: Any) -> InvalidTransition:
    return operation.refusals(everything(jobs), [job.pk])[job.pk]


def _refuse(operation: Operation, jobs: Any, job: Any) -> NoReturn:
    raise _refusal(operation, jobs, job)
