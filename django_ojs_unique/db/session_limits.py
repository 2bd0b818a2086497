"""Limits of a session: how long a statement may wait for a lock, and how long a transaction may be idle."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

from django.db import DatabaseError, InterfaceError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

LONGEST_IDLE = 15.0
"""How many seconds a transaction of a worker may be idle, that is, wait for its next statement.

If a host is cut off from the server within a transaction, the server does not notice for hours. Until then it keeps the
transaction's locks, and nobody can rescue the jobs whose rows are locked.
"""

_LOCK_TIMEOUTS = {
    "postgresql": {"lock_timeout": 1000},
    "mysql": {"innodb_lock_wait_timeout": 1, "lock_wait_timeout": 1},
    "sqlite": {"busy_timeout": 1000},
}
"""By vendor: the settings, and how many of their units make a second."""
_IDLE_TIMEOUTS = {
    "postgresql": {"idle_in_transaction_session_timeout": 1000},
    "mysql": {"idle_transaction_timeout": 1},
}
"""Like `_LOCK_TIMEOUTS`. MySQL has none; that of the vendor ``mysql`` is MariaDB's."""


class SessionLimits:
    """Limits the session of this thread's connection, and the new session if the connection was opened again.

    With a ``lock_wait``, a statement waits at most so many seconds for a lock. The server ends the session if a
    transaction in it is idle for `LONGEST_IDLE`; this limit is not set inside a transaction of the caller.

    A shorter limit that the project has set stays. Nothing is changed behind a pooler of PostgreSQL, which might give
    the session with the limits to another client.
    """

    def __init__(self, using: str, *, lock_wait: float | None = None) -> None:
        self._using = using
        self._lock_wait = lock_wait
        self._limited: Any = None
        """The driver's connection that has the limits."""
        self._before: dict[str, int] = {}

    def ensure(self) -> None:
        """Set the limits if the connection is a new one."""
        connection = connections[self._using]
        if connection.connection is None or connection.connection is not self._limited:
            connection.ensure_connection()
            ours = self._wanted(connection)
            self._before = _read(connection, list(ours))
            _write(connection, {name: min(ours[name], old or ours[name]) for name, old in self._before.items()})
            self._limited = connection.connection

    def end(self) -> None:
        """Restore the limits that the session had before: the connection may be the caller's, or go back to a pool."""
        connection = connections[self._using]
        if self._limited is not None and connection.connection is self._limited:
            with suppress(DatabaseError, InterfaceError):
                _write(connection, self._before)
        self._limited = None

    def _wanted(self, connection: BaseDatabaseWrapper) -> dict[str, int]:
        limits: dict[str, float] = {}
        if self._lock_wait is not None:
            for name, units in _LOCK_TIMEOUTS.get(connection.vendor, {}).items():
                limits[name] = self._lock_wait * units
        if connection.get_autocommit():
            for name, units in _IDLE_TIMEOUTS.get(connection.vendor, {}).items():
                limits[name] = LONGEST_IDLE * units
        return {name: max(1, math.ceil(value)) for name, value in limits.items()}


def _read(connection: BaseDatabaseWrapper, names: list[str]) -> dict[str, int]:
    """Return the current limits, of those that the server has; none where they must not be changed. 0: no limit."""
    if not names or (connection.vendor == "postgresql" and is_pooled(connection)):
        return {}
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", [names])
        elif connection.vendor == "sqlite":
            cursor.execute("SELECT 'busy_timeout', timeout FROM pragma_busy_timeout")
        else:
            places = ", ".join(["%s"] * len(names))
            cursor.execute(f"SHOW SESSION VARIABLES WHERE Variable_name IN ({places})", names)
        return {name: int(value) for name, value in cursor.fetchall()}


def _write(connection: BaseDatabaseWrapper, limits: dict[str, int]) -> None:
    with connection.cursor() as cursor:
        for name, value in limits.items():
            if connection.vendor == "postgresql":
                cursor.execute("SELECT set_config(%s, %s, false)", [name, str(value)])
            elif connection.vendor == "sqlite":
                cursor.execute(f"PRAGMA {name} = {value}")
            else:
                cursor.execute(f"SET SESSION {name} = %s", [value])


def is_pooled(connection: Any) -> bool:
    """Whether a pooler answers instead of the server: a pooler gives its clients process ids of its own."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return bool(cursor.fetchone()[0] != connection.connection.info.backend_pid)
