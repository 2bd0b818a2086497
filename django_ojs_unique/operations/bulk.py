"""What operators do to several jobs, one after the other. If one is refused, the others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import Any
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.models import QuerySet
from django.utils import timezone

from .. import lifecycle
from ..db.constraints import of_fingerprint
from ..db.dialects import dialect_of, dialect_on
from ..db.transactions import starting_over
from ..exceptions import DuplicateJob, InvalidPolicy, InvalidTransition, OJSError
from ..models import Job
from ..ojs.policy import UniquePolicy
from ..ojs.states import INCOMPLETE, POSTPONED, TERMINAL, JobState
from ..signals import announce, job_cancelled
from ..unit_of_work import UnitOfWork

RIVALS_NAMED = 5
RIVALS_LOOKED_AT = 1000
CANCELLED_AT_ONCE = 1000

_SUITS: dict[str, Callable[[Any], bool]] = {
    "cancel": lambda job: job.state not in TERMINAL,
    "retry_now": lambda job: job.state in POSTPONED,
    "revive": lambda job: job.state == JobState.DISCARDED and not job.payload_pruned,
    "release_guard": lambda job: job.fingerprint is not None and (job.state not in TERMINAL or job.is_guarding),
    "delete_selected": lambda job: job.state != JobState.ACTIVE,
}


@dataclass(frozen=True, slots=True)
class Attempted:
    """The outcome for one job. ``job``: its current row, None if it is gone. ``refusal``: why nothing was done.

    ``duplicate``: the id of the live duplicate, if that was the reason. ``answer``: what the action returned.
    """

    id: UUID
    job: Job | None
    refusal: str = ""
    duplicate: UUID | None = None
    answer: Any = None


def on_each(jobs: QuerySet[Any], ids: Iterable[UUID], act: Callable[[Job], object]) -> Iterator[Attempted]:
    """Call ``act`` on each job, read anew, in the order of ``ids``; yield each outcome. A refusal is no error.

    ``act``: a method of `Job`, or a function that takes a job.
    """
    for id in dict.fromkeys(ids):
        yield _attempt(jobs, id, act)


def suits(job: Job, act: str) -> bool:
    """Whether the admin action named ``act`` can change a job in its present state."""
    return _SUITS.get(act, bool)(job)


def cancel(job: Job) -> str:
    """Cancel a job; return the state that it had before. Raises InvalidTransition if it has finished."""
    return starting_over(job._state.db or DEFAULT_DB_ALIAS, partial(_cancel, job))


def cancel_all(jobs: QuerySet[Any], most: int | None = None) -> Iterator[int]:
    """Cancel those of ``jobs`` that have not finished, the oldest first and at most ``most`` of them.

    After each transaction, yield how many it cancelled. Jobs that are enqueued after the start are not cancelled.
    """
    live = jobs.filter(state__in=sorted(INCOMPLETE))
    ids = list(live.order_by("created_at", "pk").values_list("pk", flat=True)[:most])
    for start in range(0, len(ids), CANCELLED_AT_ONCE):
        batch = jobs.filter(pk__in=ids[start : start + CANCELLED_AT_ONCE])
        for work in UnitOfWork(jobs.db):
            with work:
                cancelled = _cancel_batch(batch)
        yield cancelled


class Resolution(StrEnum):
    """What a revival does about live duplicates."""

    SKIP = "skip"
    REPLACE = "replace"
    FORCE = "force"


@dataclass(frozen=True, slots=True)
class Revived:
    """What a revival did: ``cancelled`` live duplicates, and up to `RIVALS_NAMED` that go on ``beside`` the job."""

    cancelled: tuple[Job, ...] = ()
    beside: tuple[Job, ...] = ()


def revive(job: Job, resolution: Resolution) -> Revived:
    """Revive a discarded job. Raises DuplicateJob or InvalidTransition if that is not allowed."""
    try:
        cancelled = job.revive(force=resolution is Resolution.FORCE, replace=resolution is Resolution.REPLACE)
    except DuplicateJob as error:
        if resolution is not Resolution.REPLACE:
            raise
        raise InvalidTransition(
            f"Cannot revive job {job.pk}: job {error.existing_job_id} is a live duplicate that runs,"
            " and here a running job may not be replaced (OJS_UNIQUE['REPLACE_ACTIVE'], or the database)."
        ) from None
    beside = list(_live_duplicates(job)) if resolution is Resolution.FORCE else []
    return Revived(tuple(cancelled), tuple(beside))


def retry(job: Job, *, force: bool = False) -> None:
    """Make a waiting job available now, or revive a discarded one, with ``force`` also beside a live duplicate."""
    try:
        job.retry_now()
    except InvalidTransition as error:
        if error.details["current_state"] != JobState.DISCARDED:
            raise
        job.revive(force=force)


def release(job: Job) -> None:
    """Take a job out of uniqueness. Raises InvalidTransition if it is not in it."""
    if not job.release_guard():
        raise InvalidTransition(f"Job {job.pk} takes no part in uniqueness.")


def _cancel(job: Job) -> str:
    using = job._state.db or DEFAULT_DB_ALIAS
    with transaction.atomic(using=using):
        dialect_on(Job, connections[using]).take_write_lock()
        row = Job.objects.using(using).filter(pk=job.pk).select_for_update()
        previous: str = row.values_list("state", flat=True).first() or ""
        job.cancel()
    return previous


def _cancel_batch(jobs: QuerySet[Any]) -> int:
    with transaction.atomic(using=jobs.db):
        dialect_of(jobs).take_write_lock()
        live = jobs.filter(state__in=sorted(INCOMPLETE)).order_by("pk").select_for_update()
        rows = Job.objects.using(jobs.db).filter(pk__in=list(live.values_list("pk", flat=True)))
        cancelled = lifecycle.cancel(rows, timezone.now())
        if job_cancelled.has_listeners(Job):
            for job in rows:
                announce(job_cancelled, Job, job=job, replaced_by=None, using=jobs.db)
    return cancelled


def _live_duplicates(job: Job) -> list[Any]:
    try:
        policy = job.unique_policy or UniquePolicy()
    except InvalidPolicy:  # it was changed by hand, so it is unknown what counts
        return []
    if not job.fingerprint:
        return []
    alike = of_fingerprint(fingerprint=job.fingerprint, finished_at=None)
    live = Job.objects.using(job._state.db).filter(alike, state__in=sorted(INCOMPLETE))
    rows, now = live.exclude(pk=job.pk).only("type", "state", "created_at").order_by("-created_at"), timezone.now()
    rivals = (row for row in rows[:RIVALS_LOOKED_AT] if policy.is_duplicate(row.state, row.created_at, now))
    return list(islice(rivals, RIVALS_NAMED))


def _attempt(jobs: QuerySet[Any], id: UUID, act: Callable[[Job], object]) -> Attempted:
    job = jobs.filter(pk=id).first()
    if job is None:
        return Attempted(id, None, f"There is no job {id} in database {jobs.db!r}. It may have been pruned.")
    job._pinned_to = jobs.db
    try:
        return Attempted(id, job, answer=act(job))
    except DuplicateJob as error:
        rival, state = error.existing_job_id, error.existing_job_state
        return Attempted(
            id, job, f"Cannot revive job {id}: job {rival} is a live duplicate ({state}).", UUID(str(rival))
        )
    except OJSError as error:
        return Attempted(id, job, error.message)
    except Job.DoesNotExist:
        return Attempted(id, None, f"Job {id} is gone.")
