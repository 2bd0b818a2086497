"""ISO 8601 durations, strictly (OJS unique jobs, "TTL / Period Semantics").

`isodate` accepts signs, commas, `PT` and a trailing newline; a uniqueness window must not, so `_GRAMMAR` is checked
first.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import isodate

from ..exceptions import InvalidRequest, Message

Duration: TypeAlias = timedelta | isodate.Duration
"""A fixed length, or one with years and months, whose length depends on where it starts."""

LONGEST_YEARS = 1000
"""The end of a longer window could be after the last year of `datetime`."""

_LONGEST_SECONDS = LONGEST_YEARS * 365 * 86_400
_HINT = Message("Write an ISO 8601 duration such as 'PT30S', a timedelta, or seconds.")
_TOO_LONG = Message("is longer than {count} years", count=LONGEST_YEARS)
_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,9})?"
_GRAMMAR = re.compile(
    rf"P(?=[0-9T])(?:(?P<W>{_NUMBER})W|(?:(?P<Y>[0-9]{{1,12}})Y)?(?:(?P<m>[0-9]{{1,12}})M)?(?:(?P<D>{_NUMBER})D)?"
    rf"(?:T(?=[0-9])(?:(?P<H>{_NUMBER})H)?(?:(?P<M>{_NUMBER})M)?(?:(?P<S>{_NUMBER})S)?)?)",
    re.ASCII,
)


def parse_duration(text: str) -> Duration:
    """Read a positive ISO 8601 duration such as ``PT5M``, ``P7D``, ``P1M`` or ``PT0.5S``.

    Raises ValueError, with a message that says what is wrong, for anything else: a sign, a decimal comma, lower case,
    ``P``, zero, a fraction that is not on the last part, a fraction of a year or month, more than 1,000 years.
    """
    if not (duration := _parse(text)):
        raise ValueError(Message("is zero"))
    return duration


def _parse(text: str) -> Duration:
    match = _GRAMMAR.fullmatch(text)
    if match is None:
        raise ValueError(Message("is not an ISO 8601 duration"))
    parts = [part for part in match.groups() if part is not None]
    if any("." in part for part in parts[:-1]):
        raise ValueError(Message("has a fraction that is not on its last part"))
    try:
        duration = isodate.parse_duration(text)
    except OverflowError:
        raise ValueError(_TOO_LONG) from None
    if _years(duration) > LONGEST_YEARS:
        raise ValueError(_TOO_LONG)
    return duration


def read_delay(value: Any, field: str) -> Duration:
    """Read how long to wait: ISO 8601, a timedelta, or seconds; zero means no wait.

    Raises InvalidRequest, which names the field and says how to fix it.
    """
    if isinstance(value, str):
        try:
            return _parse(value)
        except ValueError as error:
            raise InvalidRequest.at(field, str(error), value=value, hint=_HINT) from None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not isinstance(seconds, (int, float)) or isinstance(value, bool) or not 0 <= seconds <= _LONGEST_SECONDS:
        hint = f"{_HINT} A moment is scheduled_at=…." if isinstance(value, datetime) else _HINT
        problem = Message("must be a length of time from 0 to {count} years", count=f"{LONGEST_YEARS:,}")
        raise InvalidRequest.at(field, problem, value=value, hint=hint)
    return value if isinstance(value, timedelta) else timedelta(seconds=seconds)


def format_duration(duration: timedelta) -> str:
    """Write a timedelta as ISO 8601."""
    text: str = isodate.duration_isoformat(duration)
    return text


def milliseconds(value: Any, field: str) -> int:
    """Return a positive length of time in milliseconds: ISO 8601 without years and months, a timedelta, or seconds.

    Raises InvalidRequest, which names the field and says how to fix it.
    """
    length = value
    if isinstance(length, str):
        try:
            length = parse_duration(length)
        except ValueError as error:
            raise InvalidRequest.at(field, str(error), value=value, hint=_HINT) from None
    if isinstance(length, isodate.Duration):
        raise InvalidRequest.at(field, "is no fixed length of time: years and months vary", value=value, hint=_HINT)
    if isinstance(length, timedelta):
        length = length.total_seconds()
    if not isinstance(length, (int, float)) or isinstance(length, bool) or not 0.001 <= length <= _LONGEST_SECONDS:
        raise InvalidRequest.at(field, "must be a positive length of time", value=value, hint=_HINT)
    return round(length * 1000)


def end_of(start: datetime, duration: Duration) -> datetime:
    """Return the first moment after a window; years and months are counted on the calendar, in `start`'s zone."""
    end: datetime = start + duration
    return end


def earliest_start(now: datetime, duration: Duration) -> datetime:
    """Return a time such that any window of this length that began before it has ended at `now`.

    Exact for a fixed length. With years or months, a month end can shift a window by up to three days: then it is only
    a bound for a database query, and `end_of` decides.
    """
    start: datetime = now - duration
    return start if isinstance(duration, timedelta) else start - timedelta(days=4)


def _years(duration: Duration) -> float:
    if isinstance(duration, timedelta):
        return duration / timedelta(days=365)
    fixed: timedelta = duration.tdelta
    return float(duration.years) + float(duration.months) / 12 + fixed / timedelta(days=365)
