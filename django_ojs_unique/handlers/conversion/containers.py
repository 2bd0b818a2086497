"""Values that are made of others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...ojs.canonical import canonical, plain
from .base import Conversion, unusable, wrong_type


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

    def __init__(self, item: Conversion, make: Callable[[list[Any]], Any], *, is_set: bool = False) -> None:
        self.item, self.make, self.is_set = item, make, is_set

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
        if not isinstance(value, (tuple, list)) or len(value) != len(self.items):
            raise wrong_type(path, value, f"tuple of {len(self.items)}")
        return [
            one.to_json(each, f"{path}[{at}]") for at, (one, each) in enumerate(zip(self.items, value, strict=True))
        ]

    def from_json(self, stored: Any, path: str) -> Any:
        if not isinstance(stored, list) or len(stored) != len(self.items):
            raise unusable(path, stored, f"tuple of {len(self.items)}")
        pairs = enumerate(zip(self.items, stored, strict=True))
        return tuple(one.from_json(each, f"{path}[{at}]") for at, (one, each) in pairs)


class Members(Conversion):
    """A dict with keys of one type and values of one type, as a JSON object."""

    def __init__(self, key: Conversion, value: Conversion) -> None:
        self.key, self.value = key, value

    def to_json(self, value: Any, path: str) -> Any:
        if not isinstance(value, Mapping):
            raise wrong_type(path, value, "dict")
        return {
            str(self.key.to_json(key, path)): self.value.to_json(each, f"{path}.{key}") for key, each in value.items()
        }

    def from_json(self, stored: Any, path: str) -> Any:
        if not isinstance(stored, dict):
            raise unusable(path, stored, "dict")
        return {
            self.key.from_json(key, path): self.value.from_json(each, f"{path}.{key}") for key, each in stored.items()
        }


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
