"""Choose the dialect for a database; those of other vendors are not imported."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet

from .dialect import Dialect

_KEPT = "_ojs_dialects"
_DIALECTS = {"mysql": "MySQL", "postgresql": "PostgreSQL", "sqlite": "SQLite"}
"""By vendor, whose name the module has: `.mysql.MySQL`, `.postgresql.PostgreSQL`, `.sqlite.SQLite`."""


def dialect_of(rows: QuerySet[Any]) -> Dialect:
    """Return the dialect for the table of a queryset, on its database."""
    return dialect_on(rows.model, connections[rows.db])


def dialect_on(model: type[models.Model], connection: BaseDatabaseWrapper) -> Dialect:
    """Return the dialect for a model's table on a connection, which keeps it."""
    kept: dict[type[models.Model], Dialect] | None = getattr(connection, _KEPT, None)
    if kept is None:
        kept = {}
        setattr(connection, _KEPT, kept)
    if (dialect := kept.get(model)) is None:
        dialect = kept[model] = kind_of(connection)(model, connection)
    return dialect


def kind_of(connection: BaseDatabaseWrapper) -> type[Dialect]:
    """Return the dialect class for the database of a connection."""
    vendor = connection.vendor
    if vendor not in _DIALECTS:
        return Dialect
    kind: type[Dialect] = getattr(import_module(f"{__package__}.{vendor}"), _DIALECTS[vendor])
    return kind
