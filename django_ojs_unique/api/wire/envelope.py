"""A job in JSON (HTTP binding, "Job envelope")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...enqueue.explain import Explanation
from ...enqueue.results import EnqueueResult
from ...handlers.redaction import redacted_canonical, redacted_limits, redacted_member
from ...ojs.limits import with_values
from ...ojs.moments import milliseconds, rfc3339
from ...ojs.states import JobState
from ...workflows.results import Place

NOT_STARTED = {JobState.AVAILABLE, JobState.SCHEDULED, JobState.PENDING}


def show(job: Any) -> dict[str, Any]:
    """Return a job's JSON object for people, with what is redacted masked. It depends on the row only, not on the time.

    Members without a value are left out; a job that was read without its large fields is shown without them.
    """
    return _show(job, redacted_member)


def show_whole(job: Any) -> dict[str, Any]:
    """Return a job's JSON object for who has just sent it, or runs it."""
    return _show(job, getattr)


def show_accepted(result: EnqueueResult) -> dict[str, Any]:
    """Return the JSON object of the job of an enqueue: as a whole if it has nothing but what the client sent."""
    is_sent = not (result.deduplicated or result.job.revision)
    return show_whole(result.job) if is_sent else show(result.job)


def show_slim(job: Any) -> dict[str, Any]:
    """Return the members of a job's JSON object that each job has, but not what it carries."""
    return {
        "specversion": "1.0",
        "id": str(job.pk),
        "type": job.type,
        "queue": job.queue,
        "state": str(job.state),
        "priority": job.priority,
        "attempt": job.attempt,
        "max_attempts": job.most_attempts,
        "created_at": milliseconds(job.created_at),
    }


def progress_of(job: Any) -> float | None:
    """Return how far the last attempt of a job came, from 0 to 1, if it told; one that completed the job came to 1."""
    if job.state in NOT_STARTED or job.progress is None:
        return None
    return 1.0 if job.state == JobState.COMPLETED else float(job.progress)


def _show(job: Any, read: Callable[[Any, str], Any]) -> dict[str, Any]:
    shown = show_slim(job)
    if job.__dict__.get("workflow_id") is not None:
        shown["workflow_id"] = str(job.workflow_id)
    if "args" not in job.__dict__:
        return shown
    shown["args"], shown["meta"] = read(job, "args"), read(job, "meta")
    for name, write in (("enqueued_at", milliseconds), ("scheduled_at", rfc3339), ("expires_at", rfc3339)):
        if (moment := getattr(job, name)) is not None:
            shown[name] = write(moment)
    shown |= _start(job) | _finish(job) | _progress(job) | _rules(job, read)
    for name in ("timeout_ms", "visibility_timeout_ms", "result"):
        if (value := read(job, name)) is not None:
            shown[name] = value
    for name in ("tags", "schema", "steps", "errors"):
        if value := read(job, name):
            shown[name] = value
    if job.errors:
        last = shown["errors"][-1]
        if job.state != JobState.COMPLETED:
            shown["error"] = last
        if (delay := last.get("retry_delay_ms")) is not None:
            shown["retry_delay_ms"] = delay
    return {**read(job, "extra"), **shown} if job.extra else shown


def _rules(job: Any, read: Callable[[Any, str], Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    if isinstance(job.unique, dict):
        shown["unique"] = {name: value for name, value in job.unique.items() if value is not None}
    if job.retry_options is not None:
        shown["retry"] = read(job, "retry_options")
    if job.limits:
        shown["limits"] = list(map(with_values, read(job, "limits")))
    return shown


def _start(job: Any) -> dict[str, Any]:
    if job.started_at is None or job.state in NOT_STARTED:
        return {}
    worker = {} if job.worker_id is None else {"worker_id": job.worker_id}
    return {"started_at": milliseconds(job.started_at), **worker}


def _finish(job: Any) -> dict[str, Any]:
    if job.finished_at is None:
        return {}
    names = {JobState.CANCELLED: ["cancelled_at"], JobState.DISCARDED: ["discarded_at"]}.get(job.state, [])
    if job.state == JobState.COMPLETED or (job.state == JobState.DISCARDED and job.started_at is not None):
        names = [*names, "completed_at"]  # but not of a job that expired
    return dict.fromkeys(names, milliseconds(job.finished_at))


def _progress(job: Any) -> dict[str, Any]:
    if (fraction := progress_of(job)) is None:
        return {}
    return {"progress": fraction, **({"progress_note": job.progress_note} if job.progress_note else {})}


def show_place(place: Place | None) -> dict[str, Any]:
    """Return the members of a job that tell its place in a workflow."""
    if place is None:
        return {}
    shown: dict[str, Any] = {"parent_results": place.parent_results}
    if place.root_id is not None:
        shown["root_workflow_id"] = str(place.root_id)
    at = {"workflow_callback": place.role} if place.step is None else {"workflow_step": place.step}
    return {**shown, **at}


def show_fetched(job: Any, place: Place | None = None) -> dict[str, Any]:
    """Return the JSON object of a job with its lease, for the worker that has just fetched it."""
    return {
        **show_whole(job),
        **show_place(place),
        "lease_token": str(job.lease_token),
        "lease_expires_at": milliseconds(job.lease_expires_at),
    }


def show_explanation(type: str, args: Any, explained: Explanation) -> dict[str, Any]:
    """Return the JSON object of what an enqueue would do. A duplicate that counts without an end has no ``until``."""
    shown: dict[str, Any] = {"action": explained.action, "reason": explained.reason}
    if explained.fingerprint:
        shown["unique_key"] = explained.fingerprint
        shown["canonical_text"] = redacted_canonical(type, explained.canonical_text)
    if explained.policy is not None:
        shown["unique"] = {name: value for name, value in explained.policy.to_dict().items() if value is not None}
    if explained.limits:
        shown["limits"] = list(map(with_values, redacted_limits(type, args, list(explained.limits))))
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
