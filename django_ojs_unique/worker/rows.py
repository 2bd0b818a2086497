"""Rows: read them under locks without waiting for anybody, and tell cheaply whether there are any."""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.db.models import QuerySet

from ..transactions import take_write_lock


def any_of(rows: QuerySet[Any]) -> bool:
    """Tell whether there are such rows, by the index of their order.

    `exists` would drop the order, and PostgreSQL may then read the whole table to find one row.
    """
    return rows.values_list("pk", flat=True).first() is not None


def unlocked(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Lock rows as they are read, passing over those that somebody else has locked; inside a transaction.

    On SQLite the whole database is locked at once.
    """
    connection = connections[rows.db]
    take_write_lock(connection, rows.model)
    return rows.select_for_update(skip_locked=connection.features.has_select_for_update_skip_locked)
