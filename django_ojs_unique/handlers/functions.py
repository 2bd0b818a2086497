"""Functions that a project gives us: what they are called, whether they are async, and what they must not return."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from functools import partial
from inspect import isasyncgenfunction, iscoroutine, isgeneratorfunction
from typing import Any

from asgiref.sync import iscoroutinefunction

from ..exceptions import HandlerError

_PROMISES = (Awaitable, Generator, AsyncGenerator)


def bare(function: Any) -> Any:
    """Return the function of a `partial`, the ``__call__`` of an object, or else the function itself."""
    while isinstance(function, partial):
        function = function.func
    return function if hasattr(function, "__qualname__") else type(function).__call__


def place_of(function: Callable[..., Any]) -> str:
    """Return where a function is defined."""
    named = bare(function)
    return f"{getattr(named, '__module__', '')}.{named.__qualname__}"


def is_async(function: Callable[..., Any]) -> bool:
    """Whether it is an ``async def`` function; also as a `partial`, or as the ``__call__`` of an object."""
    return iscoroutinefunction(function) or iscoroutinefunction(bare(function))


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether a call of it only makes a generator, and runs nothing."""
    return isgeneratorfunction(bare(function)) or isasyncgenfunction(bare(function))


def kept(value: Any, function: Callable[..., Any]) -> Any:
    """Return what a call of the function returned. Raises HandlerError for a coroutine, a generator and their like.

    A function behind a decorator may return one though it seems to be a plain one: its work would never be done.
    """
    if value is not None and isinstance(value, _PROMISES):
        if iscoroutine(value):
            value.close()
        raise HandlerError(
            f"{place_of(function)} returned {type(value).__name__!r}, whose work was never done. Declare the"
            " `async def` function itself, or let its decorator be `async def`, too; let a generator be a plain"
            " function with a loop."
        )
    return value
