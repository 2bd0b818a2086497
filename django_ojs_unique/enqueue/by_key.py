"""Enqueue by key: rewrite the waiting job that holds it, or create one (Graphile Worker, "Job key")."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from copy import copy
from typing import Any

from django.db import connections, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from .. import lifecycle
from ..conf import settings
from ..db.constraints import holding_unique_key
from ..db.dialect import Dialect
from ..db.dialects import dialect_of
from ..db.inserts import in_groups
from ..exceptions import InvalidRequest, Message
from ..handlers.carried import capture
from ..handlers.redaction import redacted_args
from ..hooks import tracer
from ..ojs.names import job_type
from ..ojs.states import JobState
from ..signals import announce, job_enqueued, job_suppressed, job_updated
from ..unique.fingerprint import CONTEXT, canonical_key, fingerprint
from ..unique.keys import JobKey, KeyAction, KeyScope, is_mixed, judge, merge
from . import suppression
from .errors import id_taken, ids_in_use, naming_missing_tables
from .new_job import NewJob, set_times
from .results import EnqueueResult, Outcome
from .row import JobRow
from .unit_of_work import LostRace, UnitOfWork
from .values import sized

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
    "retry_options",
    "timeout_ms",
    "visibility_timeout_ms",
    "expires_at",
    "fingerprint_scheme",
    "limits",
    "fair_partition",
    "blocked_by",
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
    "steps",
    "payload_pruned",
)
REWRITTEN = (*_ENVELOPE, *_TIME, *_UNTRIED, "revision", "workflow_id")


class HeldKey:
    """One key, while enqueues are applied to it in order.

    ``holder`` is the job that holds it, or None. ``is_new`` and ``is_changed`` tell how it must be written, and
    ``released`` is the running job that has lost the key.
    """

    def __init__(self, holder: JobRow | None = None) -> None:
        self.holder: JobRow | None = holder
        self.is_new = False
        self.is_changed = False
        self.released: JobRow | None = None

    def admits(self, new_job: NewJob) -> bool:
        """Tell whether an enqueue would create a job."""
        assert new_job.key is not None
        return judge(self.holder, new_job.key.mode) in (KeyAction.CREATE, KeyAction.SUCCEED)

    def apply(self, new_job: NewJob) -> tuple[Outcome, JobRow]:
        """Apply an enqueue; return its outcome and its job. Raises InvalidRequest, and nothing has changed then."""
        assert new_job.key is not None
        action = judge(self.holder, new_job.key.mode)
        if self.holder is None or action in (KeyAction.CREATE, KeyAction.SUCCEED):
            self.released, self.holder, self.is_new = self.holder, new_job.job, True
            return Outcome.CREATED, new_job.job
        if action is KeyAction.KEEP:
            return Outcome.DEDUPLICATED, self.holder
        self.holder = rewritten(self.holder, new_job.job, keep_time=action is KeyAction.REWRITE_BUT_TIME)
        self.is_changed = not self.is_new
        return Outcome.REPLACED, self.holder


def rewritten(holder: JobRow, job: JobRow, *, keep_time: bool) -> JobRow:
    """Return a copy of ``holder`` with the values of ``job``, so that the results of earlier items do not change."""
    args = merged_args(holder, job)
    if is_mixed(holder.args, job.args):
        logger.warning(
            "Job %s (%s): an enqueue by key replaced an array by an object or the reverse: its args are lost.",
            holder.pk,
            holder.type,
        )
    holder = copy(holder)
    for name in (*_ENVELOPE, *_UNTRIED, *(() if keep_time else _TIME)):
        setattr(holder, name, getattr(job, name))
    holder.args = args
    holder.workflow_id = job.workflow_id or holder.workflow_id
    holder.revision += 1
    return holder


def merged_args(holder: JobRow, job: JobRow) -> Any:
    """Return the args of a rewritten job. Raises InvalidRequest when they may not be mixed, or are too large."""
    args = job.args
    if is_mixed(holder.args, args) and not settings.replace_mixed_args:
        raise InvalidRequest.at(
            "args",
            "would replace an array by an object or the reverse, and OJS_UNIQUE['REPLACE_MIXED_ARGS'] is off",
            value=redacted_args(job.type, args),
            hint=Message(_SEND_ARRAY if isinstance(holder.args, list) else _SEND_OBJECT, id=holder.pk),
        )
    return sized(merge(holder.args, args), "args", settings.max_args_bytes)


def lock_held_keys(jobs: QuerySet[Any], dialect: Dialect, fingerprints: Collection[str]) -> dict[str, HeldKey]:
    """Lock the jobs that hold some keys; return a `HeldKey` for each key."""
    held_keys = {fingerprint: HeldKey() for fingerprint in sorted(fingerprints)}
    for some in in_groups(held_keys):
        for holder in dialect.lock(jobs.filter(holding_unique_key(), fingerprint__in=some), by_key=False):
            held_keys[holder.fingerprint].holder = holder
    return held_keys


def write_held_keys(jobs: QuerySet[Any], dialect: Dialect, held_keys: Iterable[HeldKey]) -> None:
    """Write the jobs that changed, but not the new ones."""
    held_keys = list(held_keys)
    changed = [held.holder for held in held_keys if held.is_changed and held.holder is not None]
    lifecycle.detach(jobs, [held.released for held in held_keys if held.released is not None])
    lifecycle.rewrite(jobs, changed, REWRITTEN)
    dialect.wake({job.queue for job in changed if job.state == JobState.AVAILABLE})


def enqueue(jobs: QuerySet[Any], new_job: NewJob) -> EnqueueResult:
    """Enqueue as the key's mode says, in the caller's transaction on the database of ``jobs``.

    Raises InvalidRequest, JobIdTaken, or Contended after losing 100 races in a row.
    """
    with tracer().enqueue(new_job.job) as answered:
        with naming_missing_tables(jobs):
            for work in UnitOfWork(jobs.db):
                with work:
                    result = _decide(jobs, new_job, work)
                    announce_keyed(jobs, new_job.job, result.job, result.outcome)
        answered(result)
    return result


def _decide(jobs: QuerySet[Any], new_job: NewJob, work: UnitOfWork) -> EnqueueResult:
    dialect = dialect_of(jobs)
    if dialect.may_insert_first and not work.is_repeated and dialect.insert(new_job.values):
        return EnqueueResult(new_job, Outcome.CREATED)
    with transaction.atomic(using=jobs.db):
        return _decide_under_locks(jobs, new_job, dialect)


def _decide_under_locks(jobs: QuerySet[Any], new_job: NewJob, dialect: Dialect) -> EnqueueResult:
    """Lock, decide and write everything, or raise LostRace and write nothing."""
    job = new_job.job
    dialect.lock_keys([job.fingerprint])
    held = lock_held_keys(jobs, dialect, [job.fingerprint])[job.fingerprint]
    set_times(new_job, timezone.now())
    outcome, holder = held.apply(new_job)
    write_held_keys(jobs, dialect, [held])
    if held.is_new and not dialect.insert(new_job.values):
        raise id_taken(job) if ids_in_use(jobs, [job.pk]) else LostRace
    if outcome is Outcome.DEDUPLICATED:
        suppression.record(jobs.db, [suppression.by_key(new_job, holder)])
    return EnqueueResult(holder, outcome)


def announce_keyed(jobs: QuerySet[Any], job: JobRow, holder: JobRow, outcome: Outcome) -> None:
    """Mark the holder of a key as stored; send the signal about what an enqueue of ``job`` has done to it."""
    sender, using = jobs.model, jobs.db
    holder._state.adding, holder._state.db = False, using
    match outcome:
        case Outcome.CREATED:
            announce(job_enqueued, sender, job=holder, using=using)
        case Outcome.REPLACED:
            announce(job_updated, sender, job=holder, using=using)
        case Outcome.DEDUPLICATED:
            announce(job_suppressed, sender, outcome="deduplicated", existing_job=holder, job=job, using=using)


def remove(jobs: QuerySet[Any], key: str, type: str | None, key_scope: KeyScope | str | None) -> JobRow | None:
    """Remove the job that holds a key, and return it; see `JobQuerySet.remove`."""
    named = JobKey(key, scope=KeyScope.TYPE if key_scope is None else key_scope)
    carried = capture()
    which = Q() if type is None else Q(type=job_type(type))
    if key_scope is not None:
        is_global = Q(fingerprint=fingerprint(canonical_key(named.text, type=None, meta={CONTEXT: carried})))
        which &= is_global if named.scope is KeyScope.GLOBAL else ~is_global
    if carried and "unique" in carried:
        scopes = [
            None,
            *({type} if type else jobs.filter(key=named.text).order_by().values_list("type", flat=True).distinct()),
        ]
        which &= Q(
            fingerprint__in=[
                fingerprint(canonical_key(named.text, type=one, meta={CONTEXT: carried})) for one in scopes
            ]
        )
    # The snapshot of a caller's transaction may show an earlier holder of the key: then use only a query with locks.
    by_key = not connections[jobs.db].in_atomic_block
    for work in UnitOfWork(jobs.db):
        with work:
            removed = _remove(jobs, named.text, which, by_key=by_key and not work.lost_races)
    return removed


_SEND_ARRAY = Message("Send an array, as job {id} has.")
_SEND_OBJECT = Message("Send an object, as job {id} has.")


def _remove(jobs: QuerySet[Any], key: str, which: Q, *, by_key: bool) -> JobRow | None:
    """Remove, or raise LostRace when the holder of the key changed or ended between the query and the lock."""
    dialect = dialect_of(jobs)
    holders = jobs.filter(holding_unique_key(), which, key=key)
    with transaction.atomic(using=jobs.db):
        dialect.take_write_lock()
        # MariaDB compares text without case, accents and trailing spaces.
        seen = [text for text in holders.values_list("key", flat=True) if text == key]
        found = [job for job in dialect.lock(holders, by_key=by_key) if job.holds_unique_key and job.key == key]
        if len(found) < len(seen) and (by_key or dialect.lets_rivals_in):
            raise LostRace
        if len(found) > 1:
            types = sorted(job.type for job in found)
            raise InvalidRequest.at(
                "key",
                f"is held by {len(types)} jobs, of the types {', '.join(types)}",
                value=key,
                hint="Say which with type= or key_scope=.",
            )
        for job in found:
            if job.state == JobState.ACTIVE:
                lifecycle.detach(jobs, [job])
            else:
                QuerySet.delete(jobs.filter(pk=job.pk))  # a key is never held for another job
        return found[0] if found else None
