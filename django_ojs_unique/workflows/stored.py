"""A request as JSON, for a member that is enqueued later."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ..enqueue import INHERIT
from ..enqueue.request import Request
from ..enqueue.values import as_stored
from ..exceptions import InvalidRequest

_MOMENTS = ("scheduled_at", "expires_at")
_LEFT_OUT = ("id", "full_row", "elsewhere", "workflow_id")
"""The member knows the id and the workflow; the others are about the answer to a caller."""
_DEFAULTS = Request(type="")


def to_json(request: Request) -> dict[str, Any]:
    """Return what differs from the defaults in a request that `snapshot` has returned."""
    return {
        name: value.isoformat() if isinstance(value, datetime) else as_stored(value)
        for name in Request.__slots__
        if name not in _LEFT_OUT
        and (value := getattr(request, name)) is not INHERIT
        and (value != getattr(_DEFAULTS, name) or name in ("unique", "retry", "timeout", "lease"))
    }


def from_json(stored: Any, **more: Any) -> Request | InvalidRequest:
    """Return the request again, or the error if `to_json` cannot have returned this.

    Raises TypeError for a member that a newer version of this package has stored: its workers can read it.
    """
    try:
        stored = {**stored}
        moments = {name: datetime.fromisoformat(stored[name]) for name in _MOMENTS if name in stored}
    except (TypeError, ValueError) as error:
        return InvalidRequest(f"The stored request cannot be read: {error}.")
    return Request(**{**stored, **moments, "elsewhere": True, **more})
