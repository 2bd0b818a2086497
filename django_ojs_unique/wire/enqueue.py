"""Read the job that a client sends into an enqueue request (HTTP binding, "Job envelope")."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import NoneType
from typing import Any

from ..conf import API_DEFAULTS, settings
from ..enqueue.request import Request, meant_by
from ..exceptions import InvalidRequest, InvalidRetryPolicy, OJSError, PayloadTooLarge, as_json, did_you_mean, shorten
from ..handlers.redaction import masked, names_of_any, redact_error
from ..ojs.durations import format_duration, milliseconds
from ..ojs.names import LONGEST_TYPE, TYPE, UUID7_TEXT
from ..options import LENGTH, OPTIONS
from . import policies
from .policies import RATE, read_limits, read_unique
from .schema import Object, array, job_args, mapping, one_of, read_milliseconds, read_moment, text, without_none

_NAMES = {written: name for name, option in OPTIONS.items() for written in option.wire}
_NAMES |= {"metadata": "metadata", "rate_limit": "rate_limit"}
"""The members that a job may have under ``options``, or beside it, with the names of the options that they set."""

SYSTEM_MANAGED = frozenset({
    "state", "attempt", "max_attempts", "created_at", "enqueued_at", "started_at", "completed_at", "cancelled_at",
    "discarded_at", "error", "errors", "result", "worker_id", "lease_token", "lease_expires_at", "retry_delay_ms",
    "previous_state", "steps", "progress", "progress_note", "workflow_id", "workflow_step", "workflow_callback",
    "root_workflow_id", "parent_results",
})  # fmt: skip
"""The members that only the server sets; a client's values are ignored."""

_KNOWN = ("id", "type", "args", "meta", "schema", "options", *_NAMES)
_DEFINED = SYSTEM_MANAGED.union(_KNOWN, ("specversion",))
_DELAYS = ("delay", "delay_until")
_LATER = {"delay": "scheduled_at", "expires_in": "expires_at"}
"""The options that JSON has as times."""
_RETRY_ALIASES = {
    "initial_interval_ms": "initial_interval",
    "max_interval_ms": "max_interval",
    "backoff_type": "backoff_strategy",
}

_ID = text("", 36, UUID7_TEXT.pattern, problem="must be a UUIDv7 in lower case", hint="Leave it out to have one made.")
TEMPLATE = {
    "type": text("", LONGEST_TYPE, TYPE.pattern),
    "args": job_args(),
    "meta?": mapping(),
    "options?": policies.JOB_OPTIONS.member(),
}
HINTS = {"hints?": array(text(), "Members that do nothing, though their names are similar to some that do.")}
ENQUEUE = Object(
    "Enqueue",
    {**TEMPLATE, "id?": _ID, "schema?": text(), "specversion?": one_of(("1.0",))},
    "A job to store. Other members are kept and returned with the job.",
)
BATCH = Object(
    "EnqueueBatch", {"jobs": array(ENQUEUE, "", 1, API_DEFAULTS["MAX_BATCH"])}, "Jobs to store, all of them or none."
)


_MOST_HINTS = 10
"""For so many names: a comparison costs more CPU than the name's size."""


@dataclass(frozen=True, slots=True)
class EnqueueBody:
    """One element of a request: an enqueue, and the rate limit of its queue in jobs per second, if it sets one.

    ``places`` maps the enqueue's names of fields to those that the client wrote. ``index``: the element's in a batch.
    """

    request: Request
    max_per_second: int | None
    places: Mapping[str, str]
    index: int | None = None

    def locate(self, error: OJSError) -> OJSError:
        """Return an error of the enqueue with the field name that the client wrote."""
        return relocated(error, self.places, self.index)


def read_job(body: Any, now: datetime, index: int | None = None, *, is_early: bool = False) -> EnqueueBody:
    """Read one enqueue. Raises InvalidRequest or InvalidRetryPolicy, with the field name that the client wrote.

    ``is_early``: the job may be enqueued later than ``now``, and relative times count from then.
    """
    places: dict[str, str] = {}
    try:
        wanted = _read(body, now, places, index)
        if is_early:
            _keep_relative(wanted, body)
        return wanted
    except OJSError as error:
        if isinstance(error, InvalidRequest) and isinstance(body, dict):
            redact_error(error, body.get("type"))
        raise relocated(error, places, index) from None


