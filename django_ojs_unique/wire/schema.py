"""What goes over the wire, described once: a table of members reads a request, writes an answer, and is its schema.

A `Value` says what one member may be. An `Object` has members by their names; one whose name ends in ``?`` may be left
out. What reads a value raises InvalidRequest, which names the field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, ClassVar

from ..exceptions import InvalidRequest, did_you_mean
from ..ojs.durations import end_of, parse_duration
from ..ojs.moments import milliseconds

_CLOCK = r"(?:[01]\d|2[0-3]):[0-5]\d"
_MOMENT = re.compile(rf"\d{{4}}-\d\d-\d\d[Tt ]{_CLOCK}:[0-5]\d(\.\d+)?([Zz]|[+-]{_CLOCK})", re.ASCII)
_HINT = "Write RFC 3339 with a zone, as in '2030-01-02T03:04:05Z', or '+PT90S' for ninety seconds from now."
_NUMBER = re.compile(r"[0-9]{1,9}")
LONGEST_MS = 2**53 - 1


class Value:
    """What a member may be: its JSON ``schema``, and a ``help`` for people. ``null``: it can be null, too.

    With a ``problem``, what a client sent is refused unless it fits the schema; ``read`` makes a value of it. ``of``
    returns what an answer has, from the source that is written, or names an attribute of it: by default, the one with
    the member's name; None leaves it to the caller. ``write`` makes JSON of that.
    """

    def __init__(
        self,
        schema: Mapping[str, Any],
        help: str = "",
        *,
        problem: str = "",
        hint: str = "",
        read: Callable[[Any, str], Any] = lambda value, field: value,
        of: Callable[[Any], Any] | str | None = "",
        write: Callable[[Any], Any] | None = None,
        null: bool = False,
    ) -> None:
        self.schema: dict[str, Any] = {"allOf": [schema]} if help and "$ref" in schema else {**schema}
        if null:
            self.schema["type"] = [schema["type"], "null"]
        if help:
            self.schema["description"] = help
        self.of, self.write, self.null = of, write, null
        self._problem, self._hint, self._read = problem, hint, read

    def read(self, value: Any, field: str) -> Any:
        """Return the value of a field that a client sent."""
        if self._problem and not _fits(value, self.schema):
            raise InvalidRequest.at(field, self._problem, value=value, hint=self._hint)
        return self._read(value, field)


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a value has the type of a schema and is within its bounds, except for the most items of an array."""
    match schema.get("type", "object"):
        case "string":
            is_short = isinstance(value, str) and len(value) <= schema.get("maxLength", len(value))
            return is_short and ("pattern" not in schema or re.fullmatch(schema["pattern"], value) is not None)
        case "integer":
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            return is_whole and schema.get("minimum", value) <= value <= schema.get("maximum", value)
        case "number":
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        case "boolean":
            return isinstance(value, bool)
        case "array":
            is_enough = isinstance(value, list) and len(value) >= schema.get("minItems", 0)
            return is_enough and all(_fits(one, schema["items"]) for one in value)
        case _:
            return isinstance(value, dict)


