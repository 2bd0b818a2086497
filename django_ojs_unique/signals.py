"""Signals about jobs, workflows, queues and periodic jobs.

Signals about enqueues and cancellations are sent in the transaction of the change: use `transaction.on_commit` for work
that must wait for the commit. Signals about attempts are sent by the worker: `job_started` in the handler's thread
before the handler, the others after the outcome is committed. For a worker over HTTP, `job_started` is sent when it
fetches, and the others in the transaction that finalizes the attempt.

An exception in a receiver is logged. On PostgreSQL a failed query in a receiver still breaks the transaction: wrap
queries in `atomic()`.
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

Arguments: ``outcome`` (rejected, deduplicated, replaced), ``existing_job``, ``job``, ``using``.
"""
job_cancelled = Signal()
"""A job was cancelled. Arguments: ``job``, ``replaced_by`` (the id of its replacement, or None), ``using``."""
job_started = Signal()
"""A handler is about to run. Arguments: ``job``, ``using``."""
job_completed = Signal()
"""A job completed. Arguments: ``job``, ``using``; ``job.skipped`` says why, when there was nothing to do."""
job_failed = Signal()
"""An attempt failed and the job will run again.

Arguments: ``job``, ``error`` (its record), ``exception`` (what the handler raised, or None if that is not known),
``using``. The exception is being handled meanwhile, so `sys.exc_info()` has it, too.
"""
job_discarded = Signal()
"""The last attempt failed, or the job was superseded.

Arguments, as those of `job_failed`: ``job``, ``error``, ``exception``, ``using``.
"""
job_activated = Signal()
"""A finished job was retried, or a pending one activated. Arguments: ``job``, ``using``."""
job_requeued = Signal()
"""A worker returned a job that it had begun, as it stops; the attempt does not count. Arguments: ``job``, ``using``."""
job_expired = Signal()
"""A waiting job was discarded because its ``expires_at`` had passed. Arguments: ``job``, ``using``."""
workflow_created = Signal()
"""A workflow was stored; nested ones are, with their root. Arguments: ``workflow``, ``using``."""
workflow_started = Signal()
"""A workflow has its ``started_at``: with ``OJS_UNIQUE["EVENTS"]`` when its first job starts, else when that has ended.

Arguments: ``workflow``, ``using``.
"""
workflow_member_ended = Signal()
"""A step, a job or a callback of a workflow has ended.

Arguments: ``workflow``, ``member``, ``job`` (None if it is gone, or was never enqueued), ``using``.
"""
workflow_called_back = Signal()
"""A callback of a batch was enqueued. Arguments: ``workflow``, ``member``, ``using``."""
workflow_finished = Signal()
"""A workflow has reached its final state. Arguments: ``workflow``, ``using``."""
queue_paused = Signal()
"""A queue was paused. Arguments: ``queue`` (its name), ``using``."""
queue_resumed = Signal()
"""A queue was resumed. Arguments: ``queue`` (its name), ``using``."""
cron_triggered = Signal()
"""A periodic job was enqueued. Arguments: ``entry``, ``job_id``, ``using``."""
cron_skipped = Signal()
"""An occurrence of a periodic job enqueued no job. Arguments: ``entry``, ``using``, and the ``reason``: skipped (by its
overlap policy), rejected or deduplicated (by its unique policy), failed."""


def announce(signal: Signal, sender: type, **arguments: Any) -> None:
    """Send a signal; Django logs what receivers raise."""
    signal.send_robust(sender, **arguments)


def announce_failure(signal: Signal, job: Any, exception: BaseException | None, using: str) -> None:
    """Send a signal about the last error of a job, while its exception is handled."""
    facts: dict[str, Any] = {"job": job, "error": job.errors[-1], "exception": exception, "using": using}
    if exception is None:
        announce(signal, type(job), **facts)
        return
    trace = exception.__traceback__
    try:
        raise exception
    except BaseException:
        exception.__traceback__ = trace  # as the handler left it, without this function
        announce(signal, type(job), **facts)
