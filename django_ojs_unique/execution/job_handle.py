"""Job handle: what the handler of a running job may do with the job, as its `JobContext` offers it."""

from __future__ import annotations

from typing import Any

from ..handlers.control import Interrupted
from . import atomic
from .journal import Journal
from .run import Run


class JobHandle:
    """What a plain handler may do."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.report = run.report
        self.journal = Journal(run, self.checkpoint)

    def is_held(self) -> bool:
        """Return whether the job is still leased: asks the database."""
        return not self._run.cancelled and atomic.leased(self._run).exists()

    def fence(self) -> None:
        """Lock the row until the caller's transaction ends. Raises LeaseLost, and RuntimeError without one."""
        atomic.fence(self._run)

    def complete(self, result: Any) -> None:
        """Complete the job in the caller's transaction. Raises LeaseLost, and RuntimeError where it has no place."""
        atomic.complete_here(self._run, result)

    def checkpoint(self) -> None:
        """Raise Interrupted if the worker stops."""
        if self._run.is_stopping:
            raise Interrupted


class AsyncJobHandle(JobHandle):
    """What an ``async def`` handler may do."""

    def is_held(self) -> bool:
        """Return whether the job was still leased when the worker looked last."""
        return not self._run.cancelled