class Object:
    """An object with these members, and perhaps with others; a component of the OpenAPI document.

    A key of ``members`` names one or several, with spaces between. Other members of a ``closed`` one are refused. A
    client must send one of those that ``either`` names.
    """

    components: ClassVar[dict[str, Any]] = {}
    """The JSON Schema of each, by its name."""

    def __init__(
        self,
        name: str,
        members: Mapping[str, Value | Object | list[Object]],
        help: str = "",
        *,
        closed: bool = False,
        either: tuple[str, ...] = (),
    ) -> None:
        self.help, self.closed, self.either = help, closed, either
        self.given = {name: one for names, one in members.items() for name in names.split()}
        self.members = {name.removesuffix("?"): _value_of(one) for name, one in self.given.items()}
        self.required = sorted(self.given.keys() & self.members.keys())
        self._getters = [
            (member, value.of if callable(value.of) else attrgetter(value.of or member), value)
            for member, value in self.members.items()
            if value.of is not None
        ]
        self.ref = {"$ref": f"#/components/schemas/{name}"}
        self.components[name] = {
            "type": "object",
            **({"description": help} if help else {}),
            "properties": {member: value.schema for member, value in self.members.items()},
            **({"required": self.required} if self.required else {}),
            **({"anyOf": [{"required": [name]} for name in either]} if either else {}),
            **({"additionalProperties": False} if closed else {}),
        }

    def extended(self, name: str, members: Mapping[str, Value], help: str = "") -> Object:
        """Return an object with more members."""
        return Object(name, {**self.given, **members}, help or self.help, closed=self.closed)

    def member(self, help: str = "", **how: Any) -> Value:
        """Return the value of a member that is such an object; ``how`` as for `Value`."""
        return Value(self.ref, help, **how)

    def read(self, body: Mapping[str, Any], at: str = "") -> dict[str, Any]:
        """Return the members that a client sent; null is as if left out. ``at`` precedes their names in errors."""
        return {
            name: value.read(body.get(name), at + name)
            for name, value in self.members.items()
            if body.get(name) is not None or name in self.required
        }

    def read_strictly(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Do the same, but refuse null and other members."""
        for name, value in body.items():
            if name not in self.members:
                raise InvalidRequest.at(name, "is not known here", hint=did_you_mean(name, self.members))
            self.members[name].read(value, name)
        return dict(body)

    def show(self, source: Any, only: Container[str] | None = None) -> dict[str, Any]:
        """Return the JSON object of a source; members that are None are left out, unless they can be null."""
        shown: dict[str, Any] = {}
        for name, get, value in self._getters:
            if only is not None and name not in only:
                continue
            if (one := get(source)) is not None:
                shown[name] = one if value.write is None else value.write(one)
            elif value.null:
                shown[name] = None
        return shown


def _value_of(one: Value | Object | list[Object]) -> Value:
    """Return the value of a member that is given as an object, or as an array of one kind of objects."""
    if isinstance(one, list):
        return Value({"type": "array", "items": one[0].ref})
    return one.member() if isinstance(one, Object) else one


def without_none(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of an object that have a value."""
    return {name: value for name, value in members.items() if value is not None}


def text(help: str = "", longest: int | None = None, pattern: str = "", **how: Any) -> Value:
    """Describe a string, of which a ``pattern`` matches the whole; ``how`` as for `Value`, here and below."""
    limits = {"maxLength": longest, "pattern": f"^(?:{pattern})$" if pattern else None}
    return Value({"type": "string", **without_none(limits)}, help, **{"problem": "must be a string", **how})


def whole(help: str = "", lowest: int | None = None, highest: int | None = None, **how: Any) -> Value:
    """Describe a whole number."""
    format = "int64" if highest is not None and highest >= 2**31 else None
    return Value(
        {"type": "integer", **without_none({"minimum": lowest, "maximum": highest, "format": format})}, help, **how
    )


def number(help: str = "", lowest: int | None = None, **how: Any) -> Value:
    """Describe a number."""
    return Value({"type": "number", "format": "double", **without_none({"minimum": lowest})}, help, **how)


def flag(help: str = "", **how: Any) -> Value:
    """Describe true or false."""
    return Value({"type": "boolean"}, help, **{"problem": "must be true or false", **how})


def one_of(choices: Iterable[Any], help: str = "", **how: Any) -> Value:
    """Describe one of some names."""
    return Value({"type": "string", "enum": list(map(str, choices))}, help, **{"write": str, **how})


def array(
    items: Value | Object, help: str = "", fewest: int | None = None, most: int | None = None, **how: Any
) -> Value:
    """Describe an array."""
    schema = items.ref if isinstance(items, Object) else items.schema
    return Value(
        {"type": "array", "items": schema, **without_none({"minItems": fewest, "maxItems": most})}, help, **how
    )


def mapping(values: Value | None = None, help: str = "", **how: Any) -> Value:
    """Describe an object with any names."""
    return Value({"type": "object", "additionalProperties": {} if values is None else values.schema}, help, **how)


def anything(help: str = "", **how: Any) -> Value:
    """Describe any JSON value."""
    return Value({}, help, **how)


def count(help: str, lowest: int, highest: int, hint: str = "", default: int | None = None) -> Value:
    """Describe a whole number in a query."""

    def read(text: str, field: str) -> int:
        if not _NUMBER.fullmatch(text) or not lowest <= int(text) <= highest:
            raise InvalidRequest.at(field, f"must be a whole number from {lowest} to {highest}", value=text, hint=hint)
        return int(text)

    return Value({**whole("", lowest, highest).schema, **without_none({"default": default})}, help, read=read)


def choice(choices: Iterable[Any], help: str) -> Value:
    """Describe one of some names in a query."""
    names = list(map(str, choices))

    def read(text: str, field: str) -> str:
        if text not in names:
            raise InvalidRequest.at(field, "is not a known value", value=text, hint=did_you_mean(text, names))
        return text

    return Value({"type": "string", "enum": names}, help, read=read)


def job_args(**how: Any) -> Value:
    """Describe the args of a job: an array or an object."""
    return Value({"oneOf": [array(anything()).schema, mapping().schema]}, **how)


def time(help: str = "", **how: Any) -> Value:
    """Describe a time that the server writes, in milliseconds by default."""
    return Value({"type": "string", "format": "date-time"}, help, **{"write": milliseconds, **how})


def duration_ms(help: str = "") -> Value:
    """Describe a duration that a client writes in milliseconds."""
    problem = f"must be a whole number of milliseconds from 1 to {LONGEST_MS}"
    return whole(help, 1, LONGEST_MS, problem=problem, read=_duration)


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
    return duration_ms().read(value, field)  # type: ignore[no-any-return]


def _duration(value: int, field: str) -> timedelta:
    try:
        return timedelta(milliseconds=value)
    except OverflowError:
        raise InvalidRequest.at(
            field, f"is longer than {timedelta.max // timedelta(milliseconds=1)} milliseconds", value=value
        ) from None
