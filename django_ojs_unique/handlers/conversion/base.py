"""What converts the values of one type to JSON and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...exceptions import InvalidArgs, InvalidRequest
from ...ojs.hints import hint_for


class Conversion:
    """Converts nothing: for values that are JSON already, or whose type is not known."""

    is_key = False
    """Whether these values can be the keys of an object."""

    def to_json(self, value: Any, path: str) -> Any:
        """Return the JSON of a value, or of its JSON: the same for equal values. Raises InvalidRequest."""
        return value

    def from_json(self, stored: Any, path: str) -> Any:
        """Return the value of a stored JSON. Raises InvalidArgs."""
        return stored

    def all_from_json(self, stored: Sequence[Any], path: str) -> list[Any]:
        """Return the values of several, in order. Raises InvalidArgs."""
        return [self.from_json(each, f"{path}[{index}]") for index, each in enumerate(stored)]


AS_IT_IS = Conversion()


class NoConversion(Exception):
    """A type hint has no conversion; the message says what of it."""


def wrong_type(path: str, value: Any, wanted: str, why: str = "") -> InvalidRequest:
    """Return the error for an argument that is not of its parameter's type."""
    problem = f"is no {wanted}, which its parameter takes{why and f': {why}'}"
    shown = value if hint_for(value, path).shown else ...
    return InvalidRequest.at(path, problem, value=shown, hint="Send a value of that type, or its JSON.")


def unusable(path: str, stored: Any, wanted: str, why: str = "") -> InvalidArgs:
    """Return the error for a stored argument of which no value of its parameter's type can be made."""
    problem = f"was stored, and is no {wanted}, which the parameter takes now{why and f': {why}'}"
    return InvalidArgs.at(path, problem, value=stored, hint="Enqueue the job anew, or let the handler take both.")
