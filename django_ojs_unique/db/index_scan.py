"""Walk along an index from value to value (a loose index scan): one look-up for each, however many rows have it."""

from __future__ import annotations


def walk(name: str, column: str, rows: str, most: int | str, *, after: str = "") -> str:
    """Return the SQL of a recursive table ``name`` that lists up to ``most`` values of a column, in order.

    ``rows``: a table and a condition for its rows, which an index on the column has, too. ``after``: a condition for
    the first value. The last row may be NULL. Parameters come in the order: rows, after, rows, most.
    """
    some = f"SELECT {column} FROM {rows}"
    return (
        f"{name} ({column}, number) AS (SELECT ({some}{after} ORDER BY {column} LIMIT 1), 1 UNION ALL"
        f" SELECT ({some} AND {column} > {name}.{column} ORDER BY {column} LIMIT 1), number + 1 FROM {name}"
        f" WHERE {column} IS NOT NULL AND number < {most})"
    )
