"""One enqueue, as its caller asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from ..exceptions import InvalidRequest, nearest, shorten
from ..handlers.carried import capture
from ..handlers.redaction import redact_error, redacted
from ..handlers.registry import argument_names, converter_of
from ..ojs.limits import limits_of
from ..ojs.retry import RetryPolicy
from ..unique.fingerprint import CONTEXT
from ..unique.keys import KeyMode, KeyScope
from ..unique.policy import UniquePolicy
from . import INHERIT
from .values import arguments, json_object, short_string, tag_list

_LONGEST_SCHEMA = 2048


@dataclass(slots=True)
class Request:
    """One enqueue, with the caller's arguments; `JobQuerySet.enqueue` documents the members.

    ``full_row`` asks for all fields of the stored job when the enqueue is deduplicated. ``elsewhere`` says
    that the handler may be in another process, so that there is no warning if it is missing here. ``context`` is what
    the job carries, if it is not to be captured here. ``workflow_id`` is the workflow that waits for the job.
    ``expires_in``: an ISO 8601 duration, counted from the enqueue, in the place of ``expires_at``.
    """

    type: str
    args: Any = field(default=None, repr=False)
    queue: str | None = None
    meta: Mapping[str, Any] | None = field(default=None, repr=False)
    priority: int | None = None
    scheduled_at: datetime | None = None
    delay: str | timedelta | float | None = None
    expires_at: datetime | None = None
    unique: Any = INHERIT
    retry: Any = INHERIT
    timeout: Any = INHERIT
    lease: Any = INHERIT
    limit: Any = INHERIT
    key: str | None = None
    key_mode: str = KeyMode.REPLACE
    key_scope: str = KeyScope.TYPE
    tags: Any = ()
    id: Any = None
    schema: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)
    pending: bool = False
    full_row: bool = False
    elsewhere: bool = False
    context: Any = field(default=INHERIT, repr=False)
    workflow_id: UUID | None = None
    expires_in: str | None = None


INTERNAL: Final = frozenset(
    {
        "lease",
        "schema",
        "extra",
        "pending",
        "full_row",
        "elsewhere",
        "context",
        "workflow_id",
        "expires_in",
    }
)
"""The members of a request that are no arguments of `JobQuerySet.enqueue`."""

ARGUMENTS: Final = frozenset(Request.__slots__) - INTERNAL
"""The arguments of `JobQuerySet.enqueue`."""

_ELSEWHERE = {"countdown": "delay", "eta": "scheduled_at", "run_at": "scheduled_at", "kwargs": "args"}
"""What other job systems call some of them."""


def refuse_unknown(call: str, type: Any, options: Mapping[str, Any]) -> None:
    """Raise TypeError for an option that is not an argument of `enqueue`; it may be an argument of the job."""
    unknown = {name: value for name, value in options.items() if name not in ARGUMENTS}
    for name in unknown:
        meant = argument_names(type, unknown)
        close = "" if name in meant else _ELSEWHERE.get(name) or nearest(name, ARGUMENTS)
        args = shorten(redacted(type, {meant.get(name, name): value for name, value in unknown.items()}))
        typo = f" The handler of {type!r} has {meant[name]!r}." if meant.get(name, name) != name else ""
        hint = f"Did you mean {close!r}?" if close else f"A job's arguments go into args: write args={args}.{typo}"
        raise TypeError(f"{call}() has no argument {name!r}. {hint}")


def snapshot(request: Request) -> Request:
    """Copy and check the members that the caller could change before the request is read, and return the request.

    Raises what `read` raises, about these members only.
    """
    try:
        request.args = arguments(request.args, converter_of(request.type))
        request.meta = json_object(request.meta, "meta")
        if CONTEXT in request.meta:
            raise InvalidRequest.at(f"meta.{CONTEXT}", "is reserved for what the job carries", hint="Leave it out.")
        if request.context is INHERIT:
            request.context = capture()
        request.tags = tag_list(request.tags)
        if request.schema != "":
            request.schema = short_string(request.schema, "schema", _LONGEST_SCHEMA)
        request.extra = json_object(request.extra, "extra") if request.extra else {}
        # `isinstance` of an abstract class takes long.
        if request.unique is not INHERIT and isinstance(request.unique, Mapping):
            request.unique = UniquePolicy.parse(request.unique)
        if request.retry is not INHERIT and isinstance(request.retry, Mapping):
            request.retry = RetryPolicy.parse(request.retry)
        if request.limit is not INHERIT:
            request.limit = limits_of(request.limit)
    except InvalidRequest as error:
        redact_error(error, request.type)
        raise
    return request
