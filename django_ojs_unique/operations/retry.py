"""Retry finished jobs: refuse or cancel the live duplicates, and hold the unique key again, in one transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import IntegrityError
from django.db.models import Case, Q, QuerySet, UUIDField, Value, When
from django.utils import timezone

from .. import lifecycle
from ..db import holding
from ..db.constraints import holding_unique_key, released
from ..db.dialect import Dialect
from ..db.dialects import dialect_of
from ..db.inserts import in_groups
from ..enqueue.duplicates import may_replace_active, outside
from ..enqueue.row import JobRow
from ..enqueue.unit_of_work import LostRace, UnitOfWork
from ..exceptions import DuplicateJob, InvalidPolicy, InvalidRequest, Message, OJSError
from ..ojs.states import ALL, TERMINAL, JobState
from ..signals import job_activated, job_cancelled
from ..unique.keys import HOLDING
from ..unique.policy import UniquePolicy
from .announcing import announce_each
from .results import BulkResult
from .rows import everything

_READ = (
    "type",
    "queue",
    "state",
    "unique",
    "key",
    "fingerprint",
    "unique_states",
    "created_at",
    "enqueued_at",
    "scheduled_at",
)
_NO_REPLACING = "that runs, and here a running job may not be replaced (OJS_UNIQUE['REPLACE_ACTIVE'], or the database)"


def refuse_both(*, force: bool | None = None, replace: bool = False, **others: Any) -> None:
    """Raise InvalidRequest for a retry that is to replace live duplicates and to run beside them."""
    if force and replace:
        raise InvalidRequest.at(
            "replace",
            "cannot be combined with force",
            hint="Replace cancels the live duplicates, force lets them run: choose one.",
        )


def retry_finished(
    jobs: QuerySet[Any],
    ids: Collection[UUID],
    work: UnitOfWork,
    *,
    force: bool = False,
    replace: bool = False,
    replaceable: QuerySet[Any] | None = None,
    known: Any = None,
) -> BulkResult:
    """Retry discarded and cancelled jobs in the caller's transaction, the oldest first, and leave others of ``ids``.

    A job whose time has not come yet is scheduled again, and one that was never activated is pending. A job is refused
    with DuplicateJob when a live duplicate stays, also one that was retried with it; see `Job.retry`. ``replace``
    cancels no job outside ``replaceable``. Raises LostRace when another job got a unique key, or a fingerprint changed.
    """
    dialect, chosen, jobs = dialect_of(jobs), jobs.filter(pk__in=ids), everything(jobs)
    plan = _Plan(replaceable)
    dialect.take_write_lock()
    fingerprints = set(chosen.exclude(fingerprint=None).values_list("fingerprint", flat=True))
    dialect.lock_keys(fingerprints)
    locked = chosen.filter(lifecycle.unsuccessful()).only(*_READ).order_by("pk").select_for_update()
    dead = sorted(locked, key=lambda job: (job.created_at, job.pk))
    now = timezone.now()
    if not fingerprints.issuperset(job.fingerprint for job in dead if job.fingerprint):
        raise LostRace
    if force:
        for job in dead:
            plan.retry(job, now)
        plan.forced = fingerprints
    else:
        # After a lost race, query with locks only: the snapshot of the caller's transaction may hide new rows.
        _decide(plan, jobs, dialect, dead, now, replace=replace, by_key=not work.lost_races)
    _write(jobs, plan, now)
    dialect.wake({job.queue for job in plan.retried.values() if job.state == JobState.AVAILABLE})
    announce_each(job_cancelled, jobs, plan.replaced)
    announce_each(job_activated, jobs, plan.retried, known=known)
    return BulkResult(list(plan.retried), plan.refused, plan.replaced)


@dataclass(slots=True)
class _Plan:
    """What is written: ``retried`` jobs by id, in order; ``replaced`` ones with the job of each; who releases its key.

    ``holders``: for each fingerprint, the job that gets the unique key, and its unique states. ``replaceable``:
    the only jobs that may be replaced, if these are not all. ``forced``: the fingerprints of jobs that are retried
    whatever else lives.
    """

    replaceable: QuerySet[Any] | None = None
    retried: dict[UUID, JobRow] = field(default_factory=dict)
    refused: dict[UUID, OJSError] = field(default_factory=dict)
    replaced: dict[UUID, UUID] = field(default_factory=dict)
    released: list[UUID] = field(default_factory=list)
    holders: dict[str, tuple[UUID, frozenset[JobState]]] = field(default_factory=dict)
    forced: Collection[str] = ()

    def retry(self, job: JobRow, now: datetime) -> None:
        """Plan a retry; ``job`` has its new state then."""
        if job.scheduled_at is not None and job.scheduled_at > now:
            job.state = str(JobState.SCHEDULED)
        elif job.scheduled_at is None and job.enqueued_at is None:
            job.state = str(JobState.PENDING)
        else:
            job.state = str(JobState.AVAILABLE)
        self.retried[job.pk] = job


def _decide(
    plan: _Plan,
    jobs: QuerySet[Any],
    dialect: Dialect,
    dead: Sequence[JobRow],
    now: datetime,
    *,
    replace: bool,
    by_key: bool,
) -> None:
    others = _look(jobs, dialect, dead, by_key=by_key)
    for job in dead:
        if not job.fingerprint:
            plan.retry(job, now)
            continue
        try:
            policy = job.unique_policy or UniquePolicy()
        except InvalidPolicy as error:
            plan.refused[job.pk] = error
            continue
        rows = others[job.fingerprint]
        rows.pop(job.pk, None)
        rivals = {id: row for id, row in rows.items() if _is_rival(row, policy, now)}
        # A job that is retried here is not cancelled for the next one.
        may_replace = replace and plan.retried.keys().isdisjoint(rivals)
        if may_replace and (spared := outside(plan.replaceable, rivals.values())):
            plan.refused[job.pk] = _refusal(job, spared, "")
            continue
        if rivals and not (may_replace and may_replace_active(jobs, rivals.values())):
            plan.refused[job.pk] = _refusal(job, rivals.values(), _NO_REPLACING if may_replace else "")
            continue
        plan.replaced |= dict.fromkeys(rivals, job.pk)
        plan.released += rows.keys() - rivals.keys()
        live = {id: row for id, row in rows.items() if row.state not in TERMINAL and id not in rivals}
        states = HOLDING if job.key is not None else ALL if live else policy.unique_states
        plan.holders[job.fingerprint] = job.pk, states
        plan.retry(job, now)
        others[job.fingerprint] = {**live, job.pk: job}


def _is_rival(row: JobRow, policy: UniquePolicy, now: datetime) -> bool:
    return row.state not in TERMINAL and policy.is_duplicate(row.state, row.created_at, now)


def _refusal(job: JobRow, rivals: Iterable[JobRow], why: str) -> DuplicateJob:
    # Name a running duplicate if there is one, else the newest.
    rival = max(rivals, key=lambda row: (row.state == JobState.ACTIVE, row.created_at))
    message = f"Cannot retry job {job.pk}: job {rival.pk} is a live duplicate {why}."
    if not why:
        template = Message("Cannot retry job {id}: job {other} is a live duplicate ({state}).")
        message = Message(template, id=job.pk, other=rival.pk, state=rival.state)
    return DuplicateJob(rival, job.fingerprint, message)


def _look(
    jobs: QuerySet[Any], dialect: Dialect, dead: Sequence[JobRow], *, by_key: bool
) -> defaultdict[str, dict[UUID, JobRow]]:
    """Lock and return, by fingerprint, the live jobs and those that hold it; ``dead`` ones are locked already."""
    found: defaultdict[str, dict[UUID, JobRow]] = defaultdict(dict)
    for job in dead:
        if job.fingerprint and job.holds_unique_key:
            found[job.fingerprint][job.pk] = job
    if fingerprints := {job.fingerprint for job in dead if job.fingerprint}:
        others = jobs.exclude(pk__in=[job.pk for job in dead]).only(*_READ)
        # The two partial indexes that have these rows; each part repeats the fingerprints, as SQLite needs them.
        alike = {"fingerprint__in": fingerprints}
        for row in dialect.lock(
            others.filter(Q(holding_unique_key(), **alike) | Q(released(), **alike)), by_key=by_key
        ):
            found[row.fingerprint][row.pk] = row
    return found


def _write(jobs: QuerySet[Any], plan: _Plan, now: datetime) -> None:
    for some in in_groups(plan.replaced.items()):
        by = Case(*(When(pk=old, then=Value(new)) for old, new in some), output_field=UUIDField())
        lifecycle.replace(jobs.filter(pk__in=[old for old, _ in some]), now, by=by)
    for ids in in_groups(plan.released):
        lifecycle.release_unique_keys(jobs.filter(pk__in=ids))
    by_state: dict[str, list[UUID]] = defaultdict(list)
    for job in plan.retried.values():
        by_state[job.state].append(job.pk)
    for state, ids in by_state.items():
        lifecycle.retry_finished(jobs.filter(pk__in=ids), now, JobState(state))
    by_states: dict[frozenset[JobState], list[UUID]] = defaultdict(list)
    for id, states in plan.holders.values():
        by_states[states].append(id)
    try:
        for states, ids in by_states.items():
            lifecycle.hold_unique_key(jobs.filter(pk__in=ids, fingerprint__isnull=False), states)
        holding.hold_for_others(jobs, plan.forced)
    except IntegrityError:  # an enqueue or another retry was faster
        raise LostRace from None
