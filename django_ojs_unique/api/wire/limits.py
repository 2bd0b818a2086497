"""Read the limits of a job (docs: HTTP, "Enqueue")."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ...exceptions import InvalidRequest
from ...ojs.limits import Limit, limits_of

_MEMBERS = tuple(field.name for field in fields(Limit))


def read_limits(value: Any, places: dict[str, str]) -> tuple[Limit, ...]:
    """Return the limits that a client has written; none, if the list is empty.

    Note in ``places`` how the client has written what errors of the engine name. Raises InvalidRequest.
    """
    if not isinstance(value, list):
        hint = "Write [{'key': ['args.customer_id'], 'running': 1}]."
        raise InvalidRequest.at("limit", "must be an array of objects", value=value, hint=hint)
    if len(value) == 1:
        places.update({f"limit.{member}": f"{places['limit']}[0].{member}" for member in _MEMBERS})
    return limits_of(value)
