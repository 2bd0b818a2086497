"""`Cron`: when a periodic job is due (HTTP binding, section 10).

`cronsim` reads the expression and finds the next time on a clock that never changes; this module adds time zones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from itertools import takewhile
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from ..exceptions import InvalidRequest, Message, did_you_mean
from .canonical import plain
from .durations import parse_duration
from .suggesting import Suggesting


class OverlapPolicy(StrEnum):
    """What a due occurrence does while the previous job of its entry has not finished."""

    SKIP = "skip"
    ALLOW = "allow"
    CANCEL_PREVIOUS = "cancel_previous"
    ENQUEUE = "enqueue"


LONGEST_EXPRESSION = 255
LONGEST_WAIT = timedelta(days=50 * 366)
"""An expression without an occurrence for this long never fires: even a leap day on a given weekday comes sooner."""

_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_ALIASES = {"cancel": OverlapPolicy.CANCEL_PREVIOUS}
_SECOND, _DAY = timedelta(seconds=1), timedelta(days=1)
_GO_UNITS = {"h": timedelta(hours=1), "m": timedelta(minutes=1), "s": _SECOND, "ms": timedelta(milliseconds=1)}
_GO_PART = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)(h|ms|m|s)")
_GO_DURATION = re.compile(rf"(?:{_GO_PART.pattern})+")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ANY_TIME = datetime(2000, 1, 1, tzinfo=UTC)
_HINT = Message("Write five fields, as in '0 9 * * MON-FRI', six with the seconds first, '@daily', or '@every PT5M'.")


@dataclass(frozen=True, slots=True)
class Cron(Suggesting):
    """When a periodic job is due, and with which arguments.

    ``expression``: five cron fields, six with leading seconds, ``@hourly``, ``@daily``, ``@midnight``, ``@weekly``,
    ``@monthly``, ``@yearly``, ``@annually``, or ``@every`` and a length of time, ISO 8601 or as in Go (``1h30m``),
    counted from the epoch.
    ``timezone``: the IANA name of the expression's time zone; None: in ``@job(cron=...)`` the project's, else UTC.
    ``overlap_policy``: skip, allow, cancel_previous or enqueue. ``args``: the arguments of the job.
    ``using``: in ``@job(cron=...)`` the alias of the database where its jobs are enqueued; None: the router's choice.

    When clocks change, a local time that is left out does not occur, and one that comes twice occurs only the first
    time. Only an expression for every hour also occurs in the repeated hour. Raises InvalidRequest, which names the
    field and says how to fix it; also when the expression never fires.
    """

    expression: str
    timezone: str | None = None
    overlap_policy: str = OverlapPolicy.SKIP
    args: Any = field(default_factory=dict)
    using: str | None = None
    _fields: str = field(init=False, repr=False, compare=False, default="")
    _interval: timedelta | None = field(init=False, repr=False, compare=False, default=None)
    _every_hour: bool = field(init=False, repr=False, compare=False, default=False)
    _zone: ZoneInfo = field(init=False, repr=False, compare=False, default=ZoneInfo("UTC"))

    def __post_init__(self) -> None:
        self._set("_zone", _zone(self.timezone))
        self._set("overlap_policy", _overlap_policy(self.overlap_policy))
        self._set("args", plain(self.args, "args"))
        if not isinstance(self.args, (dict, list)):
            raise InvalidRequest.at("args", "must be an object or an array", value=self.args)
        if self.using is not None and not isinstance(self.using, str):
            raise InvalidRequest.at("using", "must be the alias of a database", value=self.using)
        expression = self.expression
        if not isinstance(expression, str):
            raise InvalidRequest.at("expression", "must be a string", value=expression, hint=_HINT)
        if len(expression) > LONGEST_EXPRESSION:
            problem = Message("is longer than {count} characters", count=LONGEST_EXPRESSION)
            raise InvalidRequest.at("expression", problem, value=expression)
        if expression.split()[:1] == ["@every"]:
            self._set("_interval", _interval(expression))
        else:
            self._set("_fields", _fields(expression))
            self._set("_every_hour", len(CronSim(self._fields, _ANY_TIME).hours) == 24)
        if self.next_after(_ANY_TIME) is None:
            raise _never_fires(expression)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def next_after(self, moment: datetime) -> datetime | None:
        """Return the first occurrence after a moment, in UTC, or None when there is none in fifty years."""
        try:
            if self._interval is not None:
                return _EPOCH + ((moment - _EPOCH) // self._interval + 1) * self._interval
            return self._next_after(moment.astimezone(UTC).replace(microsecond=0) + _SECOND)
        except OverflowError:  # after the last year of `datetime`
            return None

    def latest_until(self, after: datetime, moment: datetime) -> datetime | None:
        """Return the last occurrence later than ``after`` and not later than ``moment``, in UTC, or None.

        Fast for any length of time: it halves the span until no later occurrence is in it.
        """
        latest = self.next_after(after)
        if latest is None or latest > moment:
            return None
        end = moment
        while end - latest >= _SECOND:
            middle = latest + (end - latest) / 2
            following = self.next_after(middle)
            if following is None or following > moment:
                end = middle
            else:
                latest = following
        return latest

    def last(self, most: int, after: datetime, until: datetime) -> list[datetime]:
        """Return the last ``most`` occurrences later than ``after`` and not later than ``until``, the newest first.

        It looks at twice as long a time again and again, so at few occurrences besides.
        """
        length = most * _SECOND
        while True:
            start = max(after, until - min(length, until - after))
            found = list(takewhile(until.__ge__, self._all_after(start)))
            if len(found) >= most or start <= after:
                return found[: -most - 1 : -1]
            length *= 2

    def _all_after(self, moment: datetime) -> Iterator[datetime]:
        following = self.next_after(moment)
        while following is not None:
            yield following
            following = self.next_after(following)

    def _next_after(self, start: datetime) -> datetime | None:
        """Return the first occurrence from ``start`` (a whole second in UTC) on."""
        limit = start + LONGEST_WAIT
        while start < limit:
            # Between two changes of the clocks, local time is UTC plus a constant.
            offset = self._offset(start)
            clock = (start + offset - _SECOND).replace(tzinfo=None)
            shown = next(CronSim(self._fields, clock), None)
            if shown is None:
                return None
            found = shown.replace(tzinfo=UTC) - offset
            if (change := self._first_change(start, found)) is not None:
                start = change
            elif found.astimezone(self._zone).fold and not self._every_hour:
                start = found + _SECOND
            else:
                return found
        return None

    def _first_change(self, start: datetime, end: datetime) -> datetime | None:
        """Return the first second in (start, end] whose UTC offset is not that of ``start``, or None."""
        offset = self._offset(start)
        while (step := min(start + _DAY, end)) > start and self._offset(step) == offset:
            start = step
        if start == end:
            return None
        while step - start > _SECOND:
            middle = (start + (step - start) / 2).replace(microsecond=0)
            if self._offset(middle) == offset:
                start = middle
            else:
                step = middle
        return step

    def _offset(self, moment: datetime) -> timedelta:
        offset = moment.astimezone(self._zone).utcoffset()
        assert offset is not None
        return offset


def _fields(expression: str) -> str:
    fields = expression
    if expression.lstrip().startswith("@"):
        if expression.strip() not in _NICKNAMES:
            hint = did_you_mean(expression, [*_NICKNAMES, "@every PT5M"])
            raise InvalidRequest.at("expression", "is not a known nickname", value=expression, hint=hint)
        fields = _NICKNAMES[expression.strip()]
    if not fields.isascii() or len(fields.split()) not in (5, 6):
        raise InvalidRequest.at("expression", "does not have five or six cron fields", value=expression, hint=_HINT)
    try:
        CronSim(fields, _ANY_TIME)
    except CronSimError as error:
        if str(error) == "Bad day-of-month" and _is_valid_in_any_month(fields):
            raise _never_fires(expression) from None
        raise InvalidRequest.at(
            "expression",
            Message("has a bad {name} field", name=str(error).lower().removeprefix("bad ")),
            value=expression,
            hint=_HINT,
        ) from None
    return fields


def _is_valid_in_any_month(fields: str) -> bool:
    *before, _, weekdays = fields.split()
    try:
        CronSim(" ".join([*before, "*", weekdays]), _ANY_TIME)
    except CronSimError:
        return False
    return True


def _never_fires(expression: str) -> InvalidRequest:
    return InvalidRequest.at("expression", "never fires", value=expression, hint="Choose a time that exists.")


def _interval(expression: str) -> timedelta:
    hint = Message("Write an ISO 8601 duration, as in '@every PT5M', or one as in Go: '@every 1h30m'.")
    text = " ".join(expression.split()[1:])
    try:
        interval = _go_duration(text) if _GO_DURATION.fullmatch(text) else parse_duration(text)
    except ValueError as error:
        problem = Message.joined(" ", [repr(text), str(error)])
        raise InvalidRequest.at("expression", problem, value=expression, hint=hint) from None
    if not isinstance(interval, timedelta):
        raise InvalidRequest.at("expression", "has an interval with years or months", value=expression, hint=hint)
    if interval < _SECOND:
        raise InvalidRequest.at("expression", "has an interval of less than one second", value=expression, hint=hint)
    return interval


def _go_duration(text: str) -> timedelta:
    return sum((float(number) * _GO_UNITS[unit] for number, unit in _GO_PART.findall(text)), timedelta())


def _overlap_policy(value: Any) -> OverlapPolicy:
    try:
        return _ALIASES.get(value) or OverlapPolicy(value)
    except (ValueError, TypeError):
        raise InvalidRequest.at(
            "overlap_policy", "is not a known name", value=value, hint=did_you_mean(value, OverlapPolicy)
        ) from None


def _zone(name: Any) -> ZoneInfo:
    if name is None:
        return ZoneInfo("UTC")
    if not isinstance(name, str) or name not in _zone_names():
        raise InvalidRequest.at(
            "timezone", "is not an IANA time zone", value=name, hint="Write a name such as 'Europe/Berlin' or 'UTC'."
        )
    return ZoneInfo(name)


@cache
def _zone_names() -> frozenset[str]:
    return frozenset(available_timezones())
