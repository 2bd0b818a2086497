"""What would happen if some jobs were cancelled, retried, enqueued again, released or deleted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from ..db.holding import everything
from ..exceptions import Message, OJSError
from ..models import Job
from ..ojs.states import POSTPONED, TERMINAL, UNSUCCESSFUL, JobState
from ..operations.again import request_of
from ..operations.operation import CANCEL, DELETE, ENQUEUE_AGAIN, RELEASE, RETRY, Operation
from ..operations.retry import refuse_both
from ..unique.conflict import READ, duplicates
from ..unique.policy import UniquePolicy
from .duplicates import LIGHT, live_of
from .text import full, harmless
from .uniqueness import read_policy, uniqueness

MOST_RIVALS = 1000
"""How many live jobs are read at most for all retries together."""

RIVALS_NAMED = 5


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

    def to_dict(self) -> dict[str, Any]:
        """Return it by the names that the CLI and the HTTP API have for it."""
        return {
            "allowed": not self.refusal,
            "message": self.refusal or " ".join(self.sentences),
            "duplicates": [{"id": str(rival.pk), "state": rival.state} for rival in self.rivals],
        }


def consequences(
    operation: Operation,
    jobs: QuerySet[Any],
    ids: Iterable[UUID],
    now: datetime,
    *,
    force: bool | None = None,
    replace: bool = False,
    replaceable: QuerySet[Any] | None = None,
) -> list[Consequence]:
    """Say for each job what an operation would do. One statement; two for retries; a few per job to enqueue again.

    ``force`` and ``replace`` are those of a retry; with ``force=None`` nobody has decided yet. ``replaceable``: the
    only jobs that an enqueue again may replace, if these are not all. Raises InvalidRequest for both ``force`` and
    ``replace``, as the retry does.
    """
    refuse_both(force=force, replace=replace)
    wanted = list(dict.fromkeys(ids))
    chosen = jobs.filter(pk__in=wanted)
    if operation is ENQUEUE_AGAIN:
        chosen = chosen.defer("steps", "result", "errors")
    else:
        chosen = chosen.only(*LIGHT, "payload_pruned", "unique", "scheduled_at")
    found = {job.pk: job for job in chosen}
    say: Callable[[Job, datetime], Consequence]
    if operation is ENQUEUE_AGAIN:
        say = partial(_enqueue_again, jobs=jobs, replaceable=replaceable)
    elif operation is RETRY:
        dead = [job for job in found.values() if job.state in UNSUCCESSFUL and RETRY.allows(job)]
        say = partial(
            _retry,
            rivals=live_duplicates(jobs, dead, now),
            alike=Counter(job.fingerprint for job in dead if job.fingerprint),
            meeting=_MEETING[None if force is None else "replace" if replace else "force" if force else "skip"],
        )
    else:
        say = _SAY[operation]
    gone = Message("It is gone: deleted or pruned.")
    return [say(found[id], now) if id in found else Consequence(id, None, gone) for id in wanted]


def live_duplicates(jobs: QuerySet[Any], of: Collection[Job], now: datetime) -> dict[UUID, list[Job]]:
    """Find the live duplicates of some jobs in the database of ``jobs``, whatever these are filtered by.

    They come by the ids of the jobs ``of``, the newest first. One statement.
    """
    fingerprints = {job.fingerprint for job in of if job.fingerprint}
    if not fingerprints:
        return {}
    live = live_of(everything(jobs), fingerprints).order_by("-created_at", "-pk")
    alike: dict[str, list[Job]] = defaultdict(list)
    for job in live.only(*READ, "type", "fingerprint")[:MOST_RIVALS]:
        alike[job.fingerprint].append(job)
    found = {}
    for job in of:
        counted = duplicates(alike[job.fingerprint or ""], read_policy(job)[0] or UniquePolicy(), now)
        found[job.pk] = [other for other in counted if other.pk != job.pk]
    return found


def _cancellation(job: Job, now: datetime) -> Consequence:
    say = partial(Message, state=job.state)
    if not CANCEL.allows(job):
        return Consequence(job.pk, job, say("It is {state}: it has finished."))
    sentence = say("It is {state}, and is cancelled.")
    if job.state == JobState.ACTIVE:
        sentence = say("It is {state}, and is cancelled. Its handler is told, and its result is refused.")
    return Consequence(job.pk, job, "", (sentence,))


_EXIST = Message("A live duplicate exists:"), Message("{count} live duplicates exist:")
_MEETING: dict[str | None, tuple[str, str, bool]] = {
    None: (*_EXIST, True),
    "skip": (*_EXIST, False),
    "replace": ("A live duplicate would be cancelled:", "{count} live duplicates would be cancelled:", True),
    "force": ("It would run beside a live duplicate:", "It would run beside {count} live duplicates:", True),
}
"""What is said of one live duplicate, and of several, and whether the job is retried then."""


def _retry(
    job: Job, now: datetime, rivals: dict[UUID, list[Job]], alike: Counter[str], meeting: tuple[str, str, bool]
) -> Consequence:
    if job.state in POSTPONED:
        return Consequence(job.pk, job, "", (Message("It becomes available now."),))
    if job.state not in RETRY.states:
        return Consequence(job.pk, job, Message("It is {state}: nothing is to be retried.", state=job.state))
    if job.payload_pruned:
        return Consequence(job.pk, job, _PRUNED)
    if not RETRY.allows(job):
        message = Message("It was replaced by job {id}, so it never runs again.", id=job.replaced_by_id)
        return Consequence(job.pk, job, message)
    others, sentences = rivals.get(job.pk, []), list[str]()
    one, several, is_retried = meeting
    if job.scheduled_at is not None and job.scheduled_at > now:
        sentences.append(Message("It is scheduled again for {moment}.", moment=full(job.scheduled_at)))
    if alike[job.fingerprint or ""] > 1:
        sentences.append(Message("Another job that you chose is alike: the older one is then its live duplicate."))
    named = tuple(others[:RIVALS_NAMED]), max(0, len(others) - RIVALS_NAMED)
    if others:
        met = one if len(others) == 1 else Message(several, count=len(others))
        if not is_retried:
            return Consequence(job.pk, job, met, (), *named)
        sentences.append(met)
    elif not sentences:
        sentences.append(Message("No live duplicate exists: it is retried."))
    return Consequence(job.pk, job, "", tuple(sentences), *named)


_PRUNED = Message("It is pruned: what it was to do is gone.")
_DECISIONS = {
    "create": Message("A new job is created: {reason}"),
    "replace": Message("A new job replaces others: {reason}"),
    "reject": Message("Nothing is enqueued: {reason}"),
    "ignore": Message("Nothing is enqueued: {reason}"),
}


def _enqueue_again(job: Job, now: datetime, jobs: Any, replaceable: QuerySet[Any] | None) -> Consequence:
    if job.state not in ENQUEUE_AGAIN.states:
        return Consequence(job.pk, job, Message("It is {state}: it has not finished yet.", state=job.state))
    if job.payload_pruned:
        return Consequence(job.pk, job, _PRUNED)
    try:
        explained = jobs.explain_request(request_of(job), replaceable)
    except OJSError as error:
        return Consequence(job.pk, job, error.message)
    found = Message(_DECISIONS[explained.action], reason=explained.reason)
    if explained.action in ("reject", "ignore"):
        return Consequence(job.pk, job, found)
    return Consequence(job.pk, job, "", (found,))


def _release(job: Job, now: datetime) -> Consequence:
    if job.fingerprint is None:
        return Consequence(job.pk, job, Message("It takes no part in uniqueness."))
    say, found = partial(Message, type=harmless(job.type)), uniqueness(job, now)
    if not (found.holds or found.counts):
        sentence = say("It keeps nothing out now; it only loses its fingerprint.")
    elif job.state in TERMINAL:
        sentence = say("The next enqueue of {type} that it keeps out is admitted, although its window is open.")
    else:
        sentence = say("The next enqueue of {type} that it keeps out is admitted, although this job goes on.")
    return Consequence(job.pk, job, "", (sentence,))


def _deletion(job: Job, now: datetime) -> Consequence:
    if job.state == JobState.ACTIVE:
        return Consequence(job.pk, job, Message("It is active: cancel it first."))
    say, found, sentences = partial(Message, type=harmless(job.type)), uniqueness(job, now), list[str]()
    if job.state not in TERMINAL:
        sentences.append(say("It waits, and would never run."))
    if found.holds or found.counts:
        sentences.append(say("Its key becomes free: the next enqueue of {type} that it keeps out is admitted."))
    if job.window_ends_at is not None and job.window_ends_at > now:
        moment = full(job.window_ends_at)
        sentences.append(say("Its window was promised until {moment}, and would end now.", moment=moment))
    return Consequence(job.pk, job, "", tuple(sentences) or (Message("It keeps nothing out."),))


_SAY: dict[Operation, Callable[[Job, datetime], Consequence]] = {
    CANCEL: _cancellation,
    RELEASE: _release,
    DELETE: _deletion,
}
