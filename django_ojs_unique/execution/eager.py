"""Eager mode, for tests and local work: a job that is due runs in this process when its enqueue commits.

The receivers are connected only while ``OJS_UNIQUE["EAGER"]`` is on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from threading import local
from typing import Any

from django.core.exceptions import ObjectDoesNotExist
from django.db import transaction
from django.dispatch import Signal

from ..conf import settings
from ..db.clock import database_now
from ..handlers.registry import registry
from ..ojs.states import JobState
from ..signals import job_activated, job_enqueued, job_updated, workflow_created
from ..workflows.advance import advance_all
from . import inline
from .claim import claim

logger = logging.getLogger("django_ojs_unique.worker")

LEASE = timedelta(minutes=30)
"""Nothing extends it. A worker that runs beside would take a job with a shorter lease for lost, and run it again."""
WORKER = "eager"
MOST_GENERATIONS = 1000
"""How many jobs may enqueue each other in a chain, before the next one is left waiting."""

_SIGNALS = (job_enqueued, job_updated, job_activated)

_here = local()
"""``due``: the jobs that this thread runs later, or None if it runs them at once."""


def obey_setting() -> None:
    """Connect or disconnect as the setting says."""
    receivers: list[tuple[Signal, Any]] = [*((signal, _available) for signal in _SIGNALS), (workflow_created, _created)]
    for signal, receiver in receivers:
        (signal.connect if settings.eager else signal.disconnect)(receiver)


@contextmanager
def deferring() -> Iterator[None]:
    """Run the jobs that are committed in the block at its end, and then those that they enqueue, never nested.

    Inside another such block, they wait for the end of that one.
    """
    if getattr(_here, "due", None) is not None:
        yield
        return
    _here.due = []
    try:
        yield
    finally:
        try:
            _run_generations()
        finally:
            _here.due = None


def _available(*, job: Any, using: str, **more: Any) -> None:
    if job.state == JobState.AVAILABLE:
        transaction.on_commit(partial(_committed, job, using), using=using)


def _created(*, workflow: Any, using: str, **more: Any) -> None:
    # All of its first jobs may be duplicates of jobs that have ended.
    if workflow.root_id is None:
        transaction.on_commit(partial(advance_all, using), using=using)


def _committed(job: Any, using: str) -> None:
    with deferring():
        _here.due.append((job, using))


def _run_generations() -> None:
    for _ in range(MOST_GENERATIONS):
        generation, _here.due = _here.due, []
        for job, using in generation:
            try:
                _run(job, using)
            finally:
                if job.awaited:
                    advance_all(using)
        if not _here.due:
            return
    logger.error(
        "Do jobs enqueue each other without end? After a chain of %d, the next one waits: %s.",
        MOST_GENERATIONS,
        ", ".join(f"{job.pk} ({job.type})" for job, _ in _here.due[:10]),
    )


def _run(job: Any, using: str) -> None:
    """Run a job as a worker does, and give the job in memory its new state."""
    named = job.pk, job.type
    if registry.find(job.type) is None:
        logger.warning("Job %s (%s) waits: its type has no handler here.", *named)
        return
    propagates = settings.eager == "propagate"
    jobs = type(job)._default_manager.using(using)
    rules: Any = {"queues": [job.queue], "types": [job.type], "limit": 1, "only": job.pk}
    try:
        claimed = claim(jobs, **rules, worker_id=WORKER, lease=LEASE, now=database_now(using))
        if not claimed:
            logger.info("Job %s (%s) waits, or is gone: its queue may be paused, or at its limit.", *named)
            return
        ran = inline.run(jobs, claimed[0], lease=LEASE)
    except Exception:
        if propagates:
            raise
        logger.exception("Eager mode failed to run job %s (%s).", *named)
        return
    with suppress(ObjectDoesNotExist):  # the handler deleted it
        job.refresh_from_db(using=using)
    ran.or_raise(propagates)
