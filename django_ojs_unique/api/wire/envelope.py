"""A job in JSON (HTTP binding, "Job envelope")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ...enqueue.explain import Explanation
from ...enqueue.results import EnqueueResult
from ...handlers.redaction import redacted_member
from ...ojs.limits import with_values
from ...ojs.moments import milliseconds, rfc3339
from ...ojs.states import JobState
from ...ojs.workflows import CALLBACKS
from ...options import TEXTS
from ...wire.policies import JOB_LIMIT, RETRY, UNIQUE
from ...wire.schema import (
    Object,
    anything,
    array,
    flag,
    job_args,
    mapping,
    number,
    one_of,
    text,
    time,
    whole,
    without_none,
)
from ...workflows.results import Place
from .pages import paged

NOT_STARTED = {JobState.AVAILABLE, JobState.SCHEDULED, JobState.PENDING}


class _Source(NamedTuple):
    """A job, what reads its payloads (to mask some of it, perhaps), and its place in a workflow."""

    job: Any
    read: Callable[[Any, str], Any]
    place: Place | None = None


def _unless_empty(name: str) -> Callable[[_Source], Any]:
    return lambda it: it.read(it.job, name) or None


def _limits(it: _Source) -> Any:
    return it.read(it.job, "limits") if it.job.limits else None


def _after_start(name: str) -> Callable[[_Source], Any]:
    return lambda it: None if it.job.started_at is None or it.job.state in NOT_STARTED else getattr(it.job, name)


def _in_workflow(name: str) -> Callable[[_Source], Any]:
    return lambda it: None if it.place is None else getattr(it.place, name)


def _finished(state: JobState) -> Callable[[_Source], Any]:
    return lambda it: it.job.finished_at if it.job.state == state else None


def _completed_at(it: _Source) -> Any:
    """Return when the last attempt ended; a job that expired or was cancelled has no such time."""
    job = it.job
    has_ended = job.state == JobState.COMPLETED or (job.state == JobState.DISCARDED and job.started_at is not None)
    return job.finished_at if has_ended else None


def progress_of(job: Any) -> float | None:
    """Return how far the last attempt of a job came, from 0 to 1, if it told; one that completed the job came to 1."""
    if job.state in NOT_STARTED or job.progress is None:
        return None
    return 1.0 if job.state == JobState.COMPLETED else float(job.progress)


_HEAD = {
    "specversion": text(of=lambda it: "1.0"),
    "id": text(of="job.pk", write=str),
    "type": text(of="job.type"),
    "queue": text(of="job.queue"),
    "state": one_of(JobState, of="job.state"),
    "priority": whole(of="job.priority"),
    "attempt": whole(of="job.attempt"),
    "max_attempts": whole(of="job.most_attempts"),
    "created_at": time(of="job.created_at"),
}
"""The members that each job has, besides what it carries."""
JOB_ERROR = Object(
    "JobError",
    {
        "type message code? backtrace?": text(),
        "attempt retry_delay_ms?": whole(),
        "started_at?": time(),
        "occurred_at": time(),
        "retryable?": flag(),
        "details?": anything(),
    },
    "What went wrong in one attempt.",
)
JOB = Object(
    "Job",
    {
        **_HEAD,
        "workflow_id?": text(of=lambda it: it.job.__dict__.get("workflow_id"), write=str),
        "args": job_args(of=lambda it: it.read(it.job, "args")),
        "meta": mapping(of=lambda it: it.read(it.job, "meta")),
        "enqueued_at?": time(of="job.enqueued_at"),
        "scheduled_at?": time(of="job.scheduled_at", write=rfc3339),
        "expires_at?": time(of="job.expires_at", write=rfc3339),
        "started_at?": time(of=_after_start("started_at")),
        "worker_id?": text(of=_after_start("worker_id")),
        "completed_at?": time(of=_completed_at),
        "cancelled_at?": time(of=_finished(JobState.CANCELLED)),
        "discarded_at?": time(of=_finished(JobState.DISCARDED)),
        "progress?": number("How far the last attempt came, from 0 to 1.", of=lambda it: progress_of(it.job)),
        "progress_note?": text(of=lambda it: None if progress_of(it.job) is None else it.job.progress_note or None),
        "unique?": UNIQUE.member(
            of=lambda it: it.job.unique if isinstance(it.job.unique, dict) else None, write=without_none
        ),
        "retry?": RETRY.member(
            of=lambda it: None if it.job.retry_options is None else it.read(it.job, "retry_options")
        ),
        "key?": text("The name by which a later enqueue rewrites it.", of="job.key"),
        "limits?": array(JOB_LIMIT, of=_limits, write=lambda limits: list(map(with_values, limits))),
        "timeout_ms?": whole(of="job.timeout_ms"),
        "visibility_timeout_ms?": whole(of="job.visibility_timeout_ms"),
        "tags?": array(text(), of=_unless_empty("tags")),
        **{f"{option.column}?": text(of=_unless_empty(option.column)) for option in TEXTS.values()},
        "steps?": array(anything(), of=_unless_empty("steps")),
        "result?": anything(of=lambda it: it.read(it.job, "result")),
        "errors?": array(JOB_ERROR, of=_unless_empty("errors")),
        "error?": JOB_ERROR.member(of=None),
        "retry_delay_ms?": whole(of=None),
        "root_workflow_id?": text("If the workflow is nested.", of=_in_workflow("root_id"), write=str),
        "workflow_step?": whole("Its index in the workflow.", of=_in_workflow("step")),
        "workflow_callback?": one_of(
            CALLBACKS, of=lambda it: it.place.role if it.place and it.place.step is None else None
        ),
        "parent_results?": array(anything(), "What the jobs before it returned.", of=_in_workflow("parent_results")),
    },
    "A job, with the members that its client added.",
)
FETCHED_JOB = JOB.extended(
    "FetchedJob",
    {
        "lease_token": text(
            "Send it back with the ack or nack, and in a heartbeat's `lease_tokens`.", of="job.lease_token", write=str
        ),
        "lease_expires_at": time("Until when it is yours, unless a heartbeat comes before.", of="job.lease_expires_at"),
    },
)
ONE_JOB = Object("OneJob", {"job": JOB})
PAGE_OF_JOBS = paged("PageOfJobs", jobs=JOB)
EXPLANATION = Object(
    "Explanation",
    {
        "action": one_of(("create", "replace", "reject", "ignore")),
        "reason unique_key? canonical_text?": text(),
        "unique?": UNIQUE.member(),
        "context?": mapping(help="Of what this server captures for the caller, only jobs that carry the same match."),
        "limits?": array(JOB_LIMIT),
        "duplicates": array(mapping()),
    },
    "What an enqueue would do now, and why.",
)


def show(job: Any, place: Place | None = None) -> dict[str, Any]:
    """Return a job's JSON object for people, with what is redacted masked. It depends on the row only, not on the time.

    Members without a value are left out; a job that was read without its large fields is shown without them.
    """
    return _show(JOB, _Source(job, redacted_member, place))


def show_accepted(result: EnqueueResult) -> dict[str, Any]:
    """Return the JSON object of the job of an enqueue: as a whole if it has nothing but what the client sent."""
    is_sent = not (result.deduplicated or result.job.revision)
    return _show(JOB, _Source(result.job, getattr if is_sent else redacted_member))


def show_fetched(job: Any, place: Place | None = None) -> dict[str, Any]:
    """Return the JSON object of a job with its lease, as a whole, for the worker that has just fetched it."""
    return _show(FETCHED_JOB, _Source(job, getattr, place))


def show_slim(job: Any) -> dict[str, Any]:
    """Return the members of a job's JSON object that each job has, but not what it carries."""
    return JOB.show(_Source(job, getattr), only=_HEAD)


def _show(kind: Object, it: _Source) -> dict[str, Any]:
    if "args" not in it.job.__dict__:
        return kind.show(it, only=(*_HEAD, "workflow_id"))
    shown = kind.show(it)
    if it.job.errors:
        last = shown["errors"][-1]
        if it.job.state != JobState.COMPLETED:
            shown["error"] = last
        if (delay := last.get("retry_delay_ms")) is not None:
            shown["retry_delay_ms"] = delay
    return {**it.read(it.job, "extra"), **shown} if it.job.extra else shown


def show_explanation(explained: Explanation) -> dict[str, Any]:
    """Return the JSON object of what an enqueue would do. A duplicate that counts without an end has no ``until``."""
    shown = without_none(explained.to_dict())
    shown["duplicates"] = [
        without_none(
            {
                "job_id": str(one["job_id"]),
                "state": one["state"],
                "created_at": milliseconds(one["created_at"]),
                "until": one["until"] and rfc3339(one["until"]),
            }
        )
        for one in shown["duplicates"]
    ]
    return shown
