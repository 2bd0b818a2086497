"""The INSERT that decides races, in each database's words.

One statement looks for a duplicate and inserts if there is none; the constraint settles what the look could not see.
Nothing here raises on a conflict or leaves a transaction broken, and no error message is ever read.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any

from django.db import IntegrityError, models
from django.db.backends.base.base import BaseDatabaseWrapper

from .capabilities import CONSTRAINT

COURTESY_SECONDS = 10


class Admission:
    """Inserts jobs into one model's table on one connection."""

    def __init__(self, model: type[models.Model], connection: BaseDatabaseWrapper) -> None:
        self.model = model
        self.connection = connection
        self.statements = _statements(model, connection.vendor)

    def insert(self, job: Any) -> bool:
        """Insert; return False when a guarding row or the same id is in the way."""
        if self.connection.vendor == "mysql":
            return self._insert_in_turn(job)
        return self._execute(self.statements.insert, self._values(job)) == 1

    def insert_unless_duplicate(
        self, job: Any, states: Sequence[str], created_after: datetime | None
    ) -> tuple[bool, Any | None]:
        """Insert unless a row of the same fingerprint is in ``states`` and was created after ``created_after``.

        Return whether the job was inserted, and the newest such row if one was seen. (False, None) means that something
        else is in the way: a race was lost, a guard is stale, or the id is taken.
        """
        look = self.statements.look(len(states), created_after is not None)
        wanted: list[Any] = [job.fingerprint, *states]
        if created_after is not None:
            wanted.append(self.connection.ops.adapt_datetimefield_value(created_after))
        if self.connection.vendor == "postgresql":
            row = self._fetch(self.statements.look_and_insert(look), [*wanted, *self._values(job)])
            assert row is not None
            return row[0], self._read(row[1:])
        if self.connection.vendor == "sqlite":
            # An INSERT takes the write lock before it reads, so it cannot deadlock on an upgrade.
            inserted = self._execute(self.statements.insert_if_none(look), [*self._values(job), *wanted])
            return (True, None) if inserted else (False, self._newest(look, wanted))
        newest = self._newest(look, wanted)
        return (False, newest) if newest else (self.insert(job), None)

    def take_write_lock(self) -> None:
        """Become the only writer for the rest of the transaction, where a database has one writer at a time (SQLite)."""
        if self.connection.vendor == "sqlite":
            self._execute(self.statements.write_nothing, [])

    def _insert_in_turn(self, job: Any) -> bool:
        # InnoDB gives a shared lock to everyone who waits for an uncommitted row that then rolls back, and they
        # deadlock. A named lock around the statement lets one of them wait there at a time; the unique index decides.
        turn = f"ojs:{job.fingerprint or job.pk}"[:64]
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT GET_LOCK(%s, %s)", [turn, COURTESY_SECONDS])
            try:
                cursor.execute(self.statements.insert, self._values(job))
            except IntegrityError:
                # Here a failed statement does not end the transaction.
                if not self._is_obstructed(job):
                    raise
                return False
            finally:
                cursor.execute("DO RELEASE_LOCK(%s)", [turn])
        return True

    def _is_obstructed(self, job: Any) -> bool:
        with self.connection.cursor() as cursor:
            cursor.execute(self.statements.obstruction, [job.pk.hex, job.fingerprint])
            return cursor.fetchone() is not None

    def _values(self, job: Any) -> list[Any]:
        connection = self.connection
        return [field.get_db_prep_save(getattr(job, field.attname), connection) for field in self.statements.inserted]

    def _execute(self, sql: str, values: Sequence[Any]) -> int:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values)
            return cursor.rowcount

    def _fetch(self, sql: str, values: Sequence[Any]) -> Sequence[Any] | None:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values)
            return cursor.fetchone()  # type: ignore[no-any-return]

    def _newest(self, look: str, wanted: Sequence[Any]) -> Any | None:
        return self._read(self._fetch(look, wanted))

    def _read(self, row: Sequence[Any] | None) -> Any | None:
        if row is None or row[0] is None:
            return None
        connection = self.connection
        values = list(row)
        for index, column in enumerate(self.statements.columns):
            field = column.output_field
            for convert in (*connection.ops.get_db_converters(column), *field.get_db_converters(connection)):
                values[index] = convert(values[index], column, connection)
        return self.model.from_db(connection.alias, self.statements.attnames, values)


class _Statements:
    """The SQL text for one model on one kind of database."""

    def __init__(self, model: type[models.Model], vendor: str) -> None:
        quote = "`{}`".format if vendor == "mysql" else '"{}"'.format
        fields = model._meta.concrete_fields
        self.inserted = [field for field in fields if field.name not in _SET_LATER]
        self.columns = [field.get_col(model._meta.db_table) for field in fields]
        self.attnames = [field.attname for field in fields]
        self._table = quote(model._meta.db_table)
        self._selected = ", ".join(quote(field.column) for field in fields)
        self._into = f"INSERT INTO {self._table} ({', '.join(quote(field.column) for field in self.inserted)})"
        self._values = ", ".join(["%s"] * len(self.inserted))
        skip = "" if vendor == "mysql" else " ON CONFLICT DO NOTHING"
        self.insert = f"{self._into} VALUES ({self._values}){skip}"
        self.obstruction = f"SELECT 1 FROM {self._table} WHERE {quote('id')} = %s OR {quote(CONSTRAINT)} = %s LIMIT 1 LOCK IN SHARE MODE"
        self.write_nothing = f"UPDATE {self._table} SET {quote('id')} = {quote('id')} WHERE 1 = 0"

    @cache  # noqa: B019 - as many entries as policies differ in the number of their states
    def look(self, states: int, bounded: bool) -> str:
        """Select the newest row of a fingerprint in some states; parameters: fingerprint, states, created after."""
        after = " AND created_at > %s" if bounded else ""
        return (
            f"SELECT {self._selected} FROM {self._table} WHERE fingerprint = %s"
            f" AND state IN ({', '.join(['%s'] * states)}){after} ORDER BY created_at DESC, id DESC LIMIT 1"
        )

    @cache  # noqa: B019
    def insert_if_none(self, look: str) -> str:
        """Insert unless the look finds a row; parameters: the row's values, then the look's."""
        return f"{self._into} SELECT {self._values} WHERE NOT EXISTS ({look}) ON CONFLICT DO NOTHING"

    @cache  # noqa: B019
    def look_and_insert(self, look: str) -> str:
        """Do both and return whether the row went in, then what the look found; parameters: the look's, then the row's."""
        return (
            f"WITH duplicate AS ({look}), admitted AS ("
            f"{self._into} SELECT {self._values} WHERE NOT EXISTS (SELECT 1 FROM duplicate)"
            " ON CONFLICT DO NOTHING RETURNING 1)"
            " SELECT EXISTS (SELECT 1 FROM admitted), duplicate.* FROM (SELECT 1) AS one LEFT JOIN duplicate ON TRUE"
        )


_SET_LATER = {"replaced_by", "started_at", "finished_at", "worker_id", "lease_token", "lease_expires_at", "result"}
"""Columns that no enqueue fills; each is NULL."""


@cache
def _statements(model: type[models.Model], vendor: str) -> _Statements:
    return _Statements(model, vendor)
