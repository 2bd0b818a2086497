"""Carry out an action on many jobs, record it in the log of the admin, and show what became of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Any
from uuid import UUID

from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html

from ..exceptions import DuplicateJob
from ..models import Job
from ..ojs.states import UNSUCCESSFUL
from ..operations.bulk import change
from ..operations.operation import DELETE, ENQUEUE_AGAIN, RETRY, Operation
from ..operations.results import BulkResult
from ..reporting.preview import Consequence
from ..reporting.text import harmless
from .display import badge
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


def consequence_row(visibility: Visibility, found: Consequence) -> dict[str, Any]:
    """Return the row of a job in ``job/confirm.html``."""
    return {
        **_job(visibility, found.job, found.id),
        "refusal": visibility.translate(found.refusal, found.id),
        "sentences": [visibility.translate(sentence, found.id) for sentence in found.sentences],
        "rivals": [visibility.link_and_state(job.pk, job.state) for job in found.rivals],
        "more_rivals": found.more_rivals,
    }


def outcome_row(
    visibility: Visibility, id: UUID, job: Job | None, result: BulkResult, beside: Collection[Job]
) -> dict[str, Any]:
    """Return the row of a job in ``job/retried.html``. ``beside``: the live duplicates that go on beside it."""
    error = result.refused.get(id)
    cancelled = [visibility.link(old) for old, new in result.replaced.items() if new == id]
    if isinstance(error, DuplicateJob):
        rivals = [visibility.link(error.existing_job_id)]
    else:
        rivals = cancelled or [visibility.link_and_state(other.pk, other.state) for other in beside]
    return {
        **_job(visibility, job, id),
        "refusal": visibility.translate(error.message, id) if error else "",
        "cancelled": cancelled,
        "beside": beside,
        "rivals": rivals,
    }


def _job(visibility: Visibility, job: Job | None, id: Any) -> dict[str, Any]:
    if job is None:
        return {"link": format_html("<code>{}</code>", id), "type": "-", "state": "-"}
    return {"link": visibility.link(id), "type": harmless(job.type), "state": badge(job.state)}
