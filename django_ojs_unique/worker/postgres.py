"""PostgreSQL: claim a batch, and complete a batch, by one statement each.

What they do is what `lifecycle.claim` and `lifecycle.complete` do to each row; a test compares the rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any
from uuid import UUID

from django.db import connections
from django.db.models import Model, QuerySet
from django.db.models.base import ModelState

from ..fields import PayloadField
from ..ojs.states import JobState
from .lease import Lease

_CLAIM = """
UPDATE {table} AS job SET
  state = 'active', guarded_states = {guard_if_active}, attempt = job.attempt + 1, started_at = %(now)s,
  worker_id = %(worker_id)s, lease_token = %(token)s, progress = NULL, progress_note = '',
  lease_expires_at = least(
    statement_timestamp()
      + coalesce(%(forced_ms)s::bigint, job.visibility_timeout_ms, %(lease_ms)s) * interval '1 millisecond',
    CASE WHEN %(timed)s THEN %(now)s + job.timeout_ms * interval '1 millisecond' END
  )
FROM (
  SELECT next.id FROM unnest(%(queues)s::text[], %(rooms)s::int[]) AS queue (name, room) CROSS JOIN LATERAL (
    SELECT id, priority, enqueued_at FROM {table}
    WHERE queue = queue.name AND state = 'available' AND (%(types)s::text[] IS NULL OR type = ANY(%(types)s))
      AND (expires_at IS NULL OR expires_at > %(now)s OR started_at IS NOT NULL)
    ORDER BY priority DESC, enqueued_at, id LIMIT queue.room FOR UPDATE SKIP LOCKED
  ) AS next ORDER BY next.priority DESC, next.enqueued_at, next.id LIMIT %(limit)s
) AS chosen WHERE job.id = chosen.id RETURNING {columns}
"""
_COMPLETE = """
UPDATE {table} AS job SET
  state = 'completed', guarded_states = {guard_if_completed}, finished_at = run.at, result = run.result,
  skipped = run.skipped, lease_token = NULL, lease_expires_at = NULL
FROM (
  SELECT job.id, run.at, run.result, run.skipped
  FROM jsonb_to_recordset(%(runs)s) AS run (id uuid, token uuid, at timestamptz, result jsonb, skipped text)
  JOIN {table} AS job ON job.id = run.id AND job.lease_token = run.token AND job.state = 'active'
  FOR UPDATE OF job SKIP LOCKED
) AS run WHERE job.id = run.id RETURNING job.id
"""


def claim(
    jobs: QuerySet[Any],
    *,
    rooms: Mapping[str, int],
    types: Sequence[str] | None,
    limit: int,
    worker_id: str | None,
    token: UUID,
    lease: Lease,
    now: datetime,
    fields: tuple[str, ...],
) -> list[Any]:
    """Claim up to ``limit`` jobs, at most ``rooms[queue]`` of each queue; return them with ``fields``, in no order."""
    model: type[Model] = jobs.model
    reader, length = _reader(model, fields, jobs.db), lease.length // timedelta(milliseconds=1)
    with connections[jobs.db].cursor() as cursor:
        cursor.execute(
            reader.claim,
            {
                "now": now,
                "worker_id": worker_id,
                "token": token,
                "lease_ms": length,
                "forced_ms": length if lease.forced else None,
                "queues": list(rooms),
                "rooms": list(rooms.values()),
                "timed": lease.timed,
                "types": None if types is None else list(types),
                "limit": limit,
            },
        )
        return [reader.read(row) for row in cursor.fetchall()]


def complete(jobs: QuerySet[Any], runs: Sequence[Any]) -> set[UUID]:
    """Complete the jobs of those runs that are still held, passing over rows that are locked; return their keys."""
    records = [
        {
            "id": str(run.job.pk),
            "token": str(run.job.lease_token),
            "at": run.at.isoformat(),
            "result": run.result,
            "skipped": run.skipped,
        }
        for run in runs
    ]
    model: type[Model] = jobs.model
    with connections[jobs.db].cursor() as cursor:
        cursor.execute(_statement(_COMPLETE, model), {"runs": json.dumps(records)})
        return {row[0] for row in cursor.fetchall()}


class _Reader:
    """Builds model instances from the rows that the claim returns, as cheaply as unpickling does."""

    def __init__(self, model: type[Model], fields: tuple[str, ...], using: str) -> None:
        chosen = [field for field in model._meta.concrete_fields if field.attname in fields]
        self._model, self._using = model, using
        self._names = [field.attname for field in chosen]
        self._payloads = [field.attname for field in chosen if isinstance(field, PayloadField)]
        columns = ", ".join(f'job."{field.column}"' for field in chosen)
        self.claim = _statement(_CLAIM, model).replace("{columns}", columns)

    def read(self, row: Sequence[Any]) -> Any:
        job = self._model.__new__(self._model)
        values = job.__dict__
        values.update(zip(self._names, row, strict=True))
        for name in self._payloads:
            text = values[name]
            values[name] = _EMPTY[text]() if text in _EMPTY else json.loads(text)
        job._state = ModelState()
        job._state.adding, job._state.db = False, self._using
        return job


_EMPTY: dict[str | None, Callable[[], Any]] = {"{}": dict, "[]": list, None: lambda: None}


@cache
def _reader(model: type[Model], fields: tuple[str, ...], using: str) -> _Reader:
    return _Reader(model, fields, using)


@cache
def _statement(text: str, model: type[Model]) -> str:
    def guard(state: JobState) -> str:
        return f"CASE WHEN job.guarded_states & {state.bit} = {state.bit} THEN job.guarded_states ELSE 0 END"

    return (
        text.replace("{table}", f'"{model._meta.db_table}"')
        .replace("{guard_if_active}", guard(JobState.ACTIVE))
        .replace("{guard_if_completed}", guard(JobState.COMPLETED))
    )
