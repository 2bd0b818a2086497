"""What a plan and an enqueue know of a job's row: the model is in a higher layer."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from .policy import UniquePolicy


class JobRow(Protocol):
    """A new or stored job, as far as an enqueue reads and writes it; `models.Job` has all of these fields."""

    _state: Any
    pk: Any
    id: UUID
    type: str
    queue: str
    args: Any
    meta: Any
    limits: Any
    fair_partition: str | None
    priority: int
    state: str
    key: str | None
    attempt: int
    fingerprint: str
    """None for a job without a policy or a key; no code that uses this protocol reads it then."""
    unique_states: frozenset[Any]
    revision: int
    created_at: datetime
    enqueued_at: datetime | None
    scheduled_at: datetime | None
    expires_at: datetime | None
    started_at: datetime | None
    run_at: datetime | None
    finished_at: datetime | None
    replaced_by_id: UUID | None
    lease_token: UUID | None
    lease_expires_at: datetime | None
    unconfirmed: bool | None
    workflow_id: UUID | None
    awaited: bool | None
    workflow_only: bool | None
    errors: list[dict[str, Any]]

    @property
    def holds_unique_key(self) -> bool: ...
    @property
    def unique_policy(self) -> UniquePolicy | None: ...