def read_jobs(body: Mapping[str, Any]) -> list[Any]:
    """Return the elements of a batch. Raises InvalidRequest or PayloadTooLarge."""
    elements = body.get("jobs")
    if not isinstance(elements, list) or not elements:
        raise InvalidRequest.at("jobs", "must be an array of at least one job", value=elements)
    if len(elements) > (most := settings.api["MAX_BATCH"]):
        raise PayloadTooLarge.at(
            "jobs", f"has {len(elements):,} elements; the limit is {most:,}", hint="Send several batches."
        )
    return elements


def hints(requests: Iterable[tuple[str, Request]]) -> dict[str, list[str]]:
    """Return the member ``hints`` of the answer to these requests, each with its path; nothing without a hint."""
    said: dict[str, str] = {}
    for path, request in requests:
        for name in request.extra or ():
            if name not in said and len(said) < _MOST_HINTS:
                meant = meant_by(name, _KNOWN)
                at = shorten(f"{path}.{name}" if path else name)
                said[name] = f"{at} is stored and does nothing. Did you mean {meant!r}?" if meant else ""
    found = list(filter(None, said.values()))
    return {"hints": found} if found else {}


def relocated(error: OJSError, places: Mapping[str, str], index: int | None = None) -> OJSError:
    """Change an error to name the field as the client wrote it, and the element of a batch; return the error."""
    field = error.details.get("field")
    if "index" in error.details:  # the index in the engine's batch, which has only the valid elements
        error.message = re.sub(r"^items\[\d+\](: |\.)", "", error.message)
    if isinstance(field, str):
        head, inner = re.split(r"(?=[.\[])", f"{field}.")[:2]
        if head + inner in places:  # a member that the client wrote by another name
            head += inner
        place = places.get(head, head) + field[len(head) :]
        if field.startswith("extra."):  # the client wrote it at the top level
            place = field.removeprefix("extra.")
        error.details["field"] = place
        error.message = place + error.message.removeprefix(field) if error.message.startswith(field) else error.message
    if index is not None:
        error.details["index"] = index
        error.message = f"jobs[{index}]: {error.message}"
    return error


def _read(body: Any, now: datetime, places: dict[str, str], index: int | None) -> EnqueueBody:
    if not isinstance(body, dict):
        raise InvalidRequest(
            f"A job must be an object with `type` and `args` (got {as_json(masked(body, names_of_any()))}).",
            details={"field": ""},
        )
    if body.get("specversion") not in (None, "1.0"):
        raise InvalidRequest.at("specversion", 'must be "1.0"', value=body["specversion"])
    values = _options(body, places)
    if (type_ := body.get("type")) is None:
        raise InvalidRequest.at("type", "is missing", hint="Write the job's type, as in 'email.send'.")
    request = Request(type_, _args(body), id=read_id(body), meta=_meta(body, values), full_row=True, elsewhere=True)
    if (schema := body.get("schema")) is not None:
        request.schema = schema
    if not body.keys() <= _DEFINED:
        request.extra = {name: value for name, value in body.items() if name not in _DEFINED}
    if not values:
        return EnqueueBody(request, None, places, index)
    _set_options(request, values, places, now)
    return EnqueueBody(request, _rate(values), places, index)


def _set_options(request: Request, values: dict[str, Any], places: dict[str, str], now: datetime) -> None:
    for name, value in values.items():
        if name in OPTIONS:
            setattr(request, name, _option(name, value, request.args, places, now))


def _option(name: str, value: Any, args: Any, places: dict[str, str], now: datetime) -> Any:
    """Return the value of an option that a client has written."""
    match name:
        case "unique":
            return read_unique(value, args, places)
        case "retry":
            return _retry(value)
        case "limit":
            return read_limits(value, places)
        case "scheduled_at":
            signs = ("+", "P") if places[name].endswith(_DELAYS) else ("+",)  # a delay can only be from now
            moment = read_moment(value, name, now, signs=signs)
            return moment if moment > now else None
        case "expires_at":
            return read_moment(value, name, now)
    return read_milliseconds(value, name) if places[name].endswith("_ms") else value


