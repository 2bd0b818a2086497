"""Signals, sent in the transaction of the change; use `transaction.on_commit` for what must wait for it.

A receiver that raises is logged and does not disturb the job system.
"""

from __future__ import annotations

import logging
from typing import Any

from django.dispatch import Signal

logger = logging.getLogger("django_ojs_unique")

job_enqueued = Signal()
"""A job was admitted. Arguments: ``job``, ``using``."""
job_suppressed = Signal()
"""An enqueue met a duplicate.

Arguments: ``outcome`` (rejected, ignored, replaced), ``existing_job``, ``job``, ``using``.
"""
job_cancelled = Signal()
"""A job was cancelled. Arguments: ``job``, ``replaced_by`` (the id of its replacement, or None), ``using``."""


def announce(signal: Signal, sender: type, **arguments: Any) -> None:
    """Send a signal, logging what receivers raise."""
    if not signal.receivers:
        return
    for receiver, answer in signal.send_robust(sender, **arguments):
        if isinstance(answer, Exception):
            logger.error("A signal receiver failed: %r", receiver, exc_info=answer)
