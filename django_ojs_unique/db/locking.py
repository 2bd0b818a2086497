"""Lock rows without waiting for other transactions, and tell cheaply whether rows exist."""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.db.models import QuerySet

from .dialect import Dialect
from .dialects import dialect_of


def any_of(rows: QuerySet[Any]) -> bool:
    """Tell whether there are such rows, using the index of their order.

    `exists` would drop the order, and PostgreSQL may then read the whole table to find one row.
    """
    return rows.values_list("pk", flat=True).first() is not None


def unlocked(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Lock rows as they are read, and skip those that another transaction has locked; needs a transaction.

    On SQLite this locks the whole database.
    """
    dialect_of(rows).take_write_lock()
    return rows.select_for_update(skip_locked=connections[rows.db].features.has_select_for_update_skip_locked)


def skipping_locked(dialect: Dialect) -> str:
    """Return the end of a SELECT that does the same as `unlocked`; needs a transaction."""
    dialect.take_write_lock()
    features, ops = dialect.connection.features, dialect.connection.ops
    if not features.has_select_for_update:
        return ""
    return str(ops.for_update_sql(skip_locked=features.has_select_for_update_skip_locked))