def show_options(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a stored request as a client writes them."""
    shown: dict[str, Any] = {}
    for name, value in stored.items():
        option = OPTIONS.get(name)
        written = option.written if option is not None and option.wire else name
        if name in _LATER and isinstance(value, (str, int, float)):
            delay = value if isinstance(value, str) else format_duration(timedelta(seconds=value))
            written, value = _LATER[name], f"+{delay}"
        elif option is not None and option.kind is LENGTH and value is not None:
            try:
                value = milliseconds(value, name)
            except InvalidRequest:  # the row was changed manually
                written = name
        shown[written] = value
    return without_none(shown)


def _keep_relative(wanted: EnqueueBody, body: dict[str, Any]) -> None:
    """Turn the moments that the client wrote as durations into durations again."""
    for duration, name in _LATER.items():
        place = wanted.places.get(name, "").removeprefix("options.")
        written = (body["options"] if wanted.places.get(name, "").startswith("options.") else body).get(place)
        if isinstance(written, str) and written[:1] in ("+", "P"):
            setattr(wanted.request, name, None)
            setattr(wanted.request, duration, written.removeprefix("+"))


def with_defaults(
    body: dict[str, Any], defaults: Mapping[str, tuple[str, Any]]
) -> tuple[dict[str, Any], frozenset[str]]:
    """Add options to a job's body, unless it has them; return it with the names of those that were added.

    ``defaults`` have by their names in `Request` the name and the value that a client wrote.
    """
    options = body.get("options")
    if not defaults or not isinstance(options, (dict, NoneType)):
        return body, frozenset()
    written = {name for place in (body, options or {}) for name, value in place.items() if value is not None}
    own = {_NAMES[name] for name in written.intersection(_NAMES)}
    added = {name: value for meant, (name, value) in defaults.items() if meant not in own}
    return {**body, "options": {**(options or {}), **added}}, frozenset(added)


def by_meaning(options: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return options as `with_defaults` takes them."""
    return {_NAMES.get(name, name): (name, value) for name, value in options.items() if value is not None}


def _options(body: dict[str, Any], places: dict[str, str]) -> dict[str, Any]:
    """Return the options by their names in `Request`; a value under ``options`` wins over one beside it.

    Note in ``places`` where the client wrote each.
    """
    options: dict[str, Any] | None = body.get("options")
    if options is not None and not isinstance(options, dict):
        raise InvalidRequest.at("options", "must be an object", value=options)
    values: dict[str, Any] = {}
    if not _NAMES.keys().isdisjoint(body):
        for beside, meant in _NAMES.items():
            if body.get(beside) is not None:
                values[meant], places[meant] = body[beside], beside
    for name, value in (options or {}).items():
        place = f"options.{name}"
        if name not in _NAMES:
            raise InvalidRequest.at(place, "is not an option", hint=did_you_mean(name, _NAMES))
        if value is not None:
            meant = _NAMES[name]
            if meant in values and places[meant].startswith("options."):
                raise InvalidRequest.at(place, f"says the same as {places[meant]}", hint="Leave one of them out.")
            values[meant], places[meant] = value, place
    return values


def _args(body: dict[str, Any]) -> Any:
    args = body.get("args")
    if args is None:
        raise InvalidRequest.at("args", "is missing", hint="Write an array, [] if there are none.")
    if settings.api["ARRAYS_ONLY"] and not isinstance(args, list):
        raise InvalidRequest.at("args", "must be an array", value=args, hint="Write it as the only element of one.")
    return args


def read_id(body: Mapping[str, Any]) -> str | None:
    """Read the ``id`` that a client has chosen. Raises InvalidRequest."""
    return _ID.read(body["id"], "id") if "id" in body else None


def _meta(body: dict[str, Any], values: dict[str, Any]) -> Any:
    meta, more = body.get("meta"), values.get("metadata")
    if more is None:
        return meta
    if not isinstance(more, dict):
        raise InvalidRequest.at("metadata", "must be an object", value=more)
    return {**more, **meta} if isinstance(meta, dict) else more if meta is None else meta


def _retry(value: Any) -> Any:
    """Return a retry policy with the aliases of the HTTP chapter replaced by the engine's names."""
    if not isinstance(value, dict):
        raise InvalidRetryPolicy.at("retry", "must be an object", value=value)
    policy = {name: one for name, one in value.items() if name not in _RETRY_ALIASES and one is not None}
    for alias, name in _RETRY_ALIASES.items():
        if (given := value.get(alias)) is None:
            continue
        if alias.endswith("_ms"):
            try:
                given = format_duration(read_milliseconds(given, f"retry.{alias}"))
            except InvalidRequest as error:
                raise InvalidRetryPolicy(error.message, details=error.details) from None
        policy.setdefault(name, given)
    return policy


def _rate(values: dict[str, Any]) -> int | None:
    value = values.get("rate_limit")
    if value is None:
        return None
    if not isinstance(value, dict) or value.keys() != RATE.members.keys():
        raise InvalidRequest.at("rate_limit", "must be an object with max_per_second only", value=value)
    rate: int = RATE.read(value, "rate_limit.")["max_per_second"]
    return rate
