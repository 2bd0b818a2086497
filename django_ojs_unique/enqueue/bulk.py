"""Enqueue many: the results of single enqueues, with a few statements per thousand jobs.

Where an INSERT alone can decide, it does; see `optimistic`. Otherwise `submit` decides, as about a single job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from django.db.models import QuerySet

from ..db.inserts import ROWS_AT_ONCE
from ..exceptions import InvalidRequest, did_you_mean, shorten
from ..handlers.redaction import redacted
from ..hooks import tracer
from .announcements import announce
from .entry import Answer, Entry, result_of
from .errors import naming_what_is_missing
from .items import Items
from .new_job import NewJob
from .optimistic import decide_at_once, insert_pieces
from .results import BulkEnqueueResult, ItemResult, Outcome
from .submit import decide_under_locks
from .unit_of_work import UnitOfWork

_MODES = ("partial", "atomic")


def enqueue_many(
    jobs: QuerySet[Any], items: Iterable[Any], mode: str, each: Callable[[ItemResult], Any] | None
) -> BulkEnqueueResult:
    """Enqueue items; see `JobQuerySet.enqueue_many`."""
    if not isinstance(mode, str) or mode not in _MODES:
        raise InvalidRequest.at("mode", "is not a known choice", value=mode, hint=did_you_mean(mode, _MODES))
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
        if isinstance(items, Mapping):
            items = redacted(items.get("type"), items)
        hint = f"Write [{shorten(items)}]." if isinstance(items, Mapping) else "Write [{'type': ...}, ...]."
        raise InvalidRequest.at("items", "must be a list or an iterator of objects", value=items, hint=hint)
    if each is not None and not callable(each):
        raise InvalidRequest.at("each", "must be a function that takes one answer", value=each)
    result = BulkEnqueueResult()
    for answer in _in_parts(jobs, items) if mode == "partial" else _all(jobs, items):
        result.counts[answer.outcome] += 1
        if each is None:
            result.results.append(answer)
        else:
            each(answer)
    return result


def enqueue_read(jobs: QuerySet[Any], new_jobs: Iterable[NewJob]) -> Iterator[ItemResult]:
    """Enqueue valid requests in one transaction; yield the result of each, in order."""
    yield from _enqueue(jobs, [Entry(index, one) for index, one in enumerate(new_jobs)], refuse=False)


def _in_parts(jobs: QuerySet[Any], items: Iterable[Any]) -> Iterator[ItemResult]:
    """Enqueue items, at most a thousand in a transaction; yield the result of each item, in order.

    A refused or invalid item gives a result with an error; the others go on. Memory does not depend on their number.
    """
    numbered = enumerate(items)
    while part := Items(jobs, islice(numbered, ROWS_AT_ONCE)):
        for answers in insert_pieces(jobs, part):
            yield from _enqueue(jobs, answers, refuse=False)


def _all(jobs: QuerySet[Any], items: Iterable[Any]) -> Iterator[ItemResult]:
    """Enqueue all items in one transaction, or none: raise the error of the first one that is refused or invalid."""
    yield from _enqueue(jobs, Items(jobs, enumerate(items)).read(), refuse=True)


def _enqueue(jobs: QuerySet[Any], answers: Sequence[Answer], *, refuse: bool) -> Iterator[ItemResult]:
    if refuse and (wrong := next((answer for answer in answers if isinstance(answer, ItemResult)), None)):
        assert wrong.error is not None
        raise wrong.error
    valid = [answer for answer in answers if isinstance(answer, Entry)]
    if entries := [entry for entry in valid if not entry.new_job.is_stored]:
        with tracer().enqueue_many(entries), naming_what_is_missing(jobs):
            for work in UnitOfWork(jobs.db):
                with work:
                    if work.is_repeated or not decide_at_once(jobs, entries, refuse=refuse):
                        decide_under_locks(jobs, entries, work, refuse=refuse)
                        for entry in entries:
                            entry.new_job.options.met_duplicate = entry.outcome is not Outcome.CREATED
                    _announce(jobs, valid)  # before the first result, because the caller may stop there
    else:
        _announce(jobs, valid)
    yield from map(result_of, answers)


def _announce(jobs: QuerySet[Any], entries: Sequence[Entry]) -> None:
    for entry in entries:
        if entry.verdict is not None:
            announce(jobs.model, jobs.db, entry.new_job, entry.verdict)
