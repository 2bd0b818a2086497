"""The index for searches in the args, which a project may add: every enqueue and every update of a job pays for it."""

from __future__ import annotations

from django.db import NotSupportedError, models
from django.db.backends.base.base import BaseDatabaseWrapper

ARGS_INDEX = "ojs_job_args"


def can_index_args(connection: BaseDatabaseWrapper) -> bool:
    """Whether the database has such an index: one for all members of a JSON column."""
    return connection.vendor == "postgresql"


def has_args_index(model: type[models.Model], connection: BaseDatabaseWrapper) -> bool:
    """Whether the table has the index, and it is complete. One statement on PostgreSQL, none elsewhere."""
    if not can_index_args(connection):
        return False
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT 1 FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid"
            " WHERE indrelid = to_regclass(%s) AND relname = %s AND indisvalid",
            [connection.ops.quote_name(model._meta.db_table), ARGS_INDEX],
        )
        return cursor.fetchone() is not None


def args_index_sql(model: type[models.Model], connection: BaseDatabaseWrapper, *, drop: bool = False) -> list[str]:
    """Return the statements that create the index, or drop it; what an interrupted run has left is replaced.

    They lock nobody out, and must not run in a transaction. Raises NotSupportedError.
    """
    if not can_index_args(connection) and not drop:
        raise NotSupportedError(f"{connection.display_name} has no index for all members of a JSON column.")
    statements = [f"DROP INDEX CONCURRENTLY IF EXISTS {ARGS_INDEX}"]
    if not drop:
        table = connection.ops.quote_name(model._meta.db_table)
        statements.append(f"CREATE INDEX CONCURRENTLY {ARGS_INDEX} ON {table} USING gin (args jsonb_path_ops)")
    return statements
