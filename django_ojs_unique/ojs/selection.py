"""Select members of a job's args or meta, by their names or by JSON Pointers (RFC 6901)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from ..exceptions import LONGEST_SHOWN, InvalidRequest, Message, did_you_mean
from .names import MOST_MEMBERS

_INDEX = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
_BAD_ESCAPE = re.compile(r"~(?![01])")


def object_of(args: Any) -> dict[str, Any] | None:
    """Return args that are an object, or the single object of an array of one; else None."""
    if isinstance(args, list) and len(args) == 1:
        args = args[0]
    return args if isinstance(args, dict) else None


def select_members(
    members: Mapping[str, Any], names: Iterable[str], dimension: str, error: type[InvalidRequest], field: str
) -> dict[str, Any]:
    """Return the named members of args or meta (``dimension``); raise an ``error`` about ``field`` if there is none.

    All texts are in NFC.
    """
    selected = {}
    for name in names:
        try:
            selected[name] = member_of(members, name)
        except LookupError:
            raise error.at(
                field,
                Message("names a key that {dimension} does not have", dimension=dimension),
                value=name,
                hint=did_you_mean(name, [one[:LONGEST_SHOWN] for one in islice(members, MOST_MEMBERS)])
                if members
                else Message("This job's {dimension} is empty.", dimension=dimension),
            ) from None
    return selected


def member_of(members: Mapping[str, Any], name: str) -> Any:
    """Return the member of this name or at this JSON Pointer. Raises LookupError."""
    return members[name] if name in members else _follow(members, name)


def _follow(members: Mapping[str, Any], pointer: str) -> Any:
    """Return the value at a JSON Pointer (RFC 6901), such as ``/customer/id`` or ``/lines/0``. Raises LookupError."""
    start, *steps = pointer.split("/")
    if start or not steps or _BAD_ESCAPE.search(pointer):
        raise LookupError(pointer)
    value: Any = members
    for step in steps:
        if isinstance(value, list) and _INDEX.fullmatch(step):
            value = value[int(step)]
        elif isinstance(value, dict):
            value = value[step.replace("~1", "/").replace("~0", "~")]
        else:
            raise LookupError(pointer)
    return value
