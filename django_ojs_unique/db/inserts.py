"""The text of the statements that insert rows and look for duplicates."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from operator import attrgetter
from typing import Any, TypeVar

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

CHANNEL = "django_ojs_unique"
"""On PostgreSQL: the channel on which an enqueue sends workers the name of the queue that has a new available job."""

ROWS_AT_ONCE = 1000
LOOKED_AT = ("id", "type", "queue", "state", "fingerprint", "created_at", "expires_at", "lease_expires_at")
"""The fields of a duplicate that the deciding statement reads, in the model's order."""

_JSON_ARRAY = "ARRAY(SELECT NULLIF(value, 'null') FROM jsonb_array_elements(%s::jsonb))"
_NOTIFY = f"pg_notify('{CHANNEL}', queue)"

T = TypeVar("T")


def in_groups(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield lists of up to a thousand items, for one statement each."""
    iterator = iter(items)
    while group := list(islice(iterator, ROWS_AT_ONCE)):
        yield group


class Table:
    """The SQL of one model on one kind of database, which decides how to ``quote`` names and ``skip`` conflicts."""

    def __init__(self, model: type[models.Model], quote: Callable[[Any], str], skip: str) -> None:
        self._quote = quote
        self._name = quote(model._meta.db_table)
        self._skip = skip
        self._model = model
        fields = model._meta.concrete_fields
        self._written: list[tuple[Any, str, Any]] = [
            (field, field.attname, field.get_default() if field.has_db_default() else None)
            for field in fields
            if not isinstance(field, models.AutoField)
        ]
        columns = [field.get_col(model._meta.db_table) for field in fields]
        self._looked_at = {
            True: columns,
            False: [column for column in columns if column.target.attname in LOOKED_AT],
        }

    def row(self, row: Any, connection: BaseDatabaseWrapper) -> tuple[tuple[str, ...], list[Any]]:
        """Return the columns that differ from the database's defaults, and their values."""
        columns: list[str] = []
        values: list[Any] = []
        for field, attname, default in self._written:
            value = getattr(row, attname)
            if value != default:
                columns.append(field.column)
                values.append(field.get_db_prep_save(value, connection))
        return tuple(columns), values

    def insert_each(self, rows: Sequence[Any], connection: BaseDatabaseWrapper) -> tuple[str, list[list[Any]]]:
        """Return the statement that inserts one row, and the parameters for each row."""
        written = [column for column in self._written if any(getattr(row, column[1]) != column[2] for row in rows)]
        columns = tuple(field.column for field, _, _ in written)
        values = [
            [field.get_db_prep_save(getattr(row, attname), connection) for field, attname, _ in written] for row in rows
        ]
        return self.insert(columns, wake=False), values

    def insert_arrays(self, rows: Sequence[Any], connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:
        """Return the statement that inserts the rows, with one array for each column that differs, and its parameters.

        It has far fewer parameters than VALUES, and the same text for all batches of the same shape.
        """
        arrays: list[tuple[str, str]] = []
        constants: list[tuple[str, str]] = []
        parameters: list[Any] = []
        parameter: Any
        values_of_constants: list[Any] = []
        for field, attname, default in self._written:
            values = list(map(attrgetter(attname), rows))
            first = values[0]
            if arrays and _are_all_the_same(values):
                if first != default:
                    constants.append((field.column, f"%s::{field.db_type(connection)}"))
                    values_of_constants.append(field.get_db_prep_save(first, connection))
                continue
            if isinstance(field, models.JSONField):
                # One JSON document: a thousand small ones would take Python twice the time.
                place, parameter = _JSON_ARRAY, json.dumps(values)
            else:
                place = f"%s::{field.db_type(connection)}[]"
                parameter = [field.get_db_prep_save(value, connection) for value in values]
            arrays.append((field.column, place))
            parameters.append(parameter)
        columns = tuple(column for column, _ in [*arrays, *constants])
        names = [f"c{number}" for number in range(len(arrays))]
        return (
            f"{self._into(columns)} SELECT {', '.join([*names, *(place for _, place in constants)])}"
            f" FROM unnest({', '.join(place for _, place in arrays)}) AS row ({', '.join(names)}){self._skip}",
            [*values_of_constants, *parameters],
        )

    @cache  # noqa: B019 - there are a handful of tables and shapes
    def insert(self, columns: tuple[str, ...], wake: bool) -> str:
        """Insert, or skip a conflict (not on MariaDB); ``wake``: PostgreSQL wakes the queue's workers at the commit."""
        returning = f" RETURNING {_NOTIFY}" if wake else ""
        return f"{self._into(columns)} VALUES ({self._places(columns)}){self._skip}{returning}"

    @cache  # noqa: B019
    def look(self, states: int, bounded: bool, full_row: bool) -> str:
        """Select the newest row of a fingerprint in some states; parameters: fingerprint, states, created after."""
        columns = ", ".join(self._quote(column.target.column) for column in self._looked_at[full_row])
        after = " AND created_at > %s" if bounded else ""
        return (
            f"SELECT {columns} FROM {self._name} WHERE fingerprint = %s"
            f" AND state IN ({', '.join(['%s'] * states)}){after} ORDER BY created_at DESC, id DESC LIMIT 1"
        )

    @cache  # noqa: B019
    def insert_if_none(self, columns: tuple[str, ...], look: str) -> str:
        """Insert unless the query ``look`` finds a row; parameters: the row's values, then the query's."""
        return f"{self._into(columns)} SELECT {self._places(columns)} WHERE NOT EXISTS ({look}){self._skip}"

    @cache  # noqa: B019
    def look_and_insert(self, columns: tuple[str, ...], look: str, wake: bool) -> str:
        """Do both; select whether the row was inserted, then the row that the query ``look`` found.

        Parameters: those of the query, then the values of the row.
        """
        return (
            f"WITH duplicate AS ({look}), admitted AS ({self._into(columns)} SELECT {self._places(columns)}"
            f" WHERE NOT EXISTS (SELECT 1 FROM duplicate){self._skip} RETURNING {_NOTIFY if wake else 1})"
            " SELECT EXISTS (SELECT 1 FROM admitted), duplicate.* FROM (SELECT 1) AS one LEFT JOIN duplicate ON TRUE"
        )

    def read(self, row: Sequence[Any], full_row: bool, connection: BaseDatabaseWrapper) -> Any:
        """Build the model instance of a row that the query found."""
        values = list(row)
        columns = self._looked_at[full_row]
        for index, column in enumerate(columns):
            for convert in (
                *connection.ops.get_db_converters(column),
                *column.output_field.get_db_converters(connection),
            ):
                values[index] = convert(values[index], column, connection)
        return self._model.from_db(connection.alias, [column.target.attname for column in columns], values)

    def _into(self, columns: tuple[str, ...]) -> str:
        return f"INSERT INTO {self._name} ({', '.join(map(self._quote, columns))})"

    def _places(self, columns: tuple[str, ...]) -> str:
        return ", ".join(["%s"] * len(columns))


def _are_all_the_same(values: list[Any]) -> bool:
    first = values[0]
    if isinstance(first, (dict, list)) and first:  # {"a": 1} equals {"a": True}, but is not the same JSON
        return all(value is first for value in values)
    return values.count(first) == len(values)


@cache
def table_of(model: type[models.Model], quote: Callable[[Any], str], skip: str) -> Table:
    """Return the cached statements for a model's table."""
    return Table(model, quote, skip)
