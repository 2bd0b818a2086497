"""Cancel a job for a client that asks which state it had before."""

from __future__ import annotations

from functools import partial

from django.db import DEFAULT_DB_ALIAS, connections, transaction

from ...db.dialects import dialect_on
from ...db.transactions import starting_over
from ...models import Job


def cancel(job: Job) -> str:
    """Cancel a job; return the state that it had before. Raises InvalidTransition if it has finished."""
    return starting_over(job._state.db or DEFAULT_DB_ALIAS, partial(_cancel, job))


def _cancel(job: Job) -> str:
    using = job._state.db or DEFAULT_DB_ALIAS
    with transaction.atomic(using=using):
        dialect_on(Job, connections[using]).take_write_lock()
        row = Job.objects.using(using).filter(pk=job.pk).select_for_update()
        previous: str = row.values_list("state", flat=True).first() or ""
        job.cancel()
    return previous
