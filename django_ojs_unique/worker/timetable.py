"""Timetable: the periodic tasks of a worker, each with its own due time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from operator import itemgetter

from ..db.transactions import is_busy, is_transient
from .outages import DATABASE_FAILED

logger = logging.getLogger("django_ojs_unique.worker")

RETRY_SECONDS = 2.0
"""How long a task waits after the database failed in it: longer than any pause, so that the other tasks go on."""
FIXING_SECONDS = 10.0
"""The same, when something else failed: a row that somebody changed, a receiver."""

Task = Callable[[], float]
"""A periodic task; it returns in how many seconds it is due again."""


class Timetable:
    """Tasks, and when each is due on the monotonic clock; at the start all are due."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._due = dict.fromkeys(tasks, 0.0)
        self._hastened: dict[Task, float] = {}
        self._failing: set[Task] = set()

    @property
    def due(self) -> float:
        """When the next task is due."""
        return min(self._due.values())

    @property
    def failing(self) -> bool:
        """Whether the database failed when some task was last tried; locks of other transactions are no failure."""
        return bool(self._failing)

    def hasten(self, task: Task, moment: float = 0.0) -> None:
        """Make a task due at ``moment``, unless it is due earlier; callable from any thread, also while it runs."""
        self._hastened[task] = moment  # first: see `keep`
        self._due[task] = min(self._due[task], moment)

    def keep(self) -> None:
        """Do the tasks that are due, the longest due first. Raises what the database raises; only that task waits.

        In any other order, two tasks that fail in turn would keep the tasks behind them from being done.
        """
        for task, due in sorted(self._due.items(), key=itemgetter(1)):
            if time.monotonic() < due:
                continue
            self._hastened.pop(task, None)
            try:
                again = task()
            except DATABASE_FAILED as error:
                if not is_busy(error):
                    self._failing.add(task)
                self._due[task] = time.monotonic() + (0 if is_transient(error) else RETRY_SECONDS)
                raise
            except (Exception, SystemExit):  # SystemExit comes from a receiver: Django does not catch it
                logger.exception("A task of the worker failed; trying again later.")
                again = FIXING_SECONDS
            self._failing.discard(task)
            self._due[task] = time.monotonic() + again
            if (moment := self._hastened.pop(task, None)) is not None:  # it may have looked before there was anything
                self.hasten(task, moment)
