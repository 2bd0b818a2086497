"""Summary: what a worker has done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class Summary:
    """How many runs ended in which way."""

    completed: int = 0
    skipped: int = 0
    retried: int = 0
    discarded: int = 0
    refused: int = 0
    requeued: int = 0

    @property
    def failed(self) -> int:
        """Runs that failed."""
        return self.retried + self.discarded

    @property
    def finalized(self) -> int:
        """All runs that ended."""
        return self.completed + self.skipped + self.failed + self.refused

    def add(self, outcomes: Iterable[str]) -> None:
        """Count runs by their outcomes."""
        for outcome, count in Counter(outcomes).items():
            setattr(self, outcome, getattr(self, outcome) + count)
