"""Enqueue finished jobs again: as new jobs with the same arguments and options, through their policies."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.utils import timezone

from ..enqueue.batch import enqueue_read
from ..enqueue.incoming import Incoming, read
from ..enqueue.request import Request
from ..enqueue.results import ItemResult
from ..exceptions import DuplicateJob, OJSError
from ..ojs.fingerprint import canonical_key, fingerprint
from ..ojs.keys import KeyMode, KeyScope
from ..ojs.states import TERMINAL
from ..unit_of_work import UnitOfWork
from .results import BulkResult
from .revival import all_of


def request_of(job: Any) -> Request:
    """Return the request that enqueues a job again: to run now, with the policy, the key and the options of its row.

    A key that another job holds makes it a duplicate: old arguments must not rewrite a newer job.
    """
    request = Request(
        type=job.type,
        args=job.args,
        queue=job.queue,
        meta=job.meta,
        priority=job.priority,
        unique=job.unique,
        retry=job.retry,
        timeout=_duration(job.timeout_ms),
        lease=_duration(job.visibility_timeout_ms),
        tags=job.tags,
        schema=job.schema,
        extra=job.extra,
        elsewhere=True,
    )
    if job.key is not None:
        is_global = job.fingerprint == fingerprint(canonical_key(job.key, type=None))
        request.key, request.key_mode = job.key, KeyMode.UNSAFE_DEDUPE
        request.key_scope = KeyScope.GLOBAL if is_global else KeyScope.TYPE
    return request


def enqueue_again(jobs: QuerySet[Any], ids: Collection[UUID], work: UnitOfWork) -> BulkResult:
    """Enqueue the finished jobs again, the oldest first; the jobs themselves stay as they are.

    A duplicate is refused with DuplicateJob, whatever its strategy.
    """
    result, incoming, now = BulkResult(), dict[UUID, Incoming](), timezone.now()
    finished = jobs.filter(pk__in=ids, state__in=sorted(TERMINAL), payload_pruned=False)
    for job in finished.order_by("created_at", "pk"):
        try:
            incoming[job.pk] = read(request_of(job), jobs.model, now)
        except OJSError as error:
            result.refused[job.pk] = error
    for id, item in zip(incoming, enqueue_read(all_of(jobs), incoming.values()), strict=True):
        if item.created:
            result.changed.append(id)
            result.new[id] = item.job.pk
            result.replaced |= {replaced.pk: item.job.pk for replaced in item.replaced}
        else:
            result.refused[id] = _refusal(id, item, incoming[id])
    return result


def _refusal(id: UUID, item: ItemResult, incoming: Incoming) -> OJSError:
    if item.error is not None and item.job is None:
        return item.error
    said = f"Did not enqueue job {id} again: job {item.job.pk} is a duplicate ({item.job.state})."
    return DuplicateJob(item.job, incoming.values["fingerprint"], said)


def _duration(milliseconds: int | None) -> timedelta | None:
    return None if milliseconds is None else timedelta(milliseconds=milliseconds)
