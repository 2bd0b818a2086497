"""Errors: what a job's row stores about failed attempts (HTTP binding, section 7.4)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ..ojs.moments import milliseconds

ERRORS_KEPT = 10
LONGEST_MESSAGE = 1_000
LONGEST_TRACEBACK = 8_000
LONGEST_REASON = 255


def error_record(
    job: Any, code: str = "handler_error", message: str = "", *, now: datetime, type: str = "", **more: Any
) -> dict[str, Any]:
    """Return the record of what happened to a job in its current attempt; its ``type`` is the ``code`` by default."""
    record = {"type": type or code, "code": code, "message": message}
    return {**record, "attempt": job.attempt, "occurred_at": milliseconds(now), **more}


def with_error(errors: list[Any], record: Mapping[str, Any]) -> list[Any]:
    """Return a job's errors and one more, only the last 10."""
    return [*errors, record][-ERRORS_KEPT:]


def storable(text: str) -> str:
    """Replace the characters of a text that some databases refuse."""
    return text.replace("\x00", "�").encode(errors="replace").decode()
