"""Errors in JSON: one table from code to status, and one shape for all errors (HTTP binding, "Errors")."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404
from rest_framework import exceptions as drf

from ...exceptions import DuplicateJob, InvalidRequest, NotMigrated, OJSError, PayloadTooLarge, as_json
from ...wire.schema import Object, flag, mapping, text

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
        return cls(
            f"{kind.capitalize()} {as_json(id)} does not exist.", details={"resource_type": kind, "resource_id": id}
        )


class NoRoute(NotFound):
    """There is nothing at this path."""


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


class NotAuthorized(Forbidden):
    """You may not do that to jobs of this queue and type."""

    @classmethod
    def to(cls, action: str, queue: str | None, type: str | None) -> NotAuthorized:
        """Build the error for an action; None stands for any queue, or any type."""
        queue, type = (None if name is None else name[:LONGEST_ID] for name in (queue, type))
        where = "any queue" if queue is None else f"queue {as_json(queue)}"
        what = "any type" if type is None else f"type {as_json(type)}"
        message = f"You may not {action} jobs of {what} on {where}."
        return cls(message, details={"action": action, "queue": queue, "type": type})


class CSRFFailed(Forbidden):
    """The check against forged requests (CSRF) failed."""

    @classmethod
    def because(cls, reason: str) -> CSRFFailed:
        """Build the error from the reason that the check gave."""
        return cls(
            f"The check against forged requests (CSRF) failed: {reason} Send the value of the cookie"
            f" {settings.CSRF_COOKIE_NAME} in the header X-CSRFToken, or a token instead of the session."
        )


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
class ErrorEntry:
    """The HTTP ``status`` of a code, and a ``hint`` that says what to do."""

    status: int
    hint: str


CODES: Mapping[str, ErrorEntry] = {
    "invalid_payload": ErrorEntry(400, "Send one JSON object in UTF-8, without a name twice."),
    "invalid_request": ErrorEntry(400, "Correct the field that `details` names; the message says how."),
    "invalid_workflow": ErrorEntry(400, "Correct the workflow; `details.validation_errors` names the place."),
    "validation_error": ErrorEntry(422, "Correct the retry policy; the message names the field."),
    "x_unauthenticated": ErrorEntry(401, "Send `Authorization: Token KEY` (with rest_framework.authtoken), or log in."),
    "x_forbidden": ErrorEntry(403, "Use an account that OJS_UNIQUE['API']['PERMISSIONS'] admits; by default, staff."),
    "not_found": ErrorEntry(404, "Check the path and the identifier; finished jobs may have been pruned."),
    "conflict": ErrorEntry(409, "Read the job again: its state does not admit this."),
    "duplicate": ErrorEntry(409, "Use the existing job that `details` names, or choose another `on_conflict` or id."),
    "payload_too_large": ErrorEntry(413, "Store the data elsewhere and send its key."),
    "unsupported": ErrorEntry(422, "Read the manifest: it says what this server supports."),
    "rate_limited": ErrorEntry(429, "Wait as long as `Retry-After` says."),
    "backend_error": ErrorEntry(500, "Try again; if it goes on, the server's log says why."),
}
"""Each code of an error answer. Those with ``x_`` are beyond the specification."""

_HINTS: Mapping[type[OJSError], str] = {
    CSRFFailed: "Send the header X-CSRFToken with each POST, PUT and DELETE of a session; programs call with a token.",
    MethodNotAllowed: "Use a method that the header `Allow` names.",
    NotAuthorized: "Name a queue and a type on which OJS_UNIQUE['API']['AUTHORIZE'] allows it, or use another account.",
    NoRoute: "Compare the path with /ojs/v1/openapi.json, which has all of them. None ends with a slash.",
}
"""The hints of errors that say more than their codes."""

_CSRF = "CSRF Failed: "
"""How a CSRF error of `SessionAuthentication` begins."""
UNAVAILABLE_SECONDS = 1
"""``Retry-After`` in seconds when the database does not answer, or too many enqueues contend for one key."""


_OF_DRF: Mapping[type[drf.APIException], type[OJSError]] = {
    drf.AuthenticationFailed: Unauthenticated,
    drf.NotAuthenticated: Unauthenticated,
    drf.PermissionDenied: Forbidden,
    drf.Throttled: RateLimited,
    drf.MethodNotAllowed: MethodNotAllowed,
    drf.NotFound: NotFound,
}


def understand(error: Exception) -> tuple[OJSError, int, dict[str, str]]:
    """Turn an exception into an error, a status and headers for the client; log database and unexpected errors."""
    known = error if isinstance(error, OJSError) else _of_django(error)
    headers: dict[str, str] = {}
    if isinstance(known, NotMigrated):
        logger.error("%s", known)
    status = CODES[known.code].status if known.code in CODES else 500
    if isinstance(error, drf.Throttled):
        headers["Retry-After"] = str(max(1, round(getattr(error, "wait", None) or 1)))
    elif isinstance(known, MethodNotAllowed):
        status = 405
    elif known.code == "backend_error" and known.retryable and not isinstance(known, Unexpected):
        status = 503
        headers["Retry-After"] = str(UNAVAILABLE_SECONDS)
    return known, status, headers


def _of_django(error: Exception) -> OJSError:
    """Return our error for one of Django REST framework or Django; log it if the client can do nothing about it."""
    match error:
        case drf.PermissionDenied() if str(error.detail).startswith(_CSRF):
            return CSRFFailed.because(str(error.detail).removeprefix(_CSRF))
        case drf.APIException() if kind := next((k for c, k in _OF_DRF.items() if isinstance(error, c)), None):
            return kind(None if kind is NotFound else str(error.detail))
        case PermissionDenied():
            return Forbidden(str(error) or None)
        case Http404():
            return NotFound()
        case RequestDataTooBig():
            return PayloadTooLarge(str(error))
        case SuspiciousOperation():
            return InvalidRequest(str(error))
        case drf.APIException() if error.status_code < 500:
            return InvalidRequest(str(error.detail))
        case OperationalError() | InterfaceError():
            logger.warning("The database failed: %s", error)
            return Unavailable()
        case _:
            logger.error("An unexpected error.", exc_info=error)
            return Unexpected()


ERROR = Object(
    "Error",
    {"code type message hint docs_url request_id": text(), "retryable": flag(), "details": mapping()},
    "What went wrong with a request.",
)
REFUSAL = Object("Refusal", {"error": ERROR})


def show(error: OJSError, request_id: str, docs_url: str) -> dict[str, Any]:
    """Return an error's JSON object."""
    unique_key = {"unique_key": error.fingerprint} if isinstance(error, DuplicateJob) else {}
    return {
        "code": error.code,
        "type": error.code,
        "message": error.wire_message if isinstance(error, InvalidRequest) else error.message,
        "retryable": error.retryable,
        "hint": _HINTS.get(type(error)) or CODES.get(error.code, CODES["backend_error"]).hint,
        "docs_url": docs_url,
        "details": {**error.details, **unique_key},
        "request_id": request_id,
    }
