"""What ``OPTIONS`` of a backend say about tasks that somebody else wrote: policies, limits and queues."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Generic, TypeVar

from ..exceptions import InvalidRequest
from ..ojs.limits import Limit, limits_of
from ..ojs.names import queue_name
from ..unique.policy import UniquePolicy

T = TypeVar("T")

_WILDCARD = re.compile(r"[*?[]")


class ByPath(Generic[T]):
    """What an option says by the path of a task's function, or a pattern of paths such as ``wagtail.*`` (`fnmatch`).

    The exact path counts first, then the pattern with the longest text before its first wildcard. ``parse`` reads one
    value; it raises InvalidRequest. ``plural`` is what the values are called.
    """

    def __init__(self, option: str, plural: str, parse: Callable[[Any], T], given: Any) -> None:
        self._option, self._plural, self._parse, self._given = option, plural, parse, given
        self._found: dict[str, T | None] = {}

    def of(self, path: str) -> T | None:
        """Return the value for the task of this path; None if there is none. Raises what ``parse`` raises."""
        if not self._values:
            return None
        if path not in self._found:
            self._found[path] = next((self._values[each] for each in self._order if _fits(path, each)), None)
        return self._found[path]

    def problems(self) -> Iterator[str]:
        """Yield what is wrong, each text to follow the name of the option."""
        if not isinstance(self._given, Mapping):
            yield f" must be a dict of {self._plural} by paths of tasks (got {self._given!r})."
            return
        starts: dict[str, str] = {}
        for path, value in self._given.items():
            if not isinstance(path, str):
                yield f" has the key {path!r}, which is no path of a task, such as 'wagtail.*'."
                continue
            try:
                self._parse(value)
            except InvalidRequest as error:
                yield f"[{path!r}]: {error.message}"
            if _WILDCARD.search(path) and (other := starts.setdefault(_start(path), path)) != path:
                yield f" has {other!r} and {path!r}, which begin with the same text: nothing says which goes first."

    @cached_property
    def _values(self) -> dict[str, T]:
        given = self._given if isinstance(self._given, Mapping) else {}
        found: dict[str, T] = {}
        for path, value in given.items():
            try:
                found[str(path)] = self._parse(value)
            except InvalidRequest as error:
                problem = f"OPTIONS[{self._option!r}][{path!r}]: {error.message}"
                raise type(error)(problem, details=error.details) from None
        return found

    @cached_property
    def _order(self) -> list[str]:
        return sorted(self._values, key=lambda path: (not _WILDCARD.search(path), len(_start(path))), reverse=True)


def policies(given: Any) -> ByPath[UniquePolicy | None]:
    """Return the unique policies by paths; None stands for no policy."""
    return ByPath("unique", "policies", lambda one: None if one is None else UniquePolicy.parse(one), given)


def limits(given: Any) -> ByPath[tuple[Limit, ...]]:
    """Return the limits by paths: for each one or several, or None."""
    return ByPath("limit", "limits", limits_of, given)


class QueueAliases:
    """The names of queues that Django allows and OJS does not, and the names under which their jobs are stored."""

    def __init__(self, given: Any) -> None:
        self._stored: Mapping[str, str] = given if isinstance(given, Mapping) else {}
        self._shown = {stored: name for name, stored in self._stored.items()}
        self._given = given

    def __contains__(self, name: Any) -> bool:
        return name in self._stored

    def stored(self, name: str) -> str:
        """Return the name under which jobs of a task's queue are stored."""
        return self._stored.get(name, name)

    def shown(self, stored: str) -> str:
        """Return the name that Django's tasks have for the queue of a job."""
        return self._shown.get(stored, stored)

    def problems(self, queues: set[Any]) -> Iterator[str]:
        """Yield what is wrong, each text to follow the name of the option; ``queues`` are those of the backend."""
        if not isinstance(self._given, Mapping):
            yield f" must be a dict of names of queues (got {self._given!r})."
            return
        meant: dict[str, str] = {}
        for name, stored in self._given.items():
            try:
                queue_name(stored)
            except InvalidRequest as error:
                yield f"[{name!r}]: {error.message}"
                continue
            if stored in queues or stored in self._given:
                yield f"[{name!r}] is {stored!r}, which is another queue of this backend: two would become one."
            elif (other := meant.setdefault(stored, name)) != name:
                yield f" has {stored!r} for {other!r} and {name!r}: two would become one."


def _fits(path: str, pattern: str) -> bool:
    return path == pattern or fnmatchcase(path, pattern)


def _start(pattern: str) -> str:
    return _WILDCARD.split(pattern, maxsplit=1)[0]
