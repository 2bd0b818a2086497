"""Enqueue what clients ask for: a job, or many, with the rates of their queues in the same transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from django.db import transaction
from django.utils import timezone

from ..exceptions import Contended, DuplicateJob, JobIdTaken, OJSError
from ..models import Queue
from ..outcomes import EnqueueResult, ItemResult
from ..transactions import starting_over
from ..worker.outside import is_over, pass_time
from .reading import Wanted

R = TypeVar("R", bound=EnqueueResult)


def accept(jobs: Any, wanted: Wanted) -> EnqueueResult:
    """Enqueue a job. Raises what `enqueue` raises, with the fields as the client wrote them."""
    try:
        result = _past_what_is_over(jobs, partial(_one, jobs, wanted))
    except OJSError as error:
        raise _explained(jobs, wanted, error) from None
    (job,) = _whole(jobs, [result.job])
    return EnqueueResult(job, result.outcome, result.replaced)


def accept_all(jobs: Any, wanted: Sequence[Wanted]) -> list[Any]:
    """Enqueue all or none; return the job of each. Raises what the first one that cannot be enqueued raises."""
    try:
        results = _many(jobs, wanted, "atomic")
    except OJSError as error:
        index = error.details.get("index")
        raise error if index is None else _explained(jobs, wanted[index], error) from None
    return _whole(jobs, [result.job for result in results])


def accept_each(jobs: Any, wanted: Sequence[Wanted]) -> list[tuple[EnqueueResult, OJSError | None]]:
    """Enqueue each on its own; return what became of each, and the error if it was refused."""
    results = _many(jobs, wanted, "partial")
    stored = [result for result in results if result.error is None]
    whole = iter(_whole(jobs, [result.job for result in stored]))
    return [
        (EnqueueResult(next(whole), result.outcome), None)
        if result.error is None
        else (result, _explained(jobs, one, result.error))
        for one, result in zip(wanted, results, strict=True)
    ]


def _past_what_is_over(jobs: Any, enqueue: Callable[[], EnqueueResult]) -> EnqueueResult:
    """Enqueue, and again if time has ended the duplicate that was met, which a reader would be told of."""
    now = timezone.now()
    try:
        result = enqueue()
        met = result.job
        if not (result.deduplicated and is_over(met, now)):
            return result
    except DuplicateJob as error:
        met = error.existing_job
        if not is_over(met, now):
            raise
    pass_time(jobs, now, only=met.pk)
    return enqueue()


def _one(jobs: Any, wanted: Wanted) -> EnqueueResult:
    result: EnqueueResult
    (result,) = _together(jobs, [wanted], lambda: [jobs.enqueue_request(wanted.request)])
    return result


def _many(jobs: Any, wanted: Sequence[Wanted], mode: str) -> Sequence[ItemResult]:
    def enqueue() -> Sequence[ItemResult]:
        pass_time(jobs, timezone.now())  # what is over by now is no duplicate
        results: Sequence[ItemResult] = jobs.enqueue_many([one.request for one in wanted], mode=mode)
        return results

    return _together(jobs, wanted, enqueue)


def _together(jobs: Any, wanted: Sequence[Wanted], enqueue: Callable[[], Sequence[R]]) -> Sequence[R]:
    """Enqueue, and let what was stored set the rates of its queues: in one transaction, if there are any."""
    if all(one.max_per_second is None for one in wanted):
        return enqueue()
    results = starting_over(jobs.db, partial(_with_rates, jobs, wanted, enqueue))
    if isinstance(results, DuplicateJob):
        raise results
    return results


def _with_rates(jobs: Any, wanted: Sequence[Wanted], enqueue: Callable[[], Sequence[R]]) -> Sequence[R] | DuplicateJob:
    with transaction.atomic(using=jobs.db):
        try:
            results = enqueue()
        except DuplicateJob as error:  # what it has recorded stays
            return error
        rates = {
            answer.job.queue: one.max_per_second
            for one, answer in zip(wanted, results, strict=True)
            if one.max_per_second is not None and answer.created
        }
        for queue in sorted(rates):
            Queue.objects.using(jobs.db).rate_limit(queue, rates[queue])
    return results


def _whole(jobs: Any, found: Sequence[Any]) -> list[Any]:
    """Return jobs with all of their fields: of a stored one that answers for a new one, only some have been read."""
    partly = {job.pk for job in found if job.get_deferred_fields()}
    if not partly:
        return list(found)
    rows = jobs.in_bulk(partly)
    if len(rows) < len(partly):
        raise Contended("A job that answered for a new one was deleted meanwhile; try again.")
    return [rows.get(job.pk, job) for job in found]


def _explained(jobs: Any, wanted: Wanted, error: OJSError) -> OJSError:
    """Return an error of an enqueue with the field as the client wrote it, and the state of a job whose id is taken."""
    if isinstance(error, JobIdTaken):
        row = jobs.filter(pk=error.details["existing_job_id"]).values_list("state", flat=True)
        error.details["existing_job_state"] = row.first()
    return wanted.locate(error)
