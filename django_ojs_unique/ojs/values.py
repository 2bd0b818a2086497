"""Read one value of a request: check it, and return it as it is stored. Each raises InvalidRequest with its field."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from ..exceptions import InvalidRequest, Message, shorten
from .canonical import plain
from .durations import Duration, end_of, read_delay
from .names import printable

_LONGEST_TAG = 255


def json_object(value: Any, field: str) -> dict[str, Any]:
    """Return a mapping as a JSON object; None is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidRequest.at(field, "must be an object", value=value)
    return plain(dict(value), field)  # type: ignore[no-any-return]


def short_string(value: Any, field: str, longest: int) -> str:
    """Return printable text of at most ``longest`` characters."""
    if not isinstance(value, str) or len(value) > longest:
        problem = Message("must be a string of at most {count} characters", count=f"{longest:,}")
        raise InvalidRequest.at(field, problem, value=value)
    return printable(plain(value, field), field)


def tag_list(value: Any, field: str) -> list[str]:
    """Return a list or a tuple of short printable strings as a list."""
    if value == ():
        return []
    if not isinstance(value, (list, tuple)):
        raise InvalidRequest.at(field, "must be a list of strings", value=value)
    for index, tag in enumerate(value):
        if not isinstance(tag, str) or not 0 < len(tag) <= _LONGEST_TAG:
            problem = Message("must be a string of 1 to {count} characters", count=_LONGEST_TAG)
            raise InvalidRequest.at(f"{field}[{index}]", problem, value=tag)
        printable(tag, f"{field}[{index}]")
    return plain(value, field)  # type: ignore[no-any-return]


def uuid(value: Any, field: str) -> UUID:
    """Return an id as a UUID."""
    try:
        return value if isinstance(value, UUID) else UUID(value)
    except (ValueError, TypeError, AttributeError):
        hint = "Leave it out to have a UUIDv7 made."
        raise InvalidRequest.at(field, "must be a UUID", value=value, hint=hint) from None


def flag(value: Any, field: str) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise InvalidRequest.at(field, "must be true or false", value=value)
    return value


def aware_moment(value: Any, field: str) -> datetime | None:
    """Return an aware datetime in UTC, or None."""
    if value is None:
        return None
    if not isinstance(value, datetime):
        hint = Message("Use {text}.", text="django.utils.timezone.now() + timedelta(…)")
        if field == "scheduled_at" and _is_delay(value):
            hint = Message("Write {text}.", text=f"delay={shorten(value)}")
        raise InvalidRequest.at(field, "must be a datetime", value=value, hint=hint)
    if value.utcoffset() is None:
        hint = Message("Use an aware datetime, for example django.utils.timezone.make_aware(…).")
        raise InvalidRequest.at(field, "has no time zone", value=value, hint=hint)
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise InvalidRequest.at(field, "is outside the calendar", value=value, hint="Choose a later year.") from None


def moment_after(now: datetime, delay: Duration, field: str) -> datetime:
    """Return when a delay that starts now ends."""
    try:
        return end_of(now, delay)
    except (OverflowError, ValueError):
        raise InvalidRequest.at(field, "ends outside the calendar", value=delay, hint="Shorten it.") from None


def _is_delay(value: Any) -> bool:
    try:
        read_delay(value, "delay")
    except InvalidRequest:
        return False
    return True
