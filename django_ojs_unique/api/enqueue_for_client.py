"""Enqueue for HTTP clients: after overdue maintenance, and with the rate limits that they set for queues."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.db import transaction

from ..conf import settings
from ..db.clock import database_now
from ..db.sizes import OF_A_JOB, bytes_of, fit
from ..db.transactions import starting_over
from ..enqueue.new_job import Reader
from ..enqueue.results import EnqueueResult
from ..exceptions import Contended, DuplicateJob, JobIdTaken, OJSError
from ..maintenance.on_demand import is_over, is_overdue, run_maintenance
from ..models import Job, Queue, Workflow
from ..wire.enqueue import EnqueueBody
from ..workflows.create import create
from .wire.workflows import WantedWorkflow


def enqueue_one(jobs: Any, wanted: EnqueueBody) -> EnqueueResult:
    """Enqueue a job; if the duplicate's lease or expiry has passed, run maintenance on it and enqueue once more.

    Raises the errors of an enqueue, with the field names that the client wrote.
    """
    now = database_now(jobs.db)
    try:
        try:
            result = _one(jobs, wanted)
            existing = result.job if result.deduplicated else None
        except DuplicateJob as error:
            if not is_over(existing := error.existing_job, now):
                raise
        if existing is not None and is_over(existing, now):
            run_maintenance(jobs, now, only=existing.pk)
            result = _one(jobs, wanted)
    except OJSError as error:
        raise _explained(jobs, wanted, error) from None
    (job,) = _shown(jobs, [result])
    return EnqueueResult(job, result.outcome, result.replaced)


def enqueue_all(jobs: Any, wanted: Sequence[EnqueueBody]) -> list[EnqueueResult]:
    """Enqueue all or none; return the result of each. Raises the error of the first one that cannot be enqueued.

    Stored duplicates come without their large fields if these would make the answer too large.
    """
    try:
        results = _many(jobs, wanted, "atomic")
    except OJSError as error:
        index = error.details.get("index")
        raise error if index is None else _explained(jobs, wanted[index], error) from None
    return [EnqueueResult(job, result.outcome) for job, result in zip(_shown(jobs, results), results, strict=True)]


def enqueue_each(jobs: Any, wanted: Sequence[EnqueueBody]) -> list[tuple[EnqueueResult, OJSError | None]]:
    """Enqueue each on its own; return the result of each, and its error or None. Jobs as in `enqueue_all`."""
    results = _many(jobs, wanted, "partial")
    shown = iter(_shown(jobs, [result for result in results if result.error is None]))
    return [
        (EnqueueResult(next(shown), result.outcome), None)
        if result.error is None
        else (result, _explained(jobs, one, result.error))
        for one, result in zip(wanted, results, strict=True)
    ]


def start_workflow(jobs: Any, wanted: WantedWorkflow) -> Workflow:
    """Store a workflow, and enqueue the jobs that wait for no other; the rates hold for their queues at once.

    Raises what `create` raises; nothing is stored then.
    """
    run_maintenance(jobs, database_now(jobs.db))  # so that a job that is over is no duplicate
    leaves, workflows = list(wanted.flow.leaves()), Workflow.objects.using(jobs.db)
    rates = {Reader(Job).options_of(leaves[at].request).values["queue"]: rate for at, rate in wanted.rates.items()}

    def store() -> Any:
        with transaction.atomic(using=jobs.db):
            workflow = create(workflows, wanted.flow, wanted.id)
            _set_rates(jobs.db, rates)
        return workflow

    return starting_over(jobs.db, store) if rates else create(workflows, wanted.flow, wanted.id)  # type: ignore[no-any-return]


def _one(jobs: Any, wanted: EnqueueBody) -> EnqueueResult:
    (result,) = _with_rates(jobs, [wanted], lambda: [jobs.enqueue_request(wanted.request)])
    return result  # type: ignore[no-any-return]


def _many(jobs: Any, wanted: Sequence[EnqueueBody], mode: str) -> Sequence[Any]:
    """Run maintenance, so that a job that is over is no duplicate, and enqueue; ``mode`` as in `enqueue_many`."""

    def store() -> Sequence[Any]:
        run_maintenance(jobs, database_now(jobs.db))
        return jobs.enqueue_many([one.request for one in wanted], mode=mode)  # type: ignore[no-any-return]

    return _with_rates(jobs, wanted, store)


def _with_rates(jobs: Any, wanted: Sequence[EnqueueBody], store: Callable[[], Sequence[Any]]) -> Sequence[Any]:
    """Store jobs and set the rates that they bring for their queues, in one transaction if there are any."""
    if all(one.max_per_second is None for one in wanted):
        return store()

    def in_transaction() -> Sequence[Any] | DuplicateJob:
        with transaction.atomic(using=jobs.db):
            try:
                results = store()
            except DuplicateJob as error:  # returned, so that the record of the suppressed enqueue is committed
                return error
            both = zip(wanted, results, strict=True)
            created = ((one.job.queue, asked.max_per_second) for asked, one in both if one.created)
            _set_rates(jobs.db, {queue: rate for queue, rate in created if rate is not None})
        return results

    results = starting_over(jobs.db, in_transaction)
    if isinstance(results, DuplicateJob):
        raise results
    return results


def _set_rates(using: str, rates: Mapping[str, int]) -> None:
    for queue in sorted(rates):
        Queue.objects.using(using).rate_limit(queue, rates[queue])


def _shown(jobs: Any, results: Sequence[EnqueueResult]) -> list[Any]:
    """Return the jobs with all of their fields, as a reader would see them now.

    Of a stored duplicate, only some fields have been read so far. Each occurrence of a job counts towards
    ``MAX_RESPONSE_BYTES``; jobs beyond it come without their large fields.
    """
    now, found = database_now(jobs.db), [result.job for result in results]
    for result in results:
        if result.created and result.job.expires_at is not None and is_overdue(result.job, now):
            run_maintenance(jobs, now, only=result.job.pk)
            result.job.refresh_from_db(using=jobs.db)
    partly = [job.pk for job in found if job.get_deferred_fields()]
    if not partly:
        return found
    whole = 1
    if len(partly) > 1:
        sizes = dict(jobs.filter(pk__in=set(partly)).values_list("pk", bytes_of(OF_A_JOB)))
        whole, _ = fit((sizes.get(pk, 0) for pk in partly), settings.api["MAX_RESPONSE_BYTES"])
    full_row = _present(jobs, set(partly[:whole]))
    slim = _present(jobs.defer(*OF_A_JOB), set(partly[whole:]))
    rows = iter([*(full_row[pk] for pk in partly[:whole]), *(slim[pk] for pk in partly[whole:])])
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
