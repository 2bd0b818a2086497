"""Enqueue for HTTP clients: after overdue maintenance, and with the rate limits that they set for queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from ...db.transactions import starting_over
from ...enqueue.request import Request
from ...enqueue.results import EnqueueResult, ItemResult
from ...exceptions import DuplicateJob
from ...maintenance.on_demand import is_over, is_overdue, run_maintenance
from ...models import Queue

R = TypeVar("R", bound=EnqueueResult)


class ClientRequest(Protocol):
    """A request, and the rate limit of its queue if the request sets one."""

    @property
    def request(self) -> Request: ...
    @property
    def max_per_second(self) -> int | None: ...


def enqueue(jobs: Any, wanted: ClientRequest) -> EnqueueResult:
    """Enqueue; if the duplicate's lease or expiry has passed, run maintenance on it and enqueue once more."""
    now = timezone.now()
    try:
        result = _one(jobs, wanted)
        existing = result.job
        if not (result.deduplicated and is_over(existing, now)):
            return result
    except DuplicateJob as error:
        existing = error.existing_job
        if not is_over(existing, now):
            raise
    run_maintenance(jobs, now, only=existing.pk)
    return _one(jobs, wanted)


def enqueue_many(jobs: Any, wanted: Sequence[ClientRequest], mode: str) -> Sequence[ItemResult]:
    """Run maintenance, so that a job that is over is no duplicate, and enqueue; ``mode`` as in `enqueue_many`."""

    def store() -> Sequence[ItemResult]:
        run_maintenance(jobs, timezone.now())
        results: Sequence[ItemResult] = jobs.enqueue_many([one.request for one in wanted], mode=mode)
        return results

    return _with_rates(jobs, wanted, store)


def expire_overdue(jobs: QuerySet[Any], results: Sequence[EnqueueResult]) -> None:
    """Discard new jobs whose expiry has passed already, as the next reader would see them."""
    now = timezone.now()
    late = [one.job for one in results if one.created and one.job.expires_at is not None and is_overdue(one.job, now)]
    for job in late:
        run_maintenance(jobs, now, only=job.pk)
        job.refresh_from_db(using=jobs.db)


def _one(jobs: Any, wanted: ClientRequest) -> EnqueueResult:
    result: EnqueueResult
    (result,) = _with_rates(jobs, [wanted], lambda: [jobs.enqueue_request(wanted.request)])
    return result


def _with_rates(jobs: Any, wanted: Sequence[ClientRequest], store: Callable[[], Sequence[R]]) -> Sequence[R]:
    """Store jobs and set the rates that they bring for their queues, in one transaction if there are any."""
    if all(one.max_per_second is None for one in wanted):
        return store()
    results = starting_over(jobs.db, partial(_in_transaction, jobs, wanted, store))
    if isinstance(results, DuplicateJob):
        raise results
    return results


def _in_transaction(
    jobs: Any, wanted: Sequence[ClientRequest], store: Callable[[], Sequence[R]]
) -> Sequence[R] | DuplicateJob:
    with transaction.atomic(using=jobs.db):
        try:
            results = store()
        except DuplicateJob as error:  # returned, so that the record of the suppressed enqueue is committed
            return error
        rates = {
            answer.job.queue: one.max_per_second
            for one, answer in zip(wanted, results, strict=True)
            if one.max_per_second is not None and answer.created
        }
        for queue in sorted(rates):
            Queue.objects.using(jobs.db).rate_limit(queue, rates[queue])
    return results
