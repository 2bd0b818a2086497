"""Change one job, or many with a few statements per thousand: a transaction for each thousand, with its events."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.dispatch import Signal

from .. import lifecycle
from ..db.clock import database_now
from ..db.dialects import dialect_of
from ..db.holding import everything
from ..db.inserts import in_groups
from ..enqueue.unit_of_work import UnitOfWork
from ..lifecycle.announcing import announce_each
from ..ojs.states import POSTPONED, JobState
from ..signals import job_activated, job_cancelled
from .again import enqueue_again, request_of
from .operation import ACTIVATE, CANCEL, DELETE, ENQUEUE_AGAIN, RELEASE, RETRY, Operation
from .results import BulkResult
from .retry import refuse_both, retry_finished


def change(jobs: QuerySet[Any], ids: Iterable[UUID], operation: Operation, **options: Any) -> Iterator[BulkResult]:
    """Do an operation to those of ``jobs``, a thousand at a time; after each transaction, yield what became of them.

    A job that no longer matches the filters of ``jobs`` when it is locked stays as it is. ``options`` are ``force`` and
    ``replace``, as `JobQuerySet.retry` has them, and ``replaceable``: the only jobs that may be replaced. ``known``
    is the caller's object of one job, for the receivers of signals.
    """
    act = partial(_ACTS[operation], **options)
    for some in in_groups(dict.fromkeys(ids)):
        for work in UnitOfWork(jobs.db):
            with work:
                result = act(jobs, some, work)
        answered = {*result.changed, *result.refused}
        result.refused |= operation.refusals(everything(jobs), [id for id in some if id not in answered])
        yield result


def change_one(jobs: QuerySet[Any], job: Any, operation: Operation, **options: Any) -> BulkResult:
    """Do an operation to a job, if it is one of ``jobs``, and bring the object up to date; raise why it is refused."""
    (result,) = change(jobs, [job.pk], operation, known=job, **options)
    if job.pk in result.refused:
        raise result.refused[job.pk]
    if operation is not DELETE:
        job.refresh_from_db(using=jobs.db)
    return result


def enqueue_one_again(jobs: Any, job: Any) -> Any:
    """Enqueue a finished job again, as a new one; ``jobs``: the queryset of all."""
    stored = ENQUEUE_AGAIN.able(jobs.filter(pk=job.pk)).first()
    if stored is None:
        raise ENQUEUE_AGAIN.refusals(everything(jobs), [job.pk])[job.pk]
    return jobs.enqueue_request(request_of(stored))


def oldest_first(jobs: QuerySet[Any], states: Collection[JobState]) -> list[UUID]:
    """Return the ids of those jobs that are in one of the states; those of a slice keep its order."""
    if jobs.query.is_sliced:
        return [id for id, state in jobs.values_list("pk", "state") if state in states]
    chosen = jobs.filter(state__in=sorted(states)).order_by("created_at", "pk")
    return list(chosen.values_list("pk", flat=True))


def _retry_waiting(jobs: QuerySet[Any], ids: Collection[UUID], known: Any) -> BulkResult:
    waiting = _lock(jobs, ids, POSTPONED)
    lifecycle.retry_waiting(everything(jobs).filter(pk__in=list(waiting)), database_now(jobs.db))
    dialect_of(jobs).wake({job.queue for job in waiting.values()})
    pending = [id for id, job in waiting.items() if job.state == JobState.PENDING]
    announce_each(job_activated, everything(jobs), pending, known=known)
    return BulkResult(list(waiting))


def _retry(
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


def _simply(
    operation: Operation, move: Callable[[QuerySet[Any], datetime], int], signal: Signal | None = None
) -> Callable[..., BulkResult]:
    """Return the function that locks the jobs, moves them, and sends a signal about each."""

    def act(jobs: QuerySet[Any], ids: Collection[UUID], work: UnitOfWork, *, known: Any = None) -> BulkResult:
        with transaction.atomic(using=jobs.db):
            chosen = _lock(RELEASE.able(jobs) if operation is RELEASE else jobs, ids, operation.states)
            move(everything(jobs).filter(pk__in=list(chosen)), database_now(jobs.db))
            if signal is not None:
                announce_each(signal, everything(jobs), chosen, known=known)
        return BulkResult(list(chosen), previous={id: job.state for id, job in chosen.items()})

    return act


_ACTS: dict[Operation, Callable[..., BulkResult]] = {
    CANCEL: _simply(CANCEL, lifecycle.cancel, job_cancelled),
    ACTIVATE: _simply(ACTIVATE, lifecycle.activate, job_activated),
    RETRY: _retry,
    ENQUEUE_AGAIN: enqueue_again,
    RELEASE: _simply(RELEASE, lambda jobs, now: lifecycle.leave_uniqueness(jobs)),
    DELETE: _simply(DELETE, lambda jobs, now: lifecycle.remove(jobs)),
}


def _lock(jobs: QuerySet[Any], ids: Collection[UUID], states: Collection[JobState]) -> dict[UUID, Any]:
    dialect_of(jobs).take_write_lock()
    able = jobs.filter(pk__in=ids, state__in=sorted(states)).only("queue", "state")
    return {job.pk: job for job in able.order_by("pk").select_for_update()}
