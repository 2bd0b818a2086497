"""The job types this process knows: what `@job` declared about each, and which arguments its handler takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from ..exceptions import HandlerError, Message, UnknownJobType, did_you_mean, nearest
from ..ojs.cron import Cron
from ..ojs.limits import Limit
from ..ojs.retry import RetryPolicy
from ..options import declared
from ..unique.policy import UniquePolicy
from .functions import is_async, place_of

HEAL = "ojs.heal"
"""The job type of a self-healing scan; its args are ``{"type": ...}``, with ``"using"`` for another database."""


class SupportsHeal(Protocol):
    """What a definition needs of `django_ojs_unique.idempotency.Heal`, which documents the members."""

    @property
    def every(self) -> str | timedelta | float: ...
    def refuse_a_misfit(self, definition: Definition) -> None: ...
    def rows(self) -> Any: ...
    def args_of(self, row: Any) -> Any: ...


class SupportsConvert(Protocol):
    """What a definition needs of `django_ojs_unique.handlers.conversion.arguments.ConvertedArguments`."""

    def to_json(self, args: Any) -> Any: ...
    def from_json(self, args: Any) -> Any: ...
    def check(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Definition:
    """A job type's handler, and the defaults of its enqueues: ``options`` as `declared` returns them."""

    type: str
    function: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=partial(declared, {}))
    takes_context: bool = False
    atomic: bool = False
    skip_unless: Callable[..., Any] | None = None
    cron: Cron | None = None
    heal: SupportsHeal | None = None
    converter: SupportsConvert | None = None
    redact: tuple[str, ...] = ()
    is_async: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_async", is_async(self.function))

    @property
    def queue(self) -> str | None:
        """The queue of its jobs; None for that of the settings."""
        return self.options["queue"]  # type: ignore[no-any-return]

    @property
    def unique(self) -> UniquePolicy | None:
        """When two of its jobs are the same."""
        return self.options["unique"]  # type: ignore[no-any-return]

    @property
    def retry(self) -> RetryPolicy | None:
        """How often and how soon a failed job runs again."""
        return self.options["retry"]  # type: ignore[no-any-return]

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits of its jobs."""
        return self.options["limit"]  # type: ignore[no-any-return]

    @property
    def place(self) -> str:
        """Where the handler is defined, for messages."""
        return place_of(self.function)


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
            hint = did_you_mean(type, self._definitions) if self._definitions else "No handler is registered at all."
            raise UnknownJobType.at(
                "type",
                Message("has no registered handler"),
                value=type,
                hint=f"{hint} Handlers live in each app's jobs.py.",
            )
        return definition

    def __iter__(self) -> Iterator[str]:
        return iter(self._definitions)

    def definitions(self) -> list[Definition]:
        """Return what was declared about each type."""
        return list(self._definitions.values())


registry = Registry()


def converter_of(type: Any) -> SupportsConvert | None:
    """Return what converts the args of a type's jobs, or None: they are plain JSON."""
    definition = registry.find(type) if isinstance(type, str) else None
    return None if definition is None else definition.converter


def misfit(definition: Definition, args: Any) -> Message | None:
    """Say why the arguments do not fit the handler's parameters, or return None when they do."""
    try:
        signature = parameters_of(definition)
    except ValueError:  # written in C, without a readable signature
        return None
    try:
        signature.bind(**args) if isinstance(args, dict) else signature.bind(*args)
    except TypeError as error:
        meant = suggestion(signature, args) if isinstance(args, dict) else ""
        problem, _, name = str(error).partition("'")
        template = f"args do not fit {{handler}}: {problem}{'{name}' if name else ''}{' ({meant})' if meant else ''}"
        return Message(template, handler=f"{definition.place}{signature}", name=f"'{name}", meant=meant)
    return None


def suggestion(signature: inspect.Signature, names: Iterable[str]) -> str:
    """Say which parameter the first unknown one of some names probably means; empty if it resembles none."""
    takes = [name for name, parameter in signature.parameters.items() if parameter.kind in _BY_NAME]
    unknown = next((name for name in names if name not in takes), "")
    close = nearest(unknown, takes)
    return did_you_mean(unknown, [close]) if close else ""


def parameters_of(definition: Definition) -> inspect.Signature:
    """Return the handler's signature without the context."""
    signature = inspect.signature(definition.function)
    parameters = list(signature.parameters.values())[1 if definition.takes_context else 0 :]
    return signature.replace(parameters=parameters)


def argument_names(type: Any, names: Iterable[str]) -> dict[str, str]:
    """Return, for each name that the handler of a type takes or resembles a parameter of it, that parameter."""
    definition = registry.find(type) if isinstance(type, str) else None
    try:
        parameters = parameters_of(definition).parameters if definition is not None else {}
    except ValueError:
        return {}
    takes = [name for name, parameter in parameters.items() if parameter.kind in _BY_NAME]
    return {name: meant for name in names if (meant := name if name in takes else nearest(name, takes))}


_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
