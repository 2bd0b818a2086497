"""Change many jobs with a few statements per thousand: one transaction for each thousand, together with its events."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, TypeAlias
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.dispatch import Signal
from django.utils import timezone

from .. import lifecycle
from ..db.dialects import dialect_of
from ..db.inserts import in_groups
from ..ojs.states import ALL, INCOMPLETE, POSTPONED, JobState
from ..signals import announce, job_activated, job_cancelled
from ..unit_of_work import UnitOfWork
from .refusals import refusals
from .results import BulkResult
from .revival import all_of, revive

Change: TypeAlias = Callable[[QuerySet[Any], Collection[UUID], UnitOfWork], BulkResult]
"""Changes up to a thousand of ``jobs``. Its result says nothing of those whose state does not allow it."""


def change(jobs: QuerySet[Any], ids: Iterable[UUID], act: Change, operation: str) -> Iterator[BulkResult]:
    """Change those of ``jobs``, a thousand at a time; after each transaction, yield what became of these jobs.

    A job that no longer matches the filters of ``jobs`` when it is locked stays as it is.
    ``operation``: what ``act`` does, one of `refusals.STATES`, for the errors about jobs whose state does not allow it.
    """
    for some in in_groups(dict.fromkeys(ids)):
        for work in UnitOfWork(jobs.db):
            with work:
                result = act(jobs, some, work)
        told = {*result.changed, *result.refused}
        result.refused |= refusals(all_of(jobs), [id for id in some if id not in told], operation)
        yield result


def oldest_first(jobs: QuerySet[Any], states: Collection[JobState]) -> list[UUID]:
    """Return the ids of those jobs that are in one of the states; those of a slice keep its order."""
    if jobs.query.is_sliced:
        return [id for id, state in jobs.values_list("pk", "state") if state in states]
    chosen = jobs.filter(state__in=sorted(states)).order_by("created_at", "pk")
    return list(chosen.values_list("pk", flat=True))


def cancel(jobs: QuerySet[Any], ids: Collection[UUID], work: UnitOfWork) -> BulkResult:
    """Cancel the jobs that have not finished."""
    with transaction.atomic(using=jobs.db):
        live = list(_lock(jobs, ids, INCOMPLETE))
        lifecycle.cancel(all_of(jobs).filter(pk__in=live), timezone.now())
        _announce(job_cancelled, all_of(jobs), live, replaced_by=None)
    return BulkResult(live)


def retry_now(jobs: QuerySet[Any], ids: Collection[UUID], work: UnitOfWork) -> BulkResult:
    """Make the jobs available that are scheduled, retryable or pending."""
    with transaction.atomic(using=jobs.db):
        waiting = _lock(jobs, ids, POSTPONED)
        lifecycle.retry_now(all_of(jobs).filter(pk__in=list(waiting)), timezone.now())
        dialect_of(jobs).wake({job.queue for job in waiting.values()})
        pending = [id for id, job in waiting.items() if job.state == JobState.PENDING]
        _announce(job_activated, all_of(jobs), pending)
    return BulkResult(list(waiting))


def retry(jobs: QuerySet[Any], ids: Collection[UUID], work: UnitOfWork, *, force: bool = False) -> BulkResult:
    """Make waiting jobs available now, and revive the others that can be revived; ``force`` is that of `revive`."""
    result = retry_now(jobs, ids, work)
    result.add(revive(jobs, list(set(ids).difference(result.changed)), work, force=force))
    return result


def release(jobs: QuerySet[Any], ids: Collection[UUID], work: UnitOfWork) -> BulkResult:
    """Take the jobs out of uniqueness that take part in it."""
    with transaction.atomic(using=jobs.db):
        unique = list(_lock(jobs.exclude(fingerprint=None), ids, ALL))
        lifecycle.leave_uniqueness(all_of(jobs).filter(pk__in=unique))
    return BulkResult(unique)


def remove(jobs: QuerySet[Any], ids: Collection[UUID], work: UnitOfWork) -> BulkResult:
    """Delete the jobs that are not running."""
    with transaction.atomic(using=jobs.db):
        idle = list(_lock(jobs, ids, ALL - {JobState.ACTIVE}))
        lifecycle.remove(all_of(jobs).filter(pk__in=idle))
    return BulkResult(idle)


def _lock(jobs: QuerySet[Any], ids: Collection[UUID], states: Collection[JobState]) -> dict[UUID, Any]:
    dialect_of(jobs).take_write_lock()
    able = jobs.filter(pk__in=ids, state__in=sorted(states)).only("queue", "state")
    return {job.pk: job for job in able.order_by("pk").select_for_update()}


def _announce(signal: Signal, jobs: QuerySet[Any], ids: Collection[UUID], **arguments: Any) -> None:
    if ids and signal.has_listeners(jobs.model):
        for job in jobs.filter(pk__in=ids).order_by("pk"):
            announce(signal, jobs.model, job=job, using=jobs.db, **arguments)
