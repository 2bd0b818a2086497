"""Errors on the wire: one table from code to status, one shape for all of them (HTTP binding, "Errors")."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404
from rest_framework import exceptions as drf

from ..exceptions import DuplicateJob, InvalidRequest, NotMigrated, OJSError, PayloadTooLarge

logger = logging.getLogger("django_ojs_unique.api")
LONGEST_ID = 255


class InvalidPayload(InvalidRequest):
    """The body is not JSON."""

    code = "invalid_payload"


class NotFound(OJSError):
    """There is no such thing here."""

    code = "not_found"

    @classmethod
    def of(cls, kind: str, id: Any) -> NotFound:
        """Build the error for one resource."""
        id = str(id)[:LONGEST_ID]
        return cls(f"{kind.capitalize()} {id!r} does not exist.", details={"resource_type": kind, "resource_id": id})


class MethodNotAllowed(OJSError):
    """The method is not allowed here."""

    code = "invalid_request"


class Unsupported(OJSError):
    """This server does not support that."""

    code = "unsupported"


class Unauthenticated(OJSError):
    """Nobody is logged in."""

    code = "x_unauthenticated"


class Forbidden(OJSError):
    """You may not do that."""

    code = "x_forbidden"


class RateLimited(OJSError):
    """Too many requests."""

    code = "rate_limited"
    retryable = True


class Unavailable(OJSError):
    """The database failed. Try again soon; the server's log says why."""

    retryable = True


class Unexpected(OJSError):
    """Something unexpected happened; the server's log says what."""

    retryable = True


@dataclass(frozen=True, slots=True)
class Entry:
    """What a code means: its HTTP ``status``, and a ``hint`` that says what to do."""

    status: int
    hint: str


CODES: Mapping[str, Entry] = {
    "invalid_payload": Entry(400, "Send one JSON object in UTF-8, without a name twice."),
    "invalid_request": Entry(400, "Correct the field that `details` names; the message says how."),
    "validation_error": Entry(422, "Correct the retry policy; the message names the field."),
    "x_unauthenticated": Entry(401, "Send `Authorization: Token KEY` (with rest_framework.authtoken), or log in."),
    "x_forbidden": Entry(403, "Use an account that OJS_UNIQUE['API']['PERMISSIONS'] admits; by default, staff."),
    "not_found": Entry(404, "Check the path and the identifier; finished jobs may have been pruned."),
    "conflict": Entry(409, "Read the job again: its state does not admit this."),
    "duplicate": Entry(409, "Use the existing job that `details` names, or choose another `on_conflict` or id."),
    "payload_too_large": Entry(413, "Store the data elsewhere and send its key."),
    "unsupported": Entry(422, "Read the manifest: it says what this server supports."),
    "rate_limited": Entry(429, "Wait as long as `Retry-After` says."),
    "backend_error": Entry(500, "Try again; if it goes on, the server's log says why."),
}
"""Each code of an error answer. Those with ``x_`` are ours."""

UNAVAILABLE_SECONDS = 1
"""What ``Retry-After`` says when the database does not answer, or too many want one key."""


def understand(error: Exception) -> tuple[OJSError, int, dict[str, str]]:
    """Return what to tell a client of an exception: the error, the status, and headers. Logs what nobody expected."""
    headers: dict[str, str] = {}
    match error:
        case OJSError():
            known = error
        case drf.AuthenticationFailed() | drf.NotAuthenticated():
            known = Unauthenticated(str(error.detail))
        case drf.PermissionDenied():
            known = Forbidden(str(error.detail))
        case PermissionDenied():
            known = Forbidden(str(error) or None)
        case drf.Throttled():
            known = RateLimited(str(error.detail))
            headers["Retry-After"] = str(max(1, round(getattr(error, "wait", None) or 1)))
        case drf.MethodNotAllowed():
            known = MethodNotAllowed(str(error.detail))
        case drf.NotFound() | Http404():
            known = NotFound()
        case RequestDataTooBig():
            known = PayloadTooLarge(str(error))
        case SuspiciousOperation():
            known = InvalidRequest(str(error))
        case drf.APIException() if error.status_code < 500:
            known = InvalidRequest(str(error.detail))
        case OperationalError() | InterfaceError():
            logger.warning("The database failed: %s", error)
            known = Unavailable()
        case _:
            logger.error("An unexpected error.", exc_info=error)
            known = Unexpected()
    if isinstance(known, NotMigrated):
        logger.error("%s", known)
    status = CODES[known.code].status if known.code in CODES else 500
    if isinstance(known, MethodNotAllowed):
        status = 405
    elif known.code == "backend_error" and known.retryable and not isinstance(known, Unexpected):
        status = 503
        headers["Retry-After"] = str(UNAVAILABLE_SECONDS)
    return known, status, headers


def show(error: OJSError, request_id: str, docs_url: str) -> dict[str, Any]:
    """Return an error's JSON object."""
    unique_key = {"unique_key": error.fingerprint} if isinstance(error, DuplicateJob) else {}
    return {
        "code": error.code,
        "type": error.code,
        "message": error.message,
        "retryable": error.retryable,
        "hint": CODES.get(error.code, CODES["backend_error"]).hint,
        "docs_url": docs_url,
        "details": {**error.details, **unique_key},
        "request_id": request_id,
    }
