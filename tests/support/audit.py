"""What must hold over every row, and whether what a race answered could have been answered in some serial order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connections
from django.utils import timezone

from django_ojs_unique import DuplicateJob, UniquePolicy
from django_ojs_unique.models import Job
from django_ojs_unique.ojs.states import TERMINAL, JobState
from django_ojs_unique.unique.conflict import Action, judge


def audit(using: str = "default") -> list[Job]:
    """Check the invariants of every row of one database and return the rows."""
    rows = list(Job.objects.using(using).order_by("created_at", "id"))
    by_id = {row.pk: row for row in rows}
    holders = Counter(row.fingerprint for row in rows if row.state in row.unique_states)
    assert [fingerprint for fingerprint, count in holders.items() if count > 1] == []
    assert _fingerprints_with_two_unique_keys(using) == []
    for row in rows:
        assert row.state in set(JobState), row
        assert (row.finished_at is not None) == (row.state in TERMINAL), row
        assert not row.unique_states or row.fingerprint, row
        assert not row.unique_states or row.state in row.unique_states, "a unique key was left behind by a move"
        assert (row.lease_token is not None) == (row.state == JobState.ACTIVE), row
        assert (row.run_at is not None) == (row.state in (JobState.SCHEDULED, JobState.RETRYABLE)), row
        if row.replaced_by_id is not None:
            assert row.state == JobState.CANCELLED, row
            assert row.replaced_by_id in by_id, f"{row.pk} was replaced by a job that does not exist"
            assert by_id[row.replaced_by_id].fingerprint in (row.fingerprint, None), row
            assert not row.unique_states, row
    return rows


def _fingerprints_with_two_unique_keys(using: str) -> list[Any]:
    bits = " ".join(f"WHEN '{state}' THEN {state.bit}" for state in JobState)
    with connections[using].cursor() as cursor:
        cursor.execute(
            f"SELECT fingerprint FROM {Job._meta.db_table}"
            f" WHERE unique_states & (CASE state {bits} END) <> 0 GROUP BY fingerprint HAVING COUNT(*) > 1"
        )
        return list(cursor.fetchall())


@dataclass(frozen=True)
class Answer:
    """What one enqueue answered: created, replaced, deduplicated or duplicate (that is, rejected)."""

    outcome: str
    id: UUID
    replaced: frozenset[UUID] = frozenset()
    policy: UniquePolicy = field(default_factory=UniquePolicy)
    scheduled_at: datetime | None = None

    def __str__(self) -> str:
        policy = f"{self.policy.on_conflict} {'|'.join(self.policy.states)} {self.policy.period or ''}"
        return f"{policy}: {self.outcome} {self.id} {' '.join(f'-{old}' for old in self.replaced)}"

    @property
    def admitted(self) -> bool:
        return self.outcome in ("created", "replaced")


@dataclass(frozen=True)
class Claimed:
    """A worker took this job."""

    id: UUID


def ask(type: str, args: Any = None, *, unique: Any, using: str = "default", **options: Any) -> Answer:
    """Enqueue and say what became of it; anything but DuplicateJob is raised."""
    policy = UniquePolicy.parse(unique)
    scheduled_at = options.get("scheduled_at")
    try:
        result = Job.objects.using(using).enqueue(type, args, unique=policy, **options)
    except DuplicateJob as error:
        return Answer("duplicate", UUID(str(error.existing_job_id)), policy=policy, scheduled_at=scheduled_at)
    replaced = frozenset(row.pk for row in result.replaced)
    return Answer(str(result.outcome), result.job.pk, replaced, policy, scheduled_at)


@dataclass(frozen=True)
class _Row:
    id: UUID
    state: str
    created_at: datetime
    scheduled_at: datetime | None
    enqueued_at: datetime | None = None
    expires_at: datetime | None = None
    started_at: datetime | None = None


def assert_serial(operations: Sequence[Answer | Claimed], rows: Sequence[Job], before: Sequence[Job] = ()) -> None:
    """Assert that some order of the operations, one at a time, gives each the answer that it got.

    ``rows`` are all rows at the end; ``before`` those that were there at the start, with the states of then.
    """
    created_at = {row.pk: row.created_at for row in rows}
    start = frozenset(_Row(row.pk, row.state, row.created_at, row.scheduled_at) for row in before)
    seen: set[tuple[int, frozenset[_Row]]] = set()

    def possible(done: int, table: frozenset[_Row]) -> bool:
        if done == (1 << len(operations)) - 1:
            return True
        if (done, table) in seen:
            return False
        seen.add((done, table))
        return any(
            possible(done | 1 << index, after)
            for index, operation in enumerate(operations)
            if not done >> index & 1 and (after := _apply(operation, table, created_at)) is not None
        )

    shown = "\n".join(f"  {operation}" for operation in operations)
    assert possible(0, start), f"No serial order of these operations gives these answers:\n{shown}"


def _apply(
    operation: Answer | Claimed, table: frozenset[_Row], created_at: dict[UUID, datetime]
) -> frozenset[_Row] | None:
    """Return the table after one operation, or None when it would have answered otherwise."""
    if isinstance(operation, Claimed):
        claimed = next((row for row in table if row.id == operation.id and row.state == JobState.AVAILABLE), None)
        return claimed and table - {claimed} | {replace(claimed, state=JobState.ACTIVE)}
    verdict = judge(table, operation.policy, timezone.now(), replace_active=True)
    if verdict.action is not Action.ADMIT:
        expected = "duplicate" if verdict.action is Action.REJECT else "deduplicated"
        assert verdict.existing is not None
        return table if (operation.outcome, operation.id) == (expected, verdict.existing.id) else None
    if not operation.admitted or operation.replaced != {row.id for row in verdict.cancel}:
        return None
    cancelled = {replace(row, state=JobState.CANCELLED) for row in verdict.cancel}
    scheduled_at = verdict.inherited_schedule or operation.scheduled_at
    waits = scheduled_at is not None and scheduled_at > timezone.now() + timedelta(seconds=1)
    state = JobState.SCHEDULED if waits else JobState.AVAILABLE
    return table - set(verdict.cancel) | cancelled | {_Row(operation.id, state, created_at[operation.id], scheduled_at)}
