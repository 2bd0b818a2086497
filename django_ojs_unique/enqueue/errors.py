"""The errors of an enqueue: an id in use, a missing table. `submit` and `entry` raise `DuplicateJob`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from django.db import DatabaseError, connections
from django.db.models import QuerySet

from ..exceptions import JobIdTaken, NotMigrated
from ..unique.row import JobRow


def ids_in_use(jobs: QuerySet[Any], ids: Collection[UUID]) -> set[UUID]:
    """Return which of these ids stored jobs have, also jobs that the snapshot hides. Call it in a transaction."""
    return set(jobs.filter(pk__in=ids).order_by("pk").select_for_update().values_list("pk", flat=True))


def id_taken(job: JobRow) -> JobIdTaken:
    """Return the error about an id that is in use."""
    return JobIdTaken(
        f"id: a job with the id {job.pk} already exists. Leave the id out, or make a new one.",
        details={"field": "id", "existing_job_id": str(job.pk)},
    )


def name_missing_table(jobs: QuerySet[Any], error: DatabaseError) -> None:
    """Raise an error that says what to run, if the database's error is about a missing table."""
    if _is_missing(jobs.model._meta.db_table, jobs.db):
        raise NotMigrated(
            f"The table {jobs.model._meta.db_table} does not exist in database {jobs.db!r}: run"
            f" `manage.py migrate --database {jobs.db}`."
        ) from error


@contextmanager
def naming_missing_tables(jobs: QuerySet[Any]) -> Iterator[None]:
    """Call `name_missing_table` for the errors of a block."""
    try:
        yield
    except DatabaseError as error:
        name_missing_table(jobs, error)
        raise


def _is_missing(table: str, using: str) -> bool:
    try:
        return table not in connections[using].introspection.table_names()
    except DatabaseError:  # the failed statement broke the transaction: no query is possible
        return False
