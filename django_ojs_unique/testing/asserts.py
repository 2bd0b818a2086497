"""Assertions about the stored jobs, and about the record of what uniqueness held back."""

from __future__ import annotations

from typing import Any, Unpack

from django.db import router
from django.db.models import Model, QuerySet

from ..models import Job, SuppressedAttempt
from . import matching
from .matching import TypeOrHandler, Wanted, WantedAttempt


def assert_enqueued(
    type: TypeOrHandler | None = None,
    *,
    count: int | None = None,
    using: str | None = None,
    **wanted: Unpack[Wanted],
) -> Job:
    """Assert that a job was enqueued, whatever has become of it since; return the first one.

    ``type``: a job type or a handler; any by default. ``count``: how many, instead of at least one.
    ``args``, ``meta``: all of it; ``args__contains``, ``meta__contains``: these members, at whatever depth.
    ``scheduled_at``: the moment, None for at once, or the pair of moments between which it lies.
    ``queue``, ``priority``, ``state``, ``key``: what the row says. ``using``: by default where enqueues go.

    Raises AssertionError, which lists the jobs that there are, the nearest first, and how each differs.
    """
    __tracebackhide__ = True
    found: Job = matching.require(_stored(Job, using), matching.criteria(type, wanted, Wanted), count, "enqueued")
    return found


def assert_not_enqueued(
    type: TypeOrHandler | None = None, *, using: str | None = None, **wanted: Unpack[Wanted]
) -> None:
    """Assert that no such job was enqueued; the arguments are those of `assert_enqueued`."""
    __tracebackhide__ = True
    matching.refuse(_stored(Job, using), matching.criteria(type, wanted, Wanted), "enqueued")


def assert_deduplicated(
    type_or_job: TypeOrHandler | Job | None = None,
    *,
    count: int | None = None,
    using: str | None = None,
    **wanted: Unpack[WantedAttempt],
) -> SuppressedAttempt:
    """Assert that an enqueue met a duplicate, and was rejected, ignored or replaced it; return the record of it.

    ``type_or_job``: the type of the job that was asked for, or the stored job that it met. ``outcome``: ``rejected``,
    ``ignored`` or ``replaced``. The others are those of `assert_enqueued`, about the job that was asked for. The record
    is rolled back with the transaction of its enqueue; `capture_jobs` sees that, too.

    Raises AssertionError, which lists the attempts that there are, the nearest first, and how each differs.
    """
    __tracebackhide__ = True
    criteria = matching.criteria(type_or_job, wanted, WantedAttempt)
    found: SuppressedAttempt = matching.require(_stored(SuppressedAttempt, using), criteria, count, "suppressed")
    return found


def _stored(model: type[Model], using: str | None) -> QuerySet[Any]:
    return model._default_manager.using(using or router.db_for_write(model)).order_by("pk")
