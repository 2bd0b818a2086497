"""A job as the binding shows it (HTTP binding, "Job envelope")."""

from __future__ import annotations

from typing import Any

from ..explain import Explanation
from ..ojs.moments import milliseconds, rfc3339
from ..ojs.states import JobState

NOT_STARTED = {JobState.AVAILABLE, JobState.SCHEDULED, JobState.PENDING}


def show(job: Any) -> dict[str, Any]:
    """Return a job's JSON object. What has no value is left out; nothing in it changes while the row does not."""
    state = job.state
    shown: dict[str, Any] = {
        "specversion": "1.0",
        "id": str(job.pk),
        "type": job.type,
        "queue": job.queue,
        "args": job.args,
        "meta": job.meta,
        "state": str(state),
        "priority": job.priority,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "created_at": milliseconds(job.created_at),
    }
    if job.enqueued_at is not None:
        shown["enqueued_at"] = milliseconds(job.enqueued_at)
    if job.scheduled_at is not None:
        shown["scheduled_at"] = rfc3339(job.scheduled_at)
    if job.expires_at is not None:
        shown["expires_at"] = rfc3339(job.expires_at)
    if job.started_at is not None and state not in NOT_STARTED:
        shown["started_at"] = milliseconds(job.started_at)
        if job.worker_id is not None:
            shown["worker_id"] = job.worker_id
    if job.finished_at is not None:
        finished_at = milliseconds(job.finished_at)
        if state == JobState.CANCELLED:
            shown["cancelled_at"] = finished_at
        else:
            if state == JobState.DISCARDED:
                shown["discarded_at"] = finished_at
            if state == JobState.COMPLETED or job.started_at is not None:  # not when it expired
                shown["completed_at"] = finished_at
    if isinstance(job.unique, dict):
        shown["unique"] = {name: value for name, value in job.unique.items() if value is not None}
    for name in ("timeout_ms", "visibility_timeout_ms", "retry", "result"):
        if (value := getattr(job, name)) is not None:
            shown[name] = value
    if job.tags:
        shown["tags"] = job.tags
    if job.schema:
        shown["schema"] = job.schema
    if job.errors:
        shown["errors"] = job.errors
        last = job.errors[-1]
        if state != JobState.COMPLETED:
            shown["error"] = last
        if (delay := last.get("retry_delay_ms")) is not None:
            shown["retry_delay_ms"] = delay
    return {**job.extra, **shown} if job.extra else shown


def show_explanation(explained: Explanation) -> dict[str, Any]:
    """Return the JSON object of what an enqueue would do. ``until`` is left out for a duplicate without an end."""
    shown: dict[str, Any] = {"action": explained.action, "reason": explained.reason}
    if explained.fingerprint:
        shown["unique_key"] = explained.fingerprint
        shown["canonical_text"] = explained.canonical_text
    if explained.policy is not None:
        shown["unique"] = {name: value for name, value in explained.policy.to_dict().items() if value is not None}
    shown["duplicates"] = [
        {
            "job_id": str(duplicate.job.pk),
            "state": str(duplicate.job.state),
            "created_at": milliseconds(duplicate.job.created_at),
            **({} if duplicate.until is None else {"until": rfc3339(duplicate.until)}),
        }
        for duplicate in explained.duplicates
    ]
    return shown
