"""`RetryPolicy`: how often and how soon a failed job runs again (OJS retry; HTTP binding section 7)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any

from ..exceptions import InvalidRequest, InvalidRetryPolicy, Message, did_you_mean
from .canonical import plain
from .durations import format_duration, parse_duration
from .names import is_whole
from .suggesting import Suggesting

STRATEGIES = ("exponential", "linear", "constant", "polynomial")
EXHAUSTION = ("discard", "dead_letter")
MOST_ATTEMPTS = 2**31 - 1
_MOST_SUMMED = 1_000
MOST_ERRORS, LONGEST_ERROR = 100, 255
"""How many ``non_retryable_errors`` a policy may name, and how many characters each may have."""


@dataclass(frozen=True, slots=True)
class RetryPolicy(Suggesting):
    """How often and how soon a failed job runs again.

    ``max_attempts``: all attempts including the first; 0 and 1 both mean no retry.
    ``initial_interval``, ``max_interval``: ISO 8601 durations (or timedeltas) without years or months.
    ``backoff_coefficient``: at least 1. ``backoff_strategy``: exponential, linear, constant or polynomial.
    ``jitter``: multiply each delay by a random factor in [0.5, 1.5).
    ``non_retryable_errors``: up to 100 error types that discard at once; ``auth.*`` matches every type below ``auth.``.
    ``on_exhaustion``: ``discard`` or ``dead_letter``.

    Raises InvalidRetryPolicy, which names the field and says how to fix it.
    """

    max_attempts: int = 3
    initial_interval: str | timedelta = "PT1S"
    backoff_coefficient: float = 2.0
    max_interval: str | timedelta = "PT5M"
    jitter: bool = True
    non_retryable_errors: Collection[str] = ()
    on_exhaustion: str = "discard"
    backoff_strategy: str = "exponential"
    initial: timedelta = field(init=False, repr=False, compare=False, default=timedelta())
    longest: timedelta = field(init=False, repr=False, compare=False, default=timedelta())

    def __post_init__(self) -> None:
        if not is_whole(self.max_attempts, 0, MOST_ATTEMPTS):
            problem = Message("must be a whole number from {lowest} to {highest}", lowest=0, highest=MOST_ATTEMPTS)
            raise _invalid("max_attempts", problem, self.max_attempts)
        if not _is_finite(self.backoff_coefficient) or self.backoff_coefficient < 1:
            raise _invalid("backoff_coefficient", "must be a number of at least 1", self.backoff_coefficient)
        if not isinstance(self.jitter, bool):
            raise _invalid("jitter", "must be true or false", self.jitter)
        for name, valid in (("on_exhaustion", EXHAUSTION), ("backoff_strategy", STRATEGIES)):
            if (value := getattr(self, name)) not in valid:
                raise _invalid(name, "is not a known name", value, did_you_mean(value, valid))
        errors = self.non_retryable_errors
        if not isinstance(errors, (list, tuple)) or not all(isinstance(entry, str) for entry in errors):
            raise _invalid("non_retryable_errors", "must be a list of strings", errors)
        if len(errors) > MOST_ERRORS:
            problem = Message("has {count} entries; the limit is {limit}", count=f"{len(errors):,}", limit=MOST_ERRORS)
            raise InvalidRetryPolicy.at("retry.non_retryable_errors", problem, hint="Write 'auth.*' for all below it.")
        for index, entry in enumerate(errors):
            if len(entry) > LONGEST_ERROR:
                length = f"{len(entry):,}"
                problem = Message("has {count} characters; the limit is {limit}", count=length, limit=LONGEST_ERROR)
                raise InvalidRetryPolicy.at(f"retry.non_retryable_errors[{index}]", problem)
        try:
            self._set("non_retryable_errors", tuple(plain(list(errors), "retry.non_retryable_errors")))
        except InvalidRequest as error:
            raise InvalidRetryPolicy(error.message, details=error.details) from None
        for name, parsed in (("initial_interval", "initial"), ("max_interval", "longest")):
            text, interval = _interval(getattr(self, name), name)
            self._set(name, text)
            self._set(parsed, interval)
        if self.longest < self.initial:
            raise _invalid("max_interval", "must not be shorter than initial_interval", self.max_interval)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @classmethod
    def parse(cls, value: Any) -> RetryPolicy:
        """Read a policy from a JSON object, completed with the defaults; return a RetryPolicy unchanged."""
        if isinstance(value, RetryPolicy):
            return value
        if not isinstance(value, Mapping):
            raise InvalidRetryPolicy.at("retry", "must be an object or a RetryPolicy", value=value)
        for name in value:
            if name not in _MEMBERS:
                raise InvalidRetryPolicy.at(
                    f"retry.{name}", "is not a member of a retry policy", hint=did_you_mean(name, _MEMBERS)
                )
        return cls(**value)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object; `parse` reads it back to an equal policy."""
        members = {name: getattr(self, name) for name in _MEMBERS}
        return {**members, "non_retryable_errors": list(self.non_retryable_errors)}

    def delay(self, attempt: int, random: float) -> timedelta:
        """Return the wait after the failure of attempt number ``attempt`` (1 is the first).

        ``random`` is a number in [0, 1); it is used only with jitter.
        """
        coefficient = float(self.backoff_coefficient)  # the power of an integer could fill the memory
        try:
            match self.backoff_strategy:
                case "exponential":
                    factor = coefficient ** (attempt - 1)
                case "polynomial":
                    factor = attempt**coefficient
                case "linear":
                    factor = attempt
                case _:
                    factor = 1
            wait = min(self.initial.total_seconds() * factor, self.longest.total_seconds())
        except OverflowError:
            wait = self.longest.total_seconds()
        if self.jitter:
            wait = min(wait * (0.5 + random), self.longest.total_seconds())
        return timedelta(seconds=wait)

    @property
    def lasts(self) -> timedelta:
        """How long a job is tried: the sum of all delays, without jitter, which can halve it.

        The delays after the thousandth count as that one.
        """
        delays = max(self.max_attempts - 1, 0)
        exact = min(delays, _MOST_SUMMED)
        waits = [self.delay(attempt, 0.5).total_seconds() for attempt in range(1, exact + 1)]
        seconds = sum(waits) + (delays - exact) * (waits[-1] if waits else 0)
        return timedelta(seconds=min(seconds, timedelta.max.total_seconds() // 2))

    def allows(self, attempt: int) -> bool:
        """Tell whether a job whose attempt number ``attempt`` failed may run again."""
        return attempt < self.max_attempts

    def gives_up_on(self, *error_types: str) -> bool:
        """Tell whether one of these error types discards the job at once."""
        return any(_matches(entry, error) for entry in self.non_retryable_errors for error in error_types)


_MEMBERS = tuple(f.name for f in fields(RetryPolicy) if f.init)


def _invalid(name: str, problem: str, value: Any, hint: str = "") -> InvalidRetryPolicy:
    return InvalidRetryPolicy.at(f"retry.{name}", problem, value=value, hint=hint)


def _is_finite(value: Any) -> bool:
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        return False


def _interval(value: Any, name: str) -> tuple[str, timedelta]:
    hint = Message("Write an ISO 8601 duration such as 'PT1S' or 'PT5M'.")
    try:
        if isinstance(value, timedelta):
            value = format_duration(value)
        duration = parse_duration(value) if isinstance(value, str) else None
    except ValueError as error:
        raise _invalid(name, str(error), value, hint) from None
    if not isinstance(duration, timedelta):
        raise _invalid(name, "must be a duration without years or months", value, hint)
    return value, duration


def _matches(entry: str, error: str) -> bool:
    return entry == error or (entry.endswith(".*") and error.startswith(entry[:-1]))
