"""Fronts: where the jobs begin that wait in each queue, while it is dear to find them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import QuerySet

from ..db.dialect import Front
from ..db.dialects import dialect_of

CHEAP, CHEAP_PER_QUEUE = 200, 10
"""The blocks that a look for the first job of each queue may read; one that reads more is dear."""
CHECK_SECONDS = 1.0
"""How often to check whether a look is dear."""
BLOCKS_PER_SECOND, LONGEST_SECONDS = 10_000, 5.0
"""How long to leave it at a dear look: a second for so many blocks, at most so many seconds."""

BEFORE = timedelta(seconds=5)
"""By how much a job may become available later than its place in the queue says, as one that was scheduled does.

Of dead rows, these seconds have thousands.
"""

MOST_FRONTS = 1_000
"""Of queues and priorities: with more, to search at each front would be dear itself, and fronts are not used."""

_EVER = datetime(1970, 1, 1, tzinfo=UTC)


class Fronts:
    """Where the jobs of each queue and priority begin, as one worker knows it.

    PostgreSQL cannot remove dead rows while an older transaction is open, such as a report or a backup. Then each claim
    walks over all jobs that were claimed since that transaction began. And each claim walks over the jobs whose types
    the worker cannot run. The claims of a worker that knows the fronts begin behind all these. A job before its front
    waits until the next look, a few seconds at most: one that became available late, or has a priority that no job of
    this worker had.
    """

    def __init__(self, jobs: QuerySet[Any]) -> None:
        self.until = float("-inf")
        """Until when the fronts are used, or a look is taken to be cheap, on the monotonic clock."""
        self._dialect = dialect_of(jobs)
        self._known: dict[tuple[str, int], datetime] | None = None
        self._since = datetime.max
        """Where a queue and priority begins in which the last look found no job."""
        self._queues: frozenset[str] = frozenset()
        """The queues of the last look."""
        self._priorities = {0}
        self.are_rows_dead = False
        """Whether it is dear to find a job of any type, too."""

    @property
    def are_used(self) -> bool:
        """Whether claims begin at the fronts."""
        return self._known is not None

    def leave(self) -> None:
        """Use the fronts no more, until the next look."""
        self._known = None

    def look(self, queues: Collection[str], types: Collection[str] | None) -> None:
        """Find out whether looks for jobs of the ``types`` are dear, and where the fronts are, if it is time to.

        ``types`` None means any type.
        """
        began = time.monotonic()
        if began < self.until:
            return
        blocks, looked_at = self._dialect.cost_of_firsts(queues, types)
        cheap = CHEAP + CHEAP_PER_QUEUE * len(queues)
        if blocks <= cheap:
            self._known, self.until = None, began + CHECK_SECONDS
            return
        self.are_rows_dead = types is None or self._dialect.cost_of_firsts(queues, None)[0] > cheap
        self._queues, self._since = frozenset(queues), looked_at - (timedelta() if self.are_rows_dead else BEFORE)
        found = self._dialect.fronts(queues, types)
        self._priorities.update(front.priority for front in found)
        is_few = len(queues) * len(self._priorities) <= MOST_FRONTS
        self._known = {(queue, priority): since for queue, priority, since in found} if is_few else None
        self.until = began + min(max(blocks / BLOCKS_PER_SECOND, CHECK_SECONDS), LONGEST_SECONDS)

    def of(self, queues: Iterable[str]) -> list[Front]:
        """Return the fronts of some queues; none if they are not used."""
        if self._known is None:
            return []
        return [
            Front(queue, priority, self._known.get((queue, priority), self._since if queue in self._queues else _EVER))
            for queue in queues
            for priority in self._priorities
        ]

    def pass_by(self, jobs: Iterable[Any]) -> None:
        """Move the fronts behind jobs that were claimed."""
        if self._known is None:
            return
        for job in jobs:
            self._priorities.add(job.priority)
            key = job.queue, job.priority
            if job.enqueued_at is not None:
                self._known[key] = max(self._known.get(key, job.enqueued_at), job.enqueued_at)
