"""Enqueue one or many jobs for clients, and return them as they are to be shown."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from ..conf import settings
from ..db.sizes import OF_A_JOB, OF_THE_REST, bytes_of
from ..enqueue.results import EnqueueResult
from ..exceptions import Contended, JobIdTaken, OJSError
from .operations.enqueue import enqueue, enqueue_many, expire_overdue
from .wire.enqueue import EnqueueBody


def enqueue_one(jobs: Any, wanted: EnqueueBody) -> EnqueueResult:
    """Enqueue a job. Raises the errors of `enqueue`, with the field names that the client wrote."""
    try:
        result = enqueue(jobs, wanted)
    except OJSError as error:
        raise _explained(jobs, wanted, error) from None
    expire_overdue(jobs, [result])
    job = result.job
    if job.get_deferred_fields():
        job = _present(jobs, {job.pk})[job.pk]
    return EnqueueResult(job, result.outcome, result.replaced)


def enqueue_all(jobs: Any, wanted: Sequence[EnqueueBody]) -> list[EnqueueResult]:
    """Enqueue all or none; return the result of each. Raises the error of the first one that cannot be enqueued.

    Stored duplicates come without their large fields if these would make the answer too large.
    """
    try:
        results = enqueue_many(jobs, wanted, "atomic")
    except OJSError as error:
        index = error.details.get("index")
        raise error if index is None else _explained(jobs, wanted[index], error) from None
    expire_overdue(jobs, results)
    shown = _shown(jobs, [result.job for result in results])
    return [EnqueueResult(job, result.outcome) for job, result in zip(shown, results, strict=True)]


def enqueue_each(jobs: Any, wanted: Sequence[EnqueueBody]) -> list[tuple[EnqueueResult, OJSError | None]]:
    """Enqueue each on its own; return the result of each, and its error or None. Jobs as in `enqueue_all`."""
    results = enqueue_many(jobs, wanted, "partial")
    stored = [result for result in results if result.error is None]
    expire_overdue(jobs, stored)
    shown = iter(_shown(jobs, [result.job for result in stored]))
    return [
        (EnqueueResult(next(shown), result.outcome), None)
        if result.error is None
        else (result, _explained(jobs, one, result.error))
        for one, result in zip(wanted, results, strict=True)
    ]


def _shown(jobs: Any, found: Sequence[Any]) -> list[Any]:
    """Return the jobs with all of their fields; of a stored duplicate, only some have been read so far.

    Each occurrence of a job counts towards ``MAX_RESPONSE_BYTES``; jobs beyond it come without their large fields.
    """
    partly = [job.pk for job in found if job.get_deferred_fields()]
    if not partly:
        return list(found)
    sizes = dict(jobs.filter(pk__in=set(partly)).values_list("pk", bytes_of(OF_A_JOB)))
    used = accumulate(sizes.get(pk, 0) + OF_THE_REST for pk in partly)
    fit = max(1, sum(total <= settings.api["MAX_RESPONSE_BYTES"] for total in used))
    full_row = _present(jobs, set(partly[:fit]))
    slim = _present(jobs.defer(*OF_A_JOB), set(partly[fit:]))
    rows = iter([*(full_row[pk] for pk in partly[:fit]), *(slim[pk] for pk in partly[fit:])])
    return [next(rows) if job.get_deferred_fields() else job for job in found]


def _present(jobs: Any, keys: set[Any]) -> Any:
    rows = jobs.in_bulk(keys) if keys else {}
    if len(rows) < len(keys):
        raise Contended("A job that answered for a new one was deleted meanwhile; try again.")
    return rows


def _explained(jobs: Any, wanted: EnqueueBody, error: OJSError) -> OJSError:
    """Return an enqueue's error with the client's field name; if the id is taken, also with that job's state."""
    if isinstance(error, JobIdTaken):
        row = jobs.filter(pk=error.details["existing_job_id"]).values_list("state", flat=True)
        error.details["existing_job_state"] = row.first()
    return wanted.locate(error)
