"""Why jobs failed: the newest failed jobs of a span, and those that wait for a retry, by type and last error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connections
from django.db.models import Q, QuerySet

from ..db.clock import moment_of
from ..models import Job
from ..ojs.states import JobState
from .list_columns import error_message, error_type

FAILED = Q(state=JobState.DISCARDED, started_at__isnull=False)
"""The condition for jobs that failed for good: discarded after a run. One that expired has never run."""

MOST_FAILED = 500
"""How many of the newest failed jobs, and how many of those that wait for a retry, are looked at."""

MOST_CAUSES = 20


@dataclass(slots=True)
class Cause:
    """Jobs of one ``type`` whose last ``error`` is of one type, empty if none was recorded.

    ``failed`` and ``retrying`` count them. ``newest`` is a failed one, or one that waits for a retry if none failed;
    ``at``: when it failed for good; ``message``: the beginning of what its last error said.
    """

    type: str
    error: str
    newest: UUID
    message: str
    at: datetime | None
    failed: int = 0
    retrying: int = 0


@dataclass(frozen=True, slots=True)
class Failures:
    """The most frequent causes, at most `MOST_CAUSES`. ``more``: how many are left out.

    ``failed_cut`` and ``retrying_cut``: whether there are more than the `MOST_FAILED` jobs that were looked at.
    """

    causes: Sequence[Cause]
    more: int
    failed_cut: bool
    retrying_cut: bool


def failures(using: str, since: datetime) -> Failures:
    """Group the jobs that failed for good since a moment, and those that wait for a retry. Two statements."""
    jobs = Job.objects.using(using)
    failed = _newest_failed(jobs, since)
    waiting = jobs.filter(state=JobState.RETRYABLE, finished_at__isnull=True).order_by()
    retrying = list(_with_errors(waiting)[: MOST_FAILED + 1])
    causes: dict[tuple[str, str], Cause] = {}
    for row in failed[:MOST_FAILED]:
        _cause_of(row, causes, moment_of(row["finished_at"], connections[using])).failed += 1
    for row in retrying[:MOST_FAILED]:
        _cause_of(row, causes).retrying += 1
    ordered = sorted(causes.values(), key=lambda cause: (-cause.failed - cause.retrying, cause.type, cause.error))
    left_out = max(0, len(ordered) - MOST_CAUSES)
    return Failures(ordered[:MOST_CAUSES], left_out, len(failed) > MOST_FAILED, len(retrying) > MOST_FAILED)


def _cause_of(row: dict[str, Any], causes: dict[tuple[str, str], Cause], at: datetime | None = None) -> Cause:
    type, error = row["type"], row["error"] or ""
    return causes.setdefault((type, error), Cause(type, error, UUID(str(row["id"])), row["message"] or "", at))


def _newest_failed(jobs: QuerySet[Job], since: datetime) -> list[dict[str, Any]]:
    """Return what `_with_errors` says of the newest failed jobs, one more than counted: four searches of one index."""
    selects: list[str] = []
    parameters: list[Any] = []
    for pruned in (False, True):
        for dead in (False, True):
            failed = jobs.filter(FAILED, payload_pruned=pruned, dead_letter=dead, finished_at__gte=since)
            newest = _with_errors(failed.order_by("-finished_at"))[: MOST_FAILED + 1]
            sql, values = newest.query.get_compiler(jobs.db).as_sql()
            selects.append(f"SELECT newest.* FROM ({sql}) newest")
            parameters += values
    with connections[jobs.db].cursor() as cursor:
        cursor.execute(f"{' UNION ALL '.join(selects)} ORDER BY finished_at DESC LIMIT {MOST_FAILED + 1}", parameters)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _with_errors(jobs: Any) -> Any:
    """Select what a cause needs of jobs, as dicts."""
    found = jobs.annotate(error=error_type(), message=error_message())
    return found.values("id", "type", "error", "message", "finished_at")
