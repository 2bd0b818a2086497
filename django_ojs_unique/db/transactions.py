"""Repeat a transaction that the database ended because of a concurrent one."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

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
    """Run one transaction; repeat it after a deadlock or a serialisation failure, but never inside the caller's own."""
    for tries in range(MOST_TRIES - 1):
        try:
            return step()
        except OperationalError as error:
            if not may_start_over(using, error):
                raise
        pause_after(tries)
    return step()


def may_start_over(using: str, error: BaseException) -> bool:
    """Whether a transaction failed only because of a concurrent one, and was not the caller's own."""
    connection = connections[using]
    is_inside = connection.in_atomic_block or not connection.get_autocommit()
    return not is_inside and isinstance(error, OperationalError) and is_transient(error)


def open_here() -> list[str]:
    """Return the aliases of the databases on which this thread is inside a transaction."""
    return [
        connection.alias
        for connection in connections.all(initialized_only=True)
        if connection.in_atomic_block or (connection.connection is not None and not connection.autocommit)
    ]


def is_callers(connection: BaseDatabaseWrapper) -> bool:
    """Whether the open transaction may have begun before the innermost block: then it may be the caller's."""
    return bool(connection.savepoint_ids) or not connection.commit_on_exit


def pause_after(tries: int) -> None:
    """Wait before the next try: InnoDB ends the younger transaction at once, and it would meet the other one again."""
    time.sleep(random.uniform(0, min(0.002 * 2**tries, LONGEST_PAUSE)))


def is_transient(error: Exception) -> bool:
    """Whether the database ended a transaction only because of another one, so that a retry may succeed."""
    cause = error.__cause__
    if cause is None:
        return False
    return (
        getattr(cause, "sqlstate", None) in _SQLSTATES
        or getattr(cause, "sqlite_errorcode", 0) == sqlite3.SQLITE_BUSY_SNAPSHOT  # a plain BUSY comes after a wait
        or (cause.args[0] if cause.args else None) in _MYSQL_ERRORS
    )


def is_busy(error: Exception) -> bool:
    """Whether the database works, and the failure came only from locks or changes of other transactions."""
    cause = error.__cause__
    codes = {getattr(cause, "sqlstate", None), cause.args[0] if cause is not None and cause.args else None}
    locked = getattr(cause, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    return is_transient(error) or locked or bool(codes & _LOCKED)
