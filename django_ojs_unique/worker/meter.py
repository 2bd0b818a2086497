"""Meter: the calls that a worker makes to the object that counts its work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..execution.finalize import Finalized
from ..execution.run import Run


class Meter:
    """Called about a worker's work, in the thread of its loop, so it must be quick; this one counts nothing."""

    def claimed(self, jobs: Sequence[Any]) -> None:
        """Jobs were claimed."""

    def finalized(self, run: Run, outcome: Finalized) -> None:
        """The outcome of a run is stored, or its result was refused."""

    def requeued(self, count: int) -> None:
        """So many claimed jobs were requeued unfinished; their attempts do not count."""
