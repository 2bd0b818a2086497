"""Read the members of a unique policy. Each function raises InvalidPolicy with the member's name."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Any, TypeVar

from ..exceptions import InvalidPolicy, InvalidRequest, Message, did_you_mean, shorten
from ..ojs.canonical import to_nfc
from ..ojs.durations import Duration, format_duration, parse_duration, read_delay
from ..ojs.names import LONGEST_MEMBER, MOST_MEMBERS


def invalid(name: str, problem: str, **kwargs: Any) -> InvalidPolicy:
    """Return the error about one member."""
    return InvalidPolicy.at(f"unique.{name}", problem, **kwargs)


def strings(value: Any, name: str) -> list[str]:
    """Return a list of different strings."""
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise invalid(
            name,
            "must be a list of strings",
            value=value,
            hint=Message("Write {text}.", text=f"[{shorten(value)}]") if isinstance(value, str) else "",
        )
    if len(value) > MOST_MEMBERS:
        count = f"{len(value):,}"
        raise invalid(name, Message("has {count} entries; the limit is {limit}", count=count, limit=MOST_MEMBERS))
    names: dict[str, None] = {}
    for index, item in enumerate(value):
        if not isinstance(item, str):
            raise invalid(f"{name}[{index}]", "must be a string", value=item)
        if len(item) > LONGEST_MEMBER:
            problem = Message("is longer than {count} characters", count=LONGEST_MEMBER)
            raise invalid(f"{name}[{index}]", problem, value=item, hint="Shorten it.")
        if item in names:
            raise invalid(name, "names the same thing twice", value=item, hint="Name it once.")
        names[item] = None
    return list(names)


def known_names(value: Any, name: str, known: Iterable[str]) -> list[str]:
    """Return a list of names, each of them ``known``."""
    valid = tuple(known)
    names = strings(value, name)
    for index, item in enumerate(names):
        if item not in valid:
            raise invalid(f"{name}[{index}]", "is not a known name", value=item, hint=did_you_mean(item, valid))
    return names


def member_names(value: Any, name: str) -> tuple[str, ...] | None:
    """Return the names of members in NFC, sorted; None if there are none."""
    if value is None:
        return None
    names = strings([to_nfc(item) for item in strings(value, name)], name)
    for (outer, _), (inner, item) in pairwise(sorted((_steps(item), item) for item in names)):
        if inner[: len(outer)] == outer:
            problem = "names a member and a part of it"
            raise invalid(name, problem, value=item, hint="Leave one of them out.")
    return tuple(sorted(names))


def _steps(name: str) -> list[str]:
    """Return the steps of a JSON Pointer, and the only one of a plain name."""
    return name[1:].split("/") if name.startswith("/") else [name.replace("~", "~0").replace("/", "~1")]


def read_period(value: Any) -> tuple[str | None, Duration | None]:
    """Return a period as ISO 8601 and as a duration; None if there is none."""
    if value is None:
        return None, None
    hint = Message("Write an ISO 8601 duration such as 'PT1H', 'P7D' or 'P1M'.")
    try:
        if isinstance(value, timedelta):
            value = format_duration(value)
        if isinstance(value, str):
            return str.__str__(value), parse_duration(value)
    except ValueError as error:
        raise invalid("period", str(error), value=value, hint=hint) from None
    raise invalid("period", "must be a string or a timedelta", value=value, hint=hint)


E = TypeVar("E", bound=StrEnum)


def choice(value: Any, name: str, choices: type[E], problem: str) -> E:
    """Return the member of an enumeration; ``problem`` is what an error says of a value that is none."""
    if not isinstance(value, str):
        raise invalid(name, "must be a string", value=value)
    try:
        return choices(value)
    except ValueError:
        hint = did_you_mean(value, choices)
        raise invalid(name, problem, value=value, hint=hint) from None


def positive_delay(value: Any, field: str) -> tuple[str, Duration]:
    """Read a delay greater than zero; return it as ISO 8601 and as a duration. Raises InvalidPolicy."""
    try:
        length = read_delay(value, field)
    except InvalidRequest as error:
        raise InvalidPolicy(error.message, details=error.details) from None
    if not length:
        raise InvalidPolicy.at(field, "is zero", value=value, hint="Leave it out, or write for example 'PT30S'.")
    return str.__str__(value) if isinstance(value, str) else format_duration(length), length
