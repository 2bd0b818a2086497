"""Single values: each type's JSON, of which equal values have one only."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from pathlib import Path, PurePath
from typing import Any
from uuid import UUID

from django.utils.dateparse import parse_duration
from django.utils.duration import duration_iso_string
from django.utils.functional import Promise

from ...ojs.canonical import LARGEST_INTEGER
from .containers import Conversion, NoConversion, unusable, wrong_type

_LARGEST_EXPONENT = 1000
"""A longer Decimal would have thousands of zeros."""


class Scalar(Conversion):
    """Values of one type: ``write`` makes JSON of one, ``read`` makes one of JSON; each raises ValueError."""

    def __init__(
        self, type: type, write: Callable[[Any], Any], read: Callable[[Any], Any], *, is_key: bool = True
    ) -> None:
        self.type, self.write, self.read, self.is_key = type, write, read, is_key

    def to_json(self, value: Any, path: str) -> Any:
        try:
            return self.write(value if isinstance(value, self.type) else self.read(value))
        except (ValueError, TypeError, ArithmeticError) as error:
            raise wrong_type(path, value, self.type.__name__, _reason(error)) from None

    def from_json(self, stored: Any, path: str) -> Any:
        try:
            return self.read(stored)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise unusable(path, stored, self.type.__name__, _reason(error)) from None


def of_enum(type: type[Enum]) -> Scalar:
    """Return the conversion of an enumeration: its members' values. Raises NoConversion if they are not JSON."""
    kinds = {member.value.__class__ for member in type}
    if not kinds <= {str, int, bool, float}:
        raise NoConversion(f"the values of {type.__qualname__} are not all text or numbers")
    return Scalar(type, lambda member: member.value, type, is_key=kinds <= {str})


def _reason(error: Exception) -> str:
    return "" if isinstance(error, ArithmeticError) else str(error).rstrip(".")


def _text(value: Any) -> str:
    if not isinstance(value, (str, Promise)):
        raise ValueError("it is no text")
    return str(value)


def _read_text(read: Callable[[str], Any]) -> Callable[[Any], Any]:
    def read_text(value: Any) -> Any:
        if type(value) is not str:
            raise ValueError("it is no text")
        return read(value)

    return read_text


def _write_integer(value: int) -> int | str:
    return int(value) if -LARGEST_INTEGER <= value <= LARGEST_INTEGER else str(int(value))


def _read_integer(value: Any) -> int:
    if isinstance(value, float) and not value.is_integer():
        raise ValueError("it has a fraction")
    if not isinstance(value, (int, float, str)) or isinstance(value, bool):
        raise ValueError("it is no integer")
    return int(value)


def _read_float(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ValueError("it is neither an int nor a float")
    return float(value)


def _read_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("it is neither true nor false")
    return value


def _write_decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise ValueError("it is not finite")
    if abs(value.adjusted()) > _LARGEST_EXPONENT:
        raise ValueError(f"its exponent is beyond {_LARGEST_EXPONENT}")
    text = format(value, "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def _read_decimal(value: Any) -> Decimal:
    if isinstance(value, int) and not isinstance(value, bool):
        return Decimal(value)
    if not isinstance(value, str):
        raise ValueError("a float is not exact; send text")
    return Decimal(value)


def _write_date(value: date) -> str:
    if isinstance(value, datetime):
        raise ValueError("it is a datetime; its .date() is one")
    return value.isoformat()


def _write_datetime(value: datetime) -> str:
    return (value if value.tzinfo is None else value.astimezone(UTC)).isoformat()


def _read_duration(value: str) -> timedelta:
    length = parse_duration(value)
    if length is None:
        raise ValueError("it is no ISO 8601 duration")
    return length


SCALARS: dict[Any, Conversion] = {
    one.type: one
    for one in (
        Scalar(str, _text, _text),
        Scalar(bool, bool, _read_bool, is_key=False),
        Scalar(int, _write_integer, _read_integer),
        Scalar(float, float, _read_float, is_key=False),
        Scalar(Decimal, _write_decimal, _read_decimal),
        Scalar(datetime, _write_datetime, _read_text(datetime.fromisoformat)),
        Scalar(date, _write_date, _read_text(date.fromisoformat)),
        Scalar(time, time.isoformat, _read_text(time.fromisoformat)),
        Scalar(timedelta, duration_iso_string, _read_text(_read_duration)),
        Scalar(UUID, str, _read_text(UUID)),
        Scalar(
            bytes, lambda value: b64encode(value).decode(), _read_text(partial(b64decode, validate=True)), is_key=False
        ),
        Scalar(Path, str, _read_text(Path)),
        Scalar(PurePath, str, _read_text(PurePath)),
    )
}
