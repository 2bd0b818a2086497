"""What operators do to jobs, one after the other: the refusal of one does not keep the others from it."""

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

from . import lifecycle
from .events import recorded
from .exceptions import DuplicateJob, InvalidPolicy, InvalidTransition, OJSError
from .models import Job
from .ojs.policy import UniquePolicy
from .ojs.states import INCOMPLETE, TERMINAL, TIMED, JobState
from .signals import announce, job_cancelled
from .transactions import starting_over, take_write_lock

RIVALS_NAMED = 5
RIVALS_LOOKED_AT = 1000
CANCELLED_AT_ONCE = 1000

_SUITS: dict[str, Callable[[Any], bool]] = {
    "cancel": lambda job: job.state not in TERMINAL,
    "retry_now": lambda job: job.state in TIMED | {JobState.PENDING},
    "revive": lambda job: job.state == JobState.DISCARDED and not job.slimmed,
    "release_guard": lambda job: job.fingerprint is not None and (job.state not in TERMINAL or job.is_guarding),
    "delete_selected": lambda job: job.state != JobState.ACTIVE,
}


@dataclass(frozen=True, slots=True)
class Attempted:
    """What became of one job: ``job`` as it is now, None when it is gone; ``refusal`` says why nothing was done.

    ``duplicate`` is the live duplicate that stood in the way, if it was one; ``answer`` is what the act returned.
    """

    id: UUID
    job: Job | None
    refusal: str = ""
    duplicate: UUID | None = None
    answer: Any = None


def on_each(jobs: QuerySet[Any], ids: Iterable[UUID], act: Callable[[Job], object]) -> Iterator[Attempted]:
    """Do something to each of some jobs as it is now, in order; ``act`` is a method of `Job` that may refuse."""
    for id in dict.fromkeys(ids):
        yield _attempt(jobs, id, act)


def suits(job: Job, act: str) -> bool:
    """Whether an action of the admin, by its name, could do something with a job as it is now."""
    return _SUITS.get(act, bool)(job)


def cancel(job: Job) -> str:
    """Cancel a job; return the state that it was in until then. Raises InvalidTransition when it has finished."""
    return starting_over(job._state.db or DEFAULT_DB_ALIAS, partial(_cancel, job))


def cancel_all(jobs: QuerySet[Any], most: int | None = None) -> Iterator[int]:
    """Cancel those of ``jobs`` that have not finished, the oldest first and up to ``most`` of them.

    Yield after each transaction how many it cancelled. What is enqueued after the first one is left alone.
    """
    ids = list(jobs.filter(state__in=sorted(INCOMPLETE)).order_by("pk").values_list("pk", flat=True)[:most])
    for start in range(0, len(ids), CANCELLED_AT_ONCE):
        batch = jobs.filter(pk__in=ids[start : start + CANCELLED_AT_ONCE])
        yield recorded(jobs.db, partial(starting_over, jobs.db, partial(_cancel_batch, batch)))


class Resolution(StrEnum):
    """What a revival does about live duplicates."""

    SKIP = "skip"
    REPLACE = "replace"
    FORCE = "force"


@dataclass(frozen=True, slots=True)
class Revived:
    """A job was revived: ``cancelled`` are the live duplicates that gave way, ``beside`` some of those that go on."""

    cancelled: tuple[Job, ...] = ()
    beside: tuple[Job, ...] = ()


def revive(job: Job, resolution: Resolution) -> Revived:
    """Revive a discarded job. Raises DuplicateJob or InvalidTransition when it may not be."""
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


def release(job: Job) -> None:
    """Take a job out of uniqueness. Raises InvalidTransition for one that takes no part in it."""
    if not job.release_guard():
        raise InvalidTransition(f"Job {job.pk} takes no part in uniqueness.")


def _cancel(job: Job) -> str:
    using = job._state.db or DEFAULT_DB_ALIAS
    with transaction.atomic(using=using):
        take_write_lock(connections[using], Job)
        row = Job.objects.using(using).filter(pk=job.pk).select_for_update()
        previous: str = row.values_list("state", flat=True).first() or ""
        job.cancel()
    return previous


def _cancel_batch(jobs: QuerySet[Any]) -> int:
    with transaction.atomic(using=jobs.db):
        take_write_lock(connections[jobs.db], Job)
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
    except InvalidPolicy:  # it was changed by hand; what counts cannot be known
        return []
    if not job.fingerprint:
        return []
    live = Job.objects.using(job._state.db).filter(fingerprint=job.fingerprint, state__in=sorted(INCOMPLETE))
    rows, now = live.exclude(pk=job.pk).only("type", "state", "created_at").order_by("-created_at"), timezone.now()
    alike = (row for row in rows[:RIVALS_LOOKED_AT] if policy.is_duplicate(row.state, row.created_at, now))
    return list(islice(alike, RIVALS_NAMED))


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
