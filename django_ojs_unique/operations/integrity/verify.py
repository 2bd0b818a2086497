"""Verify that rows and unique keys agree, and repair what does not (resque-uniqueue checks at each push)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from django.db.models import QuerySet

from ...db import capabilities
from ...ojs.states import INCOMPLETE
from ...progress import Bars, NoBar
from ...unique.keys import HOLDING
from .expected_row import READ, examine
from .problems import MANUAL, Kind
from .repair import Repairer, go_through
from .spool import Spool, pages

NAMED = 5
"""How many jobs of each kind are named."""
MOST_ROUNDS = 5
"""How many repairs are made at most. One can require another: a job that lost its key may need a queue's rule."""


@dataclass(slots=True)
class Findings:
    """How many jobs were looked at, how many inconsistencies of each kind they have, and the ids of the first few."""

    looked_at: int = 0
    counts: Counter[Kind] = field(default_factory=Counter)
    named: dict[Kind, list[Any]] = field(default_factory=lambda: defaultdict(list))

    def __bool__(self) -> bool:
        return bool(self.counts)

    def add(self, kind: Kind, *ids: Any) -> None:
        """Count one inconsistency, and keep the ids of the first few."""
        self.counts[kind] += 1
        self.named[kind] += ids[: NAMED - len(self.named[kind])]


def verify(
    jobs: QuerySet[Any],
    *,
    fix: bool = False,
    bars: Bars = NoBar,
    before_fix: Callable[[Findings], None] = lambda findings: None,
) -> Findings:
    """Find every inconsistency among all jobs of a database; with ``fix``, repair it. Return what is left.

    ``before_fix`` is called with what was found. Safe beside workers and producers: each fingerprint is repaired in its
    own transaction under the locks of an enqueue. A running job is never cancelled. Memory does not depend on the
    number of rows.
    """
    for rounds in range(MOST_ROUNDS + 1):
        with Spool() as spool:
            findings = _find(jobs, spool, bars)
            if not fix or rounds == MOST_ROUNDS or not findings.counts.keys() - MANUAL:
                break
            if not rounds:
                before_fix(findings)
            with bars(desc="fixed", total=len(spool)) as bar:
                for _ in go_through(spool, Repairer(jobs, examine).repair, bar):
                    pass
    return findings


def _find(jobs: QuerySet[Any], spool: Spool, bars: Bars) -> Findings:
    findings = Findings()
    capabilities.forget()
    if capabilities.strength(jobs.model, jobs.db) != capabilities.STRONG:
        findings.add(Kind.CONSTRAINT)
    with bars(desc="looked at", total=jobs.count()) as bar:
        for rows in pages(jobs.only(*READ)):
            expected_rows = [examine(row) for row in rows]
            spool.add((one.row, one.fingerprint) for one in expected_rows if one.kinds or _is_left(one.row))
            spool.note((one.row, one.fingerprint) for one in expected_rows if _counts(one.row))
            findings.looked_at += len(rows)
            bar.update(len(rows))
    spool.add_who_shares()
    with bars(desc="compared", total=len(spool)) as bar:
        for expected in go_through(spool, Repairer(jobs, examine).preview, bar):
            for kind in expected.kinds:
                findings.add(kind, expected.row.pk)
    return findings


def _is_left(row: Any) -> bool:
    """Whether another row must hold the key for this one."""
    return row.fingerprint is not None and row.key is None and row.state in INCOMPLETE and not row.unique_states


def _counts(row: Any) -> bool:
    """Whether other jobs of its fingerprint may be wrong because of this one."""
    if row.fingerprint is None:
        return False
    holds = row.key is not None and row.state in HOLDING
    return holds or row.state in INCOMPLETE or row.state in row.unique_states
