"""What would happen if some jobs were retried, enqueued again, released or deleted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from ..enqueue.duplicates import outside
from ..exceptions import OJSError
from ..models import Job
from ..ojs.states import POSTPONED, TERMINAL, UNSUCCESSFUL, JobState
from ..operations.again import request_of
from ..operations.operation import CANCEL, ENQUEUE_AGAIN, RETRY
from ..operations.retry import refuse_both
from ..operations.rows import everything
from ..unique.policy import UniquePolicy
from .duplicates import live_of
from .text import full, harmless
from .uniqueness import read_policy, uniqueness

MOST_RIVALS = 1000
"""How many live jobs are read at most for all retries together."""

RIVALS_NAMED = 5

_READ = (
    "type",
    "queue",
    "state",
    "payload_pruned",
    "replaced_by",
    "unique",
    "key",
    "fingerprint",
    "unique_states",
    "created_at",
    "scheduled_at",
    "finished_at",
    "window_ends_at",
)


@dataclass(frozen=True, slots=True)
class Consequence:
    """What would become of one job; ``job`` is None if it is gone.

    ``refusal``: why nothing would be done; else ``sentences`` say what would be done. ``rivals``: its newest live
    duplicates, the newest first, up to `RIVALS_NAMED`; ``more_rivals``: how many others there are.
    """

    id: UUID
    job: Job | None
    refusal: str = ""
    sentences: tuple[str, ...] = ()
    rivals: tuple[Job, ...] = ()
    more_rivals: int = 0


def of_retries(
    jobs: QuerySet[Any], ids: Iterable[UUID], now: datetime, *, force: bool | None = None, replace: bool = False
) -> list[Consequence]:
    """Say for each job which live duplicates its retry would meet. Two statements.

    ``force`` and ``replace`` are those of the retry; with ``force=None`` nobody has decided yet. Raises InvalidRequest
    for both, as the retry does.
    """
    refuse_both(force=force, replace=replace)
    found = _read(jobs, ids)
    dead = [job for job in found.values() if job is not None and job.state in UNSUCCESSFUL and RETRY.allows(job)]
    say = partial(
        _retry,
        rivals=live_duplicates(jobs, dead, now),
        alike=Counter(job.fingerprint for job in dead if job.fingerprint),
        now=now,
        meeting=_MEETING[None if force is None else "replace" if replace else "force" if force else "skip"],
    )
    return [_each(id, job, say) for id, job in found.items()]


def of_cancellations(jobs: QuerySet[Any], ids: Iterable[UUID]) -> list[Consequence]:
    """Say for each job whether it would be cancelled. One statement."""
    return [_each(id, job, _cancellation) for id, job in _read(jobs, ids).items()]


def of_enqueues_again(
    jobs: QuerySet[Any], ids: Iterable[UUID], now: datetime, *, replaceable: QuerySet[Any] | None = None
) -> list[Consequence]:
    """Say for each job what its policy would decide, if nothing else were enqueued. A few statements per job.

    ``replaceable``: the only jobs that may be replaced, if these are not all.
    """
    wanted = list(dict.fromkeys(ids))
    found = {job.pk: job for job in jobs.filter(pk__in=wanted).defer("steps", "result", "errors")}
    say = partial(_enqueue_again, jobs, replaceable=replaceable)
    return [_each(id, found.get(id), say) for id in wanted]


def of_releases(jobs: QuerySet[Any], ids: Iterable[UUID], now: datetime) -> list[Consequence]:
    """Say for each job what can be enqueued once it is out of uniqueness. One statement."""
    return [_each(id, job, partial(_release, now=now)) for id, job in _read(jobs, ids).items()]


def of_deletions(jobs: QuerySet[Any], ids: Iterable[UUID], now: datetime) -> list[Consequence]:
    """Say for each job what is lost with its row. One statement."""
    return [_each(id, job, partial(_deletion, now=now)) for id, job in _read(jobs, ids).items()]


def live_duplicates(jobs: QuerySet[Any], of: Collection[Job], now: datetime) -> dict[UUID, list[Job]]:
    """Find the live duplicates of some jobs in the database of ``jobs``, whatever these are filtered by.

    They come by the ids of the jobs ``of``, the newest first. One statement.
    """
    fingerprints = {job.fingerprint for job in of if job.fingerprint}
    if not fingerprints:
        return {}
    live = live_of(everything(jobs), fingerprints).order_by("-created_at", "-pk")
    alike: dict[str, list[Job]] = defaultdict(list)
    for job in live.only("type", "state", "fingerprint", "created_at")[:MOST_RIVALS]:
        alike[job.fingerprint].append(job)
    policies = {job.pk: read_policy(job)[0] or UniquePolicy() for job in of}
    return {
        job.pk: [
            other
            for other in alike[job.fingerprint or ""]
            if other.pk != job.pk and policies[job.pk].is_duplicate(other.state, other.created_at, now)
        ]
        for job in of
    }


def _read(jobs: QuerySet[Any], ids: Iterable[UUID]) -> dict[UUID, Job | None]:
    wanted = list(dict.fromkeys(ids))
    found = {job.pk: job for job in jobs.filter(pk__in=wanted).only(*_READ)}
    return {id: found.get(id) for id in wanted}


def _each(id: UUID, job: Job | None, say: Callable[[Job], Consequence]) -> Consequence:
    return Consequence(id, None, "It is gone: deleted or pruned.") if job is None else say(job)


def _cancellation(job: Job) -> Consequence:
    if not CANCEL.allows(job):
        return Consequence(job.pk, job, f"It is {job.state}: it has finished.")
    running = " Its handler is told, and its result is refused." * (job.state == JobState.ACTIVE)
    return Consequence(job.pk, job, "", (f"It is {job.state}, and is cancelled.{running}",))


_MEETING: dict[str | None, tuple[str, str, bool]] = {
    None: ("A live duplicate exists:", "{} live duplicates exist:", True),
    "skip": ("A live duplicate exists:", "{} live duplicates exist:", False),
    "replace": ("A live duplicate would be cancelled:", "{} live duplicates would be cancelled:", True),
    "force": ("It would run beside a live duplicate:", "It would run beside {} live duplicates:", True),
}
"""What is said of one live duplicate, and of several, and whether the job is retried then."""


def _retry(
    job: Job, rivals: dict[UUID, list[Job]], alike: Counter[str], now: datetime, meeting: tuple[str, str, bool]
) -> Consequence:
    if job.state in POSTPONED:
        return Consequence(job.pk, job, "", ("It becomes available now.",))
    if job.state not in RETRY.states:
        return Consequence(job.pk, job, f"It is {job.state}: nothing is to be retried.")
    if job.payload_pruned:
        return Consequence(job.pk, job, _PRUNED)
    if not RETRY.allows(job):
        return Consequence(job.pk, job, f"It was replaced by job {job.replaced_by_id}, so it never runs again.")
    others, sentences = rivals.get(job.pk, []), []
    one, several, is_retried = meeting
    if job.scheduled_at is not None and job.scheduled_at > now:
        sentences.append(f"It is scheduled again for {full(job.scheduled_at)}.")
    if alike[job.fingerprint or ""] > 1:
        sentences.append("Another job that you chose is alike: the older one is then its live duplicate.")
    named = tuple(others[:RIVALS_NAMED]), max(0, len(others) - RIVALS_NAMED)
    if others:
        met = one if len(others) == 1 else several.format(len(others))
        if not is_retried:
            return Consequence(job.pk, job, met, (), *named)
        sentences.append(met)
    elif not sentences:
        sentences.append("No live duplicate exists: it is retried.")
    return Consequence(job.pk, job, "", tuple(sentences), *named)


_PRUNED = "It is pruned: what it was to do is gone."
_DECISIONS = {
    "create": "A new job is created: {}",
    "replace": "A new job replaces others: {}",
    "reject": "Nothing is enqueued: {}",
    "ignore": "Nothing is enqueued: {}",
}


def _enqueue_again(jobs: Any, job: Job, *, replaceable: QuerySet[Any] | None) -> Consequence:
    if job.state not in ENQUEUE_AGAIN.states:
        return Consequence(job.pk, job, f"It is {job.state}: it has not finished yet.")
    if job.payload_pruned:
        return Consequence(job.pk, job, _PRUNED)
    try:
        explained = jobs.explain_request(request_of(job))
    except OJSError as error:
        return Consequence(job.pk, job, error.message)
    if explained.action == "replace":
        live = (each.job for each in explained.duplicates if each.job.state not in TERMINAL)
        for spared in outside(replaceable, live):
            reason = f"job {spared.pk} is {spared.state}, and on_conflict is {explained.policy.on_conflict}."
            return Consequence(job.pk, job, _DECISIONS["reject"].format(reason))
    found = _DECISIONS[explained.action].format(explained.reason)
    if explained.action in ("reject", "ignore"):
        return Consequence(job.pk, job, found)
    return Consequence(job.pk, job, "", (found,))


def _release(job: Job, now: datetime) -> Consequence:
    if job.fingerprint is None:
        return Consequence(job.pk, job, "It takes no part in uniqueness.")
    found = uniqueness(job, now)
    if not (found.holds or found.counts):
        sentence = "It keeps nothing out now; it only loses its fingerprint."
    elif job.state in TERMINAL:
        sentence = (
            f"The next enqueue of {harmless(job.type)} that it keeps out is admitted, although its window is open."
        )
    else:
        sentence = f"The next enqueue of {harmless(job.type)} that it keeps out is admitted, although this job goes on."
    return Consequence(job.pk, job, "", (sentence,))


def _deletion(job: Job, now: datetime) -> Consequence:
    if job.state == JobState.ACTIVE:
        return Consequence(job.pk, job, "It is active: cancel it first.")
    found = uniqueness(job, now)
    sentences = []
    if job.state not in TERMINAL:
        sentences.append("It waits, and would never run.")
    if found.holds or found.counts:
        sentences.append(
            f"Its key becomes free: the next enqueue of {harmless(job.type)} that it keeps out is admitted."
        )
    if job.window_ends_at is not None and job.window_ends_at > now:
        sentences.append(f"Its window was promised until {full(job.window_ends_at)}, and would end now.")
    return Consequence(job.pk, job, "", tuple(sentences) or ("It keeps nothing out.",))
