"""Read what a worker sends: which jobs it wants, and how its jobs ended (HTTP binding, "Worker endpoints").

Functions that refuse a value raise InvalidRequest, which names the field.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from ...conf import settings
from ...enqueue.values import sized
from ...exceptions import InvalidRequest
from ...execution.errors import LONGEST_MESSAGE, LONGEST_REASON, LONGEST_TRACEBACK, storable
from ...execution.leases import Lease
from ...ojs.canonical import plain
from ...ojs.durations import milliseconds
from ...ojs.names import UUID_TEXT, job_type, printable, queue_name
from ...ojs.retry import MOST_ATTEMPTS
from ...worker.remote import Failure
from ...worker.remote_worker import RemoteWorker
from .errors import NotFound, Unsupported
from .moments import read_milliseconds

MOST_QUEUES, MOST_TYPES, MOST_JOBS = 100, 1000, 1000
"""The most queues and job types in a fetch; the most jobs that a fetch returns or a heartbeat names."""
MOST_PAIRS = 10_000
"""The most pairs of a type and a queue in a fetch: each pair is searched for."""
LARGEST_DETAILS = 16_384
STATES = {"running": "running", "quiet": "quiet", "terminate": "stopping"}
"""The states that a worker reports, and the stored ones."""


def read_queues(body: Mapping[str, Any]) -> list[str]:
    """Return the queues to fetch from; a text that is not a valid queue name is left out."""
    names = _names(body.get("queues"), "queues", "queue's name", "queues", MOST_QUEUES)
    return [name for name in names if _is_queue(name)]


def read_types(body: Mapping[str, Any], queues: Collection[str]) -> list[str] | None:
    """Return the job types that the worker can run, on each of the ``queues``; None means any."""
    types = body.get("types")
    if types is None:
        return None
    if isinstance(types, list) and (pairs := len(types) * len(queues)) > MOST_PAIRS:
        problem = f"{len(types):,} types on {len(queues)} queues are {pairs:,} pairs; the limit is {MOST_PAIRS:,}"
        raise InvalidRequest.at("types", problem, hint="Fetch from fewer queues at once, or name fewer types.")
    return [job_type(name) for name in _names(types, "types", "job type", "job types", MOST_TYPES)]


def read_count(body: Mapping[str, Any]) -> int:
    """Return how many jobs to fetch, at most `MOST_JOBS`; 1 by default."""
    count = 1 if body.get("count") is None else body["count"]
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise InvalidRequest.at("count", "must be a whole number of at least 1", value=count)
    return min(count, MOST_JOBS)


def read_wait(body: Mapping[str, Any]) -> float:
    """Return for how many seconds to wait for a job, at most ``OJS_UNIQUE["API"]["MAX_WAIT"]``; 0 by default."""
    wait = 0 if body.get("wait") is None else body["wait"]
    if not isinstance(wait, (int, float)) or isinstance(wait, bool) or not 0 <= wait < math.inf:
        raise InvalidRequest.at("wait", "must be a number of seconds of at least 0", value=wait)
    return float(min(wait, settings.api["MAX_WAIT"]))


def read_lease(body: Mapping[str, Any]) -> Lease:
    """Return the lease that the request asks for, else the default."""
    field, wanted = "visibility_timeout_ms", body.get("visibility_timeout_ms")
    length = settings.api["LEASE"] if wanted is None else read_milliseconds(wanted, field)
    return Lease(timedelta(milliseconds=milliseconds(length, field)), forced=wanted is not None, timed=True)


def read_worker_id(body: Mapping[str, Any], *, required: bool = False) -> str | None:
    """Return the ``worker_id``; None if it is missing and not ``required``."""
    id = body.get("worker_id")
    if id is None and not required:
        return None
    return _text(id, "worker_id")


def read_holder(body: Mapping[str, Any], account: str) -> RemoteWorker:
    """Return the worker's account and id, and the token and attempt of the job that it reports about."""
    return RemoteWorker(account, read_worker_id(body), _read_token(body), _read_attempt(body))


def read_tokens(body: Mapping[str, Any]) -> list[UUID] | None:
    """Return the tokens of the leases that a heartbeat extends; None means whatever leases its jobs have."""
    tokens = body.get("lease_tokens")
    if tokens is None:
        return None
    if not isinstance(tokens, list) or not all(isinstance(one, str) and UUID_TEXT.fullmatch(one) for one in tokens):
        raise InvalidRequest.at("lease_tokens", "must be a list of the lease_token of fetched jobs", value=tokens)
    if len(tokens) > MOST_JOBS:
        raise InvalidRequest.at("lease_tokens", f"must not name more than {MOST_JOBS} tokens", hint="Send several.")
    return [UUID(token) for token in tokens]


