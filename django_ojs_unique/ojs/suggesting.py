"""Classes that say which member was meant when they are called with an unknown one."""

from __future__ import annotations

from functools import wraps
from inspect import signature
from typing import Any, TypeVar

from ..exceptions import did_you_mean

T = TypeVar("T")


def suggesting(cls: type[T]) -> type[T]:
    """Let the TypeError about an unknown argument of a class name the argument that was probably meant."""
    init = cls.__init__
    members = list(signature(cls).parameters)

    @wraps(init)
    def checked(self: T, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except TypeError:
            for name in kwargs:
                if name not in members:
                    message = f"{cls.__name__}() has no member {name!r}. {did_you_mean(name, members)}"
                    raise TypeError(message) from None
            raise

    cls.__init__ = checked  # type: ignore[method-assign, assignment]
    return cls
