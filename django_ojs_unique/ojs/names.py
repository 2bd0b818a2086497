"""The bounds of names and priorities: ids, types, queues, job keys, names of limits (OJS core, "Job envelope")."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

from ..exceptions import InvalidRequest, Message
from .canonical import plain, to_nfc

LONGEST_TYPE, LONGEST_QUEUE, LONGEST_KEY, LONGEST_LIMIT = 255, 128, 512, 100
LOWEST_PRIORITY, HIGHEST_PRIORITY = -100, 100
MOST_MEMBERS, LONGEST_MEMBER = 100, 255
"""How many members of args or meta a list may name, and how many characters each name may have."""

TYPE = re.compile(r"[a-z][a-z0-9_\-]*(\.[a-z][a-z0-9_\-]*)*")
QUEUE = re.compile(r"[a-z0-9][a-z0-9\-.]*")
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""C0, DEL, C1, line and paragraph separators, and characters that change the direction of the text after them."""
UUID_TEXT = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
UUID7_TEXT = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


_AS_TYPE = Message("Write lower-case words joined by dots, as in 'email.send'.")
_AS_QUEUE = Message("Write lower-case letters, digits, '-' and '.', as in 'emails'.")


def are_names(value: Any) -> bool:
    """Whether a value is a list of names of members."""
    return isinstance(value, (list, tuple, set, frozenset)) and all(isinstance(one, str) and one for one in value)


def printable(text: str, field: str) -> str:
    """Return a text without controls that break lines or change the text direction. Raises InvalidRequest."""
    if found := _UNPRINTABLE.search(text):
        control, position = f"U+{ord(found[0]):04X}", found.start()
        problem = Message("has the control character {name} at position {number}", name=control, number=position)
        raise InvalidRequest.at(field, problem, value=text, hint="Write it without line breaks and other controls.")
    return text


def job_type(value: Any) -> str:
    """Return a valid job type. Raises InvalidRequest."""
    return _name(value, "type", TYPE, LONGEST_TYPE, _AS_TYPE)


def queue_name(value: Any) -> str:
    """Return a valid queue name. Raises InvalidRequest."""
    return _name(value, "queue", QUEUE, LONGEST_QUEUE, _AS_QUEUE)


def matches(queue: str, patterns: Iterable[str]) -> bool:
    """Whether a queue matches one of the patterns; ``*`` stands for any text."""
    return any(fnmatchcase(queue, pattern) for pattern in patterns)


def _name(value: Any, field: str, pattern: re.Pattern[str], longest: int, hint: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest.at(field, "must be a string", value=value, hint=hint)
    if len(value) > longest:  # first, as a pattern takes much memory for a long text
        problem = Message("is longer than {count} characters", count=longest)
        raise InvalidRequest.at(field, problem, value=value, hint="Shorten it.")
    if not pattern.fullmatch(value):
        near = re.sub(r"[^a-z0-9\-._]+|_", "-", value.lower()).strip("-.")
        if near != value and pattern.fullmatch(near):
            hint = Message("Did you mean {name}?", name=repr(near))
        raise InvalidRequest.at(field, "is not a valid name", value=value, hint=hint)
    return str.__str__(value)


def job_key(value: Any) -> str:
    """Return a valid job key in NFC: 1 to 512 characters, no control characters (Graphile Worker, "Job key").

    Raises InvalidRequest.
    """
    if not isinstance(value, str) or not value:
        raise InvalidRequest.at("key", "must be a string that is not empty", value=value, hint="Write f'order-{id}'.")
    key = printable(to_nfc(plain(value, "key")), "key")
    if len(key) > LONGEST_KEY:
        problem = Message("is longer than {count} characters", count=LONGEST_KEY)
        raise InvalidRequest.at("key", problem, value=value, hint="Use a hash of what it is made of.")
    return key


def limit_name(value: Any, field: str = "name") -> str:
    """Return a valid name of a limit in NFC: 1 to 100 printable characters. Raises InvalidRequest."""
    name = to_nfc(value) if isinstance(value, str) else ""
    if not 1 <= len(name) <= LONGEST_LIMIT or not name.isprintable():
        problem = Message("must be printable text of at most {count} characters", count=LONGEST_LIMIT)
        raise InvalidRequest.at(field, problem, value=value)
    return name


def is_whole(value: Any, lowest: int, highest: int) -> bool:
    """Whether a value is a whole number between two others, or one of them; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool) and lowest <= value <= highest


def priority_number(value: Any) -> int:
    """Return a valid priority. Raises InvalidRequest."""
    if not is_whole(value, LOWEST_PRIORITY, HIGHEST_PRIORITY):
        bounds = {"lowest": LOWEST_PRIORITY, "highest": HIGHEST_PRIORITY}
        problem = Message("must be a whole number from {lowest} to {highest}", **bounds)
        raise InvalidRequest.at("priority", problem, value=value)
    return int(value)
