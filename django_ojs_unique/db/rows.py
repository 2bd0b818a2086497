"""Build model instances from the rows of raw statements, without the slow `Model.__init__`."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet
from django.db.models.base import ModelState

from .fields import PayloadField, Sparse


class RowReader:
    """Builds instances of one model from rows with the ``columns``; fields that were not read are deferred."""

    def __init__(
        self, model: type[models.Model], connection: BaseDatabaseWrapper, names: Collection[str] | None = None
    ) -> None:
        fields = [field for field in model._meta.concrete_fields if names is None or field.attname in names]
        self.columns = [field.column for field in fields]
        self._model = model
        self._connection = connection
        self._names = [field.attname for field in fields]
        self._payloads: list[tuple[str, Callable[[], Any]]] = []
        """Each field with JSON, and the function that returns its value when the column is NULL."""
        self._converters: list[tuple[str, Any, Any]] = []
        for field in fields:
            if isinstance(field, PayloadField):
                self._payloads.append((field.attname, field.default if isinstance(field, Sparse) else _null))
                continue
            column = field.get_col(model._meta.db_table)
            for convert in (*connection.ops.get_db_converters(column), *column.get_db_converters(connection)):
                self._converters.append((field.attname, convert, column))

    def read(self, row: Sequence[Any]) -> Any:
        """Build the instance of a row. It may have more values than there are columns."""
        instance: Any = self._model.__new__(self._model)
        values = instance.__dict__
        values.update(zip(self._names, row, strict=False))
        for name, empty in self._payloads:
            text = values[name]
            values[name] = empty() if text is None else _loaded(text)
        for name, convert, column in self._converters:
            values[name] = convert(values[name], column, self._connection)
        values["_state"] = state = ModelState()
        state.adding, state.db = False, self._connection.alias
        return instance


def read_fields(rows: QuerySet[Any], names: Collection[str]) -> list[Any]:
    """Return the rows of a query as instances that have only some fields, without the slow `Model.__init__`."""
    connection = connections[rows.db]
    reader = RowReader(rows.model, connection, names)
    sql, parameters = rows.values_list(*map(str, reader.columns)).query.get_compiler(rows.db).as_sql()
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return list(map(reader.read, cursor.fetchall()))


class UnreadRows:
    """Rows from which a reader builds the instances when they are iterated over."""

    def __init__(self, reader: RowReader, rows: Sequence[Sequence[Any]]) -> None:
        self._reader = reader
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Any]:
        return map(self._reader.read, self._rows)

    def values(self, name: str) -> list[Any]:
        """Return the values of a column as the driver returned them, without building instances."""
        position = self._reader.columns.index(name)
        return [row[position] for row in self._rows]


_decoder = json.JSONDecoder()


def _loaded(text: str) -> Any:
    try:
        value, end = _decoder.raw_decode(text)  # for a short text, `json.loads` takes twice the time
        if end == len(text):
            return value
    except (ValueError, RecursionError):
        pass
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # written by hand: `PayloadField.from_db_value` returns it as it is, too
        return text


def _null() -> None:
    return None
