"""Signals. Those about an enqueue and a cancellation are sent in the transaction of the change: use
`transaction.on_commit` for what must wait for it. Those about a run are sent by its worker: `job_started` in the
handler's thread before the handler, the others once the outcome is committed. For a worker over HTTP they are sent when
it fetches, and in the transaction in which it settles.

A receiver that raises is logged. On PostgreSQL one whose query fails still ends the transaction: wrap queries in
`atomic()`.
"""

from __future__ import annotations

from typing import Any

from django.dispatch import Signal

job_enqueued = Signal()
"""A job was admitted. Arguments: ``job``, ``using``."""
job_updated = Signal()
"""A waiting job was rewritten by an enqueue with its key. Arguments: ``job``, ``using``."""
job_suppressed = Signal()
"""An enqueue met a duplicate.

Arguments: ``outcome`` (rejected, ignored, replaced), ``existing_job``, ``job``, ``using``.
"""
job_cancelled = Signal()
"""A job was cancelled. Arguments: ``job``, ``replaced_by`` (the id of its replacement, or None), ``using``."""
job_started = Signal()
"""A handler is about to run. Arguments: ``job``, ``using``."""
job_completed = Signal()
"""A job completed. Arguments: ``job``, ``using``; ``job.skipped`` says when there was nothing to do."""
job_failed = Signal()
"""A run failed and the job will run again. Arguments: ``job``, ``error`` (its record), ``using``."""
job_discarded = Signal()
"""A run failed for the last time, or its retry was overtaken. Arguments: ``job``, ``error`` (its record), ``using``."""
job_activated = Signal()
"""A discarded job was revived, or a pending one activated: it is available. Arguments: ``job``, ``using``."""
job_expired = Signal()
"""A waiting job was discarded, as its ``expires_at`` had passed. Arguments: ``job``, ``using``."""
queue_paused = Signal()
"""A queue was paused. Arguments: ``queue`` (its name), ``using``."""
queue_resumed = Signal()
"""A queue was resumed. Arguments: ``queue`` (its name), ``using``."""
cron_triggered = Signal()
"""A periodic job was enqueued. Arguments: ``entry``, ``job_id``, ``using``."""
cron_skipped = Signal()
"""An occurrence of a periodic job enqueued none. Arguments: ``entry``, ``using``, and the ``reason``: skipped (by its
overlap policy), rejected or deduplicated (by its unique policy), failed."""


def announce(signal: Signal, sender: type, **arguments: Any) -> None:
    """Send a signal; Django logs what receivers raise."""
    signal.send_robust(sender, **arguments)
