"""The operations that surfaces offer on many jobs, each with the word for what it did."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.models import Count, QuerySet

from ..by_hand import bulk
from ..by_hand.again import enqueue_again
from ..by_hand.refusals import allows
from ..by_hand.results import BulkResult
from ..by_hand.revival import revive
from ..db.dialects import dialect_on
from ..db.inserts import ROWS_AT_ONCE
from ..db.transactions import starting_over
from ..models import Job


@dataclass(frozen=True, slots=True)
class Operation:
    """What is done to jobs. ``name``: one of `refusals.STATES`. ``done``: the word for what was done."""

    name: str
    act: bulk.Change
    done: str

    def on(self, jobs: QuerySet[Any], ids: Iterable[UUID]) -> Iterator[BulkResult]:
        """Do it to the jobs, a thousand per transaction; after each, yield what became of these jobs."""
        return bulk.change(jobs, ids, self.act, self.name)

    def suits(self, job: Job) -> bool:
        """Whether the job's present state allows it."""
        return allows(job, self.name)

    def with_options(self, **options: bool) -> Operation:
        """Return the operation with ``force`` or ``replace``, as `JobQuerySet.revive` has them."""
        return Operation(self.name, partial(self.act, **options), self.done)


CANCEL = Operation("cancel", bulk.cancel, "Cancelled")
RETRY_NOW = Operation("retry", bulk.retry_now, "Made available")
RETRY = Operation("retry", bulk.retry, "Made available")
REVIVE = Operation("revive", revive, "Revived")
ENQUEUE_AGAIN = Operation("enqueue again", enqueue_again, "Enqueued again")
RELEASE = Operation("release", bulk.release, "Taken out of uniqueness")
DELETE = Operation("delete", bulk.remove, "Deleted")


def cancel(job: Job) -> str:
    """Cancel a job; return the state that it had before. Raises InvalidTransition if it has finished."""
    return starting_over(job._state.db or DEFAULT_DB_ALIAS, partial(_cancel, job))


def next_ids(jobs: QuerySet[Any], after: UUID | None, until: datetime) -> list[UUID]:
    """Return the ids of the next thousand of ``jobs`` behind ``after``, of those that were enqueued until a time."""
    rest = jobs.filter(created_at__lte=until) if after is None else jobs.filter(created_at__lte=until, pk__gt=after)
    return list(rest.order_by("pk").values_list("pk", flat=True)[:ROWS_AT_ONCE])


def by_state(jobs: QuerySet[Any]) -> dict[str, int]:
    """Return how many of the jobs there are in each state."""
    return dict(jobs.order_by("state").values_list("state").annotate(count=Count("*")))


def _cancel(job: Job) -> str:
    using = job._state.db or DEFAULT_DB_ALIAS
    with transaction.atomic(using=using):
        dialect_on(Job, connections[using]).take_write_lock()
        row = Job.objects.using(using).filter(pk=job.pk).select_for_update()
        previous: str = row.values_list("state", flat=True).first() or ""
        job.cancel()
    return previous
