"""Write the effects of a plan, in one order for all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import datetime
from types import SimpleNamespace
from typing import Any, TypeVar
from uuid import UUID

from django.db import IntegrityError
from django.db.models import Case, QuerySet, UUIDField, Value, When

from .. import lifecycle
from ..db.dialect import Dialect
from ..db.holding import hold_for_others
from ..db.inserts import in_groups
from ..db.updates import update_each
from ..lifecycle import stopped
from ..ojs.states import ALL, JobState
from ..unique.plan import Effects
from ..unique.row import JobRow
from .rewrite import REWRITTEN
from .unit_of_work import LostRace

K = TypeVar("K")
V = TypeVar("V")


def write(jobs: QuerySet[Any], dialect: Dialect, effects: Effects, now: datetime) -> None:
    """Write everything in the caller's transaction, or raise LostRace: the transaction must be rolled back then.

    Keys are released before others take them, and rows that were not locked before come before inserts.
    Raises IntegrityError if another job holds a fingerprint to which a repair changes one.
    """
    lifecycle.detach(jobs, effects.detached)
    for ids in in_groups(effects.released):
        lifecycle.release_unique_keys(jobs.filter(pk__in=ids))
    changed = effects.changed.items()
    for names, rows in _grouped((tuple(fields), SimpleNamespace(id=id, **fields)) for id, fields in changed):
        update_each(jobs, rows, names, ALL)
    for ids in in_groups(effects.stopped):
        stopped.keep(jobs.filter(pk__in=ids))
    for some in in_groups(effects.cancelled.items()):
        lifecycle.replace(jobs.filter(pk__in=[old for old, _ in some]), now, by=_replacement(some))
    if effects.new and not _insert(dialect, effects.new.values()):
        raise LostRace
    for job in effects.superseded:
        lifecycle.supersede(jobs.filter(pk=job.pk), now, errors=job.errors)
    if effects.promoted:
        lifecycle.promote(jobs.filter(pk__in=effects.promoted), now)
    for state, ids in _grouped((job.state, job.pk) for job in effects.retried.values()):
        lifecycle.retry_finished(jobs.filter(pk__in=ids), now, JobState(state))
    try:
        for states, ids in _grouped((states, id) for id, states in effects.held.values()):
            lifecycle.hold_unique_key(jobs.filter(pk__in=ids, fingerprint__isnull=False), states)
        hold_for_others(jobs, effects.forced)
    except IntegrityError:  # an enqueue or another retry was faster
        raise LostRace from None
    lifecycle.rewrite(jobs, [*effects.rewritten.values()], REWRITTEN)
    again = [*effects.rewritten.values(), *effects.retried.values()]
    dialect.wake({job.queue for job in again if job.state == JobState.AVAILABLE})


def _insert(dialect: Dialect, new: Iterable[JobRow]) -> bool:
    """Insert jobs, ordered by fingerprint; return False when a held unique key or a used id prevents one."""
    rows = [job.__dict__ for job in sorted(new, key=lambda job: (job.fingerprint or "", job.pk))]
    return dialect.insert(rows[0]) if len(rows) == 1 else dialect.insert_all(rows)


def _replacement(pairs: Collection[tuple[UUID, UUID]]) -> UUID | Case:
    if len({new for _, new in pairs}) == 1:
        return next(new for _, new in pairs)
    return Case(*(When(pk=old, then=Value(new)) for old, new in pairs), output_field=UUIDField())


def _grouped(pairs: Iterable[tuple[K, V]]) -> Iterable[tuple[K, list[V]]]:
    found: dict[K, list[V]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return found.items()
