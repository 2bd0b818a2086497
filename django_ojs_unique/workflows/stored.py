"""A request as JSON, for a member that is enqueued later."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ..enqueue.request import Request
from ..exceptions import InvalidRequest
from ..options import INHERIT, OPTIONS, as_stored

_MOMENTS = ("scheduled_at", "expires_at")
_DEFAULTS = {
    "type": "",
    "args": None,
    "context": INHERIT,
    **{name: option.default for name, option in OPTIONS.items() if name != "id"},
}
"""What is stored, if it differs: the member knows the id and the workflow; the rest is about the answer to a caller."""


def to_json(request: Request) -> dict[str, Any]:
    """Return what differs from the defaults in a request that `own_members` has returned."""
    return {
        name: value.isoformat() if isinstance(value, datetime) else as_stored(value)
        for name, default in _DEFAULTS.items()
        if (value := getattr(request, name)) is not INHERIT and (default is INHERIT or value != default)
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
    return Request(**{**stored, **moments, "elsewhere": True, "judged_at": None, **more})
