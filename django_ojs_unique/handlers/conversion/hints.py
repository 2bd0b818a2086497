"""From a type hint to its conversion."""

from __future__ import annotations

import collections.abc as abc
import dataclasses
import types
import typing
from collections.abc import Callable
from enum import Enum
from inspect import unwrap
from types import SimpleNamespace
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

from django.db.models import Model

from ..functions import bare
from .containers import AS_IT_IS, Conversion, Items, Members, NoConversion, Optional, Record, Several
from .instances import AnyInstance, Instance
from .scalars import SCALARS, of_enum

_LISTS = (list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable)
_ITEMS = {**dict.fromkeys(_LISTS, list), set: set, frozenset: frozenset, abc.Set: set, abc.MutableSet: set}
_DICTS = (dict, abc.Mapping, abc.MutableMapping)
_JSON = (str, bool, int, float)


def conversion_of(hint: Any, known: dict[Any, Record]) -> Conversion:
    """Return the conversion for a type hint. ``known``: the records so far, as a record may contain itself.

    Raises NoConversion, and NameError for a name that does not exist when the program runs.
    """
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if origin in (Any, object, None, type(None), typing.Literal) or isinstance(hint, typing.TypeVar):
        return AS_IT_IS
    if origin in (typing.Annotated, typing.Required, typing.NotRequired):
        return conversion_of(arguments[0], known)
    if isinstance(hint, typing.NewType):
        return conversion_of(hint.__supertype__, known)
    if hasattr(origin, "__value__"):  # ``type Name = ...``
        return conversion_of(origin.__value__, known)
    if origin in (typing.Union, types.UnionType):
        return _of_union(arguments, known)
    if origin in SCALARS:
        return SCALARS[origin]
    if origin in _ITEMS:
        return Items(_first(arguments, known), _ITEMS[origin])
    if origin is tuple:
        return _of_tuple(arguments, known)
    if origin in _DICTS:
        key, value = arguments or (str, Any)
        return Members(_key(key, known), conversion_of(value, known))
    if isinstance(origin, type):
        return _of_class(origin, known)
    raise NoConversion(f"{hint} has no conversion")


def hint_of_result(function: Callable[..., Any]) -> Any:
    """Return the type hint of a function's result: of what it wraps, if it is wrapped; `Any` for none, and for None.

    Raises NameError for a name that does not exist when the program runs.
    """
    hint = getattr(unwrap(bare(function)), "__annotations__", {}).get("return")
    return Any if hint is None else read_hint(hint, function)


def read_hint(hint: Any, function: Callable[..., Any]) -> Any:
    """Return one type hint of a function, which may be a text: the others need not exist when the program runs."""
    hints = SimpleNamespace(__annotations__={"hint": hint})
    return get_type_hints(hints, getattr(unwrap(bare(function)), "__globals__", {}), include_extras=True)["hint"]


def _of_union(hints: tuple[Any, ...], known: dict[Any, Record]) -> Conversion:
    some = [hint for hint in hints if hint is not type(None)]
    if len(some) == 1:
        one = conversion_of(some[0], known)
    elif all(hint in _JSON for hint in some):
        return AS_IT_IS
    elif all(isinstance(hint, type) and issubclass(hint, Model) for hint in some):
        one = AnyInstance(some)
    else:
        raise NoConversion(f"{' | '.join(map(_name, hints))} is several types: JSON does not tell which")
    return Optional(one) if len(some) < len(hints) else one


def _of_tuple(hints: tuple[Any, ...], known: dict[Any, Record]) -> Conversion:
    if not hints or hints[-1] is ...:
        return Items(_first(hints, known), tuple)
    return Several([conversion_of(hint, known) for hint in hints])


def _of_class(cls: Any, known: dict[Any, Record]) -> Conversion:
    if issubclass(cls, Enum):
        return of_enum(cls)
    if issubclass(cls, Model):
        return AnyInstance([cls]) if cls is Model or cls._meta.abstract else Instance(cls)
    if cls in known:
        return known[cls]
    if dataclasses.is_dataclass(cls):
        fields = [field for field in dataclasses.fields(cls) if field.init]
        missing = dataclasses.MISSING
        names = [field.name for field in fields]
        required = [field.name for field in fields if field.default is missing and field.default_factory is missing]
    elif is_typeddict(cls):
        names, required = [*cls.__annotations__], [*cls.__required_keys__]
    elif issubclass(cls, tuple) and hasattr(cls, "_fields"):
        names, required = [*cls._fields], [name for name in cls._fields if name not in cls._field_defaults]
    else:
        raise NoConversion(f"{_name(cls)} has no conversion")
    record = known[cls] = Record(cls, dict if is_typeddict(cls) else cls, required)
    hints = get_type_hints(cls, include_extras=True)
    record.fields = {name: conversion_of(hints.get(name, Any), known) for name in names}
    return record


def _key(hint: Any, known: dict[Any, Record]) -> Conversion:
    key = SCALARS[str] if hint is Any else conversion_of(hint, known)
    if not key.is_key:
        raise NoConversion(f"{_name(hint)} cannot be the key of an object")
    return key


def _first(hints: tuple[Any, ...], known: dict[Any, Record]) -> Conversion:
    return conversion_of(hints[0], known) if hints else AS_IT_IS


def _name(hint: Any) -> str:
    return getattr(hint, "__qualname__", None) or str(hint)
