"""Look, in one statement, for all that a worker may have to do, so that an idle one asks for nothing else."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import QuerySet

from ..db.locking import firsts
from ..ojs.states import JobState
from ..workflows.tables import Tables
from . import cron, timers


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
    """Look once."""
    available = jobs.filter(state=JobState.AVAILABLE, finished_at=None).order_by("queue")
    others = (available, timers.lost(jobs), timers.late(jobs, now), Tables.on(jobs.db).ended, cron.due(jobs.db, now))
    due = timers.timed(jobs).values_list("run_at", flat=True)
    found, blocks = firsts(due, *(rows.values_list("pk", flat=True) for rows in others))
    return Seen._make([*found, blocks])
