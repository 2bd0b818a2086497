"""Write fields of rows that differ from row to row."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from django.db import connections
from django.db.models import QuerySet

from ..ojs.states import JobState


def update_each(
    jobs: QuerySet[Any], rows: Sequence[Any], fields: Collection[str], sources: Collection[JobState]
) -> int:
    """Write some fields of rows whose state is in ``sources``: a short UPDATE for each, all sent together."""
    if not rows:
        return 0
    connection, options = connections[jobs.db], jobs.model._meta
    quote, columns = connection.ops.quote_name, [options.get_field(name) for name in fields]
    assignments = ", ".join(f"{quote(column.column)} = %s" for column in columns)
    states = ", ".join(f"'{state}'" for state in sorted(sources))
    values = [
        [column.get_db_prep_save(getattr(row, column.attname), connection) for column in (*columns, options.pk)]
        for row in rows
    ]
    with connection.cursor() as cursor:
        cursor.executemany(
            f"UPDATE {quote(options.db_table)} SET {assignments} WHERE id = %s AND state IN ({states})", values
        )
        return int(cursor.rowcount)
