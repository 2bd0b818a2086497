"""From the caller's request to the values of a job: every check that needs no database."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from django.db import models

from ..db.fields import new_id
from ..exceptions import InvalidPolicy, InvalidRequest, Message
from ..handlers.registry import misfit
from ..ojs.blocking import LIMITED
from ..ojs.limits import fair_partition_of, stored_limits
from ..ojs.states import JobState
from ..ojs.values import moment_after
from ..options import DECLARED, DELAY, FLAG, ID, MOMENT, OPTIONS, TEXTS
from ..unique.fingerprint import CONTEXT, canonical_text, fingerprint
from ..unique.keys import JobKey
from ..unique.policy import OnConflict, UniquePolicy
from ..unique.row import JobRow
from .request import Request, own_members
from .resolved_options import ResolvedOptions, options_cache
from .results import LazyJob
from .values import sized

FOREVER: Final = datetime(9999, 1, 1, tzinfo=UTC)
"""The end of a window without a period: a date that each database can store in each time zone."""
_AS_GIVEN = [(name, OPTIONS[name].column) for name in ("tags", "extra", *TEXTS) if name not in DECLARED]
MOST_BYTES = 12
"""At most so many bytes of args become one character of the canonical text, because NFC composes characters."""


@dataclass(slots=True)
class NewJob(LazyJob):
    """A valid request: the values of its job, and the policy or the key that decides about it, or neither.

    ``values`` are the fields of the job by name; a missing one has its default. ``at`` is a time in the fixed window
    that counts; ``has_id`` tells whether the caller chose the job's id. ``replaceable``: the only jobs that it may
    replace, if that is not any job; a duplicate outside them refuses it. ``judged_at``: as in the `Request`.
    """

    values: dict[str, Any] = field(repr=False)
    options: ResolvedOptions
    key: JobKey | None
    scheduled_at: datetime | None
    at: datetime
    has_id: bool = False
    pending: bool = False
    canonical_text: str = field(default="", repr=False)
    full_row: bool = False
    replaceable: models.QuerySet[Any] | None = None
    judged_at: datetime | None = None
    _job: JobRow | None = None
    _stored_on: str | None = None

    @property
    def policy(self) -> UniquePolicy | None:
        """The policy that decides, or None."""
        return self.options.policy

    @property
    def strategy(self) -> str | None:
        """The mode of its key, or the strategy of its policy."""
        if self.key is not None:
            return self.key.mode
        return None if self.policy is None else self.policy.on_conflict

    @property
    def job(self) -> JobRow:
        """The job as an unsaved row, built when it is first asked for; then its attributes are the ``values``."""
        if self._job is None:
            self._job = job = self.options.row(self.values)
            self.values = job.__dict__
            if self._stored_on is not None:
                self.mark_stored(self._stored_on)
        return self._job

    @property
    def is_stored(self) -> bool:
        """Whether the job is stored."""
        return self._stored_on is not None

    def mark_stored(self, using: str) -> None:
        """Note that a database has the job now."""
        self._stored_on = using
        if self._job is not None:
            self._job._state.adding, self._job._state.db = False, using


def read(request: Request, model: type[models.Model], now: datetime) -> NewJob:
    """Validate a request and compute the values of its job.

    Raises InvalidRequest, InvalidPolicy, InvalidRetryPolicy or UnknownJobType, each with the field and how to fix it;
    nothing has been written then.
    """
    return Reader(model).build(own_members(request), now)


class Reader:
    """Reads requests for a model, under the settings of this moment: do not keep it for long."""

    def __init__(self, model: type[models.Model]) -> None:
        self._cache = options_cache(model)

    def options_of(self, request: Request) -> ResolvedOptions:
        """Return the resolved options of a request; warn once of a type without handler. Raises what `read` raises."""
        return self._cache.of(request)

    def build(self, request: Request, now: datetime) -> NewJob:
        """Do the rest of `read`, with a request that `own_members` has returned."""
        options = self.options_of(request)
        policy = options.policy
        key = None if request.key is None else JobKey(request.key, request.key_mode, request.key_scope)
        judged_at = request.judged_at or now
        scheduled_at = _due(request, policy, judged_at)
        pending = _pending(request.pending, scheduled_at)
        meta = {**request.meta, CONTEXT: request.context} if request.context else request.meta
        values = {
            **options.values,
            "id": new_id() if request.id is None else ID.read(request.id, "id"),
            "args": request.args,
            "meta": sized(meta, "meta", self._cache.largest_meta),
        }
        if options.limits or options.fair_by is not None:
            _set_block(values, options)
        if request.workflow_id is not None:
            values["workflow_id"], values["awaited"], values["workflow_only"] = request.workflow_id, True, True
        for name, column in _AS_GIVEN:
            if given := getattr(request, name):
                is_text = isinstance(given, str)
                values[column] = given if is_text else sized(given, name, self._cache.largest_meta, "META")
        if request.expires_in is not None:
            values["expires_at"] = moment_after(now, DELAY.read(request.expires_in, "expires_at"), "expires_at")
        elif request.expires_at is not None:
            values["expires_at"] = MOMENT.read(request.expires_at, "expires_at")
        new_job = NewJob(values, options, key, scheduled_at, scheduled_at or judged_at, request.id is not None, pending)
        new_job.judged_at = request.judged_at
        if key is not None:
            new_job.canonical_text = key.canonical_text(values["type"], values["meta"])
            values["key"] = key.text
        elif policy is not None:
            new_job.full_row = request.full_row and policy.on_conflict is OnConflict.IGNORE
            try:
                new_job.canonical_text = canonical_text(
                    policy,
                    type=values["type"],
                    queue=values["queue"],
                    args=values["args"],
                    meta=values["meta"],
                    at=new_job.at,
                )
            except InvalidPolicy:
                _blame_the_args(options, request)
                raise
        if new_job.canonical_text:
            values["fingerprint"] = fingerprint(new_job.canonical_text)
        if not _bounds_args(new_job) or MOST_BYTES * len(new_job.canonical_text) > self._cache.largest_args:
            sized(request.args, "args", self._cache.largest_args)
        set_times(new_job, now)
        return new_job


def _set_block(values: dict[str, Any], options: ResolvedOptions) -> None:
    """Set what blocks the job until a claim has looked at it: its limits, or its partition in a fair queue."""
    whole = {name: values[name] for name in ("type", "queue", "args", "meta")}
    if options.limits:
        values["limits"] = stored_limits(options.limits, **whole)
        values["blocked_by"] = LIMITED
    if options.fair_by is not None:
        values["fair_partition"] = values["blocked_by"] = fair_partition_of(options.fair_by, **whole)


def _bounds_args(new_job: NewJob) -> bool:
    """Whether the canonical text has all of ``args``: if it is short, their JSON is short and need not be made."""
    policy = new_job.policy
    return policy is not None and "args" in policy.keys and policy.args_keys is None


def set_times(new_job: NewJob, now: datetime, *, inherited_schedule: datetime | None = None) -> None:
    """Set state and times of a job enqueued ``now``: pending if requested, scheduled if due later, else available."""
    scheduled_at = None if new_job.pending else inherited_schedule or new_job.scheduled_at
    waits = scheduled_at is not None and scheduled_at > now
    values, options = new_job.values, new_job.options
    values["scheduled_at"] = scheduled_at
    values["state"] = JobState.PENDING if new_job.pending else JobState.SCHEDULED if waits else JobState.AVAILABLE
    values["created_at"] = created_at = new_job.judged_at or now
    values["enqueued_at"] = None if waits or new_job.pending else scheduled_at or now
    values["run_at"] = scheduled_at if waits else None
    values["unique_states"] = options.unique_states
    if options.has_window:
        assert options.policy is not None
        values["window_ends_at"] = options.policy.kept_until(created_at, new_job.at) or FOREVER


def _blame_the_args(options: ResolvedOptions, request: Request) -> None:
    """Raise InvalidRequest if the handler does not take the args: then the policy misses what they misspell."""
    if options.definition is not None and (problem := misfit(options.definition, request.args)):
        raise InvalidRequest(Message.joined("", [problem, "."]), details={"field": "args"}) from None


def _pending(value: Any, scheduled_at: datetime | None) -> bool:
    if FLAG.read(value, "pending") and scheduled_at is not None:
        hint = "Leave one of them out: a pending job waits until somebody activates it."
        raise InvalidRequest.at("pending", "cannot be combined with scheduled_at", hint=hint)
    return bool(value)


def _due(request: Request, policy: UniquePolicy | None, now: datetime) -> datetime | None:
    """Return when the job is due, by ``delay`` or ``scheduled_at``, else by its policy's delay; None for at once."""
    if request.delay is not None:
        if request.scheduled_at is not None:
            raise InvalidRequest.at(
                "delay", "cannot be combined with scheduled_at", value=request.delay, hint="Leave one of them out."
            )
        return moment_after(now, DELAY.read(request.delay, "delay"), "delay")
    if request.scheduled_at is None and policy is not None and policy.wait is not None and not request.pending:
        return moment_after(now, policy.wait, "unique.delay")
    return MOMENT.read(request.scheduled_at, "scheduled_at")  # type: ignore[no-any-return]
