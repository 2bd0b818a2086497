"""What to send instead of a value that JSON cannot carry, and how the handler reads it."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from io import IOBase
from numbers import Integral, Real
from pathlib import PurePath
from typing import Any, NamedTuple
from uuid import UUID


class Hint(NamedTuple):
    """What to ``send`` instead of a value of some types, and what the handler does with it (``read``).

    ``types``: classes, or the name of an attribute that a value's class has. ``{it}`` stands for the value's own name,
    ``{type}`` for the name of its type. ``shown`` is False where showing the value could query a database.
    """

    types: Any
    send: str
    read: str = ""
    shown: bool = True


def hint_for(value: object, path: str) -> Hint:
    """Return the hint for a value at a path such as ``args.user``, in its words."""
    it = path.rpartition(".")[2]
    if not it.partition("[")[0].isidentifier():
        it = "value"
    found = next((hint for hint in HINTS if _fits(value, hint.types)), _ANY)
    words = {"it": it, "type": value.__class__.__name__}
    return found._replace(send=found.send.format(**words), read=found.read.format(**words))


def sentence(hint: Hint, path: str) -> str:
    """Say what to do. Who reads a job's result is not known."""
    if path.startswith("result"):
        return f"Return {hint.send}."
    return f"Send {hint.send}{hint.read and f', and {hint.read} in the handler'}."


def _fits(value: object, types: Any) -> bool:
    return hasattr(value.__class__, types) if isinstance(types, str) else isinstance(value, types)


HINTS = [
    Hint(Decimal, "str({it})", "write Decimal({it})"),
    Hint(datetime, "{it}.isoformat()", "write datetime.fromisoformat({it})"),
    Hint(date, "{it}.isoformat()", "write date.fromisoformat({it})"),
    Hint(time, "{it}.isoformat()", "write time.fromisoformat({it})"),
    Hint(timedelta, "{it}.total_seconds()", "write timedelta(seconds={it})"),
    Hint(UUID, "str({it})", "write UUID({it})"),
    Hint(PurePath, "str({it})", "write Path({it})"),
    Hint(Enum, "{it}.value", "write {type}({it})"),
    Hint((bytes, bytearray, memoryview), "base64.b64encode({it}).decode()", "write base64.b64decode({it})"),
    Hint((set, frozenset), "sorted({it}), so that equal sets are equal lists"),
    Hint(Mapping, "dict({it})"),
    Hint(Integral, "int({it})"),
    Hint(Real, "float({it})"),
    Hint((type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, partial), "a name", "look it up"),
    Hint("__dataclass_fields__", "dataclasses.asdict({it})", "write {type}(**{it})"),
    Hint("model_dump", '{it}.model_dump(mode="json")', "write {type}(**{it})"),  # Pydantic
    Hint(IOBase, "the name of the file", "open it"),
    Hint(Iterable, "list({it})"),
    Hint(Callable, "a name", "look it up"),
]
"""The first one counts whose types fit. `enqueue.values` puts Django's types before these."""

_ANY = Hint(object, "the text, numbers and lists that it is made of")
