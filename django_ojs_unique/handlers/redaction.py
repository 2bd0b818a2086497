"""Redaction: the members of args, meta and results that nobody is shown, and JSON without them.

Names are compared without regard to case, at any depth. Where nothing is redacted, each function returns what it got.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import Parameter
from typing import Any

from ..conf import settings
from ..exceptions import InvalidRequest
from ..ojs.canonical import canonical, to_nfc
from ..ojs.limits import are_readable, part_of
from .registry import parameters_of, registry

MASK = "[redacted]"
"""What is shown in the place of a value."""

_NONE: frozenset[str] = frozenset()
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"\s*")
_CUT_STRING = re.compile(r'"(?:[^"\\]|\\.)*\\?', re.DOTALL)
_SCALAR = re.compile(r'["\-0-9].*|true|false|null', re.DOTALL)
_BY_PLACE = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_PAYLOADS = ("args", "meta", "steps", "result", "details", "extra", "metadata", "options")


def names_of(type: Any) -> frozenset[str]:
    """Return the names that are redacted in the jobs of a type, folded; of an unknown type, the global ones."""
    given, definition = settings.redact, registry.find(type) if isinstance(type, str) else None
    own = () if definition is None else definition.redact
    return frozenset(map(_folded, (*given, *own))) if given or own else _NONE


def names_of_any() -> frozenset[str]:
    """Return the names that are redacted in the jobs of some type."""
    own = (name for definition in registry.definitions() for name in definition.redact)
    return frozenset(map(_folded, (*settings.redact, *own)))


def is_hidden(name: str, names: frozenset[str]) -> bool:
    """Whether the member ``name`` is redacted; of a JSON Pointer, each step counts."""
    if not names:
        return False
    steps = [step.replace("~1", "/").replace("~0", "~") for step in name.split("/")] if name.startswith("/") else ()
    return any(_folded(one) in names for one in (name, *steps))


def masked(value: Any, names: frozenset[str]) -> Any:
    """Return a JSON value with each member of these names masked; one that is nested too deeply is masked whole."""
    if not names:
        return value
    try:
        return _masked(value, names)
    except RecursionError:
        return MASK


def _masked(value: Any, names: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {name: MASK if is_hidden(name, names) else _masked(one, names) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return _like(value, (_masked(one, names) for one in value))
    return value


def redacted(type: Any, value: Any) -> Any:
    """Return a JSON value of a job of this type with each redacted member masked."""
    return masked(value, names_of(type))


def redacted_args(type: Any, args: Any) -> Any:
    """Return the args of a job as `redacted` does, and mask in an array what the handler calls by a redacted name."""
    names = names_of(type)
    if not names or not isinstance(args, (list, tuple)):
        return masked(args, names)
    is_place = hidden_places(type, names)
    return _like(args, (MASK if is_place(at) else masked(one, names) for at, one in enumerate(args)))


def redacted_member(row: Any, name: str) -> Any:
    """Return a JSON member of a job, a suppressed enqueue or a periodic job, as `redacted` and `redacted_args` do."""
    value = getattr(row, name)
    if name == "steps":
        return redacted_steps(row.type, value)
    if name == "limits":
        return redacted_limits(row.type, row.args, value)
    return redacted_args(row.type, value) if name == "args" else redacted(row.type, value)


def redacted_steps(type: Any, steps: Any) -> Any:
    """Return the steps of a job as `redacted` does, and mask the value of a step that has a redacted name."""
    names = names_of(type)
    if not names or not isinstance(steps, list):
        return masked(steps, names)
    return [
        {**one, **{kind: MASK for kind in ("value", "cursor") if kind in one}}
        if isinstance(one, dict) and is_hidden(str(one.get("name")), names)
        else masked(one, names)
        for one in steps
    ]


def redacted_limits(type: Any, args: Any, limits: Any) -> Any:
    """Return the limits of a job with the redacted values in their keys masked; none, if they cannot be read."""
    names = names_of(type)
    if not are_readable(limits):
        return []
    if not names or limits is None:
        return limits
    hides_all = isinstance(args, list) and hidden_places(type, names)(0)
    shown = []
    for limit in limits:
        key = dict(limit["key"])
        for part, value in key.items():
            source, member = part_of(part)
            if member and (is_hidden(member, names) or (source == "args" and hides_all)):
                key[part] = MASK
            elif isinstance(value, str) and value.endswith("…"):  # the start of a long value's JSON
                key[part] = redacted_beginning(type, value)
            elif source == "args" and not member:
                key[part] = redacted_args(type, value)
            else:
                key[part] = masked(value, names)
        shown.append({**limit, "key": key})
    return shown


def redacted_canonical(type: Any, text: str) -> str:
    """Return the canonical text of a job with each redacted member masked."""
    names = names_of(type)
    if not names or not text:
        return text
    try:
        dimensions = json.loads(text)
    except (ValueError, RecursionError):
        return MASK
    if isinstance(dimensions, dict) and "args" in dimensions:
        dimensions["args"] = redacted_args(type, dimensions["args"])
    return canonical(masked(dimensions, names))


def redacted_beginning(type: Any, text: str) -> str:
    """Return the beginning of a job's args or meta as JSON, which was cut, with each redacted member masked.

    Of the member where it was cut, only the beginning of a string is shown: what an object hides cannot be told.
    """
    names = names_of(type)
    if not names:
        return text
    if text[:1] not in ("{", "["):
        return MASK
    return text[0] + ", ".join(_members(text, names, hidden_places(type, names)))


def hidden_places(type: Any, names: frozenset[str]) -> Callable[[int], bool]:
    """Return what tells whether the handler of a type calls the value at a place of an array by one of these names."""
    places, rest = _places(type, names)
    return lambda at: places[at] if at < len(places) else rest


def hides_places(type: Any) -> bool:
    """Whether the handler of a type calls any value of an array by a redacted name."""
    places, rest = _places(type, names_of(type))
    return rest or any(places)


def _places(type: Any, names: frozenset[str]) -> tuple[list[bool], bool]:
    """Return whether each parameter is redacted that takes one value of an array, and whether the rest is."""
    definition = registry.find(type) if isinstance(type, str) else None
    try:
        parameters = [] if definition is None else list(parameters_of(definition).parameters.values())
    except ValueError:  # written in C, without a readable signature
        parameters = []
    places = [is_hidden(one.name, names) for one in parameters if one.kind in _BY_PLACE]
    return places, any(is_hidden(one.name, names) for one in parameters if one.kind is Parameter.VAR_POSITIONAL)


def holds_mask(value: Any) -> bool:
    """Whether a JSON value, however deep, has a mask."""
    ahead = [value]
    while ahead:
        one = ahead.pop()
        if isinstance(one, (dict, list)):
            ahead += one.values() if isinstance(one, dict) else one
        elif one == MASK:
            return True
    return False


def redact_error(error: InvalidRequest, type: Any, names: frozenset[str] | None = None) -> None:
    """Take the value out of an error about a member of a job of this type that is redacted, or may hold one.

    ``names``: the redacted ones, if they are not those of the type. The reasons of what refused the value go, too, as
    they may quote it in another form.
    """
    names = names_of(type) if names is None else names
    field, value = str(error.details.get("field", "")), error.details.get("value")
    is_payload = field.partition(".")[0].partition("[")[0] in _PAYLOADS
    if not names or not is_payload or not _may_hold(field, value, type, names):
        return
    said: dict[str, str] = getattr(error.message, "values", {})
    problem, hint = (_without(error.got, said.get(name, "")) for name in ("problem", "hint"))
    error.rephrase(problem=problem.partition(": ")[0] if ": " in problem else problem, hint=hint, value=MASK)
    if "problem" not in said:
        error.message = _without(error.got, error.message)
        error.args = (error.message,)
    if value:
        error.got = error.details["value"] = MASK
    error.__cause__, error.__suppress_context__ = None, True


def _without(value: str, text: str) -> str:
    return text.replace(value, MASK) if value and value in text else text


def _may_hold(field: str, value: str | None, type: Any, names: frozenset[str]) -> bool:
    """Whether an error about a field may tell what is redacted: only a plain value at another place does not."""
    path = _folded(field)
    place = re.match(r"args\[(\d+)\]", field)
    if any(f".{name}" in path for name in names) or (place and hidden_places(type, names)(int(place[1]))):
        return True
    is_whole = not re.search(r"[.\[]", field)
    return value is not None and (is_whole or "…" in field or not _SCALAR.fullmatch(value))


@contextmanager
def hiding_values(type: Any) -> Iterator[None]:
    """Call `redact_error` for the errors of a block."""
    try:
        yield
    except InvalidRequest as error:
        redact_error(error, type)
        raise


def _members(text: str, names: frozenset[str], is_place: Callable[[int], bool]) -> Iterator[str]:
    """Yield the members of a JSON object that was cut, or the elements of an array."""
    at, count, more = 1, 0, True
    while more:
        lead, is_secret = "", text[0] == "[" and is_place(count)
        begin = at = _after_space(text, at)
        try:
            if text[0] == "{":
                name, at = _DECODER.raw_decode(text, at)
                lead, is_secret = f"{json.dumps(name, ensure_ascii=False)}: ", is_hidden(str(name), names)
                begin = at = _after_space(text, text.index(":", at) + 1)
            value, at = _DECODER.raw_decode(text, at)
            at = _after_space(text, at)
            more = text[at] == ","
        except (ValueError, IndexError, RecursionError):  # here it was cut
            rest = text[begin:]
            yield lead + (rest if not is_secret and _CUT_STRING.fullmatch(rest) else "")
            return
        yield lead + json.dumps(MASK if is_secret else masked(value, names), ensure_ascii=False)
        at, count = at + 1, count + 1


def _after_space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]


def _folded(name: Any) -> str:
    return str(to_nfc(str(name))).casefold()


def _like(value: Any, items: Iterator[Any]) -> Any:
    return tuple(items) if isinstance(value, tuple) else list(items)
