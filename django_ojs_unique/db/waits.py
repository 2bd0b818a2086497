"""Waits: limit how long the statements of a connection wait for locks, and detect a pooler."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

from django.db import DatabaseError, InterfaceError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

_LIMITS = {
    "postgresql": {"lock_timeout": 1000},
    "mysql": {"innodb_lock_wait_timeout": 1, "lock_wait_timeout": 1},
}
"""The settings that limit the waits for locks, and how many of their units make a second."""


class ShortWaits:
    """Limits the lock waits of this thread's connection to so many seconds, also after it was opened again.

    A shorter limit that the project has set stays. Nothing is changed behind a pooler of PostgreSQL, which might give
    the session with the limit to another client, and on SQLite, which has only one lock.
    """

    def __init__(self, using: str, seconds: float) -> None:
        self._using = using
        self._seconds = seconds
        self._limited: Any = None
        """The driver's connection that has the limits."""
        self._before: dict[str, int] = {}

    def ensure(self) -> None:
        """Set the limits if the connection is a new one."""
        connection = connections[self._using]
        if connection.connection is None or connection.connection is not self._limited:
            connection.ensure_connection()
            self._before = _read(connection)
            units = _LIMITS.get(connection.vendor, {})
            ours = {name: max(1, math.ceil(self._seconds * units[name])) for name in self._before}
            _write(connection, {name: min(ours[name], old or ours[name]) for name, old in self._before.items()})
            self._limited = connection.connection

    def end(self) -> None:
        """Restore the limits: the connection may be the caller's own."""
        connection = connections[self._using]
        if self._limited is not None and connection.connection is self._limited:
            with suppress(DatabaseError, InterfaceError):
                _write(connection, self._before)
        self._limited = None


def _read(connection: BaseDatabaseWrapper) -> dict[str, int]:
    """Return the current limits; none where they must not be changed. 0 stands for no limit."""
    names = list(_LIMITS.get(connection.vendor, {}))
    if not names or (connection.vendor == "postgresql" and is_pooled(connection)):
        return {}
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT setting FROM pg_settings WHERE name = ANY(%s)", [names])
        else:
            cursor.execute(f"SELECT {', '.join(f'@@SESSION.{name}' for name in names)}")
        values = cursor.fetchone()
    return {} if values is None else dict(zip(names, map(int, values), strict=True))


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
