"""`UniquePolicy`: when two jobs are the same, and what to do then (OJS unique jobs, "UniquePolicy Structure")."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from ..exceptions import InvalidPolicy, Message, did_you_mean
from ..ojs.durations import Duration, earliest_start, end_of, format_duration
from ..ojs.states import INCOMPLETE, TERMINAL, JobState
from ..ojs.suggesting import Suggesting
from .members import choice, invalid, known_names, member_names, positive_delay, read_period

DIMENSIONS = ("type", "queue", "args", "meta")
_TYPE_ALONE = (*DIMENSIONS[:1],)
"""The keys of a policy that says none: this object, which equal keys of a caller are not."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Window(StrEnum):
    """From when a period is counted, and how long a finished job counts. OJS defines only the first."""

    ROLLING = "rolling"
    """From the stored job's ``created_at``; without a period a finished job whose state is listed counts for ever."""
    FIXED = "fixed"
    """From the last multiple of the period since 1970-01-01 UTC; the window is part of the fingerprint (River)."""
    DUE = "due"
    """From the stored job's ``scheduled_at``, if it has one, else as rolling; for unfinished jobs only (Sidekiq)."""
    RETENTION = "retention"
    """No period: a finished job whose state is listed counts until it is pruned (River)."""


class OnRetry(StrEnum):
    """What happens to a job whose retry is due while another counts as its duplicate. OJS defines only the first."""

    RUN = "run"
    DISCARD = "discard"


class OnConflict(StrEnum):
    """What an enqueue does when it meets a duplicate (OJS unique jobs, "Conflict Resolution Strategies").

    OJS does not define the last one.
    """

    REJECT = "reject"
    REPLACE = "replace"
    REPLACE_EXCEPT_SCHEDULE = "replace_except_schedule"
    IGNORE = "ignore"
    REPLACE_IN_PLACE = "replace_in_place"
    """``replace_except_schedule``, but the new job also takes the place in line of a duplicate that is due."""


