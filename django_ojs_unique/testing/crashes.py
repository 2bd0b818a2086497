"""Let a handler crash at a step, as if its process had died, to see what the next attempt does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from ..execution.journal import crashes


@contextmanager
def crash_at(step: str, when: Literal["before", "done", "stored"] = "done") -> Iterator[None]:
    """Let the next handler that comes to a step crash there, once; `run_jobs` then runs its job again.

    ``when``: ``before`` the step's function is called; when it is ``done``, and its result is not stored yet; or when
    that is ``stored``. The open transaction of the handler is rolled back. In an ``atomic`` handler, so is the step.

    Raises AssertionError at the end of the block if no handler came to the step.
    """
    if when not in ("before", "done", "stored"):
        raise ValueError(f"when: must be 'before', 'done' or 'stored' (got {when!r}).")
    crashes.add((step, when))
    try:
        yield
        if (step, when) in crashes:
            raise AssertionError(f"No handler came to step {step!r} ({when}). Is it stored already, or misspelt?")
    finally:
        crashes.discard((step, when))
