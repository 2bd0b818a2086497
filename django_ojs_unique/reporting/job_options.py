"""The options of a job, in sentences."""

from __future__ import annotations

from typing import Any

from ..exceptions import InvalidRetryPolicy, Message, nearest
from ..handlers.registry import registry
from ..ojs.retry import RetryPolicy
from .text import listed


def handler(job: Any) -> str:
    """Name the handler of a job's type, or say that this process has none."""
    definition = registry.find(job.type)
    if definition is not None:
        return definition.place
    close = nearest(job.type, registry)
    type = repr(job.type)
    if close:
        return Message(
            "No handler is registered here for {type}: such jobs wait for workers that have one. {meant}",
            type=type,
            meant=Message("Did you mean {name}?", name=repr(close)),
        )
    return Message("No handler is registered here for {type}: such jobs wait for workers that have one.", type=type)


def retries(job: Any) -> str:
    """Say how often and how soon a job runs again."""
    try:
        policy: RetryPolicy = job.retry_policy
    except InvalidRetryPolicy as error:
        return Message(
            "Its retry policy cannot be read, so that it allows no further attempt. {reason}", reason=error.message
        )
    text = Message("One attempt, no retry.")
    if policy.max_attempts > 1:
        text = Message("Up to {count} attempts, {waits}.", count=f"{policy.max_attempts:,}", waits=_waits(policy))
    if policy.non_retryable_errors:
        errors = listed(policy.non_retryable_errors, "or")
        text = Message("{sentence} No retry after {errors}.", sentence=text, errors=errors)
    if policy.on_exhaustion == "dead_letter":
        return Message("{sentence} When they are used up, it is kept as a dead letter.", sentence=text)
    return Message("{sentence} When they are used up, it is discarded.", sentence=text)


def _waits(policy: RetryPolicy) -> str:
    first, most = _seconds(policy.initial.total_seconds()), _seconds(policy.longest.total_seconds())
    values = {"first": first, "most": most, "length": first, "number": f"{policy.backoff_coefficient:g}"}
    text = Message(_STRATEGIES[policy.backoff_strategy], **values)
    return Message("{waits}, with jitter", waits=text) if policy.jitter else text


_STRATEGIES = {
    "constant": Message("{first} apart"),
    "linear": Message("the first wait {first}, each one {length} longer, up to {most}"),
    "polynomial": Message("the first wait {first}, then that times the attempt to the power of {number}, up to {most}"),
    "exponential": Message("the first wait {first}, each one {number} times as long, up to {most}"),
}


def duration(milliseconds: int | None) -> str:
    """Write a length of time; an empty text for none."""
    return "" if milliseconds is None else _seconds(milliseconds / 1000)


def _seconds(seconds: float) -> str:
    for template, length in _UNITS.items():
        if seconds >= length and seconds % length == 0:
            return Message(template, number=f"{seconds / length:g}")
    return Message("{number} s", number=f"{seconds:g}")


_UNITS = {Message("{number} d"): 86_400, Message("{number} h"): 3_600, Message("{number} min"): 60}
