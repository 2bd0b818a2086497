"""Enqueue finished jobs again: as new jobs with the same arguments and options, through their policies."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from ..db.clock import database_now
from ..db.holding import everything
from ..enqueue.bulk import enqueue_read
from ..enqueue.new_job import NewJob, read
from ..enqueue.request import Request
from ..enqueue.results import ItemResult
from ..enqueue.unit_of_work import UnitOfWork
from ..exceptions import DuplicateJob, InvalidRequest, InvalidTransition, Message, OJSError
from ..handlers.carried import split
from ..ojs.states import JobState
from ..options import OPTIONS
from ..unique.fingerprint import canonical_key, fingerprint
from ..unique.keys import KeyMode, KeyScope
from ..workflows.results import receivers
from .operation import ENQUEUE_AGAIN
from .results import BulkResult

_STORED = {name: option for name, option in OPTIONS.items() if option.repeats and option.column and name != "key"}


_RECEIVES = Message(
    "Cannot enqueue job {id} again: a new job would not get the results of the jobs before it in its workflow."
    " Retry it, or enqueue the workflow again."
)


def request_of(job: Any, receiving: Collection[UUID] | None = None) -> Request:
    """Return the request that enqueues a job again: to run now, with the policy, the key and the options of its row.

    A key that another job holds makes it a duplicate: old arguments must not rewrite a newer job. Raises InvalidRequest
    for a row that was changed manually, and for a key of an unknown scope; InvalidTransition for a job with results of
    earlier jobs of its workflow, which a new job would not have. ``receiving``: the `receivers`, if they are known.
    """
    if job.pk in (receivers([job]) if receiving is None else receiving):
        raise InvalidTransition(Message(_RECEIVES, id=job.pk), details={"workflow_id": str(job.workflow_id)})
    meta, carried = split(job.meta)
    try:
        stored = {name: option.kind.load(getattr(job, option.column)) for name, option in _STORED.items()}
        request = Request(job.type, job.args, **{**stored, "meta": meta}, context=carried, elsewhere=True)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"Job {job.pk} was changed manually, and cannot be enqueued again: {error}.") from None
    if job.key is not None:
        request.key, request.key_mode, request.key_scope = job.key, KeyMode.UNSAFE_DEDUPE, _scope_of(job)
    return request


def enqueue_again(
    jobs: QuerySet[Any], ids: Collection[UUID], work: UnitOfWork, *, replaceable: QuerySet[Any] | None = None
) -> BulkResult:
    """Enqueue the finished jobs again, the oldest first; the jobs themselves stay as they are.

    A duplicate is refused with DuplicateJob, whatever its strategy; so is one that would replace a job outside
    ``replaceable``.
    """
    result, new_jobs, now = BulkResult(), dict[UUID, NewJob](), database_now(jobs.db)
    everywhere = everything(jobs)
    finished = list(ENQUEUE_AGAIN.able(jobs.filter(pk__in=ids)).order_by("created_at", "pk"))
    receiving = receivers(finished)
    for job in finished:
        try:
            new_jobs[job.pk] = read(request_of(job, receiving), everywhere.model, now)
            new_jobs[job.pk].replaceable = replaceable
        except OJSError as error:
            result.refused[job.pk] = error
    for id, item in zip(new_jobs, enqueue_read(everywhere, new_jobs.values()), strict=True):
        if item.created:
            result.changed.append(id)
            result.new[id] = item.job.pk
            result.replaced |= {replaced.pk: item.job.pk for replaced in item.replaced}
        else:
            result.refused[id] = _refusal(id, item, new_jobs[id])
    return result


def _scope_of(job: Any) -> KeyScope:
    for scope, type in ((KeyScope.TYPE, job.type), (KeyScope.GLOBAL, None)):
        if job.fingerprint == fingerprint(canonical_key(job.key, type=type, meta=job.meta)):
            return scope
    raise InvalidRequest.at(
        "key",
        f"of job {job.pk} has an unknown scope, because the job was taken out of uniqueness",
        value=job.key,
        hint="Enqueue the job with key= and key_scope=.",
    )


def _refusal(id: UUID, item: ItemResult, new_job: NewJob) -> OJSError:
    if item.error is not None and item.job is None:
        return item.error
    template = Message("Did not enqueue job {id} again: job {other} is a duplicate ({state}).")
    message = Message(template, id=id, other=item.job.pk, state=item.job.state)
    if item.job.pk == id and item.job.state == JobState.DISCARDED:
        message = Message("Did not enqueue job {id} again: it holds its key itself. Retry it.", id=id)
    return DuplicateJob(item.job, new_job.values["fingerprint"], message)
