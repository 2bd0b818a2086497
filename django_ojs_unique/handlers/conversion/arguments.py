"""The arguments of one handler, by the type hints of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from inspect import Parameter
from itertools import chain, repeat
from typing import Any

from ...exceptions import HandlerError
from ..registry import Definition, parameters_of
from .containers import AS_IT_IS, Conversion, NoConversion, Record
from .hints import conversion_of, read_hint

_HINT = (
    "Take a type that the page on typed arguments lists, import it outside of `if TYPE_CHECKING:`, or send the value's"
    " key as plain JSON."
)


class ConvertedArguments:
    """Converts the arguments of a handler; its type hints are read at the first use, when all models are known."""

    def __init__(self, definition: Definition) -> None:
        self._definition = definition

    def to_json(self, args: Any) -> Any:
        """Return an object or an array of arguments, or of their JSON, as JSON.

        Raises InvalidRequest for a value that does not fit its parameter's type, and what `check` raises.
        """
        return self._converted(args, lambda one, value, path: one.to_json(value, path))

    def from_json(self, args: Any) -> Any:
        """Return stored arguments as the handler takes them; reads rows.

        Raises InvalidArgs if a row is gone or a value does not fit, and what `check` raises.
        """
        return self._converted(args, lambda one, value, path: one.from_json(value, path))

    def check(self) -> None:
        """Read the type hints. Raises HandlerError for one that cannot be read or converted."""
        _ = self._conversions

    def _converted(self, args: Any, convert: Callable[[Conversion, Any, str], Any]) -> Any:
        by_name, in_order, others = self._conversions
        if isinstance(args, dict):
            return {name: convert(by_name.get(name, others), value, f"args.{name}") for name, value in args.items()}
        pairs = enumerate(zip(in_order(), args, strict=False))
        return [convert(one, value, f"args[{index}]") for index, (one, value) in pairs]

    @cached_property
    def _conversions(self) -> tuple[dict[str, Conversion], Callable[[], Iterator[Conversion]], Conversion]:
        """The conversions by name; those in order; and that of other names."""
        definition = self._definition
        known: dict[Any, Record] = {}
        by_kind: dict[Any, list[tuple[str, Conversion]]] = {}
        for name, parameter in parameters_of(definition).parameters.items():
            hint = Any if parameter.annotation is parameter.empty else parameter.annotation
            try:
                conversion = conversion_of(read_hint(hint, definition.function), known)
            except (NoConversion, NameError) as error:
                raise HandlerError(
                    f"{definition.place}: convert=True reads the type hints, but of {name!r}: {error}. {_HINT}"
                ) from None
            by_kind.setdefault(parameter.kind, []).append((name, conversion))
        named = by_kind.get(Parameter.POSITIONAL_OR_KEYWORD, [])
        first = [each for _, each in by_kind.get(Parameter.POSITIONAL_ONLY, []) + named]
        ((_, rest),) = by_kind.get(Parameter.VAR_POSITIONAL, [("", AS_IT_IS)])
        ((_, others),) = by_kind.get(Parameter.VAR_KEYWORD, [("", AS_IT_IS)])
        return dict(named + by_kind.get(Parameter.KEYWORD_ONLY, [])), lambda: chain(first, repeat(rest)), others
