"""The job types this process knows: what `@job` declared about each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from .exceptions import HandlerError, UnknownJobType, did_you_mean
from .ojs.cron import Cron
from .ojs.policy import UniquePolicy
from .ojs.retry import RetryPolicy

HEAL = "ojs.heal"
"""The job type of a self-healing sweep; its args are ``{"type": ...}``, with ``"using"`` for another database."""


class SupportsHeal(Protocol):
    """What a definition needs of `django_ojs_unique.idempotency.Heal`, which documents the members."""

    @property
    def every(self) -> str | timedelta | float: ...
    def refuse_a_misfit(self, definition: Definition) -> None: ...
    def rows(self) -> Any: ...
    def args_of(self, row: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Definition:
    """A job type's handler and the defaults of its enqueues."""

    type: str
    function: Callable[..., Any]
    queue: str | None = None
    priority: int = 0
    unique: UniquePolicy | None = None
    retry: RetryPolicy | None = None
    timeout: str | timedelta | float | None = None
    lease: str | timedelta | float | None = None
    takes_context: bool = False
    skip_unless: Callable[..., Any] | None = None
    cron: Cron | None = None
    heal: SupportsHeal | None = None
    is_async: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_async", inspect.iscoroutinefunction(self.function))

    @property
    def place(self) -> str:
        """Where the handler is defined, for messages."""
        return f"{self.function.__module__}.{self.function.__qualname__}"


class Registry:
    """Job types by name."""

    def __init__(self) -> None:
        self._definitions: dict[str, Definition] = {}

    def register(self, definition: Definition) -> None:
        """Add a type. A reloaded module replaces its own function; another function raises HandlerError."""
        known = self._definitions.get(definition.type)
        if known is not None and known.place != definition.place:
            raise HandlerError(
                f"Job type {definition.type!r} is already handled by {known.place}; "
                f"{definition.place} needs a type of its own.",
                details={"field": "type"},
            )
        self._definitions[definition.type] = definition

    def unregister(self, type: str) -> None:
        """Forget a type."""
        self._definitions.pop(type, None)

    def find(self, type: str) -> Definition | None:
        """Return the definition of a type, or None."""
        return self._definitions.get(type)

    def get(self, type: str) -> Definition:
        """Return the definition of a type. Raises UnknownJobType with a suggestion."""
        definition = self._definitions.get(type)
        if definition is None:
            mend = did_you_mean(type, self._definitions) if self._definitions else "No handler is registered at all."
            raise UnknownJobType.at(
                "type", "has no registered handler", value=type, mend=f"{mend} Handlers live in each app's jobs.py."
            )
        return definition

    def __iter__(self) -> Iterator[str]:
        return iter(self._definitions)

    def definitions(self) -> list[Definition]:
        """Return what was declared about each type."""
        return list(self._definitions.values())


registry = Registry()
