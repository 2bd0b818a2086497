"""Verify that rows, fingerprints and guards agree, and mend what does not (resque-uniqueue checks at each push)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Count, Q, QuerySet

from .. import capabilities
from ..constraints import guarding
from ..ojs.keys import HOLDING
from ..ojs.states import INCOMPLETE
from .kinds import Kind
from .mend import Mender, go_through
from .standing import READ, examine
from .worklist import NO_BARS, PAGE, Bars, Worklist, pages

NAMED = 5
"""How many jobs of each kind are named."""
MOST_ROUNDS = 5
"""How often a mend may leave something to mend: what loses a key may then be one that a queue's rule asks for."""


@dataclass(slots=True)
class Findings:
    """How many inconsistencies there are of each kind among how many jobs, and the ids of the first few."""

    looked_at: int = 0
    counts: Counter[Kind] = field(default_factory=Counter)
    named: dict[Kind, list[Any]] = field(default_factory=lambda: defaultdict(list))

    def __bool__(self) -> bool:
        return bool(self.counts)

    def add(self, kind: Kind, *ids: Any) -> None:
        """Count one."""
        self.counts[kind] += 1
        self.named[kind] += ids[: NAMED - len(self.named[kind])]


def verify(
    jobs: QuerySet[Any],
    *,
    fix: bool = False,
    bars: Bars = NO_BARS,
    before_fix: Callable[[Findings], None] = lambda findings: None,
) -> Findings:
    """Find every inconsistency among all jobs of a database; with ``fix``, mend it. Return what is left.

    ``before_fix`` is told what was found. Safe beside workers and producers: each fingerprint is mended in its own
    transaction under the locks of an enqueue. A running job is never cancelled. Memory does not depend on the number of
    rows.
    """
    for rounds in range(MOST_ROUNDS + 1):
        with Worklist() as worklist:
            findings = _find(jobs, worklist, bars)
            if not fix or rounds == MOST_ROUNDS or not findings.counts.keys() - {Kind.CONSTRAINT}:
                break
            if not rounds:
                before_fix(findings)
            with bars(desc="mended", total=len(worklist)) as bar:
                for _ in go_through(worklist, Mender(jobs, examine).mend, bar):
                    pass
    return findings


def _find(jobs: QuerySet[Any], worklist: Worklist, bars: Bars) -> Findings:
    findings = Findings()
    capabilities.forget()
    if capabilities.strength(jobs.model, jobs.db) != capabilities.STRONG:
        findings.add(Kind.CONSTRAINT)
    with bars(desc="looked at", total=jobs.count()) as bar:
        for rows in pages(jobs.only(*READ)):
            worklist.add((row, standing.fingerprint) for row in rows if (standing := examine(row)).kinds)
            findings.looked_at += len(rows)
            bar.update(len(rows))
    _add_who_shares(jobs, worklist)
    with bars(desc="compared", total=len(worklist)) as bar:
        for standing in go_through(worklist, Mender(jobs, examine).foresee, bar):
            for kind in standing.kinds:
                findings.add(kind, standing.row.pk)
    return findings


def _add_who_shares(jobs: QuerySet[Any], worklist: Worklist) -> None:
    """Add the jobs that share a fingerprint with another one, or will."""
    counting = jobs.filter(
        Q(state__in=sorted(INCOMPLETE)) | Q(state__in=sorted(HOLDING), key__isnull=False) | guarding(),
        fingerprint__isnull=False,
    )
    shared = counting.order_by("fingerprint").values("fingerprint").annotate(jobs=Count("pk")).filter(jobs__gt=1)
    last = ""
    while found := list(shared.filter(fingerprint__gt=last).values_list("fingerprint", flat=True)[:PAGE]):
        _add_all(counting.filter(fingerprint__in=found), worklist)
        last = found[-1]
    for found in worklist.fingerprints(PAGE):
        _add_all(counting.filter(fingerprint__in=found), worklist)


def _add_all(jobs: QuerySet[Any], worklist: Worklist) -> None:
    for rows in pages(jobs.only(*READ)):
        worklist.add((row, examine(row).fingerprint) for row in rows)
