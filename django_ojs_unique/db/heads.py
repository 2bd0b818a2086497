"""The first rows at each of several gates: one index look-up for each, however many rows wait there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.db import connections
from django.db.models import QuerySet

from .dialects import dialect_of
from .rows import RowReader

GATES_AT_ONCE = 50


def first_of_each(
    rows: QuerySet[Any], gates: Sequence[str], count: int, order: Sequence[str], fields: Sequence[str]
) -> dict[str, list[Any]]:
    """Return the first ``count`` rows at each gate, with some ``fields``; ``gate`` must be one of them."""
    found: dict[str, list[Any]] = {}
    connection = connections[rows.db]
    reader = RowReader(rows.model, connection, fields)
    rows = rows.order_by(*order).values_list(*map(str, reader.columns))
    for sql, parameters in _statements(rows, gates, count) if gates else ():
        with connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            for row in map(reader.read, cursor.fetchall()):
                found.setdefault(row.gate, []).append(row)
    return found


def _statements(rows: Any, gates: Sequence[str], count: int) -> Iterator[tuple[str, list[Any]]]:
    if dialect_of(rows).has_lateral:
        sql, parameters = _sql(rows.extra(where=["gate = wanted.name"])[:count])
        yield (
            f"SELECT head.* FROM unnest(%s::text[]) AS wanted (name) CROSS JOIN LATERAL ({sql} OFFSET 0) AS head",
            [list(gates), *parameters],
        )
        return
    for start in range(0, len(gates), GATES_AT_ONCE):
        parts: list[str] = []
        parameters = []
        for number, gate in enumerate(gates[start : start + GATES_AT_ONCE]):
            sql, some = _sql(rows.filter(gate=gate)[:count])
            parts.append(f"SELECT * FROM ({sql}) AS h{number}")
            parameters += some
        yield " UNION ALL ".join(parts), parameters


def _sql(rows: Any) -> tuple[str, list[Any]]:
    sql, parameters = rows.query.get_compiler(rows.db).as_sql()
    return sql, list(parameters)
