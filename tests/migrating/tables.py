"""Other systems' tables, on PostgreSQL, where they live; the transaction of a test takes them away again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.db import connection

ON_POSTGRESQL = pytest.mark.skipif(connection.vendor != "postgresql", reason="this system keeps its jobs in PostgreSQL")


def create(system: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute((Path(__file__).parent / f"{system}.sql").read_text())


def insert(table: str, **columns: Any) -> Any:
    """Insert a row; return its id."""
    names, places = ", ".join(columns), ", ".join(["%s"] * len(columns))
    return rows(f"INSERT INTO {table} ({names}) VALUES ({places}) RETURNING id", *columns.values())[0][0]


def rows(sql: str, *values: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return cursor.fetchall()
