"""Stopped runs: a run whose job is cancelled or replaced goes on until its worker lets go of it, or its lease ends.

Until then it counts for its limits. The model is in a higher layer.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID

from django.apps import apps
from django.core.exceptions import EmptyResultSet
from django.db import connections
from django.db.models import Expression, QuerySet

from ..db.transactions import starting_over
from ..ojs.states import JobState

_COPIED = ("queue", "blocked_by", "worker_id", "started_at", "lease_token", "lease_expires_at")


def keep(jobs: QuerySet[Any]) -> None:
    """Keep the runs of those jobs that run, as the jobs are about to be cancelled. Their rows are locked."""
    running = jobs.order_by().filter(state=JobState.ACTIVE, finished_at=None, lease_token__isnull=False)
    table = _runs(jobs.db).model._meta.db_table
    with suppress(EmptyResultSet), connections[jobs.db].cursor() as cursor:
        sql, parameters = running.values_list("pk", *_COPIED).query.get_compiler(jobs.db).as_sql()
        cursor.execute(f"INSERT INTO {table} (job_id, {', '.join(_COPIED)}) {sql}", parameters)


def let_go(using: str, leases: Iterable[tuple[UUID, UUID | None]]) -> None:
    """Forget the runs under these leases, the ids of jobs with their tokens: their workers have let go of them."""
    if found := _under(using, leases):
        starting_over(using, partial(_runs(using).filter(pk__in=found).delete))


def extend(using: str, leases: Iterable[tuple[UUID, UUID | None]], until: Expression) -> None:
    """Extend these leases of stopped runs; none ends earlier than before."""
    if found := _under(using, leases):
        _runs(using).filter(pk__in=found, lease_expires_at__lt=until).update(lease_expires_at=until)


def _under(using: str, leases: Iterable[tuple[UUID, UUID | None]]) -> list[int]:
    """Return the keys of the runs under some leases. It locks none, as a cancellation may hold others for long."""
    wanted = set(leases)
    rows = _runs(using).filter(job_id__in={id for id, _ in wanted}).values_list("pk", "job_id", "lease_token")
    return [pk for pk, *lease in rows if tuple(lease) in wanted]


def _runs(using: str) -> Any:
    model: Any = apps.get_model("django_ojs_unique", "StoppedRun")
    return model._default_manager.using(using)
