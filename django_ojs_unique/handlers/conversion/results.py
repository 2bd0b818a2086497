"""The type hint of a function's result."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import unwrap
from types import SimpleNamespace
from typing import Any, get_type_hints


def hint_of_result(function: Callable[..., Any]) -> Any:
    """Return the type hint of a function's result: of what it wraps, if it is wrapped; `Any` for none, and for None.

    Raises NameError for a name that does not exist when the program runs.
    """
    while isinstance(function, partial):
        function = function.func
    function = unwrap(function)
    hint = getattr(function, "__annotations__", {}).get("return")
    if hint is None:
        return Any
    named = SimpleNamespace(__annotations__={"hint": hint})
    return get_type_hints(named, getattr(function, "__globals__", {}), include_extras=True)["hint"]
