"""Read timestamps (RFC 3339) and durations (ISO 8601) of clients (HTTP binding, "Timestamps")."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from ...exceptions import InvalidRequest
from ...ojs.durations import end_of, parse_duration

_CLOCK = r"(?:[01]\d|2[0-3]):[0-5]\d"
_MOMENT = re.compile(rf"\d{{4}}-\d\d-\d\d[Tt ]{_CLOCK}:[0-5]\d(\.\d+)?([Zz]|[+-]{_CLOCK})", re.ASCII)
_HINT = "Write RFC 3339 with a zone, as in '2030-01-02T03:04:05Z', or '+PT90S' for ninety seconds from now."
LONGEST_MS = 2**53 - 1


def read_moment(value: Any, field: str, now: datetime, *, signs: tuple[str, ...] = ("+",)) -> datetime:
    """Read a timestamp, or a duration that counts from ``now``, which begins with a sign. Raises InvalidRequest."""
    try:
        if isinstance(value, str) and value.startswith(signs):
            return end_of(now, parse_duration(value.removeprefix("+"))).astimezone(UTC)
        if isinstance(value, str) and _MOMENT.fullmatch(value):
            return datetime.fromisoformat(value.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise InvalidRequest.at(field, "is not a timestamp", value=value, hint=_HINT)


def read_milliseconds(value: Any, field: str) -> timedelta:
    """Read a positive whole number of milliseconds. Raises InvalidRequest."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= LONGEST_MS:
        raise InvalidRequest.at(field, f"must be a whole number of milliseconds from 1 to {LONGEST_MS}", value=value)
    try:
        return timedelta(milliseconds=value)
    except OverflowError:
        raise InvalidRequest.at(
            field, f"is longer than {timedelta.max // timedelta(milliseconds=1)} milliseconds", value=value
        ) from None
