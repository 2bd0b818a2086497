"""What ``--json`` prints: rows by the names of their fields, and times in UTC as RFC 3339."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.core.management.base import CommandError
from django.db.models import Model

from ...exceptions import OJSError
from ...handlers.redaction import redacted_member
from ...ojs.moments import rfc3339

PAYLOADS = frozenset({"args", "meta", "extra", "options", "steps", "result", "errors", "limits"})
"""Fields with members that may be redacted."""
SECRET = frozenset({"lease_token"})
"""Fields that no answer has: whoever knows the token may finalize the job."""


def as_line(answer: Any) -> str:
    """Write JSON in one line of ASCII, which no terminal takes for a command."""
    return json.dumps(answer, default=_plain)


def fields(row: Model) -> dict[str, Any]:
    """Return the fields of a row that were read, without what is redacted. The id of another row: ``..._id``."""
    left_out = SECRET | row.get_deferred_fields()
    names = [field.attname for field in row._meta.concrete_fields]
    read = {name: getattr(row, name) for name in names if name not in left_out}
    return read | {name: redacted_member(row, name) for name in PAYLOADS & read.keys()}


def failure(error: OJSError | CommandError) -> Mapping[str, Any]:
    """Return the answer of a command that failed, in the shape of the HTTP API's."""
    if isinstance(error, OJSError):
        return {"error": {"code": error.code, "message": error.message, "details": error.details}}
    return {"error": {"message": str(error)}}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return rfc3339(value)
    return sorted(value) if isinstance(value, frozenset) else str(value)
