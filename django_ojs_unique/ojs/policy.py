"""`UniquePolicy`: when two jobs are the same, and what to do then (OJS unique jobs, "UniquePolicy Structure")."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar

from ..exceptions import InvalidPolicy, did_you_mean, shorten
from .canonical import to_nfc
from .durations import Duration, earliest_start, end_of, format_duration, parse_duration
from .states import INCOMPLETE, JobState

DIMENSIONS = ("type", "queue", "args", "meta")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Window(StrEnum):
    """From when a period is counted, and how long a finished job counts. OJS knows the first only."""

    ROLLING = "rolling"
    """From the stored job's ``created_at``; without a period a finished job whose state is listed counts for ever."""
    FIXED = "fixed"
    """From the last multiple of the period since 1970-01-01 UTC; the window takes part in the fingerprint (River)."""
    RETENTION = "retention"
    """No period: a finished job whose state is listed counts until it is pruned (River)."""


class OnRetry(StrEnum):
    """What a job does whose retry is due while another one counts as its duplicate. OJS knows the first only."""

    RUN = "run"
    DISCARD = "discard"


class OnConflict(StrEnum):
    """What an enqueue does when it meets a duplicate (OJS unique jobs, "Conflict Resolution Strategies")."""

    REJECT = "reject"
    REPLACE = "replace"
    REPLACE_EXCEPT_SCHEDULE = "replace_except_schedule"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class UniquePolicy:
    """When an incoming job duplicates a stored one, and what happens then.

    ``keys``: dimensions of the fingerprint, of ``type`` (always included), ``queue``, ``args``, ``meta``.
    ``args_keys``: which members of args take part; None means all of args.
    ``meta_keys``: which members of meta take part; required when ``meta`` is in ``keys``.
    ``period``: an ISO 8601 duration or a timedelta, counted from the stored job's ``created_at``; None has no limit.
    ``states``: a stored job counts only while it is in one of these.
    ``on_conflict``: ``reject``, ``replace``, ``replace_except_schedule`` or ``ignore``.

    A name in ``args_keys`` or ``meta_keys`` that starts with ``/`` may be a JSON Pointer (RFC 6901), as in
    ``/customer/id``. Beyond the specification, and absent from `to_dict` unless chosen:
    ``window``: ``rolling`` (the specification's period), ``fixed`` or ``retention``; see `Window`.
    ``on_retry``: ``run``, or ``discard`` a job whose retry is due while another one counts as its duplicate (River).

    Raises InvalidPolicy, which names the field and the mend. The order of names does not matter, nor to equality.
    """

    keys: Collection[str] = ("type",)
    args_keys: Collection[str] | None = None
    meta_keys: Collection[str] | None = None
    period: str | timedelta | None = None
    states: Collection[JobState | str] = tuple(INCOMPLETE)
    on_conflict: OnConflict | str = OnConflict.REJECT
    window: Window | str = Window.ROLLING
    on_retry: OnRetry | str = OnRetry.RUN
    duration: Duration | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        keys = _names(self.keys, "keys", DIMENSIONS)
        args_keys = _member_names(self.args_keys, "args_keys")
        meta_keys = _member_names(self.meta_keys, "meta_keys")
        states = _names(self.states, "states", tuple(JobState))
        period, duration = _period(self.period)
        self._set("keys", tuple(name for name in DIMENSIONS if name == "type" or name in keys))
        self._set("args_keys", args_keys or (None if "args" not in keys else args_keys))
        self._set("meta_keys", meta_keys or (None if "meta" not in keys else meta_keys))
        self._set("period", period)
        self._set("duration", duration)
        self._set("states", tuple(state for state in JobState if state in states))
        self._set("on_conflict", _choice(self.on_conflict, "on_conflict", OnConflict, "strategy"))
        self._set("window", _choice(self.window, "window", Window, "kind of window"))
        self._set("on_retry", _choice(self.on_retry, "on_retry", OnRetry, "choice"))
        self._refuse_a_window_without_edges()
        self._refuse_what_would_widen_the_key()

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _refuse_what_would_widen_the_key(self) -> None:
        if not self.states:
            raise _invalid(
                "states", "is empty, so nothing would ever be a duplicate", mend="Leave it out, or name one."
            )
        if "meta" in self.keys and not self.meta_keys:
            raise _invalid(
                "meta_keys", "must name at least one key when 'meta' is in keys", mend="Name the keys that count."
            )
        if "meta" not in self.keys and self.meta_keys:
            raise _invalid(
                "meta_keys",
                "has no effect while 'meta' is not in keys",
                value=list(self.meta_keys),
                mend="Add 'meta' to keys.",
            )
        if "args" not in self.keys and self.args_keys:
            raise _invalid(
                "args_keys",
                "has no effect while 'args' is not in keys",
                value=list(self.args_keys),
                mend="Add 'args' to keys.",
            )
        if "args" in self.keys and self.args_keys == ():
            raise _invalid(
                "args_keys",
                "is empty, so args would not count although 'args' is in keys",
                mend="Leave it out for all of args, or drop 'args' from keys.",
            )

    def _refuse_a_window_without_edges(self) -> None:
        if self.window is Window.FIXED and not isinstance(self.duration, timedelta):
            raise _invalid(
                "period",
                "must be a length without years and months when the window is fixed",
                value=self.period,
                mend="Write for example 'PT15M' or 'P1D'.",
            )
        if self.window is Window.RETENTION and self.duration is not None:
            raise _invalid(
                "period",
                "has no meaning when the window is the retention",
                value=self.period,
                mend="Leave out the period or the window.",
            )

    @classmethod
    def parse(cls, value: Any) -> UniquePolicy:
        """Read a policy from a JSON object, refusing unknown members; a UniquePolicy is returned as it is."""
        if isinstance(value, UniquePolicy):
            return value
        if not isinstance(value, Mapping):
            mend = "Call it, as in presets.river(by_args=True)." if callable(value) else "Write {'keys': ['type']}."
            raise InvalidPolicy.at("unique", "must be an object or a UniquePolicy", value=value, mend=mend)
        for name in value:
            if name not in _MEMBERS:
                raise _invalid(str(name), "is not a member of a unique policy", mend=did_you_mean(name, _MEMBERS))
        return cls(**value)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object; `parse` reads it back to an equal policy."""
        beyond = {
            name: str(value)
            for name, value in (("window", self.window), ("on_retry", self.on_retry))
            if value not in (Window.ROLLING, OnRetry.RUN)
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
    def replaces(self) -> bool:
        """Whether a duplicate gives way to the new job."""
        return self.on_conflict in (OnConflict.REPLACE, OnConflict.REPLACE_EXCEPT_SCHEDULE)

    def window_of(self, at: datetime) -> str:
        """Name the fixed window that holds a moment, as an ISO 8601 interval."""
        start = self._edge_before(at).isoformat().replace("+00:00", "Z")
        return f"{start}/{format_duration(self._length)}"

    def window_end(self, created_at: datetime) -> datetime | None:
        """Return the first moment at which a job created then no longer counts, or None for no limit."""
        if self.duration is None or self.window is Window.FIXED:
            return None
        return end_of(created_at, self.duration)

    def window_start(self, now: datetime) -> datetime | None:
        """Return a bound for queries: a job created at or before it cannot count any more; None for no limit."""
        if self.duration is None or self.window is Window.FIXED:
            return None
        return earliest_start(now, self.duration)

    def kept_until(self, created_at: datetime, at: datetime) -> datetime | None:
        """Return until when a finished job can count, so that it must be kept; None for no limit.

        ``at`` is the moment whose fixed window counts. A window that leaves the calendar has no end.
        """
        if self.window is not Window.FIXED:
            return self.window_end(created_at)
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
        except OverflowError:  # the window of the year 1
            return datetime.min.replace(tzinfo=UTC)

    def is_duplicate(self, state: str, created_at: datetime, now: datetime) -> bool:
        """Tell whether a stored job of the same fingerprint counts now (OJS unique jobs, "TTL / Period Semantics")."""
        if state not in self.states:
            return False
        end = self.window_end(created_at)
        return end is None or now < end


_MEMBERS = tuple(f.name for f in fields(UniquePolicy) if f.init)


def _invalid(name: str, problem: str, **kwargs: Any) -> InvalidPolicy:
    return InvalidPolicy.at(f"unique.{name}", problem, **kwargs)


def _strings(value: Any, name: str) -> list[str]:
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise _invalid(
            name,
            "must be a list of strings",
            value=value,
            mend=f"Write [{shorten(value)}]." if isinstance(value, str) else "",
        )
    names: list[str] = []
    for index, item in enumerate(value):
        if not isinstance(item, str):
            raise _invalid(f"{name}[{index}]", "must be a string", value=item)
        if item in names:
            raise _invalid(name, "names the same thing twice", value=item, mend="Name it once.")
        names.append(item)
    return names


def _names(value: Any, name: str, known: Iterable[str]) -> list[str]:
    valid = tuple(known)
    names = _strings(value, name)
    for index, item in enumerate(names):
        if item not in valid:
            raise _invalid(f"{name}[{index}]", "is not a known name", value=item, mend=did_you_mean(item, valid))
    return names


def _member_names(value: Any, name: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    return tuple(sorted(_strings([to_nfc(item) for item in _strings(value, name)], name)))


def _period(value: Any) -> tuple[str | None, Duration | None]:
    if value is None:
        return None, None
    mend = "Write an ISO 8601 duration such as 'PT1H', 'P7D' or 'P1M'."
    try:
        if isinstance(value, timedelta):
            value = format_duration(value)
        if isinstance(value, str):
            return str.__str__(value), parse_duration(value)
    except ValueError as error:
        raise _invalid("period", str(error), value=value, mend=mend) from None
    raise _invalid("period", "must be a string or a timedelta", value=value, mend=mend)


E = TypeVar("E", bound=StrEnum)


def _choice(value: Any, name: str, choices: type[E], what: str) -> E:
    if not isinstance(value, str):
        raise _invalid(name, "must be a string", value=value)
    try:
        return choices(value)
    except ValueError:
        mend = did_you_mean(value, choices)
        raise _invalid(name, f"is not a known {what}", value=value, mend=mend) from None
