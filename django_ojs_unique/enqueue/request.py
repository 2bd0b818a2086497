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
from ..db.fields import SharedJSON, new_id, unsaved
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
from .results import Unbuilt
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

ARGUMENTS: Final = frozenset(Request.__slots__) - INTERNAL
"""The arguments of `JobQuerySet.enqueue`."""


@dataclass(slots=True)
class Incoming(Unbuilt):
    """A valid request: the values of its job, and the policy or the key that decides about it, or neither.

    ``values`` are the fields of the job by name; a missing one has its default. ``at`` is a time in the fixed window
    that counts; ``has_id`` tells whether the caller chose the job's id.
    """

    values: dict[str, Any]
    shape: Shape
    key: JobKey | None
    scheduled_at: datetime | None
    at: datetime
    has_id: bool = False
    pending: bool = False
    canonical_text: str = ""
    full_row: bool = False
    _job: JobRow | None = None
    _stored_on: str | None = None

    @property
    def policy(self) -> UniquePolicy | None:
        """The policy that decides, or None."""
        return self.shape.policy

    @property
    def job(self) -> JobRow:
        """The job as an unsaved row, built when it is first asked for; then its attributes are the ``values``."""
        if self._job is None:
            self._job = job = self.shape.row(self.values)
            self.values = job.__dict__
            if self._stored_on is not None:
                self.is_stored_on(self._stored_on)
        return self._job

    def is_stored_on(self, using: str) -> None:
        """Note that the job is stored on a database."""
        self._stored_on = using
        if self._job is not None:
            self._job._state.adding, self._job._state.db = False, using


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
        self._shapes, self._largest_args, self._largest_meta = _shapes_of(model)

    def build(self, request: Request, now: datetime) -> Incoming:
        """Do the rest of `read`, with a request that `snapshot` has returned."""
        shape = self._shape(request)
        policy = shape.policy
        key = None if request.key is None else JobKey(request.key, request.key_mode, request.key_scope)
        scheduled_at = _due(request, policy, now)
        pending = _pending(request.pending, scheduled_at)
        values = {
            **shape.values,
            "id": new_id() if request.id is None else uuid(request.id),
            "args": sized(request.args, "args", self._largest_args),
            "meta": sized(request.meta, "meta", self._largest_meta),
        }
        if request.tags:
            values["tags"] = sized(request.tags, "tags", self._largest_meta, "META")
        if request.extra:
            values["extra"] = sized(request.extra, "extra", self._largest_meta, "META")
        if request.schema:
            values["schema"] = request.schema
        if request.expires_at is not None:
            values["expires_at"] = aware_moment(request.expires_at, "expires_at")
        incoming = Incoming(values, shape, key, scheduled_at, scheduled_at or now, request.id is not None, pending)
        if key is not None:
            incoming.canonical_text = key.canonical_text(values["type"])
            values["key"] = key.text
        elif policy is not None:
            incoming.full_row = request.full_row and policy.on_conflict is OnConflict.IGNORE
            incoming.canonical_text = canonical_text(
                policy,
                type=values["type"],
                queue=values["queue"],
                args=values["args"],
                meta=values["meta"],
                at=incoming.at,
            )
        if incoming.canonical_text:
            values["fingerprint"] = fingerprint(incoming.canonical_text)
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
_shapes: dict[type[models.Model], tuple[Any, tuple[dict[Any, Shape], int, int]]] = {}


def _shapes_of(model: type[models.Model]) -> tuple[dict[Any, Shape], int, int]:
    """Return what this process has computed under the current settings: shapes, and the largest args and meta."""
    given = settings.given
    seen, computed = _shapes.get(model, (None, None))
    if computed is None or seen != given:
        computed = {}, settings.max_args_bytes, settings.max_meta_bytes
        _shapes[model] = deepcopy(given), computed
    return computed


def forget_shapes() -> None:
    """Forget what this process has computed, and whether the last enqueues met duplicates."""
    _shapes.clear()


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
        self._retry = None if retry is None else retry_policy
        self.values: dict[str, Any] = {
            "type": type_,
            "queue": queue,
            "priority": priority_number(priority),
            "max_attempts": retry_policy.max_attempts,
            "retry": None if retry is None else SharedJSON(retry_policy.to_dict()),
            "timeout_ms": None if timeout is None else milliseconds(timeout, "timeout"),
            "visibility_timeout_ms": None if lease is None else milliseconds(lease, "lease"),
            "unique": None if self.policy is None else SharedJSON(self.policy.to_dict()),
        }
        self.guarded_states: frozenset[Any] = frozenset()
        if request.key is not None:
            self.guarded_states = HOLDING
        elif self.policy is not None:
            # Whatever its policy counts, a job guards its fingerprint until it has finished, so that the constraint
            # also works between different policies. The query decides what counts; a guard that does not is released.
            self.guarded_states = INCOMPLETE.union(self.policy.states)
        self.has_window = (
            self.policy is not None
            and not TERMINAL.isdisjoint(self.policy.states)
            and self.policy.window != Window.RETENTION
        )

    def row(self, values: Mapping[str, Any]) -> Any:
        """Return an unsaved row with the values, and with objects of its own for all that can be changed."""
        own: dict[str, Any] = {"tags": [], "extra": {}, "errors": [], **values}
        own["unique"] = None if self.policy is None else self.policy.to_dict()
        own["retry"] = None if self._retry is None else self._retry.to_dict()
        return unsaved(self._model, **own)


def _warn_of(type: str) -> None:
    """Warn once in this process that a type has no handler here; of at most 1,000 types, as callers may invent them."""
    if len(_warned_of) < _MOST_WARNED_OF:
        _warned_of.add(type)
        close = nearest(type, registry)
        meant = f" Did you mean {close!r}?" if close else ""
        logger.warning("Job type %r has no handler here: its jobs wait for a worker that has one.%s", type, meant)


def set_times(incoming: Incoming, now: datetime, *, inherited_schedule: datetime | None = None) -> None:
    """Set state and times of a job created ``now``: pending if requested, scheduled if due later, else available."""
    scheduled_at = None if incoming.pending else inherited_schedule or incoming.scheduled_at
    waits = scheduled_at is not None and scheduled_at > now
    values, shape = incoming.values, incoming.shape
    values["scheduled_at"] = scheduled_at
    values["state"] = JobState.PENDING if incoming.pending else JobState.SCHEDULED if waits else JobState.AVAILABLE
    values["created_at"] = now
    values["enqueued_at"] = None if waits or incoming.pending else now
    values["run_at"] = scheduled_at if waits else None
    values["guarded_states"] = shape.guarded_states
    if shape.has_window:
        assert shape.policy is not None
        values["window_ends_at"] = shape.policy.kept_until(now, incoming.at) or FOREVER


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
