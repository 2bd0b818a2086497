"""Enqueue by key: rewrite the waiting job that holds it, or create one (Graphile Worker, "Job key")."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from copy import copy
from functools import partial
from typing import Any

from django.db import connections, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from . import lifecycle
from .admission import Admission, in_groups
from .conf import settings
from .constraints import guarding
from .exceptions import InvalidRequest
from .ojs.keys import KeyAction, is_mixed, judge, merge
from .ojs.states import JobState
from .outcomes import EnqueueResult, Met, Outcome, Recorder, Suppression
from .races import LostRace, id_taken, ids_in_use, until_won
from .request import Incoming, date, sized
from .signals import announce, job_enqueued, job_suppressed, job_updated
from .transactions import starting_over

logger = logging.getLogger("django_ojs_unique")

_TIME = ("state", "scheduled_at", "run_at", "enqueued_at")
_ENVELOPE = (
    "type",
    "queue",
    "args",
    "meta",
    "tags",
    "schema",
    "extra",
    "priority",
    "max_attempts",
    "retry",
    "timeout_ms",
    "visibility_timeout_ms",
    "expires_at",
    "fingerprint_scheme",
)
_UNTRIED = (
    "attempt",
    "errors",
    "dead_letter",
    "started_at",
    "finished_at",
    "worker_id",
    "progress",
    "progress_note",
    "slimmed",
)
REWRITTEN = (*_ENVELOPE, *_TIME, *_UNTRIED, "revision")


class Slot:
    """One key, while enqueues go by it in order.

    ``holder`` is the job that holds it, or None. ``is_new`` and ``is_changed`` tell how it must be written, and
    ``released`` is the running job that has lost the key.
    """

    def __init__(self, holder: Any | None = None) -> None:
        self.holder: Any | None = holder
        self.is_new = False
        self.is_changed = False
        self.released: Any | None = None

    def admits(self, incoming: Incoming) -> bool:
        """Tell whether an enqueue would create a job."""
        assert incoming.key is not None
        return judge(self.holder, incoming.key.mode) in (KeyAction.CREATE, KeyAction.SUCCEED)

    def apply(self, incoming: Incoming) -> Outcome:
        """Let an enqueue go by; return what becomes of it. Raises InvalidRequest, and nothing has changed then.

        Each rewriting makes a new `holder`: an earlier answer, and the item that brought it, keep theirs.
        """
        assert incoming.key is not None
        action = judge(self.holder, incoming.key.mode)
        if action is KeyAction.KEEP:
            return Outcome.DEDUPLICATED
        if action in (KeyAction.CREATE, KeyAction.SUCCEED):
            self.released, self.holder, self.is_new = self.holder, incoming.job, True
            return Outcome.CREATED
        self._rewrite(incoming.job, keep_time=action is KeyAction.REWRITE_BUT_TIME)
        return Outcome.REPLACED

    def _rewrite(self, job: Any, *, keep_time: bool) -> None:
        assert self.holder is not None
        args = merged_args(self.holder, job.args)
        if is_mixed(self.holder.args, job.args):
            logger.warning(
                "Job %s (%s): an enqueue by key replaced an array by an object or the reverse: its args are lost.",
                self.holder.pk,
                self.holder.type,
            )
        self.holder = holder = copy(self.holder)
        for name in (*_ENVELOPE, *_UNTRIED, *(() if keep_time else _TIME)):
            setattr(holder, name, getattr(job, name))
        holder.args = args
        holder.revision += 1
        self.is_changed = not self.is_new


def merged_args(holder: Any, args: Any) -> Any:
    """Return what the args of a rewritten job become. Raises InvalidRequest for what may not be, or is too large."""
    if is_mixed(holder.args, args) and not settings.replace_mixed_args:
        raise InvalidRequest.at(
            "args",
            "would replace an array by an object or the reverse, and OJS_UNIQUE['REPLACE_MIXED_ARGS'] is off",
            value=args,
            mend=f"Send {'an array' if isinstance(holder.args, list) else 'an object'}, as job {holder.pk} has.",
        )
    return sized(merge(holder.args, args), "args", settings.max_args_bytes)


def lock_slots(jobs: QuerySet[Any], admission: Admission, fingerprints: Collection[str]) -> dict[str, Slot]:
    """Lock the jobs that hold some keys; return a slot for each key."""
    slots = {fingerprint: Slot() for fingerprint in sorted(fingerprints)}
    for some in in_groups(slots):
        for holder in admission.lock(jobs.filter(guarding(), fingerprint__in=some), by_key=False):
            slots[holder.fingerprint].holder = holder
    return slots


def write_slots(jobs: QuerySet[Any], admission: Admission, slots: Iterable[Slot]) -> None:
    """Write what changed, but for the new jobs."""
    slots = list(slots)
    changed: list[Any] = [slot.holder for slot in slots if slot.is_changed]
    lifecycle.let_go(jobs, [slot.released for slot in slots if slot.released is not None])
    lifecycle.rewrite(jobs, changed, REWRITTEN)
    admission.wake({job.queue for job in changed if job.state == JobState.AVAILABLE})


def enqueue_by_key(jobs: QuerySet[Any], incoming: Incoming, record: Recorder) -> EnqueueResult:
    """Do what the key's mode says, in the caller's transaction on the database of ``jobs``.

    Raises InvalidRequest, JobIdTaken, or Contended after losing 100 races in a row.
    """
    admission = Admission(jobs.model, connections[jobs.db])
    if admission.may_insert_first and starting_over(jobs.db, partial(admission.insert, incoming.job)):
        result = EnqueueResult(incoming.job, Outcome.CREATED)
    else:
        result = until_won(lambda look: starting_over(jobs.db, partial(_settle, jobs, incoming, record, admission)))
    announce_keyed(jobs, incoming.job, result.job, result.outcome)
    return result


def suppression_by_key(incoming: Incoming, holder: Any) -> Suppression:
    """Return what to record of an enqueue that the holder of its key answered."""
    assert incoming.key is not None
    return Suppression(incoming.job, incoming.key.mode, (Met(holder.pk, holder.state),), "ignored")


def announce_keyed(jobs: QuerySet[Any], job: Any, holder: Any, outcome: Outcome) -> None:
    """Mark the holder of a key as stored; tell the receivers what an enqueue of ``job`` has done to it."""
    sender, using = jobs.model, jobs.db
    holder._state.adding, holder._state.db = False, using
    match outcome:
        case Outcome.CREATED:
            announce(job_enqueued, sender, job=holder, using=using)
        case Outcome.REPLACED:
            announce(job_updated, sender, job=holder, using=using)
        case Outcome.DEDUPLICATED:
            announce(job_suppressed, sender, outcome="ignored", existing_job=holder, job=job, using=using)


def remove(jobs: QuerySet[Any], key: str, which: Q) -> Any | None:
    """Remove the one of the jobs ``which`` that holds a key, and return it; see `JobQuerySet.remove`."""
    # The snapshot of a caller's transaction may show who held the key long ago; then only a locking look will do.
    by_key = not connections[jobs.db].in_atomic_block
    return until_won(
        lambda look: starting_over(jobs.db, partial(_remove, jobs, key, which, by_key=by_key and not look))
    )


def _remove(jobs: QuerySet[Any], key: str, which: Q, *, by_key: bool) -> Any | None:
    """Remove, or raise LostRace when the key passed on, or its holder ended, between the look and the lock."""
    admission = Admission(jobs.model, connections[jobs.db])
    holders = jobs.filter(guarding(), which, key=key)
    with transaction.atomic(using=jobs.db):
        admission.take_write_lock()
        # MariaDB compares text without case, accents and trailing spaces.
        seen = [text for text in holders.values_list("key", flat=True) if text == key]
        found = [job for job in admission.lock(holders, by_key=by_key) if job.is_guarding and job.key == key]
        if len(found) < len(seen) and (by_key or admission.can_be_overtaken):
            raise LostRace
        if len(found) > 1:
            types = sorted(job.type for job in found)
            raise InvalidRequest.at(
                "key",
                f"is held by {len(types)} jobs, of the types {', '.join(types)}",
                value=key,
                mend="Say which with type= or key_scope=.",
            )
        for job in found:
            if job.state == JobState.ACTIVE:
                lifecycle.let_go(jobs, [job])
            else:
                jobs.filter(pk=job.pk).delete()
        return found[0] if found else None


def _settle(jobs: QuerySet[Any], incoming: Incoming, record: Recorder, admission: Admission) -> EnqueueResult:
    """Look under locks and act: all of it or, with LostRace, nothing."""
    job = incoming.job
    with transaction.atomic(using=jobs.db):
        admission.take_turns([job.fingerprint])
        slot = lock_slots(jobs, admission, [job.fingerprint])[job.fingerprint]
        date(incoming, timezone.now())
        outcome = slot.apply(incoming)
        write_slots(jobs, admission, [slot])
        if slot.is_new and not admission.insert(job):
            raise id_taken(job) if ids_in_use(jobs, [job.pk]) else LostRace
        if outcome is Outcome.DEDUPLICATED:
            record([suppression_by_key(incoming, slot.holder)])
        assert slot.holder is not None
    return EnqueueResult(slot.holder, outcome)
