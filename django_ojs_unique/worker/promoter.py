"""Promoter: makes scheduled and retryable jobs available in time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from ..db.clock import DatabaseClock
from ..maintenance import sweep
from .poller import LONGEST_POLL, Poller


class Promoter:
    """Promotes the jobs that are due; ``look_for_superseded`` is called for those that need a check for duplicates."""

    def __init__(
        self, jobs: QuerySet[Any], clock: DatabaseClock, poller: Poller, look_for_superseded: Callable[[], None]
    ) -> None:
        self._jobs = jobs
        self._clock = clock
        self._poller = poller
        self._look_for_superseded = look_for_superseded

    def promote(self) -> float:
        """Promote the jobs that are due; return in how many seconds to look again: when the next is due, or soon."""
        now = self._clock.now()
        due = sweep.next_due(self._jobs)
        if due is not None and due <= now:
            if sweep.promote_unseen(self._jobs, now):
                self._poller.call()
            due = sweep.next_due(self._jobs)
        self._poller.exhausted()
        if due is None:
            return LONGEST_POLL
        if due <= now:  # it needs a check for duplicates first, or is locked
            self._look_for_superseded()
            return LONGEST_POLL
        return min(LONGEST_POLL, (due - now).total_seconds())

    def seconds_until(self, moment: datetime) -> float:
        """Return in how many seconds a job that is due at ``moment`` must be promoted."""
        return max(0.0, (moment - self._clock.now()).total_seconds())
