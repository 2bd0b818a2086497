"""Execute enqueues, claims and completions on a kept cursor, unless somebody watches Django's cursors.

For each statement, Django creates two objects and calls everything that watches statements: ``DEBUG``,
``assertNumQueries``, ``execute_wrappers``, and the patches of tracing libraries. A kept cursor saves this time. It is
used only while nobody watches.
"""

from __future__ import annotations

import os
from asyncio import _get_running_loop
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from functools import lru_cache
from pathlib import Path
from threading import get_ident
from types import FunctionType
from typing import Any, Protocol, TypeAlias

import django
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from .sessions import Session

Parameters: TypeAlias = Sequence[Any] | Mapping[str, Any]
"""Parameters of a statement with ``%s``, or with ``%(name)s`` where the driver knows names."""

_WRAPPER: Any = CursorWrapper
_DJANGO = str(Path(django.__file__).parent) + os.sep
_KEPT = "_ojs_kept_cursor"
_PATCHABLE = ("cursor", "_cursor", "make_cursor", "make_debug_cursor", "create_cursor", "ensure_connection")
"""The methods of Django's connections that others replace in order to watch statements, or to forbid them."""


class Plan(Enum):
    """For how long the database may use its plan of a statement, where the cursor prepares statements."""

    KEPT = auto()
    """For many uses: of a statement about few rows, any plan is good, except one for an empty table."""
    FRESH = auto()
    """For a second: in more time the table can grow so much that another plan is better for many rows."""
    ONCE = auto()
    """For one use: the statement is not prepared."""


class KeptCursor(Protocol):
    """A cursor of a driver, kept as long as its connection."""

    raw: Any
    """The driver's connection."""

    def execute(
        self, sql: str, params: Parameters, overlap: Callable[[], Any] | None = None, plan: Plan = Plan.KEPT
    ) -> tuple[int, list[Any]]: ...


class KeepsCursors(Protocol):
    """What `execute` needs from a dialect."""

    connection: BaseDatabaseWrapper

    def new_cursor(self) -> KeptCursor | None: ...


def execute(
    dialect: KeepsCursors,
    sql: str,
    params: Parameters,
    overlap: Callable[[], Any] | None = None,
    plan: Plan = Plan.KEPT,
) -> tuple[int, list[Any]]:
    """Execute one statement; return how many rows it changed or found, and the rows. Raises what Django raises.

    ``overlap`` is called once: while the database works if the driver can do that, and else before. It must not use
    the connection.
    """
    connection = dialect.connection
    kept = _kept_cursor(dialect, connection)
    if kept is None:
        if overlap is not None:
            overlap()
        with connection.cursor() as cursor:
            cursor.execute(sql, params)
            return cursor.rowcount, [] if cursor.description is None else cursor.fetchall()
    try:
        return kept.execute(sql, params, overlap, plan)
    except Exception:
        with connection.wrap_database_errors:
            raise


def _kept_cursor(dialect: KeepsCursors, connection: Any) -> KeptCursor | None:
    raw = connection.connection
    if (
        raw is None
        or connection.needs_rollback
        or connection._thread_ident != get_ident()
        or (connection.health_check_enabled and not connection.health_check_done)
        or _get_running_loop() is not None
        or _is_watched(connection)
    ):
        return None
    kept: KeptCursor | None = getattr(connection, _KEPT, None)
    if kept is None or kept.raw is not raw:
        kept = dialect.new_cursor()
        setattr(connection, _KEPT, kept)
    return kept


def _is_watched(connection: Any) -> bool:
    for watcher in connection.execute_wrappers:
        if type(watcher) is not Session:  # a Session only notes statements that change the session
            return True
    kind, wrapper = type(connection), _WRAPPER
    return (
        connection.queries_logged
        or not connection.__dict__.keys().isdisjoint(_PATCHABLE)
        or not _is_djangos(wrapper.execute)
        or not _is_djangos(wrapper._execute)
        or not _is_djangos(wrapper._execute_with_wrappers)
        or not _is_djangos(kind.cursor)
        or not _is_djangos(kind._cursor)
        or not _is_djangos(kind.make_cursor)
        or not _is_djangos(kind.create_cursor)
        or not _is_djangos(kind.ensure_connection)
    )


@lru_cache(maxsize=100)
def _is_djangos(function: Any) -> bool:
    """Whether a method, and each function that it wraps, is in a file of Django: a patch can copy only the name."""
    while function is not None:
        if type(function) is not FunctionType or not function.__code__.co_filename.startswith(_DJANGO):
            return False
        function = getattr(function, "__wrapped__", None)
    return True
