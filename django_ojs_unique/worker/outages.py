"""Outages of the database: which errors they are, how long to wait before the next try, and what is logged."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from django.db import DatabaseError, InterfaceError, InternalError, OperationalError, connections

from ..db.schema import find_cause
from ..db.transactions import is_transient

logger = logging.getLogger("django_ojs_unique.worker")

T = TypeVar("T")

DATABASE_FAILED = (OperationalError, InterfaceError, InternalError)
LONGEST_PAUSE = 1.0
SAY_SECONDS = 30.0
"""How often the log repeats that an outage lasts."""


class Outages:
    """Counts the failures of the database that one thread meets, and logs when they begin and end.

    Some failures come and go: on a full disk, only reads succeed. So that they do not flood the log, each line is
    logged at most twice a minute. ``still_fails`` tells whether something fails though a whole step succeeded.
    """

    def __init__(
        self,
        using: str,
        message: str = "The database %r failed; trying again",
        *,
        still_fails: Callable[[], bool] = lambda: False,
    ) -> None:
        self.failures = 0
        """How many failures there were since the database last answered."""
        self._using = using
        self._message = message
        self._still_fails = still_fails
        self._said_at = float("-inf")
        self._is_said = False

    def through(self, step: Callable[[], T]) -> T | bool | None:
        """Call ``step`` and return its result; after a failure, True to call again at once, or None to pause first.

        Raises what the database raises if it lacks a migration, a table or a column.
        """
        try:
            result = step()
        except DATABASE_FAILED as error:
            if is_transient(error):  # a deadlock, or a serialisation failure: try again at once
                return True
            if find_cause(error, self._using):  # no wait ends that
                raise
            self.failed(error)
            return None
        if self.failures and not self._still_fails():
            self.answered()
        return result

    def failed(self, error: Exception) -> None:
        """Count and log a failure, and drop the connection."""
        self.failures += 1
        if time.monotonic() >= self._said_at + SAY_SECONDS:
            self._said_at, self._is_said = time.monotonic(), True
            logger.warning(f"{self._message}: %s", self._using, error)
        drop(self._using)

    def answered(self) -> None:
        """Note that the database answers again; log it, if the outage was logged."""
        if self._is_said:
            logger.warning("The database %r answers again.", self._using)
        self.failures, self._is_said = 0, False

    @property
    def pause(self) -> float:
        """How many seconds to wait before the next try."""
        return pause_after(self.failures)


def drop(using: str) -> None:
    """Close a connection that failed; ignore errors from closing it.

    A pool does not get it back: a handler might get a session with the settings of the worker, such as `SessionLimits`.
    """
    connection: Any = connections[using]
    with suppress(DatabaseError, InterfaceError):
        if getattr(connection.connection, "_pool", None) is not None:
            connection.connection.close()
        connection.close()


def pause_after(failures: int) -> float:
    """Return the seconds to wait after so many failures in a row: at most one, as only a try shows that it has ended.

    They are random, so that not all workers come back at the same moment.
    """
    return min(0.25 * 2.0 ** min(failures, 10), LONGEST_PAUSE) * random.uniform(0.5, 1)
