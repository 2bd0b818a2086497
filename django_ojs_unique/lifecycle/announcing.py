"""Signals about jobs that were changed by a statement for many."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.dispatch import Signal

from ..db.inserts import in_groups
from ..signals import announce, job_cancelled


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
