"""What converts values to JSON and back, and the values that are made of others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...exceptions import InvalidArgs, InvalidRequest
from ...ojs.canonical import canonical, plain
from ...ojs.hints import hint_for


class Conversion:
    """Converts nothing: for values that are JSON already, or whose type is not known."""

    is_key = False
    """Whether these values can be the keys of an object."""

    def to_json(self, value: Any, path: str) -> Any:
        """Return the JSON of a value, or of its JSON: the same for equal values. Raises InvalidRequest."""
        return value

    def from_json(self, stored: Any, path: str) -> Any:
        """Return the value of a stored JSON. Raises InvalidArgs."""
        return stored

    def all_from_json(self, stored: Sequence[Any], path: str) -> list[Any]:
        """Return the values of several, in order. Raises InvalidArgs."""
        return [self.from_json(each, f"{path}[{index}]") for index, each in enumerate(stored)]


AS_IT_IS = Conversion()


class NoConversion(Exception):
    """A type hint has no conversion; the message says what of it."""


def wrong_type(path: str, value: Any, wanted: str, why: str = "") -> InvalidRequest:
    """Return the error for an argument that is not of its parameter's type."""
    problem = f"is no {wanted}, which its parameter takes{why and f': {why}'}"
    shown = value if hint_for(value, path).shown else ...
    return InvalidRequest.at(path, problem, value=shown, hint="Send a value of that type, or its JSON.")


def unusable(path: str, stored: Any, wanted: str, why: str = "") -> InvalidArgs:
    """Return the error for a stored argument of which no value of its parameter's type can be made."""
    problem = f"was stored, and is no {wanted}, which the parameter takes now{why and f': {why}'}"
    return InvalidArgs.at(path, problem, value=stored, hint="Enqueue the job anew, or let the handler take both.")


class Optional(Conversion):
    """None, or a value of another type."""

    def __init__(self, of: Conversion) -> None:
        self.of = of

    def to_json(self, value: Any, path: str) -> Any:
        return None if value is None else self.of.to_json(value, path)

    def from_json(self, stored: Any, path: str) -> Any:
        return None if stored is None else self.of.from_json(stored, path)

    def all_from_json(self, stored: Sequence[Any], path: str) -> list[Any]:
        values = iter(self.of.all_from_json([each for each in stored if each is not None], path))
        return [None if each is None else next(values) for each in stored]


class Items(Conversion):
    """Any number of items of one type, in a JSON array; those of a set in the order of their JSON."""

    def __init__(self, item: Conversion, make: type) -> None:
        self.item, self.make, self.is_set = item, make, make in (set, frozenset)

    def to_json(self, value: Any, path: str) -> Any:
        if not isinstance(value, Iterable) or isinstance(value, (str, bytes, Mapping)):
            raise wrong_type(path, value, "list")
        items = [self.item.to_json(each, f"{path}[{index}]") for index, each in enumerate(value)]
        if not self.is_set:
            return items
        return list({canonical(each): each for each in sorted(plain(items, path), key=canonical)}.values())

    def from_json(self, stored: Any, path: str) -> Any:
        if not isinstance(stored, list):
            raise unusable(path, stored, "list")
        return self.make(self.item.all_from_json(stored, path))


class Several(Conversion):
    """A tuple with one type for each place."""

    def __init__(self, items: Sequence[Conversion]) -> None:
        self.items = items

    def to_json(self, value: Any, path: str) -> Any:
        self._check(value, path, wrong_type)
        pairs = enumerate(zip(self.items, value, strict=True))
        return [one.to_json(each, f"{path}[{at}]") for at, (one, each) in pairs]

    def from_json(self, stored: Any, path: str) -> Any:
        self._check(stored, path, unusable)
        pairs = enumerate(zip(self.items, stored, strict=True))
        return tuple(one.from_json(each, f"{path}[{at}]") for at, (one, each) in pairs)

    def _check(self, value: Any, path: str, error: Callable[[str, Any, str], Exception]) -> None:
        if not isinstance(value, (tuple, list)) or len(value) != len(self.items):
            raise error(path, value, f"tuple of {len(self.items)}")


class Members(Conversion):
    """A dict with keys of one type and values of one type, as a JSON object."""

    def __init__(self, key: Conversion, value: Conversion) -> None:
        self.key, self.value = key, value

    def to_json(self, value: Any, path: str) -> Any:
        if not isinstance(value, Mapping):
            raise wrong_type(path, value, "dict")
        key, to_json = self.key.to_json, self.value.to_json
        return {str(key(name, path)): to_json(each, f"{path}.{name}") for name, each in value.items()}

    def from_json(self, stored: Any, path: str) -> Any:
        if not isinstance(stored, dict):
            raise unusable(path, stored, "dict")
        key, from_json = self.key.from_json, self.value.from_json
        return {key(name, path): from_json(each, f"{path}.{name}") for name, each in stored.items()}


class Record(Conversion):
    """An object whose members have names and types: a dataclass, a named tuple or a typed dict."""

    fields: dict[str, Conversion]

    def __init__(self, type: Any, make: Callable[..., Any], required: Iterable[str]) -> None:
        self.type, self.make, self.required = type, make, frozenset(required)

    def to_json(self, value: Any, path: str) -> Any:
        name = self.type.__name__
        if not isinstance(value, Mapping):
            if self.make is dict or not isinstance(value, self.type):
                raise wrong_type(path, value, name)
            value = {field: getattr(value, field) for field in self.fields}
        if unknown := value.keys() - self.fields.keys():
            raise wrong_type(path, value, name, f"that has no member {min(unknown, key=str)!r}")
        if missing := self.required - value.keys():
            raise wrong_type(path, value, name, f"its member {min(missing)!r} is missing")
        return {field: self.fields[field].to_json(each, f"{path}.{field}") for field, each in value.items()}

    def from_json(self, stored: Any, path: str) -> Any:
        if not isinstance(stored, dict) or stored.keys() - self.fields.keys():
            raise unusable(path, stored, self.type.__name__)
        members = {name: self.fields[name].from_json(each, f"{path}.{name}") for name, each in stored.items()}
        try:
            return self.make(**members)
        except (TypeError, ValueError) as error:
            raise unusable(path, stored, self.type.__name__, str(error).rstrip(".")) from error
