"""What a worker has done: its summary, and the calls to a meter that counts its work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..execution.finalize import Finalized
from ..execution.run import Run


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


class Meter:
    """Called about a worker's work, in the thread of its loop, so it must be quick; this one counts nothing."""

    def claimed(self, jobs: Sequence[Any]) -> None:
        """Jobs were claimed; later each of them is finalized or requeued."""

    def finalized(self, run: Run, outcome: Finalized) -> None:
        """The outcome of a run is stored, or its result was refused."""

    def requeued(self, count: int) -> None:
        """So many claimed jobs were requeued unfinished; their attempts do not count."""
