"""The character sets of MariaDB's columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection

from django_ojs_unique.models import Job


@contextmanager
def without_emoji(*columns: str) -> Iterator[None]:
    """Let columns of the jobs have the character set utf8mb3 in the block."""
    _convert(columns, "utf8mb3")
    try:
        yield
    finally:
        _convert(columns, "utf8mb4")


def _convert(columns: tuple[str, ...], characters: str) -> None:
    table = Job._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"SHOW CREATE TABLE {table}")
        _, created = cursor.fetchone()
        for line in (line.strip(" ,") for line in created.splitlines()):
            name, kind, *rest = re.sub(r" (CHARACTER SET|COLLATE) \w+", "", line).split()
            if name.strip("`") in columns:
                cursor.execute(f"ALTER TABLE {table} MODIFY {name} {kind} CHARACTER SET {characters} {' '.join(rest)}")
