"""Signals about jobs that were changed by a statement for many."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.dispatch import Signal

from ..db.inserts import in_groups
from ..ojs.states import JobState
from ..signals import announce, job_cancelled, job_requeued
from .events import tell


def announce_each(signal: Signal, jobs: QuerySet[Any], ids: Iterable[UUID], *, known: Any = None) -> None:
    """Send a signal about each of the jobs, as they are stored now; they are read only if somebody listens.

    ``known`` is the caller's object of one job: receivers get it, brought up to date.
    """
    if not signal.has_listeners(jobs.model):
        return
    for some in in_groups(ids):
        for job in jobs.filter(pk__in=some).order_by("pk").iterator(chunk_size=100):
            if known is not None and job.pk == known.pk:
                known.refresh_from_db(using=jobs.db)
                job = known
            facts = {"replaced_by": job.replaced_by_id} if signal is job_cancelled else {}
            announce(signal, jobs.model, job=job, using=jobs.db, **facts)


def announce_requeued(jobs: QuerySet[Any], ids: Collection[UUID]) -> None:
    """Send a signal about each of the jobs that was requeued, in the transaction that has locked and requeued them."""
    if job_requeued.has_listeners(jobs.model):
        back = jobs.exclude(state=JobState.ACTIVE)  # the others may not run again
        tell(jobs.db, [partial(announce_each, job_requeued, back, ids)])
