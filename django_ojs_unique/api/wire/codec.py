"""Read bodies and write answers in the media type of the binding (HTTP binding, "Content Type")."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from ...exceptions import InvalidRequest, PayloadTooLarge, as_json
from ...handlers.redaction import masked, names_of_any
from ...ojs import canonical
from .errors import InvalidPayload

MEDIA_TYPE = "application/openjobspec+json"
ACCEPTED = (MEDIA_TYPE, "application/json")
"""The media types of bodies; those of answers, too."""
DEEPEST = canonical.DEEPEST + 4
"""The most levels of arrays and objects in a body: those of a value, plus the job, the list of jobs and the batch."""


class OJSRenderer(BaseRenderer):
    """Writes JSON in UTF-8, under exactly the media type of the binding."""

    media_type = MEDIA_TYPE
    format = "ojs"
    charset = None

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Mapping[str, Any] | None = None
    ) -> bytes:
        # A lone surrogate that an error quotes is written as the escape that the client sent.
        return b"" if data is None else _JSON.encode(data).encode(errors="backslashreplace")


class JSONRenderer(OJSRenderer):
    """Writes the same as plain JSON."""

    media_type = "application/json"
    format = "json"


class Unread(BaseParser):
    """Leaves the body to `read_body`, also when the CSRF check looks for a token in a form."""

    media_type = "*/*"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> dict[str, Any]:
        return {}


class OJSNegotiation(BaseContentNegotiation):
    """Answers in the media type of the binding, unless ``Accept`` prefers plain JSON; nobody gets a 406."""

    def select_parser(self, request: Request, parsers: Iterable[Any]) -> Any:
        return next(iter(parsers))

    def select_renderer(
        self, request: Request, renderers: Iterable[Any], format_suffix: str | None = None
    ) -> tuple[Any, str]:
        by_type = {renderer.media_type: renderer for renderer in renderers}
        try:
            wanted = request._request.get_preferred_type(list(by_type)) or MEDIA_TYPE
        except (ValueError, LookupError):  # the header is malformed
            wanted = MEDIA_TYPE
        return by_type[wanted], wanted


def read_body(request: Any, largest: int) -> dict[str, Any]:
    """Read the JSON object that a Django request carries; an empty body is an empty object.

    Raises InvalidRequest for another media type or a body that is not an object; PayloadTooLarge for more than
    ``largest`` bytes; InvalidPayload for a body that did not arrive, is malformed, is not UTF-8, has a name twice in an
    object or NaN, or is nested too deeply.
    """
    raw = _raw(request, largest)
    if not raw.strip():
        if not raw and _is_chunked(request) and not _hands_chunks_on(request):
            raise InvalidPayload("The body came in chunks and did not arrive. Send it whole, with a Content-Length.")
        return {}  # of any type: wsgiref, and so `runserver`, says text/plain if the client names none
    media_type = request.META.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()
    if media_type and media_type not in ACCEPTED:
        raise InvalidRequest.at("Content-Type", "is not supported", value=media_type, hint=f"Send {MEDIA_TYPE}.")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidPayload(f"The body is not UTF-8: {error.reason} at byte {error.start}.") from None
    try:
        body = _DECODER.decode(text)
    except RecursionError:
        raise InvalidPayload(f"The body is nested more than {DEEPEST} levels deep. Flatten it.") from None
    except ValueError as error:  # also for an integer with more digits than Python reads
        raise InvalidPayload(f"The body is not JSON: {error}.") from None
    if not isinstance(body, dict):
        got = as_json(masked(body, names_of_any()))
        raise InvalidRequest(f"The body must be a JSON object (got {got}).", details={"field": "", "value": got})
    _refuse_depth(body)
    return body


def _raw(request: Any, largest: int) -> bytes:
    try:
        declared = int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError:
        declared = 0
    body = request.META["wsgi.input"] if _is_chunked(request) and _hands_chunks_on(request) else request
    try:
        raw: bytes = b"" if declared > largest else body.read(largest + 1)
    except Exception:  # the client went away, or sent invalid chunks; each server raises its own error
        raise InvalidPayload("The body did not arrive.") from None
    if declared > largest or len(raw) > largest:
        raise PayloadTooLarge(
            f"The body has more than {largest:,} bytes. Split it, store the data and send its key, or raise"
            " OJS_UNIQUE['API']['MAX_BODY_BYTES'].",
            details={"max_bytes": largest},
        )
    return raw


def _is_chunked(request: Any) -> bool:
    return "chunked" in request.META.get("HTTP_TRANSFER_ENCODING", "").lower()


def _hands_chunks_on(request: Any) -> bool:
    """Whether the WSGI server ends the body where its chunks end, as gunicorn does; Django itself reads no chunks."""
    return bool(request.META.get("wsgi.input_terminated"))


def _refuse_depth(body: Any) -> None:
    level, depth = [body], 0
    while level:
        depth += 1
        if depth > DEEPEST:
            raise InvalidPayload(f"The body is nested more than {DEEPEST} levels deep. Flatten it.")
        values = (value for one in level for value in (one.values() if isinstance(one, dict) else one))
        level = [value for value in values if isinstance(value, (dict, list))]


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise ValueError(f"the name {as_json(twice)} occurs twice in one object")
    return members


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=_members, parse_constant=_refuse_constant)
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
