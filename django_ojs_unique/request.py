"""From the caller's arguments to an unsaved row: every check that needs no database."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from django.db import models
from django.utils import timezone

from .conf import settings
from .exceptions import InvalidRequest, PayloadTooLarge, shorten
from .fields import new_id, unsaved
from .ojs.canonical import plain
from .ojs.durations import milliseconds
from .ojs.fingerprint import canonical_text, fingerprint
from .ojs.keys import HOLDING, JobKey, KeyMode, KeyScope
from .ojs.names import job_type, priority_number, queue_name
from .ojs.policy import OnConflict, UniquePolicy, Window
from .ojs.presets import resque_uniqueue
from .ojs.retry import RetryPolicy
from .ojs.states import INCOMPLETE, TERMINAL, JobState
from .registry import registry


class _Inherit:
    def __repr__(self) -> str:
        return "<the handler's>"


INHERIT: Final = _Inherit()
"""The default of options that None would switch off: take what the handler declared."""

DEFAULT_RETRY: Final = RetryPolicy()

FOREVER: Final = datetime(9999, 1, 1, tzinfo=UTC)
"""The end of a window without a period: early enough for each database and time zone."""

_LONGEST_TAG, _LONGEST_SCHEMA = 255, 2048
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


@dataclass(slots=True)
class Request:
    """One enqueue, as the caller put it; `JobQuerySet.enqueue` documents the members.

    ``whole`` asks for all fields of the stored job that is the answer to an ignored duplicate.
    """

    type: str
    args: Any = None
    queue: str | None = None
    meta: Mapping[str, Any] | None = None
    priority: int | None = None
    scheduled_at: datetime | None = None
    expires_at: datetime | None = None
    unique: Any = INHERIT
    retry: Any = INHERIT
    timeout: Any = INHERIT
    lease: Any = INHERIT
    key: str | None = None
    key_mode: str = KeyMode.REPLACE
    key_scope: str = KeyScope.TYPE
    tags: Any = ()
    id: Any = None
    schema: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    pending: bool = False
    whole: bool = False


@dataclass(slots=True)
class Incoming:
    """A valid request: the row to insert and what decides about it, a policy or a key or neither.

    ``at`` is the moment whose fixed window counts; ``has_id`` tells whether the caller chose the job's id.
    """

    job: Any
    policy: UniquePolicy | None
    key: JobKey | None
    scheduled_at: datetime | None
    at: datetime
    has_id: bool = False
    pending: bool = False
    canonical_text: str = ""
    whole: bool = False


def read(request: Request, model: type[models.Model], now: datetime) -> Incoming:
    """Validate a request and build its row.

    Raises InvalidRequest, InvalidPolicy, InvalidRetryPolicy or UnknownJobType, each naming the field and the mend;
    nothing has been written then.
    """
    return Reader(model).build(own(request), now)


def own(request: Request) -> Request:
    """Copy and check what the caller could change while the request waits to be read, and return the request.

    Raises what `read` raises, about these members only.
    """
    request.args = _args(request.args)
    request.meta = _object(request.meta, "meta")
    request.tags = _tags(request.tags)
    if request.schema != "":
        request.schema = _string(request.schema, "schema", _LONGEST_SCHEMA)
    request.extra = plain(dict(request.extra), "extra") if request.extra else {}
    if isinstance(request.unique, Mapping):
        request.unique = UniquePolicy.parse(request.unique)
    if isinstance(request.retry, Mapping):
        request.retry = RetryPolicy.parse(request.retry)
    return request


class Reader:
    """Reads requests; what requests of one shape have in common is worked out once. Not for long: settings may change.

    Two requests have one shape when they name the same type, queue and options.
    """

    def __init__(self, model: type[models.Model]) -> None:
        self._model = model
        self._shapes: dict[tuple[Any, ...], _Shape] = {}
        self._largest_args = settings.max_args_bytes
        self._largest_meta = settings.max_meta_bytes

    def build(self, request: Request, now: datetime) -> Incoming:
        """Do the rest of what `read` says, with a request that `own` has returned."""
        shape = self._shape(request)
        key = None if request.key is None else JobKey(request.key, request.key_mode, request.key_scope)
        scheduled_at = _moment(request.scheduled_at, "scheduled_at")
        job = shape.new_job()
        job.args = args = sized(request.args, "args", self._largest_args)
        job.meta = meta = sized(request.meta, "meta", self._largest_meta)
        job.tags = sized(request.tags, "tags", self._largest_meta, "META")
        job.extra = sized(request.extra, "extra", self._largest_meta, "META")
        job.schema = request.schema
        job.expires_at = _moment(request.expires_at, "expires_at")
        if request.id is not None:
            job.id = _uuid(request.id)
        policy = shape.policy
        pending = _pending(request.pending, scheduled_at)
        incoming = Incoming(job, policy, key, scheduled_at, scheduled_at or now, request.id is not None, pending)
        incoming.whole = request.whole and policy is not None and policy.on_conflict is OnConflict.IGNORE
        if key is not None:
            incoming.canonical_text = key.canonical_text(job.type)
            job.key = key.text
        elif policy is not None:
            incoming.canonical_text = canonical_text(
                policy, type=job.type, queue=job.queue, args=args, meta=meta, at=incoming.at
            )
        if incoming.canonical_text:
            job.fingerprint = fingerprint(incoming.canonical_text)
        date(incoming, now)
        return incoming

    def _shape(self, request: Request) -> _Shape:
        options = (
            request.unique,
            request.retry,
            request.timeout,
            request.lease,
            request.priority,
            request.key_mode,
            request.key_scope,
        )
        try:
            # By identity, as True equals 1 but is no priority; a shape keeps its options, so their ids stay theirs.
            identity = (request.type, request.queue, request.key is None, *map(id, options))
            if (shape := self._shapes.get(identity)) is None:
                shape = self._shapes[identity] = _Shape(request, self._model, options)
            return shape
        except TypeError:  # what is not hashable is no name, either
            return _Shape(request, self._model, options)


class _Shape:
    """What requests of the same type, queue and options have in common."""

    def __init__(self, request: Request, model: type[models.Model], options: tuple[Any, ...]) -> None:
        self._options = options
        type_ = job_type(request.type)
        definition = registry.get(type_) if settings.require_handler else registry.find(type_)
        queue = request.queue
        if queue is None:
            queue = (definition and definition.queue) or settings.default_queue
        queue = queue_name(queue)
        unique = (definition and definition.unique) if request.unique is INHERIT else request.unique
        retry = (definition and definition.retry) if request.retry is INHERIT else request.retry
        timeout = (definition and definition.timeout) if request.timeout is INHERIT else request.timeout
        lease = (definition and definition.lease) if request.lease is INHERIT else request.lease
        priority = request.priority if request.priority is not None else definition.priority if definition else 0
        _refuse_what_contradicts_the_key(request)
        self.policy = None if request.key is not None or unique is None else UniquePolicy.parse(unique)
        if self.policy is None and request.key is None and settings.is_unique(queue):
            self.policy = resque_uniqueue()
        retry_policy = DEFAULT_RETRY if retry is None else RetryPolicy.parse(retry)
        self._model = model
        self._prototype: dict[str, Any] = {
            "type": type_,
            "queue": queue,
            "priority": priority_number(priority),
            "max_attempts": retry_policy.max_attempts,
            "retry": None if retry is None else retry_policy.to_dict(),
            "timeout_ms": None if timeout is None else milliseconds(timeout, "timeout"),
            "visibility_timeout_ms": None if lease is None else milliseconds(lease, "lease"),
            "unique": None if self.policy is None else self.policy.to_dict(),
        }

    def new_job(self) -> Any:
        """Return an unsaved row of this shape, without its arguments."""
        return unsaved(self._model, **self._prototype, id=new_id(), errors=[])


def date(incoming: Incoming, now: datetime, *, inherited_schedule: datetime | None = None) -> None:
    """Let the job begin at ``now``: pending if asked for, scheduled if its time is still to come, else available."""
    job = incoming.job
    job.scheduled_at = None if incoming.pending else inherited_schedule or incoming.scheduled_at
    waits = job.scheduled_at is not None and job.scheduled_at > now
    job.state = JobState.PENDING if incoming.pending else JobState.SCHEDULED if waits else JobState.AVAILABLE
    job.created_at = now
    job.enqueued_at = None if waits or incoming.pending else now
    job.run_at = job.scheduled_at if waits else None
    if incoming.key is not None:
        job.guarded_states = HOLDING
    elif incoming.policy is not None:
        # Whatever its policy counts, a job guards its key until it has finished, so that policies which differ still
        # meet at the constraint. The look decides what counts, and releases a guard that does not.
        job.guarded_states = INCOMPLETE.union(incoming.policy.states)
        if not TERMINAL.isdisjoint(incoming.policy.states) and incoming.policy.window != Window.RETENTION:
            job.window_ends_at = incoming.policy.kept_until(now, incoming.at) or FOREVER


def _refuse_what_contradicts_the_key(request: Request) -> None:
    if request.key is not None:
        if request.unique is not INHERIT and request.unique is not None:
            raise InvalidRequest.at(
                "key",
                "cannot be combined with unique, as each says on its own what a duplicate is",
                value=request.key,
                mend="Leave one of them out.",
            )
        return
    for name, given, default in (
        ("key_mode", request.key_mode, KeyMode.REPLACE),
        ("key_scope", request.key_scope, KeyScope.TYPE),
    ):
        if given != default:
            raise InvalidRequest.at(name, "has no effect without a key", value=given, mend="Give the job a key.")


def _string(value: Any, field: str, longest: int) -> str:
    if not isinstance(value, str) or len(value) > longest:
        raise InvalidRequest.at(field, f"must be a string of at most {longest:,} characters", value=value)
    return plain(value, field)  # type: ignore[no-any-return]


def _args(value: Any) -> Any:
    if value is None:
        return {}
    if isinstance(value, Mapping):
        value = dict(value)
    elif not isinstance(value, (list, tuple)):
        raise InvalidRequest.at(
            "args",
            "must be an object (keyword arguments) or an array (positional)",
            value=value,
            mend=f"Write [{shorten(value)}].",
        )
    return plain(value, "args")


def _object(value: Any, field: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidRequest.at(field, "must be an object", value=value)
    return plain(dict(value), field)  # type: ignore[no-any-return]


def sized(value: Any, field: str, largest: int, setting: str = "") -> Any:
    """Return a JSON value that takes no more than ``largest`` bytes, else raise PayloadTooLarge."""
    size = len(_JSON.encode(value).encode()) if value else 2
    if size > largest:
        raise PayloadTooLarge.at(
            field,
            f"is {size:,} bytes as JSON; the limit is {largest:,}",
            mend=f"Store the data and send its key, or raise OJS_UNIQUE['MAX_{setting or field.upper()}_BYTES'].",
        )
    return value


def _tags(value: Any) -> list[str]:
    if value == ():
        return []
    if not isinstance(value, (list, tuple)):
        raise InvalidRequest.at("tags", "must be a list of strings", value=value)
    for index, tag in enumerate(value):
        if not isinstance(tag, str) or not 0 < len(tag) <= _LONGEST_TAG:
            raise InvalidRequest.at(f"tags[{index}]", f"must be a string of 1 to {_LONGEST_TAG} characters", value=tag)
    return plain(value, "tags")  # type: ignore[no-any-return]


def _pending(value: Any, scheduled_at: datetime | None) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest.at("pending", "must be true or false", value=value)
    if value and scheduled_at is not None:
        mend = "Leave one of them out: a pending job waits until somebody activates it."
        raise InvalidRequest.at("pending", "cannot be combined with scheduled_at", mend=mend)
    return value


def _moment(value: Any, field: str) -> datetime | None:
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise InvalidRequest.at(
            field, "must be a datetime", value=value, mend="Use django.utils.timezone.now() + timedelta(…)."
        )
    if timezone.is_naive(value):
        raise InvalidRequest.at(
            field,
            "has no time zone",
            value=value,
            mend="Use an aware datetime, for example django.utils.timezone.make_aware(…).",
        )
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise InvalidRequest.at(field, "is outside the calendar", value=value, mend="Choose a later year.") from None


def _uuid(value: Any) -> UUID:
    try:
        return value if isinstance(value, UUID) else UUID(value)
    except (ValueError, TypeError, AttributeError):
        raise InvalidRequest.at(
            "id", "must be a UUID", value=value, mend="Leave it out to have a UUIDv7 made."
        ) from None
