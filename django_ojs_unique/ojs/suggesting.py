"""Values that say which member was meant when they are made with an unknown one."""

from __future__ import annotations

from typing import Any, Self

from ..exceptions import did_you_mean


class Suggesting:
    """The base of dataclasses; the TypeError about an unknown member names the one that was probably meant."""

    __slots__ = ()
    __match_args__: tuple[str, ...]

    def __new__(cls, *args: Any, **members: Any) -> Self:
        for name in members:
            if name not in cls.__match_args__:
                raise TypeError(f"{cls.__name__}() has no member {name!r}. {did_you_mean(name, cls.__match_args__)}")
        return super().__new__(cls)
