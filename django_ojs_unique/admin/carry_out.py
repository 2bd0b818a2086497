"""Carry out an action on many jobs, and record it in Django's log of what was done in the admin."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Any
from uuid import UUID

from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from ..models import Job
from ..ojs.states import UNSUCCESSFUL
from ..operations.bulk import change
from ..operations.operation import DELETE, ENQUEUE_AGAIN, RETRY, Operation
from ..operations.results import BulkResult
from .visibility import Visibility


def carry_out(
    request: HttpRequest,
    visibility: Visibility,
    ids: Collection[UUID],
    operation: Operation,
    finished: Collection[UUID] = (),
    **options: Any,
) -> tuple[BulkResult, dict[UUID, Job]]:
    """Do something to the jobs, and log what was done to each; return what became of them, and how they are now.

    A job of ``finished`` that has been retried meanwhile stays as it is. Of a job that is hidden from this user,
    nothing is told but that there is none, and none is replaced.
    """
    jobs = visibility.jobs
    if visibility.is_narrowed and operation in (RETRY, ENQUEUE_AGAIN):
        options["replaceable"] = jobs
    deleted = named(jobs, ids) if operation is DELETE else {}
    unchanged = ~Q(pk__in=finished) | Q(state__in=sorted(UNSUCCESSFUL))
    result = BulkResult.total(change(jobs.filter(unchanged), ids, operation, **options))
    found = named(jobs, [*ids, *result.replaced])
    result.refused |= {id: operation.missing(id, jobs.db) for id in result.refused if id not in found}
    _log(request, operation, deleted or found, result)
    return result, found


def named(jobs: QuerySet[Any], ids: Collection[UUID]) -> dict[UUID, Job]:
    """Read what pages and the log show of some jobs, by id."""
    return {job.pk: job for job in jobs.filter(pk__in=ids).only("type", "state", "fingerprint", "unique", "created_at")}


def _log(request: HttpRequest, operation: Operation, jobs: dict[UUID, Job], result: BulkResult) -> None:
    made_way = set(result.replaced.values())
    messages: dict[UUID, str] = {
        old: f"Cancelled for job {new}, which was {operation.done.lower()}." for old, new in result.replaced.items()
    }
    for id in result.changed:
        has_replaced = id in made_way or result.new.get(id) in made_way
        messages[id] = f"{operation.done}; a live duplicate was cancelled." if has_replaced else f"{operation.done}."
    by_message = defaultdict(list)
    for id, message in messages.items():
        if id in jobs:
            by_message[message].append(jobs[id])
    flag = DELETION if operation is DELETE else CHANGE
    for message, changed in by_message.items():
        LogEntry.objects.log_actions(request.user.pk, changed, flag, message)  # type: ignore[arg-type]
