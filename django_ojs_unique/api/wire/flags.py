"""Bodies whose members are true or false."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...exceptions import InvalidRequest, did_you_mean


def read_flags(body: Mapping[str, Any], known: Sequence[str]) -> dict[str, bool]:
    """Return the members of a body. Raises InvalidRequest for an unknown name, or a value that is not a boolean."""
    for name, value in body.items():
        if name not in known:
            raise InvalidRequest.at(name, "is not known here", hint=did_you_mean(name, known))
        if not isinstance(value, bool):
            raise InvalidRequest.at(name, "must be true or false", value=value)
    return dict(body)