@dataclass(frozen=True, slots=True)
class UniquePolicy(Suggesting):
    """When an incoming job duplicates a stored one, and what happens then.

    ``keys``: the dimensions of the fingerprint: ``type`` (always included), ``queue``, ``args``, ``meta``.
    ``args_keys``: which members of args count; None means all of args.
    ``meta_keys``: which members of meta count; required when ``meta`` is in ``keys``.
    ``period``: an ISO 8601 duration or a timedelta, counted from the stored job's ``created_at``; None means no limit.
    ``states``: a stored job counts only while it is in one of these.
    ``on_conflict``: ``reject``, ``replace``, ``replace_except_schedule``, ``ignore`` or ``replace_in_place``.

    A name in ``args_keys`` or ``meta_keys`` that starts with ``/`` may be a JSON Pointer (RFC 6901), as in
    ``/customer/id``. That, ``replace_in_place`` and the following are not in the specification; `to_dict` leaves out
    the defaults:
    ``window``: ``rolling`` (the specification's period), ``fixed``, ``due`` or ``retention``; see `Window`.
    ``on_retry``: ``run``, or ``discard`` a job whose retry is due while another one counts as its duplicate (River).
    ``delay``: how long after the enqueue the job runs, unless the enqueue gives its own ``delay`` or ``scheduled_at``;
    an ISO 8601 duration, a timedelta, or seconds.

    Raises InvalidPolicy, which names the field and says how to fix it. The order of names has no effect, also on
    equality.
    """

    keys: Collection[str] = _TYPE_ALONE
    args_keys: Collection[str] | None = None
    meta_keys: Collection[str] | None = None
    period: str | timedelta | None = None
    states: Collection[JobState | str] = tuple(INCOMPLETE)
    on_conflict: OnConflict | str = OnConflict.REJECT
    window: Window | str = Window.ROLLING
    on_retry: OnRetry | str = OnRetry.RUN
    delay: str | timedelta | float | None = None
    duration: Duration | None = field(init=False, repr=False, compare=False, default=None)
    wait: Duration | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        keys = known_names(self.keys, "keys", DIMENSIONS)
        args_keys = member_names(self.args_keys, "args_keys")
        meta_keys = member_names(self.meta_keys, "meta_keys")
        states = known_names(self.states, "states", tuple(JobState))
        period, duration = read_period(self.period)
        if self.keys is not _TYPE_ALONE:
            self._set("keys", tuple(name for name in DIMENSIONS if name == "type" or name in keys))
        self._set("args_keys", args_keys or (None if "args" not in keys else args_keys))
        self._set("meta_keys", meta_keys or (None if "meta" not in keys else meta_keys))
        self._set("period", period)
        self._set("duration", duration)
        if self.delay is not None:
            delay, wait = positive_delay(self.delay, "unique.delay")
            self._set("delay", delay)
            self._set("wait", wait)
        self._set("states", tuple(state for state in JobState if state in states))
        self._set(
            "on_conflict", choice(self.on_conflict, "on_conflict", OnConflict, Message("is not a known strategy"))
        )
        self._set("window", choice(self.window, "window", Window, Message("is not a known kind of window")))
        self._set("on_retry", choice(self.on_retry, "on_retry", OnRetry, Message("is not a known choice")))
        self._refuse_a_window_without_edges()
        self._refuse_what_would_widen_the_key()

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _refuse_what_would_widen_the_key(self) -> None:
        if not self.states:
            raise invalid("states", "is empty, so nothing would ever be a duplicate", hint="Leave it out, or name one.")
        if "meta" in self.keys and not self.meta_keys:
            raise invalid(
                "meta_keys", "must name at least one key when 'meta' is in keys", hint="Name the keys that count."
            )
        if "meta" not in self.keys and self.meta_keys:
            raise invalid(
                "meta_keys",
                "has no effect while 'meta' is not in keys",
                value=list(self.meta_keys),
                hint="Add 'meta' to keys.",
            )
        if "args" not in self.keys and self.args_keys:
            raise invalid(
                "args_keys",
                "has no effect while 'args' is not in keys",
                value=list(self.args_keys),
                hint="Add 'args' to keys.",
            )
        if "args" in self.keys and self.args_keys == ():
            raise invalid(
                "args_keys",
                "is empty, so args would not count although 'args' is in keys",
                hint="Leave it out for all of args, or drop 'args' from keys.",
            )

    def _refuse_a_window_without_edges(self) -> None:
        if self.window is Window.FIXED and not isinstance(self.duration, timedelta):
            raise invalid(
                "period",
                "must be a length without years and months when the window is fixed",
                value=self.period,
                hint="Write for example 'PT15M' or 'P1D'.",
            )
        if self.window is Window.DUE and not INCOMPLETE.issuperset(self.states):
            raise invalid(
                "window",
                "is for unfinished jobs only",
                value=str(self.window),
                hint="Leave the finished states or the window out.",
            )
        if self.window is Window.RETENTION and self.duration is not None:
            raise invalid(
                "period",
                "has no meaning when the window is the retention",
                value=self.period,
                hint="Leave out the period or the window.",
            )

    @classmethod
    def parse(cls, value: Any) -> UniquePolicy:
        """Read a policy from a JSON object and refuse unknown members; return a UniquePolicy unchanged."""
        if isinstance(value, UniquePolicy):
            return value
        if not isinstance(value, Mapping):
            hint = "Call it, as in presets.river(by_args=True)." if callable(value) else "Write {'keys': ['type']}."
            raise InvalidPolicy.at("unique", "must be an object or a UniquePolicy", value=value, hint=hint)
        for name in value:
            if name not in _MEMBERS:
                raise invalid(str(name), "is not a member of a unique policy", hint=did_you_mean(name, _MEMBERS))
        return cls(**value)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object; `parse` reads it back to an equal policy."""
        beyond = {
            name: str(value)
            for name, value in (("window", self.window), ("on_retry", self.on_retry), ("delay", self.delay))
            if value not in (Window.ROLLING, OnRetry.RUN, None)
        }
        return {
            "keys": list(self.keys),
            "args_keys": None if self.args_keys is None else list(self.args_keys),
            "meta_keys": None if self.meta_keys is None else list(self.meta_keys),
            "period": self.period,
            "states": [str(state) for state in self.states],
            "on_conflict": str(self.on_conflict),
            **beyond,
        }

    @property
    def unique_states(self) -> frozenset[JobState]:
        """The states in which a job with this policy holds its unique key.

        Whatever the policy counts, it does so until it has finished, so that the constraint also works between
        different policies. The query decides what counts; a job that does not count releases its unique key.
        """
        return INCOMPLETE.union(map(JobState, self.states))

    @property
    def says_keys(self) -> bool:
        """Whether ``keys`` was given; if not, jobs of a type are duplicates whatever their args are."""
        return self.keys is not _TYPE_ALONE

    def compared(self, equals: Callable[[str, str], str] = lambda dimension, member: "") -> list[str]:
        """Name what duplicates have in common: ``["type", "args.user_id"]``.

        ``equals`` returns what to write after a member of args or meta.
        """
        parts: list[str] = []
        for name in self.keys:
            members = {"args": self.args_keys, "meta": self.meta_keys}.get(name)
            if members is None:
                parts.append(name)
            else:
                parts += [f"{name}{_path_to(member)}{equals(name, member)}" for member in members]
        return parts

    @property
    def replaces(self) -> bool:
        """Whether a new job replaces its duplicates."""
        return self.on_conflict not in (OnConflict.REJECT, OnConflict.IGNORE)

    def window_of(self, at: datetime) -> str:
        """Return the fixed window that contains a time, as an ISO 8601 interval."""
        start = self._edge_before(at).isoformat().replace("+00:00", "Z")
        return f"{start}/{format_duration(self._length)}"

    def begins(self, row: Any) -> datetime:
        """Return from when the period of a stored job is counted."""
        begins: datetime = row.created_at if self.window is not Window.DUE else row.scheduled_at or row.created_at
        return begins

    def window_end(self, begins: datetime) -> datetime | None:
        """Return from when on a job whose period ``begins`` then no longer counts, or None for no limit."""
        if self.duration is None or self.window is Window.FIXED:
            return None
        return end_of(begins, self.duration)

    def window_start(self, now: datetime) -> datetime | None:
        """Return a bound for queries: a job that `begins` at or before it cannot count any more; None for no limit."""
        if self.duration is None or self.window is Window.FIXED:
            return None
        return earliest_start(now, self.duration)

    def kept_until(self, created_at: datetime, at: datetime) -> datetime | None:
        """Return until when a finished job can count and must be kept; None for no limit.

        ``at`` is a time in the fixed window that counts. A window that ends after the last year of `datetime` has no
        limit.
        """
        if self.window is not Window.FIXED:
            return self.window_end(at if self.window is Window.DUE else created_at)
        try:
            return self._edge_before(at) + self._length
        except OverflowError:
            return None

    @property
    def _length(self) -> timedelta:
        assert isinstance(self.duration, timedelta)
        return self.duration

    def _edge_before(self, at: datetime) -> datetime:
        try:
            return at.astimezone(UTC) - (at - _EPOCH) % self._length
        except OverflowError:  # the window begins before the year 1
            return datetime.min.replace(tzinfo=UTC)

    def is_duplicate(self, state: str, begins: datetime, now: datetime) -> bool:
        """Tell whether a stored job of the same fingerprint counts now (OJS unique jobs, "TTL / Period Semantics")."""
        if state not in self.states:
            return False
        end = self.window_end(begins)
        return end is None or now < end


def _path_to(member: str) -> str:
    return member if member.startswith("/") else f".{member}"


def ended_states(policies: Iterable[UniquePolicy]) -> list[JobState]:
    """Return the final states in which one of the policies counts a job."""
    return sorted(TERMINAL.intersection(state for policy in policies for state in policy.states))


_MEMBERS = tuple(f.name for f in fields(UniquePolicy) if f.init)
