"""The errors of an enqueue: an id in use, a missing migration. `submit` and `entry` raise `DuplicateJob`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from django.db import DatabaseError
from django.db.models import QuerySet

from ..db.schema import find_cause
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


def name_what_is_missing(jobs: QuerySet[Any], error: DatabaseError) -> None:
    """Raise an error that says what to run, if the database lacks a migration, a table or a column."""
    if cause := find_cause(error, jobs.db):
        raise NotMigrated(cause) from error


@contextmanager
def naming_what_is_missing(jobs: QuerySet[Any]) -> Iterator[None]:
    """Call `name_what_is_missing` for the errors of a block."""
    try:
        yield
    except DatabaseError as error:
        name_what_is_missing(jobs, error)
        raise
