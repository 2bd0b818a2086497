"""Start a transaction over that the database gave up to a concurrent one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TypeVar

from django.db import OperationalError, connections

MOST_TRIES = 10

_SQLSTATES = {"40001", "40P01"}
"""PostgreSQL: serialization_failure, deadlock_detected."""
_MYSQL_ERRORS = {1213, 1020}
"""InnoDB: deadlock; record has changed since last read (under innodb_snapshot_isolation)."""

T = TypeVar("T")


def starting_over(using: str, step: Callable[[], T]) -> T:
    """Run one transaction, and again after a deadlock or a serialisation failure; never inside the caller's own."""
    connection = connections[using]
    for _ in range(MOST_TRIES - 1):
        try:
            return step()
        except OperationalError as error:
            if connection.in_atomic_block or not connection.get_autocommit() or not _is_transient(error):
                raise
    return step()


def _is_transient(error: OperationalError) -> bool:
    cause = error.__cause__
    if cause is None:
        return False
    return (
        getattr(cause, "sqlstate", None) in _SQLSTATES
        or getattr(cause, "sqlite_errorcode", 0) == sqlite3.SQLITE_BUSY_SNAPSHOT  # plain BUSY has waited already
        or (cause.args[0] if cause.args else None) in _MYSQL_ERRORS
    )
