"""Signals, sent in the transaction of the change; use `transaction.on_commit` for what must wait for it.

A receiver that raises is logged. On PostgreSQL one whose query fails still ends the transaction: wrap queries in
`atomic()`.
"""

from __future__ import annotations

from typing import Any

from django.dispatch import Signal

job_enqueued = Signal()
"""A job was admitted. Arguments: ``job``, ``using``."""
job_suppressed = Signal()
"""An enqueue met a duplicate.

Arguments: ``outcome`` (rejected, ignored, replaced), ``existing_job``, ``job``, ``using``.
"""
job_cancelled = Signal()
"""A job was cancelled. Arguments: ``job``, ``replaced_by`` (the id of its replacement, or None), ``using``."""


def announce(signal: Signal, sender: type, **arguments: Any) -> None:
    """Send a signal; Django logs what receivers raise."""
    signal.send_robust(sender, **arguments)
