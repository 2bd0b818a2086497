"""Meter: what a worker tells whoever counts its work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .run import Run
from .settle import Settled


class Meter:
    """Is told of a worker's work in the thread of its loop, and must be quick; this one counts nothing."""

    def claimed(self, jobs: Sequence[Any]) -> None:
        """Jobs were claimed."""

    def settled(self, run: Run, outcome: Settled) -> None:
        """It is written down what became of a run, or that its result was refused."""

    def released(self, count: int) -> None:
        """So many claimed jobs were given back unfinished, with the attempt uncounted."""
