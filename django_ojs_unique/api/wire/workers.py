"""What workers send and get: which jobs they want, how these ended, how far they are (HTTP binding, "Workers").

Functions that refuse a value raise InvalidRequest, which names the field.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from ...conf import settings
from ...db.characters import storable
from ...db.clock import database_now
from ...enqueue.values import sized
from ...exceptions import InvalidRequest
from ...execution.errors import LONGEST_MESSAGE, LONGEST_REASON, LONGEST_TRACEBACK, both_ends
from ...execution.leases import Lease
from ...handlers.redaction import names_of_any, redact_error
from ...models import WorkerProcess
from ...ojs.canonical import plain
from ...ojs.durations import milliseconds
from ...ojs.names import UUID_TEXT, job_type, printable, queue_name
from ...ojs.retry import MOST_ATTEMPTS
from ...ojs.states import JobState
from ...reporting.workers import SILENT, standing
from ...wire.schema import Object, Value, anything, array, duration_ms, flag, mapping, number, one_of, text, time, whole
from ...worker.remote import Failure
from ...worker.remote_worker import RemoteWorker
from .envelope import progress_of
from .errors import NotFound, Unsupported

MOST_QUEUES, MOST_TYPES, MOST_JOBS = 100, 1000, 1000
"""The most queues and job types in a fetch; the most jobs that a fetch returns or a heartbeat names."""
MOST_PAIRS = 10_000
"""The most pairs of a type and a queue in a fetch: each pair is searched for."""
LARGEST_DETAILS = 16_384
RUNNING = "running"
DIRECTIVES = (RUNNING, *WorkerProcess.Directive.values)
STATES = {"running": "running", "quiet": "quiet", "terminate": "stopping"}
"""The states that a worker reports, and the stored ones."""


def read_fetch(body: Mapping[str, Any]) -> dict[str, Any]:
    """Read which jobs a worker wants. A text that is not a valid queue name is left out; ``types`` None means any."""
    queues, types = FETCH.members["queues"].read(body.get("queues"), "queues"), body.get("types")
    queues = [name for name in queues if _is_queue(name)]
    if isinstance(types, list) and (pairs := len(types) * len(queues)) > MOST_PAIRS:
        problem = f"{len(types):,} types on {len(queues)} queues are {pairs:,} pairs; the limit is {MOST_PAIRS:,}"
        raise InvalidRequest.at("types", problem, hint="Fetch from fewer queues at once, or name fewer types.")
    sent = {"wait": 0.0, "types": None, "count": 1, "worker_id": None, **FETCH.read(body)}
    return {**sent, "queues": queues, "lease": lease_of(sent)}


def lease_of(sent: Mapping[str, Any]) -> Lease:
    """Return the lease that a request asks for, else the default."""
    field = "visibility_timeout_ms"
    length = sent.get(field, settings.api["LEASE"])
    return Lease(timedelta(milliseconds=milliseconds(length, field)), forced=field in sent, timed=True)


def holder_of(sent: Mapping[str, Any], account: str) -> RemoteWorker:
    """Return the worker's account and id, and the token and attempt of the job that it reports about."""
    return RemoteWorker(account, sent.get("worker_id"), sent.get("lease_token"), sent.get("attempt"))


def demand_token(sent: Mapping[str, Any], name: str) -> None:
    """Refuse a report that does not prove its lease, if ``OJS_UNIQUE["API"]["REQUIRE_LEASE_TOKEN"]`` is set."""
    if settings.api["REQUIRE_LEASE_TOKEN"] and name not in sent:
        raise InvalidRequest.at(name, "is missing", hint="Send the lease_token of each job as it was fetched.")


def read_job_id(value: Any, field: str = "job_id") -> UUID:
    """Return the id of a job; it need not exist. Raises NotFound for a text that is not an id."""
    if not isinstance(value, str) or not value:
        raise InvalidRequest.at(field, "must be a job's id", value=value)
    if not UUID_TEXT.fullmatch(value):
        raise NotFound.of("job", value)
    return UUID(value)