def _read_token(body: Mapping[str, Any]) -> UUID | None:
    token = body.get("lease_token")
    if token is None:
        return None
    if not isinstance(token, str) or not UUID_TEXT.fullmatch(token):
        raise InvalidRequest.at("lease_token", "must be the lease_token of the job as it was fetched", value=token)
    return UUID(token)


def _read_attempt(body: Mapping[str, Any]) -> int | None:
    attempt = body.get("attempt")
    if attempt is None:
        return None
    if not isinstance(attempt, int) or isinstance(attempt, bool) or not 0 < attempt <= MOST_ATTEMPTS:
        problem = f"must be the attempt of the job as it was fetched, from 1 to {MOST_ATTEMPTS}"
        raise InvalidRequest.at("attempt", problem, value=attempt)
    return attempt


def read_job_id(body: Mapping[str, Any]) -> UUID:
    """Return the id of the job; it need not exist. Raises NotFound for a text that is not an id."""
    id = body.get("job_id")
    if not isinstance(id, str) or not id:
        raise InvalidRequest.at("job_id", "must be a job's id", value=id)
    if not UUID_TEXT.fullmatch(id):
        raise NotFound.of("job", id)
    return UUID(id)


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


def read_result(body: Mapping[str, Any]) -> Any:
    """Return the result of a job. Raises InvalidRequest or PayloadTooLarge if it cannot be stored."""
    result = body.get("result")
    return None if result is None else sized(plain(result, "result"), "result", settings.max_result_bytes)


def read_progress(body: Mapping[str, Any]) -> tuple[float | None, str | None]:
    """Return how far the work is, from 0 to 1, and a note, cut to the stored length; None for what is not told.

    A number outside the range becomes its nearer end. ``percentage`` and ``message`` say the same, as clients have it.
    """
    for name in ("data", "checkpoint"):
        if body.get(name) is not None:
            problem = f"{name}: is not stored here. Write a short text as `progress_note` instead."
            raise Unsupported(problem, details={"field": name})
    field, most = ("percentage", 100) if body.get("progress") is None else ("progress", 1)
    fraction = body.get(field)
    if fraction is not None and (not isinstance(fraction, (int, float)) or isinstance(fraction, bool)):
        raise InvalidRequest.at(field, f"must be a number from 0 to {most}", value=fraction)
    place = "message" if body.get("progress_note") is None else "progress_note"
    note = body.get(place)
    if note is not None and not isinstance(note, str):
        raise InvalidRequest.at(place, "must be a string", value=note)
    if fraction is None and note is None:
        raise InvalidRequest.at("progress", "is missing", hint="Write a number from 0 to 1, or a `progress_note`.")
    done = None if fraction is None else min(max(fraction, 0), most) / most
    return done, None if note is None else storable(note[:LONGEST_REASON])


def read_requeue(body: Mapping[str, Any]) -> bool:
    """Return whether the worker requeues the job instead of failing it."""
    requeue = body.get("requeue", False)
    if requeue is not None and not isinstance(requeue, bool):
        raise InvalidRequest.at("requeue", "must be true or false", value=requeue)
    return bool(requeue)


def read_failure(body: Mapping[str, Any]) -> Failure:
    """Read the ``error`` of a failed attempt; texts are cut to the stored lengths (HTTP binding, section 7.4)."""
    error = {} if body.get("error") is None else body["error"]
    if not isinstance(error, dict):
        raise InvalidRequest.at("error", "must be an object", value=error, hint="Write its `code` and `message`.")
    for name in ("code", "type", "message"):
        if error.get(name) is not None and not isinstance(error[name], str):
            raise InvalidRequest.at(f"error.{name}", "must be a string", value=error[name])
    retryable = error.get("retryable")
    if retryable is not None and not isinstance(retryable, bool):
        raise InvalidRequest.at("error.retryable", "must be true or false", value=retryable)
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
    return Failure(record, types or ("handler_error",), retryable)


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


def _names(value: Any, field: str, one: str, many: str, most: int) -> list[str]:
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise InvalidRequest.at(field, f"must be a list of at least one {one}", value=value)
    if len(value) > most:
        raise InvalidRequest.at(field, f"must not name more than {most} {many}")
    return value


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_REASON or storable(value) != value:
        raise InvalidRequest.at(field, f"must be a text of 1 to {LONGEST_REASON} characters", value=value)
    return printable(value, field)


def _is_queue(name: str) -> bool:
    try:
        return bool(queue_name(name))
    except InvalidRequest:
        return False


def _kept(details: Any) -> Any:
    """Return the details if they can be stored, else the reason: they must not make the report of a failure fail."""
    try:
        return sized(plain(details, "details"), "details", LARGEST_DETAILS)
    except InvalidRequest as error:
        return {"left_out": error.message}


def _backtrace(value: Any) -> str | None:
    if isinstance(value, list):
        value = "\n".join(line for line in value if isinstance(line, str))
    return storable(value[-LONGEST_TRACEBACK:]) if isinstance(value, str) and value else None
