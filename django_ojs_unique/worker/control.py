"""Control: whether a worker claims, drains or stops."""

from __future__ import annotations

import time

from ..models import WorkerProcess


class Control:
    """What the caller, a signal or an operator wants of a worker. Safe to change in a signal handler."""

    def __init__(self, shutdown_timeout: float) -> None:
        self.draining = False
        self.stopping = False
        self.quiet = False
        """Whether an operator wants no more claims."""
        self.give_up_at = float("inf")
        """When to stop without the handlers that still run, on the monotonic clock."""
        self._shutdown_timeout = shutdown_timeout

    @property
    def state(self) -> str:
        """``stopping``, ``quiet`` or ``running``."""
        return "stopping" if self.stopping else "quiet" if self.quiet else "running"

    @property
    def may_claim(self) -> bool:
        """Whether the worker may claim jobs."""
        return not self.stopping and not self.quiet

    @property
    def is_late(self) -> bool:
        """Whether the time to stop is over."""
        return self.stopping and time.monotonic() >= self.give_up_at

    def stop(self) -> None:
        """Stop: running handlers may finish within the shutdown timeout."""
        self.stopping = True
        self.give_up_at = min(self.give_up_at, time.monotonic() + self._shutdown_timeout)

    def obey(self, directive: str) -> tuple[bool, bool]:
        """Follow the directive of an operator; return whether it is new, and whether it ends the worker."""
        quiet = directive == WorkerProcess.Directive.QUIET
        ends = directive == WorkerProcess.Directive.TERMINATE and not self.stopping
        is_new = quiet != self.quiet or ends
        self.quiet = quiet
        return is_new, ends
