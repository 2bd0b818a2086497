"""Poller: when a worker looks for jobs, and in which queues."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from django.db.models import QuerySet

from .queues import QueueFilter

SHORTEST_POLL, LONGEST_POLL = 0.01, 0.5
"""Seconds between two polls: the shorter one after work; while there is none, they grow to the longer one."""
LISTENING_POLL = 1.5
"""The same, where every enqueue wakes the worker: only in case a notification is lost."""


class Poller:
    """Polls at once after work and after `call`, else at intervals; ``listening`` says whether enqueues cause calls."""

    def __init__(self, jobs: QuerySet[Any], queues: QueueFilter, listening: Callable[[], bool]) -> None:
        self.woken = True
        """Whether to poll at once."""
        self.polling = False
        """Whether a poll has begun and not ended; one that failed is repeated."""
        self.called: set[str] = set()
        """The queues of the notifications since the last look; "" stands for any."""
        self.called_at = float("-inf")
        """When the last call came, on the monotonic clock."""
        self.looked_at = float("-inf")
        self.queried_at = float("-inf")
        """When it last asked which queues have jobs: a later call may be about another queue."""
        self._jobs = jobs
        self._queues = queues
        self._listening = listening
        self._poll = SHORTEST_POLL
        self._waiting: list[str] | None = None
        self._seen = True
        """Whether the last poll found jobs, or there may be jobs about which no call will come."""
        self.has_passed_over = False
        """Whether the last claim left out jobs."""
        self._found_none_at = float("-inf")
        """When the last look began, on the monotonic clock, if it found no jobs in any queue."""
        self._relies_until = float("-inf")
        self._queried: list[str] = []
        """What the last query found."""

    @property
    def due(self) -> float:
        """When to poll again, on the monotonic clock."""
        return 0 if self.woken or self.called else self.looked_at + self.interval

    @property
    def interval(self) -> float:
        """How many seconds to wait between two polls, if no call comes."""
        is_called = self._listening() and not self.has_passed_over
        return LISTENING_POLL if is_called else self._poll

    @property
    def longest(self) -> float:
        """How many seconds an idle worker lets pass between two looks."""
        return LISTENING_POLL if self._listening() else LONGEST_POLL

    def call(self, queue: str = "") -> None:
        """Poll at once, called from any thread: there is a job in this queue, or with "" in any queue."""
        self.called_at = time.monotonic()
        self.called.add(queue)
        self.woken = True

    def queues(self) -> list[str]:
        """Return the queues to claim from: the same until `exhausted`, and if there are none, until the next poll."""
        if self._waiting is None:
            self._waiting = self._look()
        return self._waiting

    def relies_until(self, moment: float) -> None:
        """Do not query for queues before this time, on the monotonic clock, as that is dear; a call names others."""
        self._relies_until = moment

    def looked(self, began: float, *, found: bool) -> None:
        """Note whether a look found jobs in any queue. If not, there is no need to query, unless a call comes."""
        self.exhausted()
        self.woken = self.woken or (found and self._found_none_at > float("-inf"))
        self._found_none_at = float("-inf") if found else began

    def exhausted(self) -> None:
        """Query for queues again: the last ones gave no more jobs, or others may have jobs by now."""
        self._waiting = None

    def passed_over(self) -> None:
        """Poll again soon: the claim left out jobs, as a row was locked, or limits had too many partitions."""
        self.has_passed_over = True

    def begin(self) -> float:
        """Begin a poll; return its time on the monotonic clock."""
        self.polling = True
        self.woken = self.has_passed_over = False
        self._waiting = self._waiting or None
        return time.monotonic()

    def end(self, began: float, *, found: bool, full: bool, partial: bool) -> None:
        """End a poll: jobs were ``found``, or a pool was too ``full`` to look for its jobs, or it was ``partial``."""
        self._poll = SHORTEST_POLL if found else min(self._poll * 2, LONGEST_POLL)
        more = found or full  # and no other call will come for these jobs
        self._seen = more or self.has_passed_over or (partial and self._seen)
        self.woken = self.woken or more
        self.polling = False
        self.looked_at = began

    def _look(self) -> list[str]:
        """Return the queues of the calls, if nothing else can have happened since the last poll; else query."""
        found_none_at = self._found_none_at
        if self.called_at < found_none_at and time.monotonic() < found_none_at + self.interval and not self.called:
            return []
        self.queried_at = time.monotonic()
        called = set(self.called)
        self.called -= called
        if called and "" not in called and not self._seen and time.monotonic() < self.looked_at + LISTENING_POLL:
            return sorted(called)
        if self._queried and time.monotonic() < self._relies_until:
            return sorted({*self._queried, *called} - {""})
        self._queried = self._queues.waiting(self._jobs)
        return self._queried
