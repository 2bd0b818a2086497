"""The values of a request: check one, and return it as it is stored. Each raises InvalidRequest with its field."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.core.files import File
from django.db.models import Manager, Model, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.functional import Promise

from ..exceptions import InvalidRequest, PayloadTooLarge, shorten
from ..handlers.registry import SupportsConvert
from ..ojs.canonical import plain
from ..ojs.durations import Duration, end_of, format_duration, read_delay
from ..ojs.encoder import encoder
from ..ojs.hints import HINTS, Hint, hint_for, sentence
from ..ojs.limits import Limit
from ..ojs.names import printable
from ..ojs.retry import RetryPolicy
from ..unique.policy import UniquePolicy

_LONGEST_TAG = 255
_JSON = encoder(ensure_ascii=False)

HINTS[:0] = [
    Hint(Model, "{it}.pk", "load it", shown=False),
    Hint((QuerySet, Manager), 'list({it}.values_list("pk", flat=True))', "load them", shown=False),
    Hint(Promise, "str({it}), in the language that is active now"),
    Hint(File, "the name under which it is stored", "open it"),
    Hint(HttpRequest, "what the handler needs of it, such as request.user.pk"),
]


def arguments(value: Any, converter: SupportsConvert | None = None) -> Any:
    """Return ``args`` as plain JSON: an object or an array."""
    if value is None:
        return {}
    if type(value) is dict and converter is None:
        return plain(value, "args")
    if isinstance(value, Mapping):
        value = dict(value)
    elif not isinstance(value, (list, tuple)):
        is_json = isinstance(value, (str, int, float))
        hint = hint_for(value, "args")
        raise InvalidRequest.at(
            "args",
            "must be an object (keyword arguments) or an array (positional)",
            value=value if hint.shown else ...,
            hint=f"Write [{shorten(value)}]." if is_json else sentence(hint, "args"),
        )
    return plain(value if converter is None else converter.to_json(value), "args")


def json_object(value: Any, field: str) -> dict[str, Any]:
    """Return a mapping as a JSON object; None is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidRequest.at(field, "must be an object", value=value)
    return plain(dict(value), field)  # type: ignore[no-any-return]


def sized(value: Any, field: str, largest: int, setting: str = "") -> Any:
    """Return a JSON value of at most ``largest`` bytes. Raises PayloadTooLarge for a larger one."""
    size = len(_JSON(value).encode()) if value else 2
    if size > largest:
        raise PayloadTooLarge.at(
            field,
            f"is {size:,} bytes as JSON; the limit is {largest:,}",
            hint=f"Store the data and send its key, or raise OJS_UNIQUE['MAX_{setting or field.upper()}_BYTES'].",
        )
    return value


def short_string(value: Any, field: str, longest: int) -> str:
    """Return printable text of at most ``longest`` characters."""
    if not isinstance(value, str) or len(value) > longest:
        raise InvalidRequest.at(field, f"must be a string of at most {longest:,} characters", value=value)
    return printable(plain(value, field), field)


def tag_list(value: Any) -> list[str]:
    """Return ``tags`` as a list of printable strings."""
    if value == ():
        return []
    if not isinstance(value, (list, tuple)):
        raise InvalidRequest.at("tags", "must be a list of strings", value=value)
    for index, tag in enumerate(value):
        if not isinstance(tag, str) or not 0 < len(tag) <= _LONGEST_TAG:
            raise InvalidRequest.at(f"tags[{index}]", f"must be a string of 1 to {_LONGEST_TAG} characters", value=tag)
        printable(tag, f"tags[{index}]")
    return plain(value, "tags")  # type: ignore[no-any-return]


def uuid(value: Any) -> UUID:
    """Return an ``id`` as a UUID."""
    try:
        return value if isinstance(value, UUID) else UUID(value)
    except (ValueError, TypeError, AttributeError):
        raise InvalidRequest.at(
            "id", "must be a UUID", value=value, hint="Leave it out to have a UUIDv7 made."
        ) from None


def aware_moment(value: Any, field: str) -> datetime | None:
    """Return an aware datetime in UTC, or None."""
    if value is None:
        return None
    if not isinstance(value, datetime):
        hint = "Use django.utils.timezone.now() + timedelta(…)."
        if field == "scheduled_at" and _is_delay(value):
            hint = f"Write delay={shorten(value)}."
        raise InvalidRequest.at(field, "must be a datetime", value=value, hint=hint)
    if timezone.is_naive(value):
        raise InvalidRequest.at(
            field,
            "has no time zone",
            value=value,
            hint="Use an aware datetime, for example django.utils.timezone.make_aware(…).",
        )
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


def as_stored(option: Any) -> Any:
    """Return an option of an enqueue as `Request` takes it, too, and without objects of ours; moments stay."""
    if isinstance(option, (UniquePolicy, RetryPolicy, Limit)):
        return option.to_dict()
    if isinstance(option, timedelta):
        return format_duration(option)
    if isinstance(option, (list, tuple)):
        return [one.to_dict() if isinstance(one, Limit) else one for one in option]
    return option
