"""Revive finished jobs: refuse or cancel the live duplicates, and guard the fingerprints again, in one transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import Case, Q, QuerySet, UUIDField, Value, When
from django.utils import timezone

from .. import lifecycle
from ..db.constraints import guarding, of_fingerprint
from ..db.dialect import Dialect
from ..db.dialects import dialect_of
from ..enqueue.duplicates import may_replace_active
from ..enqueue.row import JobRow
from ..exceptions import DuplicateJob, InvalidPolicy, InvalidRequest, OJSError
from ..ojs.keys import HOLDING
from ..ojs.policy import UniquePolicy
from ..ojs.states import INCOMPLETE, TERMINAL, JobState
from ..signals import announce, job_activated, job_cancelled
from ..unit_of_work import LostRace, UnitOfWork
from .results import BulkResult

_READ = ("type", "queue", "state", "unique", "key", "fingerprint", "guarded_states", "created_at", "scheduled_at")

_NO_REPLACING = "that runs, and here a running job may not be replaced (OJS_UNIQUE['REPLACE_ACTIVE'], or the database)"


def revive(
    jobs: QuerySet[Any], ids: Collection[UUID], work: UnitOfWork, *, force: bool = False, replace: bool = False
) -> BulkResult:
    """Revive discarded and cancelled jobs, the oldest first; other jobs of ``ids`` are left alone.

    A job is refused with DuplicateJob when a live duplicate stays, also one that was revived with it; see `Job.revive`.
    Raises LostRace when another job got a guard, or a fingerprint changed.
    """
    if force and replace:
        raise InvalidRequest.at(
            "replace",
            "cannot be said together with force",
            mend="Replace cancels the live duplicates, force lets them run: choose one.",
        )
    dialect, chosen, jobs = dialect_of(jobs), jobs.filter(pk__in=ids), all_of(jobs)
    with transaction.atomic(using=jobs.db):
        locked = set() if force else set(chosen.exclude(fingerprint=None).values_list("fingerprint", flat=True))
        dialect.lock_keys(locked)
        dead = list(lifecycle.revivable(chosen).only(*_READ).order_by("pk").select_for_update())
        now = timezone.now()
        if force:
            plan = _Plan()
            for job in dead:
                plan.revive(job, now)
        else:
            if not locked.issuperset(job.fingerprint for job in dead if job.fingerprint):
                raise LostRace
            dead.sort(key=lambda job: (job.created_at, job.pk))
            # After a lost race, query with locks only: the snapshot of the caller's transaction may hide new rows.
            plan = _plan(jobs, dialect, dead, now, replace=replace, by_key=not work.lost_races)
        _write(jobs, plan, now)
        dialect.wake({job.queue for job in plan.revived.values() if job.state == JobState.AVAILABLE})
        _announce(jobs, plan)
    return BulkResult(list(plan.revived), plan.refused, plan.replaced)


def all_of(jobs: QuerySet[Any]) -> Any:
    """Return all jobs of the database of ``jobs``, without the filters."""
    return jobs.model._default_manager.using(jobs.db)


@dataclass(slots=True)
class _Plan:
    """What is written: ``revived`` jobs by id, in order; ``replaced`` ones with the job of each; who loses the guard.

    ``guards``: for each fingerprint, the job that gets the guard, and the states in which it guards.
    """

    revived: dict[UUID, JobRow] = field(default_factory=dict)
    refused: dict[UUID, OJSError] = field(default_factory=dict)
    replaced: dict[UUID, UUID] = field(default_factory=dict)
    unguarded: list[UUID] = field(default_factory=list)
    guards: dict[str, tuple[UUID, frozenset[JobState]]] = field(default_factory=dict)

    def revive(self, job: JobRow, now: datetime) -> None:
        """Plan a revival; ``job`` then has its new state."""
        job.state = str(
            JobState.SCHEDULED if job.scheduled_at is not None and job.scheduled_at > now else JobState.AVAILABLE
        )
        self.revived[job.pk] = job


def _plan(
    jobs: QuerySet[Any], dialect: Dialect, dead: Sequence[JobRow], now: datetime, *, replace: bool, by_key: bool
) -> _Plan:
    plan = _Plan()
    alike = _look(jobs, dialect, dead, by_key=by_key)
    for job in dead:
        if not job.fingerprint:
            plan.revive(job, now)
            continue
        try:
            policy = job.unique_policy or UniquePolicy()
        except InvalidPolicy as error:
            plan.refused[job.pk] = error
            continue
        rows = [row for row in alike[job.fingerprint] if row is not job]
        live = [row for row in rows if row.state not in TERMINAL]
        rivals = [row for row in live if policy.is_duplicate(row.state, row.created_at, now)]
        # A job that is revived here is not cancelled for the next one.
        may_replace = replace and not any(row.pk in plan.revived for row in rivals)
        if rivals and not (may_replace and may_replace_active(jobs, rivals)):
            plan.refused[job.pk] = _refusal(job, rivals, _NO_REPLACING if may_replace else "")
            continue
        plan.replaced |= {row.pk: job.pk for row in rivals}
        plan.unguarded += [row.pk for row in rows if row not in rivals]
        plan.guards[job.fingerprint] = job.pk, HOLDING if job.key is not None else policy.guarded_states
        plan.revive(job, now)
        alike[job.fingerprint] = [*(row for row in live if row not in rivals), job]
    return plan


def _refusal(job: JobRow, rivals: Sequence[JobRow], why: str) -> DuplicateJob:
    # Name a running duplicate if there is one, else the newest.
    rival = max(rivals, key=lambda row: (row.state == JobState.ACTIVE, row.created_at))
    said = f"Cannot revive job {job.pk}: job {rival.pk} is a live duplicate {why or f'({rival.state})'}."
    return DuplicateJob(rival, job.fingerprint, said)


def _look(
    jobs: QuerySet[Any], dialect: Dialect, dead: Sequence[JobRow], *, by_key: bool
) -> defaultdict[str, list[JobRow]]:
    """Lock and return, by fingerprint, the live jobs and those that guard it; ``dead`` ones are locked already."""
    alike: defaultdict[str, list[JobRow]] = defaultdict(list)
    for job in dead:
        if job.fingerprint and job.is_guarding:
            alike[job.fingerprint].append(job)
    if fingerprints := {job.fingerprint for job in dead if job.fingerprint}:
        others = jobs.filter(of_fingerprint(fingerprint__in=fingerprints)).exclude(pk__in=[job.pk for job in dead])
        matters = others.filter(Q(state__in=sorted(INCOMPLETE)) | guarding()).only(*_READ)
        for row in dialect.lock(matters, by_key=by_key):
            alike[row.fingerprint].append(row)
    return alike


def _write(jobs: QuerySet[Any], plan: _Plan, now: datetime) -> None:
    if plan.replaced:
        by = Case(*(When(pk=old, then=Value(new)) for old, new in plan.replaced.items()), output_field=UUIDField())
        lifecycle.replace(jobs.filter(pk__in=list(plan.replaced)), now, by=by)
    if plan.unguarded:
        lifecycle.drop_guards(jobs.filter(pk__in=plan.unguarded))
    lifecycle.revive(jobs.filter(pk__in=list(plan.revived)), now)
    guards: dict[frozenset[JobState], list[UUID]] = defaultdict(list)
    for id, states in plan.guards.values():
        guards[states].append(id)
    try:
        for states, ids in guards.items():
            lifecycle.guard(jobs.filter(pk__in=ids, fingerprint__isnull=False), states)
    except IntegrityError:  # an enqueue or another revival was faster
        raise LostRace from None


def _announce(jobs: QuerySet[Any], plan: _Plan) -> None:
    if plan.replaced and job_cancelled.has_listeners(jobs.model):
        for job in jobs.filter(pk__in=list(plan.replaced)).order_by("pk"):
            announce(job_cancelled, jobs.model, job=job, replaced_by=job.replaced_by_id, using=jobs.db)
    if job_activated.has_listeners(jobs.model):
        for job in jobs.filter(pk__in=list(plan.revived)).order_by("pk"):
            announce(job_activated, jobs.model, job=job, using=jobs.db)
