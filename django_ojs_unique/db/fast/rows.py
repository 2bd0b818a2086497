"""Rows: build model instances from the rows of raw statements, and unsaved ones, without `Model.__init__`."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache, cached_property
from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.base import ModelState

from ..fields import PayloadField, Sparse


class RowReader:
    """Builds instances of one model from rows with the ``columns``; fields that were not read are deferred.

    The columns are in the order of the ``names``, by default that of the model. Plain: `Model.from_db`.
    """

    def __init__(
        self, model: type[models.Model], connection: BaseDatabaseWrapper, names: Collection[str] | None = None
    ) -> None:
        of_model = {field.attname: field for field in model._meta.concrete_fields}
        fields = list(of_model.values()) if names is None else [of_model[name] for name in names if name in of_model]
        self.columns = [field.column for field in fields]
        self._model = model
        self._connection = connection
        self._names = [field.attname for field in fields]
        self._payloads: list[tuple[str, Callable[[], Any]]] = []
        """Each field with JSON, and the function that returns its value when the column is NULL."""
        self._converters: list[tuple[int, str, Any, Any]] = []
        for position, field in enumerate(fields):
            if isinstance(field, PayloadField):
                self._payloads.append((field.attname, field.default if isinstance(field, Sparse) else _null))
                continue
            column = field.get_col(model._meta.db_table)
            for convert in (*connection.ops.get_db_converters(column), *column.get_db_converters(connection)):
                self._converters.append((position, field.attname, convert, column))

    def read(self, row: Sequence[Any]) -> Any:
        """Build the instance of a row. It may have more values than there are columns."""
        instance: Any = self._model.__new__(self._model)
        values = instance.__dict__
        values.update(zip(self._names, row, strict=False))
        for name, empty in self._payloads:
            text = values[name]
            values[name] = empty() if text is None else loaded(text)
        for _, name, convert, column in self._converters:
            values[name] = convert(values[name], column, self._connection)
        values["_state"] = state = ModelState()
        state.adding, state.db = False, self._connection.alias
        return instance

    def convert(self, rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        """Return the values of the fields in each row; JSON stays text."""
        if not self._converters:
            return rows
        found = [list(row) for row in rows]
        for position, _, convert, column in self._converters:
            for values in found:
                values[position] = convert(values[position], column, self._connection)
        return found


class UnreadRows:
    """Rows from which a reader builds the instances when they are iterated over."""

    def __init__(self, reader: RowReader, rows: Sequence[Sequence[Any]]) -> None:
        self._reader = reader
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Any]:
        return map(self._reader.read, self._rows)


class SharedJSON(dict[str, Any]):
    """A JSON object that many rows share and nobody changes, so that its text is made once. Plain: a dict."""

    @cached_property
    def text(self) -> str:
        """The object as JSON."""
        return json.dumps(self)


def unsaved(model: type[models.Model], **values: Any) -> Any:
    """Build an unsaved row. Plain: ``model(**values)``, which takes ten times as long.

    Fields with a mutable default must be among the ``values``.
    """
    row: Any = model.__new__(model)
    row.__dict__.update(_defaults(model), _state=ModelState(), **values)
    return row


@cache
def _defaults(model: type[models.Model]) -> dict[str, Any]:
    return {field.attname: field.get_default() for field in model._meta.concrete_fields}


_decoder = json.JSONDecoder()


def loaded(text: str) -> Any:
    """Return the value of a JSON column; text that is no JSON as it is."""
    try:
        value, end = _decoder.raw_decode(text)  # for a short text, `json.loads` takes twice the time
        if end == len(text):
            return value
    except (ValueError, RecursionError):
        pass
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # written manually: `PayloadField.from_db_value` returns it as it is, too
        return text


def _null() -> None:
    return None