def read_job_ids(body: Mapping[str, Any]) -> list[UUID]:
    """Return the ids of the jobs that a heartbeat names; texts that are not ids are left out.

    They are in ``active_jobs`` (HTTP binding), or in ``active_job_ids`` beside their number (OJS worker protocol).
    """
    ids: list[str] = []
    for field in ("active_jobs", "active_job_ids"):
        named = body.get(field)
        if named is None or (type(named) is int and isinstance(body.get("active_job_ids"), list)):
            continue
        if not isinstance(named, list) or not all(isinstance(id, str) for id in named):
            hint = "Name them in active_job_ids." if isinstance(named, int) else ""
            raise InvalidRequest.at(field, "must be a list of jobs' ids", value=named, hint=hint)
        ids += named
    if isinstance(body.get("job_id"), str):
        ids.append(body["job_id"])
    if len(ids) > MOST_JOBS:
        raise InvalidRequest.at("active_jobs", f"must not name more than {MOST_JOBS} jobs", hint="Send several.")
    return [UUID(id) for id in dict.fromkeys(ids) if UUID_TEXT.fullmatch(id)]


def read_report(body: Mapping[str, Any]) -> tuple[float | None, str | None, dict[str, Any]]:
    """Return how far the work is, from 0 to 1, a note, cut to the stored length, and the other members of a report.

    None stands for what is not told. ``percentage`` and ``message`` say the same, as clients have it.
    """
    for name in ("data", "checkpoint"):
        if body.get(name) is not None:
            problem = f"{name}: is not stored here. Write a short text as `progress_note` instead."
            raise Unsupported(problem, details={"field": name})
    unread = {
        alias
        for name, alias in (("progress", "percentage"), ("progress_note", "message"))
        if body.get(name) is not None
    }
    sent = PROGRESS.read({name: value for name, value in body.items() if name not in unread})
    done, note = sent.get("progress", sent.get("percentage")), sent.get("progress_note", sent.get("message"))
    if done is None and note is None:
        raise InvalidRequest.at("progress", "is missing", hint="Write a number from 0 to 1, or a `progress_note`.")
    return done, None if note is None else storable(note[:LONGEST_REASON]), sent


def failure_of(error: Mapping[str, Any]) -> Failure:
    """Return the ``error`` of a failed attempt; texts are cut to the stored lengths (HTTP binding, section 7.4)."""
    details, backtrace = error.get("details"), error.get("backtrace")
    if isinstance(details, dict) and "traceback" in details:
        # Our own workers put the traceback of an exception there.
        details = dict(details)
        traceback = details.pop("traceback")
        backtrace = traceback if backtrace is None else backtrace
    thrown = details.get("error_class") if isinstance(details, dict) else None
    names = (error.get("type"), thrown, error.get("code"))
    types = tuple(storable(name[:LONGEST_REASON]) for name in names if isinstance(name, str) and name)
    record = {
        "type": types[0] if types else "handler_error",
        "code": storable((error.get("code") or "handler_error")[:LONGEST_REASON]),
        "message": storable((error.get("message") or "")[:LONGEST_MESSAGE]),
    }
    if details is not None:
        record["details"] = _kept(details)
    if (backtrace := _backtrace(backtrace)) is not None:
        record["backtrace"] = backtrace
    return Failure(record, types or ("handler_error",), error.get("retryable"))


