"""SQLite: one writer at a time, so no other write can come between the two steps of an INSERT ... SELECT."""

from __future__ import annotations

import re
from typing import Any

from ..ojs.policy import UniquePolicy
from .dialect import Dialect


class SQLite(Dialect):
    """SQLite."""

    name = "sqlite"
    mechanism = "partial unique index on fingerprint while the row's state is guarded; one writer at a time"
    single_writer = True
    is_server = False
    now = "SELECT strftime('%Y-%m-%d %H:%M:%f', 'now')"

    def take_write_lock(self) -> None:
        # A transaction that reads first and writes later may fail at the write; one that begins with a write waits.
        with self.connection.cursor() as cursor:
            cursor.execute(f"DELETE FROM {self.quote(self.model._meta.db_table)} WHERE 1 = 0")

    def condition_of(self, constraint: str) -> str:
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT sql FROM sqlite_master WHERE type = 'index' AND name = %s", [constraint])
            (sql,) = cursor.fetchone() or ("FALSE",)
        where = re.search(r"\sWHERE\s(.*)", sql, re.IGNORECASE | re.DOTALL)
        return where[1] if where else "TRUE"

    def _look_and_insert(
        self, cursor: Any, job: Any, policy: UniquePolicy, look: str, wanted: list[Any]
    ) -> tuple[bool, Any | None]:
        # An INSERT takes the write lock before it reads, so it cannot deadlock on an upgrade.
        columns, values = self._table.row(job, self.connection)
        cursor.execute(self._table.insert_if_none(columns, look), [*values, *wanted])
        if cursor.rowcount:
            return True, None
        return super()._look_and_insert(cursor, job, policy, look, wanted)
