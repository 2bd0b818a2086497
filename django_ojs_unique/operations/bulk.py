"""Change many jobs with a few statements per thousand: one transaction for each thousand, together with its events."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from .. import lifecycle
from ..db.dialects import dialect_of
from ..db.inserts import in_groups
from ..enqueue.unit_of_work import UnitOfWork
from ..ojs.states import ALL, INCOMPLETE, POSTPONED, JobState
from ..signals import job_activated, job_cancelled
from .again import enqueue_again
from .announcing import announce_each
from .operation import CANCEL, DELETE, ENQUEUE_AGAIN, RELEASE, RETRY, Operation
from .results import BulkResult
from .retry import refuse_both, retry_finished
from .rows import everything


def change(jobs: QuerySet[Any], ids: Iterable[UUID], operation: Operation, **options: Any) -> Iterator[BulkResult]:
    """Do an operation to those of ``jobs``, a thousand at a time; after each transaction, yield what became of them.

    A job that no longer matches the filters of ``jobs`` when it is locked stays as it is. ``options`` are ``force`` and
    ``replace``, as `JobQuerySet.retry` has them, and ``replaceable``: the only jobs that may be replaced.
    """
    act = partial(_ACTS[operation], **options)
    for some in in_groups(dict.fromkeys(ids)):
        for work in UnitOfWork(jobs.db):
            with work:
                result = act(jobs, some, work)
        answered = {*result.changed, *result.refused}
        result.refused |= operation.refusals(everything(jobs), [id for id in some if id not in answered])
        yield result


def oldest_first(jobs: QuerySet[Any], states: Collection[JobState]) -> list[UUID]:
    """Return the ids of those jobs that are in one of the states; those of a slice keep its order."""
    if jobs.query.is_sliced:
        return [id for id, state in jobs.values_list("pk", "state") if state in states]
    chosen = jobs.filter(state__in=sorted(states)).order_by("created_at", "pk")
    return list(chosen.values_list("pk", flat=True))


def _cancel(jobs: QuerySet[Any], ids: Collection[UUID], work: UnitOfWork) -> BulkResult:
    with transaction.atomic(using=jobs.db):
        live = list(_lock(jobs, ids, INCOMPLETE))
        lifecycle.cancel(everything(jobs).filter(pk__in=live), timezone.now())
        announce_each(job_cancelled, everything(jobs), live)
    return BulkResult(live)


def _retry_waiting(jobs: QuerySet[Any], ids: Collection[UUID], known: Any) -> BulkResult:
    waiting = _lock(jobs, ids, POSTPONED)
    lifecycle.retry_waiting(everything(jobs).filter(pk__in=list(waiting)), timezone.now())
    dialect_of(jobs).wake({job.queue for job in waiting.values()})
    pending = [id for id, job in waiting.items() if job.state == JobState.PENDING]
    announce_each(job_activated, everything(jobs), pending, known=known)
    return BulkResult(list(waiting))


def retry(
    jobs: QuerySet[Any], ids: Collection[UUID], work: UnitOfWork, *, known: Any = None, **options: Any
) -> BulkResult:
    """Make waiting jobs available, and finished ones run again; ``options`` as of `retry_finished`.

    ``known`` is the caller's object of one of the jobs, for the receivers of `job_activated`.
    """
    refuse_both(**options)
    with transaction.atomic(using=jobs.db):  # a lost race undoes both
        result = _retry_waiting(jobs, ids, known)
        if others := set(ids).difference(result.changed):
            result.add(retry_finished(jobs, others, work, known=known, **options))
    return result


def _release(jobs: QuerySet[Any], ids: Collection[UUID], work: UnitOfWork) -> BulkResult:
    with transaction.atomic(using=jobs.db):
        unique = list(_lock(jobs.exclude(fingerprint=None), ids, ALL))
        lifecycle.leave_uniqueness(everything(jobs).filter(pk__in=unique))
    return BulkResult(unique)


def _delete(jobs: QuerySet[Any], ids: Collection[UUID], work: UnitOfWork) -> BulkResult:
    with transaction.atomic(using=jobs.db):
        idle = list(_lock(jobs, ids, ALL - {JobState.ACTIVE}))
        lifecycle.remove(everything(jobs).filter(pk__in=idle))
    return BulkResult(idle)


_ACTS: dict[Operation, Any] = {
    CANCEL: _cancel,
    RETRY: retry,
    ENQUEUE_AGAIN: enqueue_again,
    RELEASE: _release,
    DELETE: _delete,
}


def _lock(jobs: QuerySet[Any], ids: Collection[UUID], states: Collection[JobState]) -> dict[UUID, Any]:
    dialect_of(jobs).take_write_lock()
    able = jobs.filter(pk__in=ids, state__in=sorted(states)).only("queue", "state")
    return {job.pk: job for job in able.order_by("pk").select_for_update()}
