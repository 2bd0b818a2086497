"""Every move of a job between states: one conditional UPDATE each (OJS core, "Lifecycle").

Each function takes a queryset that says *which* rows, adds the states that the move may start from, and returns how
many rows moved. Zero means that another transaction was faster. No move checks uniqueness, and none can fail because
of it: a row holds its unique key while its state is one of its unique states, and releases it when it leaves them.
Only a finished job that is retried gets it back, after its move, by `hold_unique_key`; and `db.holding` gives it to a
live job. The pauses between attempts are in `ojs.retry`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final
from uuid import UUID

from django.db.models import BooleanField, Case, DateTimeField, F, Q, QuerySet, Value, When
from django.db.models.functions import Coalesce, Greatest
from django.db.models.lookups import Exact

from ..db.constraints import LOOKS_FIRST
from ..db.fields import StateSetField
from ..db.holding import free
from ..db.inserts import in_groups
from ..db.now import DatabaseNow
from ..db.transactions import starting_over
from ..db.updates import update_each
from ..ojs.blocking import LIMITED, UNBLOCKED
from ..ojs.states import MOVES, POSTPONED, TIMED, UNSTARTED, UNSUCCESSFUL, JobState
from ..unique.keys import HOLDING
from . import stopped

MAY_RUN_AGAIN: Final = Q(max_attempts__gte=0)
"""The jobs that may run again after this run, if their policy lets them.

For a running job whose key was taken or removed, or whose workflow was cancelled, the bits of ``max_attempts`` are
inverted: no run that is taken back, and so not counted, brings that below the bound. Only a retry by an operator
inverts them again.
"""


_NO_LEASE: dict[str, Any] = {"lease_token": None, "lease_expires_at": None, "unconfirmed": None}


OWNED: Final = frozenset({
    "state", "attempt", "unique", "fingerprint", "unique_states", "fingerprint_scheme", "key", "revision",
    "replaced_by", "enqueued_at", "run_at", "started_at", "finished_at", "worker_id", "lease_token", "lease_expires_at",
    "unconfirmed", "dead_letter", "window_ends_at", "payload_pruned", "workflow_id", "awaited", "workflow_only",
    "limits", "fair_partition", "blocked_by",
})  # fmt: skip
"""The fields of a job that only this package writes: one that is written alone contradicts the others."""


def write(jobs: QuerySet[Any], **changes: Any) -> int:
    """Write fields of the jobs, also owned ones, which ``jobs.update`` refuses; return how many rows matched."""
    return QuerySet.update(jobs, **changes)


def move(jobs: QuerySet[Any], target: JobState, *, sources: Iterable[JobState] | None = None, **changes: Any) -> int:
    """Move the ``jobs`` that may go to ``target`` (and are in ``sources``, if given); return how many moved."""
    allowed = {source for source in JobState if target in MOVES[source]}
    starts = allowed if sources is None else allowed & set(sources)
    changes.setdefault("unique_states", _unique_states_after(target))
    if target == JobState.AVAILABLE:
        changes["blocked_by"] = _first_block()
    rows = jobs.filter(state__in=sorted(starts))
    return starting_over(jobs.db, lambda: write(rows, state=target, **changes))


def cancel(jobs: QuerySet[Any], now: datetime) -> int:
    """Any state that is not terminal → cancelled. The rows are locked."""
    stopped.keep(jobs)
    return move(jobs, JobState.CANCELLED, finished_at=now, run_at=None, **_NO_LEASE)


def replace(jobs: QuerySet[Any], now: datetime, *, by: UUID | Case) -> int:
    """Cancel in favour of the job ``by``: the old row releases its unique key, whatever its unique states.

    For those that run, call `stopped.keep` before.
    """
    return move(
        jobs, JobState.CANCELLED, finished_at=now, run_at=None, replaced_by=by, unique_states=frozenset(), **_NO_LEASE
    )


def promote(jobs: QuerySet[Any], now: datetime) -> int:
    """scheduled, retryable → available when due; ``enqueued_at`` is the due time: late promotion keeps the order."""
    due = jobs.filter(run_at__lte=now)
    # `enqueued_at` comes first, because MariaDB assigns in order.
    return move(due, JobState.AVAILABLE, sources=TIMED, enqueued_at=F("run_at"), run_at=None)


def retry_waiting(jobs: QuerySet[Any], now: datetime) -> int:
    """scheduled, retryable, pending → available, as an operator asked."""
    return move(jobs, JobState.AVAILABLE, sources=POSTPONED, enqueued_at=now, run_at=None)


def activate(jobs: QuerySet[Any], now: datetime) -> int:
    """pending → available, as an operator asked."""
    return move(jobs, JobState.AVAILABLE, sources={JobState.PENDING}, enqueued_at=now)


def unsuccessful() -> Q:
    """Return the condition for finished jobs that can be retried: not completed, replaced or pruned.

    A replaced job must never run (OJS unique jobs, "replace"), and a pruned one has lost its arguments.
    """
    whole = Q(payload_pruned=False, finished_at__isnull=False)
    return whole & (Q(state=JobState.DISCARDED) | Q(state=JobState.CANCELLED, replaced_by__isnull=True))


def retry_finished(jobs: QuerySet[Any], now: datetime, target: JobState = JobState.AVAILABLE) -> int:
    """discarded, cancelled → available, scheduled, pending, as an operator asked, with all attempts; errors stay."""
    when: dict[JobState, dict[str, Any]] = {
        JobState.AVAILABLE: {"enqueued_at": now},
        JobState.SCHEDULED: {"run_at": F("scheduled_at")},
        JobState.PENDING: {},
    }
    in_time = When(expires_at__gt=now, then=F("expires_at"))
    return move(
        jobs.filter(unsuccessful()),
        target,
        sources=UNSUCCESSFUL,
        attempt=0,
        max_attempts=Case(When(MAY_RUN_AGAIN, then=F("max_attempts")), default=-1 - F("max_attempts")),
        started_at=None,
        finished_at=None,
        expires_at=Case(in_time, default=None, output_field=DateTimeField()),
        dead_letter=False,
        # A workflow that has not ended yet counts its end again.
        awaited=Case(When(workflow_id__isnull=False, then=True), default=F("awaited"), output_field=BooleanField()),
        **when[target],
    )


def supersede(jobs: QuerySet[Any], now: datetime, *, errors: list[dict[str, Any]]) -> int:
    """retryable → discarded, because another job counts as its duplicate when the retry is due."""
    return move(jobs, JobState.DISCARDED, sources={JobState.RETRYABLE}, finished_at=now, run_at=None, errors=errors)


def expire(jobs: QuerySet[Any], now: datetime) -> int:
    """A waiting job whose `expires_at` has passed → discarded."""
    return move(jobs.filter(expires_at__lte=now), JobState.DISCARDED, sources=UNSTARTED, finished_at=now, run_at=None)


def claim(
    jobs: QuerySet[Any],
    now: datetime,
    *,
    worker_id: str | None,
    token: UUID,
    lease: timedelta,
    unconfirmed: bool | None = None,
) -> int:
    """available → active, under a lease that ends ``lease`` from now by the database's clock."""
    return move(
        jobs,
        JobState.ACTIVE,
        attempt=F("attempt") + 1,
        started_at=now,
        worker_id=worker_id,
        lease_token=token,
        lease_expires_at=DatabaseNow() + lease,
        unconfirmed=unconfirmed,
        progress=None,
        progress_note="",
    )


