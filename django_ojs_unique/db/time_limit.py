"""A limit on the time that the database may take for statements that only read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

_STEPS = 10_000
"""After so many steps of its virtual machine, SQLite looks at the time."""


class TimeLimitReached(Exception):
    """A statement took longer than it may; the database has ended it."""


@contextmanager
def time_limit(using: str, seconds: float) -> Iterator[None]:
    """Let the database end a statement of the block that takes longer. Raises TimeLimitReached then.

    It works on PostgreSQL, MariaDB and SQLite; elsewhere there is no limit.
    """
    connection, began = connections[using], time.monotonic()
    limited = _LIMITED.get(connection.vendor)
    try:
        with nullcontext() if limited is None else limited(connection, seconds):
            yield
    except DatabaseError as error:
        if time.monotonic() - began < seconds:
            raise
        raise TimeLimitReached from error


@contextmanager
def _on_postgresql(connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
    # A statement that is ended ends its transaction, too; with this block, that of the caller goes on.
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('statement_timeout')")
        (before,) = cursor.fetchone()
        cursor.execute("SELECT set_config('statement_timeout', %s, true)", [f"{seconds * 1000:.0f}"])
        yield
        cursor.execute("SELECT set_config('statement_timeout', %s, true)", [before])


@contextmanager
def _on_mysql(connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
    if not getattr(connection, "mysql_is_mariadb", False):
        yield
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@max_statement_time")
        (before,) = cursor.fetchone()
        cursor.execute("SET SESSION max_statement_time = %s", [seconds])
        try:
            yield
        finally:
            cursor.execute("SET SESSION max_statement_time = %s", [before])


@contextmanager
def _on_sqlite(connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
    connection.ensure_connection()
    end = time.monotonic() + seconds
    connection.connection.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
    try:
        yield
    finally:
        connection.connection.set_progress_handler(None, _STEPS)


_LIMITED = {"postgresql": _on_postgresql, "mysql": _on_mysql, "sqlite": _on_sqlite}
