"""Errors: what a job's row stores about failed attempts (HTTP binding, section 7.4)."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ..ojs.moments import milliseconds, rfc3339

ERRORS_KEPT = 10
LONGEST_MESSAGE = 1_000
LONGEST_TRACEBACK = 8_000
LONGEST_REASON = 255
_CUT = "\n  [...]\n"
_FRAMES = (None, -50, -20, -8, -3)
"""How many frames of each exception in a chain to keep: the first of these that fits."""
LEASE_LOST = "visibility_timeout"
"""The code of the error of a lease that ran out."""


def error_record(
    job: Any, code: str = "handler_error", message: str = "", *, now: datetime, type: str = "", **more: Any
) -> dict[str, Any]:
    """Return the record of what happened to a job in its current attempt; its ``type`` is the ``code`` by default."""
    record = {"type": type or code, "code": code, "message": message, "attempt": job.attempt}
    began = {} if job.started_at is None else {"started_at": rfc3339(job.started_at)}
    return {**record, **began, "occurred_at": milliseconds(now), **more}


def past_errors(job: Any) -> list[dict[str, Any]]:
    """Return the errors of a stored job; what is not a record of one was stored manually, and is left out."""
    return [error for error in job.errors if isinstance(error, dict)] if isinstance(job.errors, list) else []


def has_lost(job: Any, attempt: int | None = None) -> bool:
    """Tell whether a job has lost a lease, if given, in this attempt."""
    lost = (error.get("attempt") for error in past_errors(job) if error.get("code") == LEASE_LOST)
    return any(attempt in (None, number) for number in lost)


def with_error(job: Any, record: Mapping[str, Any]) -> list[Any]:
    """Return the errors of a stored job and one more, only the last 10."""
    return [*past_errors(job), record][-ERRORS_KEPT:]


def traceback_of(error: BaseException) -> str:
    """Return a traceback of at most `LONGEST_TRACEBACK` characters: of long texts both ends, of many frames the last.

    So the cause of an exception, its last frames and its message stay, however long any of them is.
    """
    text = ""
    for most in _FRAMES:
        parts = traceback.format_exception(error, limit=most)
        excess = sum(map(len, parts)) - LONGEST_TRACEBACK
        for index in sorted(range(len(parts)), key=lambda index: -len(parts[index])):
            size = len(parts[index])
            parts[index] = both_ends(parts[index], max(size - max(excess, 0), LONGEST_MESSAGE))
            excess -= size - len(parts[index])
        text = "".join(parts)
        if excess <= 0:
            break
    return both_ends(text, LONGEST_TRACEBACK)


def both_ends(text: str, longest: int) -> str:
    """Cut a text to ``longest`` characters, in its middle."""
    if len(text) <= longest:
        return text
    kept = longest - len(_CUT)
    return f"{text[: kept // 2]}{_CUT}{text[-(kept - kept // 2) :]}"
