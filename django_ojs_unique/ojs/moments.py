"""Write datetimes for JSON: RFC 3339 in UTC (OJS core, "Timestamps")."""

from __future__ import annotations

from datetime import UTC, datetime


def rfc3339(moment: datetime) -> str:
    """Write a datetime: without a fraction if it has none, in milliseconds if these are exact, else in microseconds."""
    fraction = moment.microsecond
    return _written(moment, "microseconds" if fraction % 1000 else "milliseconds" if fraction else "seconds")


def milliseconds(moment: datetime) -> str:
    """Write a datetime in milliseconds: for times that the server has set."""
    return _written(moment, "milliseconds")


def _written(moment: datetime, precision: str) -> str:
    return moment.astimezone(UTC).isoformat(timespec=precision).replace("+00:00", "Z")
