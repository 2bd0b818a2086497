"""Retry finished jobs: refuse or cancel the live duplicates, and hold the unique key again, in one transaction."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from .. import lifecycle
from ..db.clock import database_now
from ..db.constraints import unfinished_or_holding
from ..db.dialect import Dialect
from ..db.dialects import dialect_of
from ..db.holding import everything
from ..enqueue.duplicates import may_replace_active, outside
from ..enqueue.unit_of_work import LostRace, UnitOfWork
from ..enqueue.write import write
from ..exceptions import DuplicateJob, InvalidRequest, Message, OJSError
from ..lifecycle.announcing import announce_each
from ..ojs.states import INCOMPLETE
from ..signals import job_activated, job_cancelled
from ..unique.conflict import Action
from ..unique.plan import Family, Plan
from ..unique.policy import UniquePolicy
from ..unique.row import JobRow
from .results import BulkResult

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
    "expires_at",
    "started_at",
)
_LIVE = Message("Cannot retry job {id}: job {other} is a live duplicate ({state}).")
_RUNS = Message(
    "Cannot retry job {id}: job {other} is a live duplicate that runs, and here a running job may not be replaced"
    " (OJS_UNIQUE['REPLACE_ACTIVE'], or the database)."
)


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
    dialect.take_write_lock()
    fingerprints = set(chosen.exclude(fingerprint=None).values_list("fingerprint", flat=True))
    dialect.lock_keys(fingerprints)
    locked = chosen.filter(lifecycle.unsuccessful()).only(*_READ).order_by("pk").select_for_update()
    dead = sorted(locked, key=lambda job: (job.created_at, job.pk))
    if not fingerprints.issuperset(job.fingerprint for job in dead if job.fingerprint):
        raise LostRace
    # After a lost race, query with locks only: the snapshot of the caller's transaction may hide new rows.
    families = {} if force else _look(jobs, dialect, dead, replaceable if replace else None, by_key=not work.lost_races)
    now, result = database_now(jobs.db), BulkResult()
    live = (row for family in families.values() for row in family.rows)
    plan = Plan(now, replace_active=may_replace_active(jobs, live))
    for job in dead:
        try:
            _decide(jobs, plan, job, families.get(job.fingerprint), replace=replace)
        except OJSError as error:
            result.refused[job.pk] = error
    effects = plan.effects
    result.changed, result.replaced = list(effects.retried), effects.cancelled
    effects.forced = fingerprints if force else ()
    write(jobs, dialect, effects, now)
    announce_each(job_cancelled, jobs, effects.cancelled)
    announce_each(job_activated, jobs, effects.retried, known=known)
    return result


def _decide(jobs: QuerySet[Any], plan: Plan, job: JobRow, family: Family | None, *, replace: bool) -> None:
    """Raise InvalidPolicy, or DuplicateJob for a job that stays as it is."""
    if family is None:
        plan.run_again(job)
        return
    verdict = plan.retry(job, job.unique_policy or UniquePolicy(), family, replace=replace)
    if (rival := verdict.existing) is not None and verdict.action is Action.REJECT:
        may_replace = not replace or rival.pk in family.spared or may_replace_active(jobs, [rival])
        template = _LIVE if may_replace else _RUNS
        raise DuplicateJob(rival, job.fingerprint, Message(template, id=job.pk, other=rival.pk, state=rival.state))


def _look(
    jobs: QuerySet[Any], dialect: Dialect, dead: Sequence[JobRow], replaceable: QuerySet[Any] | None, *, by_key: bool
) -> dict[str, Family]:
    """Lock and return, by fingerprint, the live jobs and those that hold it; ``dead`` ones are locked already."""
    families = {job.fingerprint: Family(counted=INCOMPLETE) for job in dead if job.fingerprint}
    if not families:
        return families
    others = jobs.exclude(pk__in=[job.pk for job in dead]).only(*_READ)
    locked = dialect.lock(others.filter(unfinished_or_holding(fingerprint__in=[*families])), by_key=by_key)
    for row in [*(job for job in dead if job.fingerprint and job.holds_unique_key), *locked]:
        families[row.fingerprint].rows.append(row)
    spared = {row.pk for row in outside(replaceable, locked)}
    for family in families.values():
        family.spared = spared
    return families
