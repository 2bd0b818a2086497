"""Check values for JSON, and write equal values as the same text (OJS unique jobs, "Key Computation")."""

from __future__ import annotations

import math
import re
from itertools import groupby
from typing import Any
from unicodedata import combining, normalize

import rfc8785

from ..exceptions import InvalidRequest, Message
from .encoder import encoder
from .hints import hint_for, sentence

LARGEST_INTEGER = 2**53 - 1
DEEPEST = 100
"""Levels of nesting that every JSON reader involved can follow without exhausting its stack."""

_AS_STRING = Message("Send it as a string.")
_SIMPLE = encoder(ensure_ascii=False, sort_keys=True, allow_nan=False)
_IN_FLOATS = (".", "e+", "e-")
"""The text of each float has one of these; other values may have them, too."""
_MANY_MARKS = re.compile(r"\W{30}")
"""Found in each text with so many combining characters in a row; also where there are other signs."""


def plain(value: Any, path: str) -> Any:
    """Copy a value into plain JSON types, refusing what JSON (RFC 7493) or a database cannot carry.

    Tuples become lists and enum members their values; no other type is silently turned into a string. Raises
    InvalidRequest with the path of the wrong value, such as ``args.items[3].price``.
    """
    try:
        return _copy(value, DEEPEST)
    except _NotUsual:
        return _plain(value, path, DEEPEST)


def canonical(value: Any) -> str:
    """Return the RFC 8785 text of a plain value with every string and object key in NFC."""
    # RFC 8785 differs from the standard library only in floats and in the order of characters beyond ASCII.
    try:
        text = _SIMPLE(value)
        if text.isascii() and not any(part in text for part in _IN_FLOATS):
            return text
    except ValueError:  # an infinite number, stored manually: rfc8785 raises its own error
        pass
    return rfc8785.dumps(to_nfc(value)).decode()


def to_nfc(value: Any) -> Any:
    """Copy a plain value with every string and object key in NFC, the composed form of Unicode."""
    if isinstance(value, str):
        return value if value.isascii() else normalize("NFC", _sorted_marks(value))
    if isinstance(value, dict):
        return {to_nfc(key): to_nfc(item) for key, item in value.items()}
    if isinstance(value, list):
        return [to_nfc(item) for item in value]
    return value


def _sorted_marks(text: str) -> str:
    """Return a text of the same NFC whose combining characters are in order: `normalize` sorts them in squared time."""
    if not _MANY_MARKS.search(text):
        return text
    decomposed = "".join(normalize("NFD", character) for character in text)
    runs = groupby(decomposed, key=lambda character: combining(character) > 0)
    return "".join("".join(sorted(run, key=combining) if are_marks else run) for are_marks, run in runs)


class _NotUsual(Exception):
    """A value needs `_plain`."""


def _copy(value: Any, depth: int) -> Any:
    """Copy what most values are: dicts, lists, ASCII text, small integers; without the path, which only errors need."""
    kind = type(value)
    if kind is str:
        if value.isascii() and "\x00" not in value:
            return value
    elif kind is int:
        if -LARGEST_INTEGER <= value <= LARGEST_INTEGER:
            return value
    elif kind is bool or value is None:
        return value
    elif depth and kind is dict:
        copied = {}
        for key, item in value.items():
            if type(key) is not str or not key.isascii() or "\x00" in key:
                raise _NotUsual
            copied[key] = _copy(item, depth - 1)
        return copied
    elif depth and kind is list:
        return [_copy(item, depth - 1) for item in value]
    raise _NotUsual


def _plain(value: Any, path: str, depth: int) -> Any:
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return _text(value, path)
    if isinstance(value, int):
        if not -LARGEST_INTEGER <= value <= LARGEST_INTEGER:
            raise InvalidRequest.at(
                path, "is an integer beyond 2^53-1, which JSON readers round", value=value, hint=_AS_STRING
            )
        return int(value)
    if isinstance(value, float):
        if value.is_integer() and abs(value) > LARGEST_INTEGER:
            raise InvalidRequest.at(
                path, "is a whole number beyond 2^53-1, which databases do not keep", value=value, hint=_AS_STRING
            )
        if not math.isfinite(value):
            raise InvalidRequest.at(path, "is not a number that JSON can carry", value=value, hint="Send null instead.")
        return float(value)
    if depth == 0:
        raise InvalidRequest.at(
            path.partition(".")[0].partition("[")[0],
            Message("is nested deeper than {count} levels", count=DEEPEST),
            hint="Flatten it, or keep it in your own table and send its id.",
        )
    if isinstance(value, dict):
        return _object(value, path, depth)
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{path}[{index}]", depth - 1) for index, item in enumerate(value)]
    hint = hint_for(value, path)
    raise InvalidRequest.at(
        path,
        f"is a {value.__class__.__name__}, which JSON cannot carry",
        value=value if hint.shown else ...,
        hint=sentence(hint, path),
    )


def _object(value: dict[Any, Any], path: str, depth: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    ascii_only = True
    for key, item in value.items():
        if not isinstance(key, str):
            raise InvalidRequest.at(
                path, f"has an object key that is a {type(key).__name__}", value=key, hint="Object keys are strings."
            )
        key = _text(key, path)
        ascii_only = ascii_only and key.isascii()
        result[key] = _plain(item, f"{path}.{key}" if len(key) < 80 else f"{path}.{key[:79]}…", depth - 1)
    if not ascii_only and len({to_nfc(key) for key in result}) < len(result):
        raise InvalidRequest.at(
            path, "has two object keys that are the same text in Unicode NFC", hint="Rename or drop one of them."
        )
    return result


def _text(value: str, path: str) -> str:
    value = str.__str__(value)
    if "\x00" in value:
        raise InvalidRequest.at(
            path, "contains the character U+0000, which databases refuse", value=value, hint="Remove it."
        )
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidRequest.at(
                path, "contains a lone surrogate, which is not text", value=value, hint="Decode the bytes correctly."
            ) from None
    return value
