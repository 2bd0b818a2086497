"""Give waiting and running jobs the policy that their handlers declare now."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from django.db.models import QuerySet

from ...handlers.registry import registry
from ...ojs.states import INCOMPLETE
from ...progress import Bars, NoBar
from .expected_row import READ, ExpectedRow, declare
from .repair import Repairer, go_through
from .spool import Spool, pages

MOST_NAMED = 1000
"""How many jobs are named at most, so that memory does not depend on the number of rows."""


@dataclass(slots=True)
class Rekeyed:
    """What `rekey` did.

    ``looked_at``, ``rekeyed`` and ``left`` count jobs: those that were read, those whose policy, fingerprint or unique
    states changed, and those that left uniqueness. ``released``: ids of jobs without the unique key, as an older job of
    their fingerprint has it. ``cancelled``: pairs of a cancelled job's id and the older job's. ``misfits``: pairs of an
    id and the reason why the args do not fit the policy; these jobs are unchanged. Each list has 1,000 entries at most;
    the fields ``..._count`` count all.
    """

    looked_at: int = 0
    rekeyed: int = 0
    left: int = 0
    released: list[Any] = field(default_factory=list)
    cancelled: list[tuple[Any, Any]] = field(default_factory=list)
    misfits: list[tuple[Any, str]] = field(default_factory=list)
    released_count: int = 0
    cancelled_count: int = 0
    misfit_count: int = 0


def rekey(
    jobs: QuerySet[Any],
    types: Collection[str] | None = None,
    *,
    dry_run: bool = False,
    cancel_duplicates: bool = False,
    bars: Bars = NoBar,
) -> Rekeyed:
    """Give live jobs the policy that their type's handler declares now, with a new fingerprint, unique key and scheme.

    ``types``: by default all that have a handler. Raises UnknownJobType for a type without one.

    If several jobs share a fingerprint afterwards, the oldest keeps the unique key, and the others go on without it.
    With ``cancel_duplicates``, those of the others that wait are cancelled if the policy counts them as duplicates of
    an older job. A job with a key keeps it; its fingerprint changes only if it is of another scheme. A job that was
    taken out of uniqueness stays out. Safe beside workers and producers, and safe to run twice.
    """
    policies = {name: registry.get(name).unique for name in (list(registry) if types is None else types)}

    def judge(row: Any) -> ExpectedRow:
        return declare(row, policies[row.type]) if row.type in policies else ExpectedRow(row)

    repairer = Repairer(jobs, judge, cancels=cancel_duplicates, strict=False)
    result = Rekeyed()
    live = jobs.filter(type__in=sorted(policies), state__in=sorted(INCOMPLETE))
    with Spool() as spool:
        with bars(desc="looked at", total=live.count()) as bar:
            for rows in pages(live.only(*READ)):
                expected_rows = [judge(row) for row in rows]
                spool.add((one.row, one.fingerprint) for one in expected_rows if one.changes)
                for expected in expected_rows:
                    if expected.problem:
                        result.misfit_count += 1
                        _name(result.misfits, (expected.row.pk, expected.problem))
                result.looked_at += len(rows)
                bar.update(len(rows))
        with bars(desc="rekeyed", total=len(spool)) as bar:
            for expected in go_through(spool, repairer.preview if dry_run else repairer.repair, bar):
                _count(result, expected)
    return result


def _count(result: Rekeyed, expected: ExpectedRow) -> None:
    row = expected.row
    if expected.duplicates is not None:
        result.cancelled_count += 1
        _name(result.cancelled, (row.pk, expected.duplicates.row.pk))
    elif expected.fingerprint is None and row.fingerprint is not None:
        result.left += 1
    else:
        result.rekeyed += bool(expected.changes)
        if expected.lost_unique_key:
            result.released_count += 1
            _name(result.released, row.pk)


def _name(named: list[Any], what: Any) -> None:
    if len(named) < MOST_NAMED:
        named.append(what)
