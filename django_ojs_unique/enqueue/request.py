"""One enqueue, as its caller asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, make_dataclass
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from ..exceptions import InvalidRequest, Message, nearest, shorten
from ..handlers.carried import capture
from ..handlers.redaction import redact_error, redacted
from ..handlers.registry import argument_names, converter_of
from ..options import ENQUEUE, INHERIT, OBJECT, OPTIONS
from ..unique.fingerprint import CONTEXT
from .values import arguments

if TYPE_CHECKING:

    class Request:
        """One enqueue: a type, its arguments, and the `OPTIONS`, each an attribute.

        ``full_row`` asks for all fields of the stored job when the enqueue is deduplicated. ``elsewhere`` says that the
        handler may be in another process, so that there is no warning if it is missing here. ``context`` is what the
        job carries, if it is not to be captured here. ``workflow_id`` is the workflow that waits for the job.
        ``judged_at`` is the time by which uniqueness is decided, and the job's ``created_at``, if that is not now.
        ``using`` is the only database where it may be enqueued, as its workers are there; None: any.
        """

        type: str
        args: Any
        full_row: bool
        elsewhere: bool
        context: Any
        workflow_id: UUID | None
        judged_at: datetime | None
        using: str | None

        def __init__(self, type: str, args: Any = None, **options: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

else:

    def _member(name, option):
        return name, Any, field(default=option.default, repr=option.kind is not OBJECT)

    Request = make_dataclass(
        "Request",
        [
            ("type", str),
            ("args", Any, field(default=None, repr=False)),
            *(_member(name, option) for name, option in OPTIONS.items()),
            ("full_row", bool, False),
            ("elsewhere", bool, False),
            ("context", Any, field(default=INHERIT, repr=False)),
            ("workflow_id", UUID | None, None),
            ("judged_at", datetime | None, None),
            ("using", str | None, None),
        ],
        slots=True,
    )
    Request.__module__ = __name__

ARGUMENTS: Final = frozenset({"type", "args", *ENQUEUE})
"""The arguments of `JobQuerySet.enqueue`."""

_COPIED = [(name, option.default, option.kind.read) for name, option in OPTIONS.items() if option.copied]
_NOT_GIVEN = tuple(default for _, default, _ in _COPIED)
_copied = attrgetter(*(name for name, *_ in _COPIED))
_ELSEWHERE = {"countdown": "delay", "eta": "scheduled_at", "run_at": "scheduled_at", "kwargs": "args"}
"""What other job systems call some of them."""


def meant_by(name: str, known: Iterable[str]) -> str:
    """Return the name that was probably meant: ours for another system's, or a similar one of ``known``; or ""."""
    return _ELSEWHERE.get(name) or nearest(name, known)


def refuse_unknown(call: str, type: Any, options: Mapping[str, Any]) -> None:
    """Raise TypeError for an option that is not an argument of `enqueue`; it may be an argument of the job."""
    unknown = {name: value for name, value in options.items() if name not in ARGUMENTS}
    for name in unknown:
        meant = argument_names(type, unknown)
        close = "" if name in meant else meant_by(name, ARGUMENTS)
        args = shorten(redacted(type, {meant.get(name, name): value for name, value in unknown.items()}))
        typo = f" The handler of {type!r} has {meant[name]!r}." if meant.get(name, name) != name else ""
        hint = f"Did you mean {close!r}?" if close else f"A job's arguments go into args: write args={args}.{typo}"
        raise TypeError(f"{call}() has no argument {name!r}. {hint}")


def refuse_another_database(request: Request, using: str) -> None:
    """Raise InvalidRequest for a request that may not be enqueued on the database ``using``."""
    if request.using is not None and request.using != using:
        problem = Message("belongs to the database {name}, and not to {other}", name=request.using, other=using)
        hint = Message("Write {text}.", text=f".using({request.using!r})")
        raise InvalidRequest.at("type", problem, value=request.type, hint=hint)


def own_members(request: Request) -> Request:
    """Copy and check the members that the caller could change before the request is read, and return the request.

    Raises what `read` raises, about these members only.
    """
    try:
        request.args = arguments(request.args, converter_of(request.type))
        request.meta = OBJECT.read(request.meta, "meta")
        if CONTEXT in request.meta:
            raise InvalidRequest.at(f"meta.{CONTEXT}", "is reserved for what the job carries", hint="Leave it out.")
        if request.context is INHERIT:
            request.context = capture()
        if (given := _copied(request)) != _NOT_GIVEN:
            for (name, default, read), value in zip(_COPIED, given, strict=True):
                if value is not default and (value is not None or default is not INHERIT):
                    setattr(request, name, read(value, name))
    except InvalidRequest as error:
        redact_error(error, request.type)
        raise
    return request
