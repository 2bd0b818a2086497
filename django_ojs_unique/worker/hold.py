"""Hold: what a worker may do to the jobs that it holds, each by its key and the token of its lease."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet

from .. import lifecycle
from ..lifecycle import DatabaseNow
from ..ojs.states import JobState
from .rows import unlocked

Holding = tuple[UUID, UUID | None]
"""A job's key and the token under which it is held."""


def still_held(jobs: QuerySet[Any], held: Iterable[Any]) -> set[Holding]:
    """Return those of the jobs that their tokens still hold, reading their rows in the order of their keys."""
    holdings = {(job.pk, job.lease_token) for job in held}
    keys, tokens = {pk for pk, _ in holdings}, {token for _, token in holdings}
    rows = jobs.filter(pk__in=keys, lease_token__in=tokens, state=JobState.ACTIVE).order_by("pk")
    return holdings & set(rows.values_list("pk", "lease_token"))


def lost(jobs: QuerySet[Any], held: Iterable[Any]) -> set[Holding]:
    """Return those jobs that a worker no longer holds: cancelled, replaced, or taken back."""
    held = list(held)
    return {(job.pk, job.lease_token) for job in held} - still_held(jobs, held)


def extend(jobs: QuerySet[Any], held: Iterable[Any], lease: timedelta) -> set[Holding]:
    """Extend the leases of the jobs that a worker holds, in one statement; return those it still held.

    A row that a transaction is replacing is passed over: to wait for it would let the other leases run out.
    """
    with transaction.atomic(using=jobs.db):
        kept = still_held(unlocked(jobs), held)
        jobs.filter(pk__in=[pk for pk, _ in kept]).update(lease_expires_at=DatabaseNow() + lease)
    return kept


def give_back(jobs: QuerySet[Any], held: Sequence[Any]) -> tuple[int, set[Holding]]:
    """Make claimed jobs available again; the attempt does not count.

    Return how many, and those that are still held because somebody has locked their rows.
    """
    by_token: dict[UUID, list[UUID]] = defaultdict(list)
    for job in held:
        by_token[job.lease_token].append(job.pk)
    released = 0
    for token, keys in by_token.items():
        with transaction.atomic(using=jobs.db):
            free = list(unlocked(jobs.filter(pk__in=keys, lease_token=token)).values_list("pk", flat=True))
            released += lifecycle.release(jobs.filter(pk__in=free), token=token)
    if released == len(held):
        return released, set()
    return released, still_held(jobs, held)


def store_progress(jobs: QuerySet[Any], said: Iterable[tuple[Any, tuple[float, str]]]) -> None:
    """Store what running handlers last said about their progress."""
    with transaction.atomic(using=jobs.db):
        for job, (fraction, note) in said:
            row = unlocked(jobs.filter(pk=job.pk, lease_token=job.lease_token, state=JobState.ACTIVE))
            if row.only("pk").first() is not None:
                jobs.filter(pk=job.pk).update(progress=fraction, progress_note=note)
