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
from operator import attrgetter
from pathlib import Path
from threading import get_ident
from types import FunctionType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import django
from django.db.backends.utils import CursorWrapper

from ..sessions import Session

if TYPE_CHECKING:
    from ..dialect import Dialect

Parameters: TypeAlias = Sequence[Any] | Mapping[str, Any]
"""Parameters of a statement with ``%s``, or with ``%(name)s`` where the driver knows names."""

_DJANGO = str(Path(django.__file__).parent) + os.sep
_KEPT = "_ojs_kept_cursor"
_USED = ("cursor", "_cursor", "make_cursor", "create_cursor", "ensure_connection")
_PATCHABLE = {*_USED, "make_debug_cursor"}
"""The methods of Django's connections that others replace in order to watch statements, or to forbid them."""
_methods_of_connections = attrgetter(*_USED)
_methods_of_cursors: Callable[[Any], tuple[Any, ...]] = attrgetter("execute", "_execute", "_execute_with_wrappers")


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


def execute(
    dialect: Dialect,
    sql: str,
    params: Parameters,
    overlap: Callable[[], Any] | None = None,
    plan: Plan = Plan.KEPT,
) -> tuple[int, list[Any]]:
    """Execute one statement; return how many rows it changed or found, and the rows. Raises what Django raises.

    Plain: Django's cursor, which takes twice the time for an enqueue on PostgreSQL, and a fifth more on SQLite.
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


def _kept_cursor(dialect: Dialect, connection: Any) -> KeptCursor | None:
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
    return (
        connection.queries_logged
        or not _PATCHABLE.isdisjoint(connection.__dict__)
        or not _are_djangos(*_methods_of_cursors(CursorWrapper), *_methods_of_connections(type(connection)))
    )


@lru_cache(maxsize=100)
def _are_djangos(*methods: Any) -> bool:
    """Whether methods, and each function that they wrap, are in files of Django: a patch can copy only the name."""
    for function in methods:
        while function is not None:
            if type(function) is not FunctionType or not function.__code__.co_filename.startswith(_DJANGO):
                return False
            function = getattr(function, "__wrapped__", None)
    return True
