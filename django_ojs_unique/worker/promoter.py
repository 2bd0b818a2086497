"""Promoter: makes scheduled and retryable jobs available in time.

One statement looks for all that a worker may have to do, so that an idle one asks for nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import QuerySet

from ..db.clock import database_now
from ..db.locking import firsts
from ..maintenance import cron, timers
from ..ojs.states import JobState
from ..workflows.tables import Tables
from .fronts import BLOCKS_PER_SECOND, LONGEST_SECONDS
from .poller import Poller


class Promoter:
    """Promotes the jobs that are due, and tells the poller, and ``tell``, what else it has seen."""

    def __init__(self, jobs: QuerySet[Any], poller: Poller, tell: Callable[[Seen], None]) -> None:
        self._jobs = jobs
        self._poller = poller
        self._tell = tell

    def promote(self) -> float:
        """Promote the jobs that are due; return in how many seconds to look again: when the next is due, or soon."""
        now, began = database_now(self._jobs.db), time.monotonic()
        seen = look(self._jobs, now)
        if seen.due is not None and seen.due <= now:
            if timers.promote_unseen(self._jobs, now):
                self._poller.call()
            seen = look(self._jobs, now)
        self._poller.looked(began, found=seen.available is not None)
        self._tell(seen)
        if seen.due is None or seen.due <= now:  # it needs a check for duplicates first, or is locked
            pause = self._poller.longest
        else:
            pause = min(self._poller.longest, (seen.due - now).total_seconds())
        return max(pause, min(seen.blocks / BLOCKS_PER_SECOND, LONGEST_SECONDS))

    def seconds_until(self, moment: datetime) -> float:
        """Return in how many seconds a job that is due at ``moment`` must be promoted."""
        return max(0.0, (moment - database_now(self._jobs.db)).total_seconds())


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
