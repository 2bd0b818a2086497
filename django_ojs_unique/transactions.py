"""Start a transaction over that the database gave up to a concurrent one; be the only writer where there is one."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model

MOST_TRIES = 30
LONGEST_PAUSE = 0.1

_SQLSTATES = {"40001", "40P01"}
"""PostgreSQL: serialization_failure, deadlock_detected."""
_MYSQL_ERRORS = {1213, 1020}
"""InnoDB: deadlock; record has changed since last read (under innodb_snapshot_isolation)."""
_LOCKED = {"55P03", 1205}
"""PostgreSQL: lock_not_available. InnoDB: lock wait timeout."""

T = TypeVar("T")


def starting_over(using: str, step: Callable[[], T]) -> T:
    """Run one transaction, and again after a deadlock or a serialisation failure; never inside the caller's own."""
    connection = connections[using]
    for tries in range(MOST_TRIES - 1):
        try:
            return step()
        except OperationalError as error:
            if connection.in_atomic_block or not connection.get_autocommit() or not is_transient(error):
                raise
        # InnoDB ends the younger transaction at once: without a pause it would meet the same one each time.
        time.sleep(random.uniform(0, min(0.002 * 2**tries, LONGEST_PAUSE)))
    return step()


def is_transient(error: Exception) -> bool:
    """Whether the database gave a transaction up only because of another one, so that it may be tried again."""
    cause = error.__cause__
    if cause is None:
        return False
    return (
        getattr(cause, "sqlstate", None) in _SQLSTATES
        or getattr(cause, "sqlite_errorcode", 0) == sqlite3.SQLITE_BUSY_SNAPSHOT  # plain BUSY has waited already
        or (cause.args[0] if cause.args else None) in _MYSQL_ERRORS
    )


def is_busy(error: Exception) -> bool:
    """Whether the database works, and only somebody else's locks were in the way, for longer than it waits."""
    cause = error.__cause__
    codes = {getattr(cause, "sqlstate", None), cause.args[0] if cause is not None and cause.args else None}
    locked = getattr(cause, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    return is_transient(error) or locked or bool(codes & _LOCKED)


def take_write_lock(connection: BaseDatabaseWrapper, model: type[Model]) -> None:
    """Become the only writer for the rest of the transaction, where a database has one writer at a time: on SQLite.

    A transaction that reads first and writes later may find that it cannot; one whose first statement is a write waits.
    """
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute(f"DELETE FROM {connection.ops.quote_name(model._meta.db_table)} WHERE 1 = 0")
