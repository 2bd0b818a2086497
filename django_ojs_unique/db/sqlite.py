"""SQLite: one writer at a time, so no other write can come between the two steps of an INSERT ... SELECT."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from django.db.models import Q, Value
from django.db.models.functions import StrIndex
from django.db.models.lookups import Exact, GreaterThan

from ..unique.policy import UniquePolicy
from .dialect import Dialect
from .fast.cursors import KeptCursor, Parameters, Plan


class SQLite(Dialect):
    """SQLite."""

    name = "sqlite"
    mechanism = (
        "partial unique index on fingerprint while the state is one of the row's unique states; one writer at a time"
    )
    single_writer = True
    is_server = False

    @staticmethod
    def select_texts(texts: Sequence[str]) -> tuple[str, list[Any]]:
        return "SELECT value FROM json_each(%s)", [json.dumps(list(texts))]  # a SELECT has 500 parts at most

    def take_write_lock(self) -> None:
        # A transaction that reads first and writes later may fail at the write; one that begins with a write waits.
        with self.connection.cursor() as cursor:
            cursor.execute(f"DELETE FROM {self.quote(self.model._meta.db_table)} WHERE 1 = 0")

    def beginning(self, field: str, text: str) -> Q:  # LIKE ignores case
        return Q(Exact(StrIndex(field, Value(text)), 1))

    def containing(self, field: str, text: str) -> Q:
        return Q(GreaterThan(StrIndex(field, Value(text)), 0))

    def condition_of(self, constraint: str) -> str:
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT sql FROM sqlite_master WHERE type = 'index' AND name = %s", [constraint])
            (sql,) = cursor.fetchone() or ("FALSE",)
        where = re.search(r"\sWHERE\s(.*)", sql, re.IGNORECASE | re.DOTALL)
        return where[1] if where else "TRUE"

    def decides_at_once(self, policy: UniquePolicy) -> bool:
        return True  # an INSERT takes the write lock before it reads

    def new_cursor(self) -> KeptCursor | None:
        raw = self.connection.connection
        return _QmarkCursor(raw) if type(raw) is sqlite3.Connection else None


class _QmarkCursor:
    """A cursor of the driver, which writes ``?`` for a parameter."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self.raw = raw
        self._cursor = raw.cursor()

    def execute(
        self, sql: str, params: Parameters, overlap: Callable[[], Any] | None = None, plan: Plan = Plan.KEPT
    ) -> tuple[int, list[Any]]:
        """Execute one statement; return how many rows it changed, and the rows that it found.

        ``overlap`` is called before: the driver cannot work in the background. It prepares each statement by itself.
        """
        if overlap is not None:
            overlap()
        cursor = self._cursor
        cursor.execute(_with_qmarks(sql), params)
        return cursor.rowcount, cursor.fetchall()


@lru_cache(maxsize=1_000)
def _with_qmarks(sql: str) -> str:
    return sql.replace("%s", "?")
