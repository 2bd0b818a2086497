"""The options of a job, in sentences."""

from __future__ import annotations

from typing import Any

from ..exceptions import InvalidRetryPolicy, nearest
from ..handlers.registry import registry
from ..ojs.retry import RetryPolicy
from .text import listed


def handler(job: Any) -> str:
    """Name the handler of a job's type, or say that this process has none."""
    definition = registry.find(job.type)
    if definition is not None:
        return definition.place
    close = nearest(job.type, registry)
    meant = f" Did you mean {close!r}?" if close else ""
    return f"No handler is registered here for {job.type!r}: such jobs wait for workers that have one.{meant}"


def retries(job: Any) -> str:
    """Say how often and how soon a job runs again."""
    try:
        policy: RetryPolicy = job.retry_policy
    except InvalidRetryPolicy as error:
        return f"Its retry policy cannot be read, so that it allows no further attempt. {error.message}"
    if policy.max_attempts <= 1:
        text = "One attempt, no retry."
    else:
        text = f"Up to {policy.max_attempts:,} attempts, {_waits(policy)}."
    if policy.non_retryable_errors:
        text += f" No retry after {listed(policy.non_retryable_errors, 'or')}."
    end = "kept as a dead letter" if policy.on_exhaustion == "dead_letter" else "discarded"
    return f"{text} When they are used up, it is {end}."


def _waits(policy: RetryPolicy) -> str:
    first, most = _seconds(policy.initial.total_seconds()), _seconds(policy.longest.total_seconds())
    coefficient = f"{policy.backoff_coefficient:g}"
    match policy.backoff_strategy:
        case "constant":
            text = f"{first} apart"
        case "linear":
            text = f"the first wait {first}, each one {first} longer, up to {most}"
        case "polynomial":
            text = f"the first wait {first}, then that times the attempt to the power of {coefficient}, up to {most}"
        case _:
            text = f"the first wait {first}, each one {coefficient} times as long, up to {most}"
    return f"{text}, with jitter" if policy.jitter else text


def duration(milliseconds: int | None) -> str:
    """Write a length of time; an empty text for none."""
    return "" if milliseconds is None else _seconds(milliseconds / 1000)


def _seconds(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} s"
