"""Promoter: makes scheduled and retryable jobs available in time."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from ..db.clock import database_now
from ..maintenance import timers
from ..maintenance.due import Seen, look
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
