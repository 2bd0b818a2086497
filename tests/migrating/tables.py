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


def rows(sql: str, *values: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return cursor.fetchall()
