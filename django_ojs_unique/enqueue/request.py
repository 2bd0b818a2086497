"""From the caller's arguments to an unsaved row: every check that needs no database."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db import models

from ..conf import settings
from ..db.fields import new_id, unsaved
from ..exceptions import InvalidRequest, nearest
from ..ojs.canonical import plain
from ..ojs.durations import milliseconds, read_delay
from ..ojs.fingerprint import canonical_text, fingerprint
from ..ojs.keys import HOLDING, JobKey, KeyMode, KeyScope
from ..ojs.names import job_type, priority_number, queue_name
from ..ojs.policy import OnConflict, UniquePolicy, Window
from ..ojs.presets import resque_uniqueue
from ..ojs.retry import RetryPolicy
from ..ojs.states import INCOMPLETE, TERMINAL, JobState
from ..registry import registry
from .row import JobRow
from .values import arguments, aware_moment, json_object, moment_after, short_string, sized, tag_list, uuid


class _Inherit:
    def __repr__(self) -> str:
        return "<the handler's>"


INHERIT: Final = _Inherit()
"""The default of options that None switches off: use what the handler declared."""

DEFAULT_RETRY: Final = RetryPolicy()

FOREVER: Final = datetime(9999, 1, 1, tzinfo=UTC)
"""The end of a window without a period: a date that each database can store in each time zone."""

logger = logging.getLogger("django_ojs_unique.enqueue")

_MOST_WARNED_OF = 1_000
_warned_of: set[str] = set()
_LONGEST_SCHEMA = 2048


@dataclass(slots=True)
class Request:
    """One enqueue, with the caller's arguments; `JobQuerySet.enqueue` documents the members.

    ``full_row`` asks for all fields of the stored job when the enqueue is ignored as its duplicate. ``elsewhere`` says
    that the handler may be in another process, so that there is no warning if it is missing here.
    """

    type: str
    args: Any = None
    queue: str | None = None
    meta: Mapping[str, Any] | None = None
    priority: int | None = None
    scheduled_at: datetime | None = None
    delay: str | timedelta | float | None = None
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
    full_row: bool = False
    elsewhere: bool = False


INTERNAL: Final = frozenset({"lease", "schema", "extra", "pending", "full_row", "elsewhere"})
"""The members of a request that are no arguments of `JobQuerySet.enqueue`."""

ARGUMENTS: Final = tuple(name for name in Request.__slots__ if name not in INTERNAL)
"""The arguments of `JobQuerySet.enqueue`."""


@dataclass(slots=True)
class Incoming:
    """A valid request: the row to insert, and the policy or the key that decides about it, or neither.

    ``at`` is a time in the fixed window that counts; ``has_id`` tells whether the caller chose the job's id.
    """

    job: JobRow
    shape: Shape
    policy: UniquePolicy | None
    key: JobKey | None
    scheduled_at: datetime | None
    at: datetime
    has_id: bool = False
    pending: bool = False
    canonical_text: str = ""
    full_row: bool = False


def read(request: Request, model: type[models.Model], now: datetime) -> Incoming:
    """Validate a request and build its row.

    Raises InvalidRequest, InvalidPolicy, InvalidRetryPolicy or UnknownJobType, each with the field and how to fix it;
    nothing has been written then.
    """
    return Reader(model).build(snapshot(request), now)


def snapshot(request: Request) -> Request:
    """Copy and check the members that the caller could change before the request is read, and return the request.

    Raises what `read` raises, about these members only.
    """
    request.args = arguments(request.args)
    request.meta = json_object(request.meta, "meta")
    request.tags = tag_list(request.tags)
    if request.schema != "":
        request.schema = short_string(request.schema, "schema", _LONGEST_SCHEMA)
    request.extra = plain(dict(request.extra), "extra") if request.extra else {}
    if isinstance(request.unique, Mapping):
        request.unique = UniquePolicy.parse(request.unique)
    if isinstance(request.retry, Mapping):
        request.retry = RetryPolicy.parse(request.retry)
    return request


class Reader:
    """Reads requests for a model, under the settings of this moment: do not keep it for long."""

    def __init__(self, model: type[models.Model]) -> None:
        self._model = model
        self._shapes = _shapes_of(model)
        self._largest_args = settings.max_args_bytes
        self._largest_meta = settings.max_meta_bytes

    def build(self, request: Request, now: datetime) -> Incoming:
        """Do the rest of `read`, with a request that `snapshot` has returned."""
        shape = self._shape(request)
        key = None if request.key is None else JobKey(request.key, request.key_mode, request.key_scope)
        scheduled_at = _due(request, shape.policy, now)
        job = shape.new_job()
        job.args = args = sized(request.args, "args", self._largest_args)
        job.meta = meta = sized(request.meta, "meta", self._largest_meta)
        job.tags = sized(request.tags, "tags", self._largest_meta, "META")
        job.extra = sized(request.extra, "extra", self._largest_meta, "META")
        job.schema = request.schema
        job.expires_at = aware_moment(request.expires_at, "expires_at")
        if request.id is not None:
            job.id = uuid(request.id)
        policy = shape.policy
        pending = _pending(request.pending, scheduled_at)
        incoming = Incoming(job, shape, policy, key, scheduled_at, scheduled_at or now, request.id is not None, pending)
        incoming.full_row = request.full_row and policy is not None and policy.on_conflict is OnConflict.IGNORE
        if key is not None:
            incoming.canonical_text = key.canonical_text(job.type)
            job.key = key.text
        elif policy is not None:
            incoming.canonical_text = canonical_text(
                policy, type=job.type, queue=job.queue, args=args, meta=meta, at=incoming.at
            )
        if incoming.canonical_text:
            job.fingerprint = fingerprint(incoming.canonical_text)
        set_times(incoming, now)
        return incoming

    def _shape(self, request: Request) -> Shape:
        try:
            # With the types, because True equals 1 but is no priority.
            values = request.priority, request.timeout, request.lease
            shape_key = (
                (request.type, request.queue, request.unique, request.retry, request.elsewhere),
                (request.key is None, request.key_mode, request.key_scope),
                (values, *map(type, values)),
            )
            shape = self._shapes.get(shape_key)
        except TypeError:  # what is not hashable is invalid: Shape says so
            return Shape(request, self._model)
        if shape is None or shape.definition is not registry.find(request.type):
            if len(self._shapes) >= MOST_SHAPES:
                self._shapes.clear()
            shape = self._shapes[shape_key] = Shape(request, self._model)
        return shape


MOST_SHAPES = 1_000
_shapes: dict[type[models.Model], tuple[Any, dict[Any, Shape]]] = {}


def _shapes_of(model: type[models.Model]) -> dict[Any, Shape]:
    """Return the shapes of this process that were computed under the current settings."""
    given = settings.given
    seen, shapes = _shapes.get(model, (None, None))
    if shapes is None or seen != given:
        shapes = {}
        _shapes[model] = deepcopy(given), shapes
    return shapes


class Shape:
    """What requests of the same type, queue and options have in common, computed once per process.

    ``met_duplicate`` tells whether the last enqueue met a duplicate.
    """

    def __init__(self, request: Request, model: type[models.Model]) -> None:
        self.met_duplicate = False
        type_ = job_type(request.type)
        self.definition = definition = registry.get(type_) if settings.require_handler else registry.find(type_)
        if definition is None and not request.elsewhere and type_ not in _warned_of:
            _warn_of(type_)
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


def _warn_of(type: str) -> None:
    """Warn once in this process that a type has no handler here; of at most 1,000 types, as callers may invent them."""
    if len(_warned_of) < _MOST_WARNED_OF:
        _warned_of.add(type)
        close = nearest(type, registry)
        meant = f" Did you mean {close!r}?" if close else ""
        logger.warning("Job type %r has no handler here: its jobs wait for a worker that has one.%s", type, meant)


def set_times(incoming: Incoming, now: datetime, *, inherited_schedule: datetime | None = None) -> None:
    """Set state and times of a job created ``now``: pending if requested, scheduled if due later, else available."""
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
        # Whatever its policy counts, a job guards its fingerprint until it has finished, so that the constraint also
        # works between different policies. The query decides what counts; a guard that does not count is released.
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
    for name, default in (("key_mode", KeyMode.REPLACE), ("key_scope", KeyScope.TYPE)):
        if (given := getattr(request, name)) != default:
            raise InvalidRequest.at(name, "has no effect without a key", value=given, mend="Give the job a key.")


def _pending(value: Any, scheduled_at: datetime | None) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest.at("pending", "must be true or false", value=value)
    if value and scheduled_at is not None:
        mend = "Leave one of them out: a pending job waits until somebody activates it."
        raise InvalidRequest.at("pending", "cannot be combined with scheduled_at", mend=mend)
    return value


def _due(request: Request, policy: UniquePolicy | None, now: datetime) -> datetime | None:
    """Return when the job is due, by ``delay`` or ``scheduled_at``, else by its policy's delay; None for at once."""
    if request.delay is not None:
        if request.scheduled_at is not None:
            raise InvalidRequest.at(
                "delay", "cannot be combined with scheduled_at", value=request.delay, mend="Leave one of them out."
            )
        return moment_after(now, read_delay(request.delay, "delay"), "delay")
    if request.scheduled_at is None and policy is not None and policy.wait is not None and not request.pending:
        return moment_after(now, policy.wait, "unique.delay")
    return aware_moment(request.scheduled_at, "scheduled_at")
