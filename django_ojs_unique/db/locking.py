"""Lock rows without waiting for other transactions, and tell cheaply whether rows exist."""

from __future__ import annotations

from itertools import chain
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


def firsts(*selections: QuerySet[Any]) -> tuple[list[Any], int]:
    """Return the first value of each selection, or None if it is empty, and how many blocks that cost: one statement.

    Each is an ordered ``values_list`` of one field, as for `any_of`; they are on one database. The cost is 0 where the
    database does not tell it.
    """
    compilers = [rows[:1].query.get_compiler(rows.db) for rows in selections]
    parts, parameters = zip(*(compiler.as_sql() for compiler in compilers), strict=True)
    dialect = dialect_of(selections[0])
    blocks = dialect.blocks_read()
    with dialect.connection.cursor() as cursor:
        columns = [blocks, *(f"({sql})" for sql in parts), blocks]  # they are read in this order
        cursor.execute(f"SELECT {', '.join(columns)}", [*chain.from_iterable(parameters)])
        before, *found, after = cursor.fetchone()
    values = []
    for compiler, value in zip(compilers, found, strict=True):
        converters = compiler.get_converters([compiler.select[0][0]])
        ((converted,),) = compiler.apply_converters([[value]], converters)
        values.append(converted)
    return values, after - before


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
