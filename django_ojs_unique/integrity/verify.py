"""Verify that rows, fingerprints and guards agree, and repair what does not (resque-uniqueue checks at each push)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Count, Q, QuerySet

from .. import capabilities
from ..db.constraints import guarding
from ..ojs.keys import HOLDING
from ..ojs.states import INCOMPLETE
from .expected_row import READ, examine
from .problems import Kind
from .repair import Repairer, go_through
from .spool import NO_BARS, PAGE, Bars, Spool, pages

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
    bars: Bars = NO_BARS,
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
            if not fix or rounds == MOST_ROUNDS or not findings.counts.keys() - {Kind.CONSTRAINT}:
                break
            if not rounds:
                before_fix(findings)
            with bars(desc="mended", total=len(spool)) as bar:
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
            spool.add((row, expected.fingerprint) for row in rows if (expected := examine(row)).kinds)
            findings.looked_at += len(rows)
            bar.update(len(rows))
    _add_who_shares(jobs, spool)
    with bars(desc="compared", total=len(spool)) as bar:
        for expected in go_through(spool, Repairer(jobs, examine).preview, bar):
            for kind in expected.kinds:
                findings.add(kind, expected.row.pk)
    return findings


def _add_who_shares(jobs: QuerySet[Any], spool: Spool) -> None:
    """Add the jobs that share a fingerprint with another one now, or will after the repair."""
    counting = jobs.filter(
        Q(state__in=sorted(INCOMPLETE)) | Q(state__in=sorted(HOLDING), key__isnull=False) | guarding(),
        fingerprint__isnull=False,
    )
    shared = counting.order_by("fingerprint").values("fingerprint").annotate(jobs=Count("pk")).filter(jobs__gt=1)
    last = ""
    while found := list(shared.filter(fingerprint__gt=last).values_list("fingerprint", flat=True)[:PAGE]):
        _add_all(counting.filter(fingerprint__in=found), spool)
        last = found[-1]
    for found in spool.fingerprints(PAGE):
        _add_all(counting.filter(fingerprint__in=found), spool)


def _add_all(jobs: QuerySet[Any], spool: Spool) -> None:
    for rows in pages(jobs.only(*READ)):
        spool.add((row, examine(row).fingerprint) for row in rows)
