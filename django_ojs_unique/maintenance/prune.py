"""Retention: delete jobs that finished long ago, but never a row that keeps its unique window open (OJS unique jobs).

A row keeps its window open while its own policy counts the state it finished in and the period has not ended. Such a
row loses its payload only; the fields that decide about duplicates, and the result, stay until the window ends.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import (
    DO_NOTHING,
    PROTECT,
    RESTRICT,
    Exists,
    OuterRef,
    ProtectedError,
    Q,
    QuerySet,
    RestrictedError,
)

from .. import lifecycle
from ..conf import settings
from ..db import holding
from ..db.locking import any_of, unlocked
from ..db.transactions import starting_over
from ..limits.prune import prune_limits
from ..models import WorkerProcess
from ..ojs.states import KINDS
from .timers import BATCH

logger = logging.getLogger("django_ojs_unique.worker")

ENDED = "ended"
"""The name in `due` for rows that were kept without their payload and whose windows have ended since."""

SILENT_FOR = timedelta(days=1)
"""How long the row of a dead worker is kept after its last heartbeat."""

_PAYLOAD: dict[str, Any] = {"args": {}, "meta": {}, "tags": [], "extra": {}, "steps": [], "errors": []}
_REFUSALS = (ProtectedError, RestrictedError, IntegrityError)


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many rows were deleted, and how many lost only their payload because they keep a window open."""

    deleted: int = 0
    payload_pruned: int = 0

    def __add__(self, other: Pruned) -> Pruned:
        return Pruned(self.deleted + other.deleted, self.payload_pruned + other.payload_pruned)

    def __bool__(self) -> bool:
        return self != Pruned()


def prune(
    jobs: QuerySet[Any], now: datetime, batch: int = BATCH, retention: Mapping[str, timedelta | None] | None = None
) -> Pruned:
    """Prune at most ``batch`` rows of each kind, the oldest first, and what silent workers and limits have left.

    ``retention``: by default the setting. Locked rows are skipped, so any number of workers may prune at once. A zero
    result means that nothing is left to prune, or that other workers have locked it.
    """
    pruned = Pruned()
    for rows in due(jobs, now, retention).values():
        if any_of(rows):
            pruned += starting_over(jobs.db, partial(_prune, jobs, rows, now, batch))
    silent = WorkerProcess.objects.using(jobs.db).filter(heartbeat_at__lt=now - SILENT_FOR)
    starting_over(jobs.db, silent.delete)
    prune_limits(jobs, now)
    return pruned


def preview(rows: QuerySet[Any], now: datetime) -> Pruned:
    """Count what pruning all of ``rows``, one entry of `due`, would delete or strip of its payload."""
    total = payload_pruned = 0
    for job in rows.only(*_JUDGED).iterator():
        total += 1
        payload_pruned += keeps_a_window_open(job, now)
    return Pruned(total - payload_pruned, payload_pruned)


def due(
    jobs: QuerySet[Any], now: datetime, retention: Mapping[str, timedelta | None] | None = None
) -> dict[str, QuerySet[Any]]:
    """Select the jobs past their retention by kind, each the oldest first; the last entry is `ENDED`."""
    if retention is None:
        retention = settings.retention
    jobs = _unprotected(jobs).filter(awaited=None)
    # `in`, not `=`: for `= False` Django writes NOT payload_pruned, and SQLite and MariaDB use no index for that.
    selected = {
        kind: _of_kind(jobs, kind)
        .filter(payload_pruned__in=[False], finished_at__lte=now - period)
        .order_by("finished_at")
        for kind, period in retention.items()
        if period is not None
    }
    kinds = Q(pk__in=[])
    for kind in retention:
        state, dead_letter = KINDS[kind]
        kinds |= Q(state=state, dead_letter=dead_letter)
    ended = jobs.filter(kinds, payload_pruned__in=[True], finished_at__isnull=False, window_ends_at__lte=now)
    return {**selected, ENDED: ended.order_by("window_ends_at")}


def keeps_a_window_open(job: Any, now: datetime) -> bool:
    """Whether a finished job still counts as a duplicate for the policy that it was enqueued with.

    If the policy cannot be read, because it was stored manually, the job counts until its window ends.
    """
    if job.fingerprint is None or job.window_ends_at is None or now >= job.window_ends_at:
        return False
    states = job.unique.get("states") if isinstance(job.unique, dict) else None
    return not isinstance(states, list) or job.state in states


_JUDGED = (*holding.HOLDS, "unique", "window_ends_at")


def _of_kind(jobs: QuerySet[Any], kind: str) -> QuerySet[Any]:
    state, dead_letter = KINDS[kind]
    return jobs.filter(state=state, dead_letter__in=[dead_letter])


def _unprotected(jobs: QuerySet[Any]) -> QuerySet[Any]:
    """Leave out jobs that another row protects from deletion by its foreign key."""
    for field in jobs.model._meta.get_fields(include_hidden=True):
        key = getattr(field, "field", None)
        if not field.auto_created or key is None or not (field.one_to_many or field.one_to_one):
            continue
        if field.on_delete in (PROTECT, RESTRICT) or (field.on_delete is DO_NOTHING and key.db_constraint):
            referring = field.related_model._base_manager.using(jobs.db)
            jobs = jobs.filter(~Exists(referring.filter(**{key.attname: OuterRef(key.target_field.attname)})))
    return jobs


def _prune(jobs: QuerySet[Any], rows: QuerySet[Any], now: datetime, batch: int) -> Pruned:
    found: list[Any] = []
    try:
        with transaction.atomic(using=jobs.db):
            found = list(unlocked(rows).only(*_JUDGED)[:batch])
            kept = {job.pk for job in found if keeps_a_window_open(job, now)}
            gone = {job.pk for job in found} - kept
            if gone:
                QuerySet.delete(jobs.filter(pk__in=gone))
                holding.hold_for_others(jobs, holding.held_for_others(job for job in found if job.pk in gone))
            if kept:
                lifecycle.write(jobs.filter(pk__in=kept), payload_pruned=True, **_PAYLOAD)
    except _REFUSALS as error:
        if len(found) == 1:
            logger.warning("Job %s cannot be pruned, as something refers to it: %s", found[0].pk, error)
            return Pruned()
        keys = [job.pk for job in found]
        halves = keys[: len(keys) // 2], keys[len(keys) // 2 :]
        return sum((_prune(jobs, rows.filter(pk__in=half), now, batch) for half in halves), Pruned())
    return Pruned(len(gone), len(kept))
