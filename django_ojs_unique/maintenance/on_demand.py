"""What there is to do now: find it in one statement, or do it for those who ask while no worker may be running."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from django.db import OperationalError, connections
from django.db.models import QuerySet

from ..db.locking import firsts
from ..db.transactions import is_busy, starting_over
from ..ojs.states import TIMED, JobState
from ..workflows.advance import advance_due
from ..workflows.tables import Tables
from . import cron, timers

logger = logging.getLogger("django_ojs_unique.worker")

T = TypeVar("T")


class Seen(NamedTuple):
    """What a look has found, and how many blocks it read, where the database tells.

    ``due`` is when the next scheduled or retryable job is due. The others are the id of a job that is available, that
    its worker has lost, that has expired, or whose end a workflow must count, and the name of a cron entry that is due.
    """

    due: datetime | None
    available: Any
    lost: Any
    late: Any
    ended: Any
    cron: Any
    blocks: int


def look(jobs: QuerySet[Any], now: datetime) -> Seen:
    """Look, in one statement, for all that a worker may have to do, so that an idle one asks for nothing else."""
    available = jobs.filter(state=JobState.AVAILABLE, finished_at=None).order_by("queue")
    others = (available, timers.lost(jobs), timers.late(jobs, now), Tables.on(jobs.db).ended, cron.due(jobs.db, now))
    due = timers.timed(jobs).values_list("run_at", flat=True)
    found, blocks = firsts(due, *(rows.values_list("pk", flat=True) for rows in others))
    return Seen._make([*found, blocks])


def run_maintenance(jobs: QuerySet[Any], now: datetime, *, only: UUID | None = None, crons: bool = False) -> None:
    """Do a worker's maintenance as of ``now``.

    Promote due jobs, discard expired ones, rescue those with a lost lease, and advance workflows.

    ``only`` is the id of the one job to maintain; by default all are. ``crons`` also enqueues the periodic jobs that
    are due. Locked rows are skipped. If the database is busy, the maintenance is left for the next time, so that a
    client that only reads gets no error.
    """
    rows = jobs if only is None else jobs.filter(pk=only)
    if crons:
        unless_busy(jobs.db, partial(cron.tick, jobs.db, now))
    unless_busy(jobs.db, partial(timers.rescue, rows, now))
    unless_busy(jobs.db, partial(timers.promote, jobs, now, only=only))
    unless_busy(jobs.db, partial(timers.expire, rows, now))
    unless_busy(jobs.db, partial(advance_due, jobs.db))


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
