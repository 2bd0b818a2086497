"""Write JSON without spaces, with the C encoder of the standard library made once instead of for each text."""

from __future__ import annotations

import json
from collections.abc import Callable
from json import encoder as library
from typing import Any


def encoder(*, ensure_ascii: bool = True, sort_keys: bool = False, allow_nan: bool = True) -> Callable[[Any], str]:
    """Return a function that writes values as `json.JSONEncoder` with these options does.

    It expects values without cycles. Raises ValueError and TypeError as the standard library does.
    """
    plain = json.JSONEncoder(
        ensure_ascii=ensure_ascii, sort_keys=sort_keys, allow_nan=allow_nan, separators=(",", ":"), check_circular=False
    )
    make: Any = getattr(library, "c_make_encoder", None)
    if make is None:  # not on CPython
        return plain.encode
    escape = library.encode_basestring_ascii if ensure_ascii else library.encode_basestring
    encode = make(None, plain.default, escape, None, ":", ",", sort_keys, False, allow_nan)
    return lambda value: "".join(encode(value, 0))
