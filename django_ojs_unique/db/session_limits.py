"""Limits of a session: how long a statement waits for locks, and a transaction for its next statement."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

from django.db import DatabaseError, InterfaceError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

LONGEST_SILENCE = 15.0
"""How many seconds a transaction of a worker may wait for its next statement.

A server does not notice for hours that a host was cut off from it, and would keep the locks of a transaction that the
host had begun. Nobody could rescue the jobs that it has locked.
"""

_LOCK_WAITS = {
    "postgresql": {"lock_timeout": 1000},
    "mysql": {"innodb_lock_wait_timeout": 1, "lock_wait_timeout": 1},
}
"""The settings that limit the waits for locks, and how many of their units make a second."""
_SILENCES = {
    "postgresql": {"idle_in_transaction_session_timeout": 1000},
    "mysql": {"idle_transaction_timeout": 1},
}


class SessionLimits:
    """Limits this thread's session, also after its connection was opened again.

    A statement waits at most ``lock_wait`` seconds for a lock, None: as long as before. The server ends a session in
    whose transaction nothing happens for `LONGEST_SILENCE`, but not while the transaction is the caller's. A shorter
    limit that the project has set stays. Nothing is changed behind a pooler of PostgreSQL, which might give the session
    with the limit to another client, and on SQLite, which has only one lock.
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
        """Restore the limits: the connection may be the caller's own."""
        connection = connections[self._using]
        if self._limited is not None and connection.connection is self._limited:
            with suppress(DatabaseError, InterfaceError):
                _write(connection, self._before)
        self._limited = None

    def _wanted(self, connection: BaseDatabaseWrapper) -> dict[str, int]:
        seconds: dict[str, float] = {}
        if self._lock_wait is not None:
            for name, units in _LOCK_WAITS.get(connection.vendor, {}).items():
                seconds[name] = self._lock_wait * units
        if connection.get_autocommit():
            for name, units in _SILENCES.get(connection.vendor, {}).items():
                seconds[name] = LONGEST_SILENCE * units
        return {name: max(1, math.ceil(value)) for name, value in seconds.items()}


def _read(connection: BaseDatabaseWrapper, names: list[str]) -> dict[str, int]:
    """Return the current limits; none where they must not be changed. 0 stands for no limit."""
    if not names or (connection.vendor == "postgresql" and is_pooled(connection)):
        return {}
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", [names])
            return {name: int(value) for name, value in cursor.fetchall()}
        cursor.execute(f"SELECT {', '.join(f'@@SESSION.{name}' for name in names)}")
        return dict(zip(names, map(int, cursor.fetchone()), strict=True))


def _write(connection: BaseDatabaseWrapper, limits: dict[str, int]) -> None:
    with connection.cursor() as cursor:
        for name, value in limits.items():
            if connection.vendor == "postgresql":
                cursor.execute("SELECT set_config(%s, %s, false)", [name, str(value)])
            else:
                cursor.execute(f"SET SESSION {name} = %s", [value])


def is_pooled(connection: Any) -> bool:
    """Whether a pooler answers instead of the server: a pooler gives its clients process ids of its own."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return bool(cursor.fetchone()[0] != connection.connection.info.backend_pid)
