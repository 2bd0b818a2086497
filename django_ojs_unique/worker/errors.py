"""Errors: what a job's row remembers of attempts that failed (HTTP binding, section 7.4)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ..ojs.moments import milliseconds

ERRORS_KEPT = 10


def error_record(
    job: Any, code: str = "handler_error", message: str = "", *, now: datetime, type: str = "", **more: Any
) -> dict[str, Any]:
    """Return the record of what happened to a job in its current attempt; its ``type`` is the ``code`` by default."""
    record = {"type": type or code, "code": code, "message": message}
    return {**record, "attempt": job.attempt, "occurred_at": milliseconds(now), **more}


def with_error(errors: list[Any], record: Mapping[str, Any]) -> list[Any]:
    """Return a job's errors and one more; the oldest make room."""
    return [*errors, record][-ERRORS_KEPT:]
