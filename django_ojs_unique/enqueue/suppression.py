"""Suppressed enqueues: which stored jobs an enqueue met, and the record of it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.apps import apps
from django.db import connections

from ..conf import settings
from ..db.dialect import Dialect, LookUp
from ..db.dialects import dialect_on
from ..unique.conflict import Action, Verdict
from ..unique.policy import OnConflict, UniquePolicy
from .new_job import NewJob
from .row import JobRow

_COPIED = ("created_at", "fingerprint", "type", "queue", "args", "meta")


class ExistingJob(NamedTuple):
    """A stored job as it was when an enqueue met it: a later enqueue of the same batch may change it."""

    pk: UUID
    state: str


class Suppression(NamedTuple):
    """One enqueue that met stored jobs: the enqueue, its strategy, the stored jobs, and the outcome."""

    new_job: NewJob
    on_conflict: str
    existing: tuple[ExistingJob, ...]
    outcome: str


def by_policy(new_job: NewJob, policy: UniquePolicy, verdict: Verdict[JobRow]) -> Suppression | None:
    """Return what to record about a verdict; None when it suppressed nothing."""
    if (outcome := outcome_of(verdict)) is None:
        return None
    met = verdict.cancel or (verdict.existing,)
    existing = tuple(ExistingJob(row.pk, row.state) for row in met if row is not None)
    return Suppression(new_job, policy.on_conflict, existing, outcome)


def by_key(new_job: NewJob, holder: JobRow) -> Suppression:
    """Return what to record about an enqueue that returned the holder of its key."""
    assert new_job.key is not None
    return Suppression(new_job, new_job.key.mode, (ExistingJob(holder.pk, holder.state),), "deduplicated")


def outcome_of(verdict: Verdict[JobRow]) -> str | None:
    """Return ``rejected``, ``deduplicated`` or ``replaced``; None when the verdict suppressed nothing."""
    match verdict.action:
        case Action.REJECT:
            return "rejected"
        case Action.IGNORE:
            return "deduplicated"
    return "replaced" if verdict.cancel else None


def record(using: str, suppressions: Iterable[Suppression | None]) -> None:
    """Store which enqueues met which stored jobs, unless ``OJS_UNIQUE["RECORD_SUPPRESSED"]`` is off."""
    if not settings.record_suppressed:
        return
    rows = [
        {
            **_about(new_job, on_conflict, outcome),
            "existing_job_id": existing.pk,
            "existing_state": existing.state,
            "job_id": new_job.values["id"] if outcome == "replaced" else None,
        }
        for new_job, on_conflict, met, outcome in filter(None, suppressions)
        for existing in met
    ]
    if rows:
        _records(using).insert_rows(rows)


def find_and_record(
    dialect: Dialect, new_job: NewJob, policy: UniquePolicy, created_after: datetime | None
) -> tuple[Any | None, bool]:
    """Find the duplicate that a policy may count; return it, and whether the enqueue is recorded already."""
    wanted = LookUp(new_job.values["fingerprint"], policy, created_after, new_job.full_row)
    if not settings.record_suppressed or not dialect.records_at_once(policy):
        return dialect.find_duplicate(wanted), False
    record = _about(
        new_job, policy.on_conflict, "rejected" if policy.on_conflict is OnConflict.REJECT else "deduplicated"
    )
    return dialect.find_and_record(wanted, _records(dialect.connection.alias), record), True


def _about(new_job: NewJob, on_conflict: str, outcome: str) -> dict[str, Any]:
    copied = {name: new_job.values[name] for name in _COPIED}
    return {**copied, "outcome": outcome, "on_conflict": on_conflict}


def _records(using: str) -> Dialect:
    return dialect_on(apps.get_model("django_ojs_unique", "SuppressedEnqueue"), connections[using])