def read_process(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a heartbeat says about the worker, to show to operators; invalid values are left out."""
    facts: dict[str, Any] = {}
    if isinstance(hostname := body.get("hostname"), str) and hostname.isprintable():
        facts["hostname"] = hostname[:LONGEST_REASON]
    for name in ("pid", "concurrency"):
        value = body.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31:
            facts[name] = value
    if isinstance(state := body.get("state"), str) and state in STATES:
        facts["state"] = STATES[state]
    if isinstance(queues := body.get("queues"), list):
        facts["queues"] = [name for name in queues[:MOST_QUEUES] if isinstance(name, str) and _is_queue(name)]
    return facts


def _at_most(most: int, many: str, make: Callable[[str], Any], hint: str = "") -> Callable[[Any, str], list[Any]]:
    def read(value: list[str], field: str) -> list[Any]:
        if len(value) > most:
            raise InvalidRequest.at(field, f"must not name more than {most} {many}", hint=hint)
        return list(map(make, value))

    return read


def _names(one: str, most: int, many: str, make: Callable[[str], Any], help: str) -> Value:
    problem = f"must be a list of at least one {one}"
    return array(text(), help, 1, most, problem=problem, read=_at_most(most, many, make))


def _wait(value: Any, field: str) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise InvalidRequest.at(field, "must be a number of seconds of at least 0", value=value)
    return float(min(value, settings.api["MAX_WAIT"]))


def _worker_id(value: Any, field: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_REASON or storable(value) != value:
        raise InvalidRequest.at(field, f"must be a text of 1 to {LONGEST_REASON} characters", value=value)
    return printable(value, field)


def _result(value: Any, field: str) -> Any:
    return _payload(value, field, settings.max_result_bytes)


def _payload(value: Any, field: str, largest: int) -> Any:
    """Return JSON that a worker sends. An error quotes nothing that is redacted for some type: it is not known yet."""
    try:
        return sized(plain(value, field), field, largest)
    except InvalidRequest as error:
        redact_error(error, None, names_of_any())
        raise


def _is_queue(name: str) -> bool:
    try:
        return bool(queue_name(name))
    except InvalidRequest:
        return False


def _kept(details: Any) -> Any:
    """Return the details if they can be stored, else the reason: they must not make the report of a failure fail."""
    try:
        return _payload(details, "details", LARGEST_DETAILS)
    except InvalidRequest as error:
        return {"left_out": error.message}


def _backtrace(value: Any) -> str | None:
    if isinstance(value, list):
        value = "\n".join(line for line in value if isinstance(line, str))
    return storable(both_ends(value, LONGEST_TRACEBACK)) if isinstance(value, str) and value else None


_LEASE = {"visibility_timeout_ms?": duration_ms()}
_WORKER_ID = text("", LONGEST_REASON, problem="", read=_worker_id)
_JOB_ID = {"job_id": text(problem="must be a job's id", read=read_job_id)}
_TOKEN = partial(text, longest=36, pattern=UUID_TEXT.pattern)
_HOLDER = {
    "worker_id?": _WORKER_ID,
    "lease_token?": _TOKEN(
        "Of the job as it was fetched. Beyond the spec.",
        problem="must be the lease_token of the job as it was fetched",
        read=lambda token, field: UUID(token),
    ),
    "attempt?": whole(
        "Of the job as it was fetched.",
        1,
        MOST_ATTEMPTS,
        problem=f"must be the attempt of the job as it was fetched, from 1 to {MOST_ATTEMPTS}",
    ),
}
FETCH = Object(
    "Fetch",
    {
        "queues": _names("queue's name", MOST_QUEUES, "queues", str, "The first is exhausted before the second."),
        "wait?": number("Seconds to wait for a job. Beyond the specification.", 0, read=_wait),
        **_LEASE,
        "types?": _names(
            "job type", MOST_TYPES, "job types", job_type, "Only jobs of these. Beyond the specification."
        ),
        "count?": whole(
            "", 1, problem="must be a whole number of at least 1", read=lambda count, field: min(count, MOST_JOBS)
        ),
        "worker_id?": _WORKER_ID,
    },
    "Which jobs a worker wants.",
)
ACK = Object("Ack", {**_HOLDER, **_JOB_ID, "result?": anything(read=_result)}, "A job that is done.")
_FAILURE = Object(
    "Failure",
    {"code? type? message?": text(), "retryable?": flag(), "details?": anything(), "backtrace?": array(text())},
    "What went wrong.",
)
NACK = Object(
    "Nack",
    {
        "error?": _FAILURE.member(
            problem="must be an object",
            hint="Write its `code` and `message`.",
            read=lambda error, field: _FAILURE.read(error, f"{field}."),
        ),
        "requeue?": flag(),
        **_HOLDER,
        **_JOB_ID,
    },
    "A job that failed, or is requeued.",
)
PROGRESS = Object(
    "Progress",
    {
        "progress?": number(
            "From 0 to 1; what is outside becomes the nearer end.",
            problem="must be a number from 0 to 1",
            read=lambda done, field: min(max(done, 0), 1),
        ),
        "percentage?": number(
            "The same, from 0 to 100.",
            problem="must be a number from 0 to 100",
            read=lambda done, field: min(max(done, 0), 100) / 100,
        ),
        "progress_note?": text("A short text, cut after 255 characters."),
        "message?": text("The same."),
        **_LEASE,
        **_HOLDER,
    },
    "How far the work on a job is: `progress`, `progress_note`, or both.",
)
PROGRESS_OF = PROGRESS.extended("ProgressOf", _JOB_ID, "How far the work on a job is, and which job it is.")
HEARTBEAT = Object(
    "Heartbeat",
    {
        "worker_id": _WORKER_ID,
        "active_jobs?": Value(
            {"oneOf": [array(text(), "", None, MOST_JOBS).schema, whole("", 0).schema]},
            "The ids; a number, if `active_job_ids` has them.",
        ),
        "active_job_ids?": array(text(), "", None, MOST_JOBS),
        **_LEASE,
        "lease_tokens?": array(
            _TOKEN(),
            "Those of the jobs as they were fetched: another lease is not extended.",
            None,
            MOST_JOBS,
            problem="must be a list of the lease_token of fetched jobs",
            read=_at_most(MOST_JOBS, "tokens", UUID, "Send several."),
        ),
        "hostname?": text(problem=""),
        "pid? concurrency?": whole(),
        "queues?": array(text()),
    },
    "A worker that lives.",
)

_REPORTED = {"id job_id": text(of="pk", write=str), "state": one_of(JobState)}
ACKNOWLEDGED = Object(
    "Acknowledged", {"acknowledged": flag(of=lambda job: True), **_REPORTED, "completed_at": time(of="finished_at")}
)


def _retry_delay(job: Any) -> int | None:
    if job.state != JobState.RETRYABLE:
        return None
    return job.errors[-1].get("retry_delay_ms", 0) if job.errors else 0  # a requeued job has none


def _discarded_at(job: Any) -> Any:
    return job.finished_at if job.state == JobState.DISCARDED else None


NACKED = Object(
    "Nacked",
    {
        **_REPORTED,
        "attempt": whole(),
        "max_attempts": whole(of="most_attempts"),
        "next_attempt_at?": time(of=lambda job: job.run_at if job.state == JobState.RETRYABLE else None),
        "retry_delay_ms?": whole(of=_retry_delay),
        "discarded_at? completed_at?": time(of=_discarded_at),
    },
)
_NOTE = {"progress_note?": text(of=lambda job: job.progress_note or None)}
JOB_PROGRESS = Object(
    "JobProgress",
    {
        "job_id": text(of="pk", write=str),
        "state": one_of(JobState),
        "progress": number(null=True, of=progress_of),
        **_NOTE,
        "data": mapping(None, "Always null.", null=True, of=lambda job: None),
    },
    "How far the last attempt of a job came, from 0 to 1; null if it has not told.",
)
REPORTED = Object(
    "Reported",
    {
        **_REPORTED,
        "accepted": flag(of=lambda job: True),
        "progress?": number(null=True, of=progress_of),
        **_NOTE,
        "data?": mapping(null=True, of=lambda job: None),
        "lease_expires_at?": time(),
    },
    "Whether a report was stored; if not, nobody runs the job any more.",
)
BEAT = Object("Beat", {"state": one_of(DIRECTIVES), "jobs_extended": array(text()), "server_time": time()})


def _standing(row: Any) -> str:
    return standing(row, database_now(row._state.db))


WORKER = Object(
    "Worker",
    {
        "id": text(of="pk"),
        "state": one_of((*WorkerProcess.State.values, SILENT), of=_standing),
        "directive": one_of(DIRECTIVES, of=lambda row: row.directive or RUNNING),
        "hostname?": text(of=lambda row: row.hostname or None),
        "queues": array(text()),
        "pid? concurrency? finalized": whole(),
        "held": whole(of="claimed"),
        "started_at heartbeat_at": time(),
    },
    "A worker: the `state` that it told, `silent` after three missed heartbeats; the `directive` that it is told.",
)
