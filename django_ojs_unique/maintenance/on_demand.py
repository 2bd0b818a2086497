"""Maintenance for those who ask while no worker may be running."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from django.db import OperationalError, connections
from django.db.models import QuerySet

from ..db.transactions import is_busy, starting_over
from ..execution.queue_rules import QueueState
from ..ojs.states import TIMED, JobState
from ..workflows.advance import advance_due, fail_deleted
from . import cron, inbox, timers
from .due import look

logger = logging.getLogger("django_ojs_unique.worker")

SCAN = timedelta(seconds=10)

T = TypeVar("T")

_scanned: dict[str, datetime] = {}
"""When this process last looked for deleted jobs, by database."""


def run_maintenance(jobs: QuerySet[Any], now: datetime, *, only: UUID | None = None, crons: bool = False) -> None:
    """Do a worker's maintenance as of ``now``; if nothing is due, that costs one statement.

    Promote due jobs, discard expired ones, rescue those with a lost lease, advance workflows, and decide the first
    thousand requests in the inbox.

    ``only`` is the id of the one job to maintain; by default all are. ``crons`` also enqueues the periodic jobs that
    are due. Locked rows are skipped. If the database is busy, the maintenance is left for the next time, so that a
    client that only reads gets no error.
    """
    if only is None:
        maintained(jobs, now, {}, crons=crons)
    else:
        _maintain(jobs, now, only)


def maintained(
    jobs: QuerySet[Any], now: datetime, queues: Mapping[str, Sequence[str] | None], *, crons: bool = True
) -> Mapping[str, QueueState]:
    """Do `run_maintenance`; return the states of some queues after it, as `look` does, or none if the database is busy.

    This is one statement if nothing is due.
    """
    seen = unless_busy(jobs.db, partial(look, jobs, now, queues))
    if seen is None or not seen.calls_for_maintenance(now):
        return {} if seen is None else seen.queues
    if crons:
        unless_busy(jobs.db, partial(cron.tick, jobs.db, now))
    _maintain(jobs, now, None)
    if seen.request is not None:
        unless_busy(jobs.db, partial(inbox.decide, jobs))
    return look(jobs, now, queues).queues if queues else {}


def _maintain(jobs: QuerySet[Any], now: datetime, only: UUID | None) -> None:
    rows = jobs if only is None else jobs.filter(pk=only)
    unless_busy(jobs.db, partial(timers.rescue, rows, now))
    unless_busy(jobs.db, partial(timers.promote, jobs, now, only=only))
    unless_busy(jobs.db, partial(timers.expire, rows, now))
    unless_busy(jobs.db, partial(advance_due, jobs.db))


def fail_deleted_now_and_then(using: str, now: datetime) -> None:
    """Let members of workflows fail whose jobs were deleted, unless this process did so within `SCAN`.

    It reads all members whose jobs are stored, which would be too much for each request.
    """
    if not (last := _scanned.get(using)) or not last <= now < last + SCAN:
        _scanned[using] = now
        unless_busy(using, partial(fail_deleted, using))


def is_overdue(job: Any, now: datetime) -> bool:
    """Tell from a job as it was read whether `run_maintenance` would change it."""
    if job.state == JobState.ACTIVE:
        return is_over(job, now)
    if job.state in TIMED and job.run_at is not None and job.run_at <= now:
        return True
    return is_over(job, now) and job.finished_at is None and job.started_at is None


def is_over(job: Any, now: datetime) -> bool:
    """Tell from the fields that an enqueue reads of its duplicate whether its lease or its expiry may have passed."""
    end = job.lease_expires_at if job.state == JobState.ACTIVE else job.expires_at
    return end is not None and end <= now


def unless_busy(using: str, step: Callable[[], T]) -> T | None:
    """Call ``step``; return None if other transactions block it for too long."""
    try:
        return starting_over(using, step)
    except OperationalError as error:
        if connections[using].in_atomic_block or not is_busy(error):
            raise
        logger.warning("The database %r is busy; left for later: %s", using, error)
        return None