def complete(jobs: QuerySet[Any], now: datetime, *, token: UUID, **result: Any) -> int:
    """active → completed, by the worker that has the lease."""
    return move(jobs.filter(lease_token=token), JobState.COMPLETED, finished_at=now, **_NO_LEASE, **result)


def schedule_retry(jobs: QuerySet[Any], run_at: datetime, *, token: UUID, errors: list[dict[str, Any]]) -> int:
    """active → retryable until ``run_at``, by the worker that has the lease."""
    return move(jobs.filter(lease_token=token), JobState.RETRYABLE, run_at=run_at, errors=errors, **_NO_LEASE)


def discard(
    jobs: QuerySet[Any], now: datetime, *, token: UUID | None, errors: list[dict[str, Any]], dead_letter: bool = False
) -> int:
    """active → discarded, by the worker that has the lease."""
    return move(
        jobs.filter(lease_token=token),
        JobState.DISCARDED,
        sources={JobState.ACTIVE},
        finished_at=now,
        errors=errors,
        dead_letter=dead_letter,
        **_NO_LEASE,
    )


def requeue(jobs: QuerySet[Any], *, token: UUID | None, looks_first: bool = False, **changes: Any) -> int:
    """active → available, by the worker that has the lease: the attempt does not count, and the job keeps its place.

    ``looks_first``: active → retryable and due, for the jobs that must be checked for duplicates, and only for these.
    No job moves that may not run again.
    """
    target, which = JobState.AVAILABLE, ~LOOKS_FIRST
    if looks_first:
        target, which = JobState.RETRYABLE, LOOKS_FIRST
        changes["run_at"] = Coalesce("enqueued_at", "created_at")
    return move(
        jobs.filter(MAY_RUN_AGAIN, which, lease_token=token),
        target,
        sources={JobState.ACTIVE},
        # Before `attempt`, because MariaDB assigns in order. A job with an earlier attempt has started: no expiry.
        started_at=Case(When(attempt__gt=1, then=F("started_at")), default=None, output_field=DateTimeField()),
        attempt=Greatest(F("attempt"), 1) - 1,  # it may have been written manually
        **_NO_LEASE,
        **changes,
    )


