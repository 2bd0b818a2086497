"""The arguments of a job as plain JSON, and how large JSON may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.files import File
from django.db.models import Manager, Model, QuerySet
from django.http import HttpRequest
from django.utils.functional import Promise

from ..exceptions import InvalidRequest, Message, PayloadTooLarge, shorten
from ..handlers.registry import SupportsConvert
from ..ojs.canonical import plain
from ..ojs.encoder import encoder
from ..ojs.hints import HINTS, Hint, hint_for, sentence

_JSON = encoder(ensure_ascii=False)

HINTS[:0] = [
    Hint(Model, "{it}.pk", "load it", shown=False),
    Hint((QuerySet, Manager), 'list({it}.values_list("pk", flat=True))', "load them", shown=False),
    Hint(Promise, "str({it}), in the language that is active now"),
    Hint(File, "the name under which it is stored", "open it"),
    Hint(HttpRequest, "what the handler needs of it, such as request.user.pk"),
]


def arguments(value: Any, converter: SupportsConvert | None = None) -> Any:
    """Return ``args`` as plain JSON: an object or an array."""
    if value is None:
        return {}
    if type(value) is dict and converter is None:
        return plain(value, "args")
    if isinstance(value, Mapping):
        value = dict(value)
    elif not isinstance(value, (list, tuple)):
        is_json = isinstance(value, (str, int, float))
        hint = hint_for(value, "args")
        raise InvalidRequest.at(
            "args",
            "must be an object (keyword arguments) or an array (positional)",
            value=value if hint.shown else ...,
            hint=Message("Write {text}.", text=f"[{shorten(value)}]") if is_json else sentence(hint, "args"),
        )
    return plain(value if converter is None else converter.to_json(value), "args")


def sized(value: Any, field: str, largest: int, setting: str = "") -> Any:
    """Return a JSON value of at most ``largest`` bytes. Raises PayloadTooLarge for a larger one."""
    size = len(_JSON(value).encode()) if value else 2
    if size > largest:
        raise PayloadTooLarge.at(
            field,
            Message("is {size} bytes as JSON; the limit is {limit}", size=f"{size:,}", limit=f"{largest:,}"),
            hint=Message(
                "Store the data and send its key, or raise {setting}.",
                setting=f"OJS_UNIQUE['MAX_{setting or field.upper()}_BYTES']",
            ),
        )
    return value
