"""Give waiting and running jobs the policy that their handlers declare now."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from django.db.models import QuerySet

from ..ojs.states import INCOMPLETE
from ..registry import registry
from .mend import Mender, go_through
from .standing import READ, Standing, declare
from .worklist import NO_BARS, Bars, Worklist, pages

MOST_NAMED = 1000
"""How many jobs are named at most: memory does not depend on the number of rows."""


@dataclass(slots=True)
class Rekeyed:
    """What became of the live jobs of some types.

    ``rekeyed`` got a policy, fingerprint or guard that they did not have, ``left`` are those that left uniqueness.
    ``unguarded`` share a fingerprint with an older job that has the guard; ``cancelled`` were cancelled for one.
    ``misfits`` are as they were, as their args do not fit the policy. The last three name 1,000 at most.
    """

    looked_at: int = 0
    rekeyed: int = 0
    left: int = 0
    unguarded: list[Any] = field(default_factory=list)
    cancelled: list[tuple[Any, Any]] = field(default_factory=list)
    misfits: list[tuple[Any, str]] = field(default_factory=list)
    unguarded_count: int = 0
    cancelled_count: int = 0
    misfit_count: int = 0


def rekey(
    jobs: QuerySet[Any],
    types: Collection[str] | None = None,
    *,
    dry_run: bool = False,
    cancel_duplicates: bool = False,
    bars: Bars = NO_BARS,
) -> Rekeyed:
    """Give live jobs the policy that their type's handler declares now: fingerprint, guard and scheme anew.

    ``types``: by default all that have a handler. Raises UnknownJobType for one without. Where several jobs then share
    a fingerprint, the oldest keeps the guard and the others go on without it; with ``cancel_duplicates`` those of them
    are cancelled that wait, and that the policy counts as duplicates of an older job. A job with a key keeps it, and is
    computed anew only from another scheme; a job that left uniqueness by hand stays outside. Safe beside workers and
    producers, and to run twice.
    """
    policies = {name: registry.get(name).unique for name in (list(registry) if types is None else types)}

    def judge(row: Any) -> Standing:
        return declare(row, policies[row.type]) if row.type in policies else Standing(row)

    mender = Mender(jobs, judge, cancels=cancel_duplicates, strict=False)
    told = Rekeyed()
    live = jobs.filter(type__in=sorted(policies), state__in=sorted(INCOMPLETE))
    with Worklist() as worklist:
        with bars(desc="looked at", total=live.count()) as bar:
            for rows in pages(live.only(*READ)):
                standings = [judge(row) for row in rows]
                worklist.add((one.row, one.fingerprint) for one in standings if one.changes)
                for standing in standings:
                    if standing.problem:
                        told.misfit_count += 1
                        _name(told.misfits, (standing.row.pk, standing.problem))
                told.looked_at += len(rows)
                bar.update(len(rows))
        with bars(desc="rekeyed", total=len(worklist)) as bar:
            for standing in go_through(worklist, mender.foresee if dry_run else mender.mend, bar):
                _tell(told, standing)
    return told


def _tell(told: Rekeyed, standing: Standing) -> None:
    row = standing.row
    if standing.duplicates is not None:
        told.cancelled_count += 1
        _name(told.cancelled, (row.pk, standing.duplicates.row.pk))
    elif standing.fingerprint is None and row.fingerprint is not None:
        told.left += 1
    else:
        told.rekeyed += bool(standing.changes)
        if standing.lost_guard:
            told.unguarded_count += 1
            _name(told.unguarded, row.pk)


def _name(named: list[Any], what: Any) -> None:
    if len(named) < MOST_NAMED:
        named.append(what)