def end_lease(jobs: QuerySet[Any], *, token: UUID | None) -> int:
    """Let the leases of jobs end that may not run again: the next rescue ends the jobs."""
    held = jobs.filter(~MAY_RUN_AGAIN, lease_token=token, state=JobState.ACTIVE)
    return write(held, lease_token=None, lease_expires_at=DatabaseNow() - timedelta(seconds=1))


def rescue(jobs: QuerySet[Any], now: datetime, *, token: UUID | None, errors: list[dict[str, Any]]) -> int:
    """active → available after its lease ran out; the attempt counts."""
    return move(
        jobs.filter(lease_token=token),
        JobState.AVAILABLE,
        sources={JobState.ACTIVE},
        enqueued_at=now,
        errors=errors,
        **_NO_LEASE,
    )


def rewrite(jobs: QuerySet[Any], rows: Sequence[Any], fields: Collection[str]) -> int:
    """scheduled, pending, available, retryable, discarded → as if newly enqueued: an enqueue rewrites them by key.

    ``rows`` are locked, and hold the new values.
    """
    return update_each(jobs, rows, fields, HOLDING - {JobState.ACTIVE})


def detach(jobs: QuerySet[Any], rows: Sequence[Any]) -> int:
    """Take the key and all further attempts from running jobs; ``rows`` are locked."""
    for row in rows:
        row.key = row.fingerprint = None
        row.unique_states = frozenset()
        row.max_attempts = min(row.max_attempts, ~row.max_attempts)
    fields = ("key", "fingerprint", "unique_states", "max_attempts")
    return update_each(jobs, rows, fields, {JobState.ACTIVE})


def last_attempt(jobs: QuerySet[Any]) -> int:
    """Take all further attempts from running jobs."""
    return write(jobs.filter(MAY_RUN_AGAIN, state=JobState.ACTIVE), max_attempts=-1 - F("max_attempts"))


def keep_for_a_caller(jobs: QuerySet[Any]) -> int:
    """Let unfinished jobs of workflows go on when these are cancelled, because a caller of `enqueue` needs them."""
    return write(jobs.filter(finished_at=None), workflow_only=None)


def hold_unique_key(jobs: QuerySet[Any], states: frozenset[JobState]) -> int:
    """Hold the unique key again in these states, if the row released it when it finished.

    Only for a retry that has made way. Raises IntegrityError when another job holds the unique key.
    """
    return write(jobs.filter(unique_states=frozenset()), unique_states=states)


def release_unique_keys(jobs: QuerySet[Any]) -> int:
    """Release the unique key, in any state, because another job of the fingerprint is being admitted or retried."""
    return write(jobs.exclude(unique_states=frozenset()), unique_states=frozenset())


def leave_uniqueness(jobs: QuerySet[Any]) -> int:
    """Drop the fingerprint for good, in any state, so that the next enqueue of it is admitted."""
    freed: dict[str, Any] = {"unique_states": frozenset(), "fingerprint": None, "window_ends_at": F("finished_at")}
    return starting_over(jobs.db, partial(free, jobs.exclude(fingerprint=None), lambda rows: write(rows, **freed)))


def remove(jobs: QuerySet[Any]) -> int:
    """Delete the jobs that are not active; return how many rows were deleted."""
    idle = jobs.exclude(state=JobState.ACTIVE)
    return starting_over(jobs.db, partial(free, idle, lambda rows: QuerySet.delete(rows)[0]))


def block(jobs: QuerySet[Any], rows: Sequence[Any]) -> int:
    """Write what available jobs are blocked by, or are to be once they run; ``rows`` have the new values.

    Jobs with the same value are written together: thousands may wait for one partition.
    """
    by_block: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        by_block[row.blocked_by].append(row)
    alone = [row for some in by_block.values() for row in some if len(some) == 1]
    blocked = update_each(jobs, alone, ("blocked_by",), {JobState.AVAILABLE})
    for blocked_by, some in by_block.items():
        for keys in in_groups([row.id for row in some]) if len(some) > 1 else ():
            blocked += write(jobs.filter(pk__in=keys, state=JobState.AVAILABLE), blocked_by=blocked_by)
    return blocked


def _first_block() -> Case:
    """Return what blocks a job that becomes available."""
    return Case(
        When(fair_partition__isnull=False, then=F("fair_partition")),
        When(limits__isnull=False, then=Value(LIMITED)),
        default=Value(UNBLOCKED),
    )


def _unique_states_after(target: JobState) -> Case:
    keeps = Exact(F("unique_states").bitand(target.bit), target.bit)
    return Case(When(keeps, then=F("unique_states")), default=0, output_field=StateSetField())
