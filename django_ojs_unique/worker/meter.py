"""Meter: the calls that a worker makes to the object that counts its work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..execution.run import Run
from ..execution.settle import Settled


class Meter:
    """Called about a worker's work, in the thread of its loop, so it must be quick; this one counts nothing."""

    def claimed(self, jobs: Sequence[Any]) -> None:
        """Jobs were claimed."""

    def settled(self, run: Run, outcome: Settled) -> None:
        """The outcome of a run is stored, or its result was refused."""

    def released(self, count: int) -> None:
        """So many claimed jobs were given back unfinished; their attempts do not count."""
