"""Ready-made policies: the behaviour of other systems, with their names and options, and what users often need.

Each function returns a policy for ``@job(unique=...)`` or ``enqueue(..., unique=...)``. A wrong option raises
InvalidRequest or its subclass InvalidPolicy, which name the option and say how to fix it. A policy decides which jobs
may wait at the same time. To let only one job *run* at a time, limit the queue to one, or lock the record.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from typing import Any

from ..exceptions import InvalidPolicy, InvalidRequest, did_you_mean, shorten
from ..ojs.durations import milliseconds
from ..ojs.states import ALL, INCOMPLETE, TERMINAL, WAITING, JobState
from .members import positive_delay
from .policy import OnConflict, OnRetry, UniquePolicy, Window

__all__ = [
    "ALL",
    "INCOMPLETE",
    "WAITING",
    "debounce",
    "newest_waits",
    "once_per_window",
    "resque_uniqueue",
    "river",
    "sidekiq",
    "throttle",
]

UNTIL_START = frozenset({JobState.SCHEDULED, JobState.PENDING, JobState.AVAILABLE})
RIVER_REQUIRES = ("pending", "scheduled", "available", "running")


def sidekiq(unique_for: str | timedelta | float, unique_until: str = "success") -> UniquePolicy:
    """Admit no second job of the same type, queue and args for a time (Sidekiq Enterprise, ``unique_for``).

    ``unique_for``: an ISO 8601 duration, a timedelta, or seconds, from the enqueue of the stored job; of one that was
    scheduled, from its time, as in Sidekiq.
    ``unique_until``: ``success``: the stored job counts until it has finished; ``start``: until a worker claims it. The
    enqueue of a duplicate returns the stored job, where Sidekiq returns ``nil``.

    With ``start`` a job that waits for its retry does not count, as in Sidekiq, which unlocks once before the first
    attempt. But it counts again when it becomes available for the retry.
    """
    states = {"success": INCOMPLETE, "start": UNTIL_START}
    if not isinstance(unique_until, str) or unique_until not in states:
        raise InvalidPolicy.at(
            "unique_until",
            "must be 'success' or 'start'",
            value=unique_until,
            hint=did_you_mean(unique_until, states),
        )
    return UniquePolicy(
        keys=["type", "queue", "args"],
        period=_length(unique_for, "unique_for"),
        states=tuple(states[unique_until]),
        on_conflict=OnConflict.IGNORE,
        window=Window.DUE,
    )


def resque_uniqueue() -> UniquePolicy:
    """Let no identical job wait on the same queue (resque-uniqueue): the type and all of the args count.

    A running job does not count. The enqueue of a duplicate returns the waiting job. A job that would wait again while
    another waits is discarded: after a failure, or when its worker requeues it or dies.
    ``OJS_UNIQUE["UNIQUE_QUEUES"]`` does this for whole queues.
    """
    return UniquePolicy(
        keys=["type", "queue", "args"],
        states=tuple(WAITING),
        on_conflict=OnConflict.IGNORE,
        on_retry=OnRetry.DISCARD,
    )


def river(
    by_args: bool | Collection[str] = False,
    by_period: str | timedelta | float | None = None,
    by_queue: bool = False,
    by_state: Collection[str] | None = None,
) -> UniquePolicy | None:
    """Skip the insert of a duplicate (River, ``UniqueOpts``); without any option return None: no uniqueness.

    The type (``Kind``) always counts. ``by_args``: True for all args, or the names of the fields that River flags with
    ``river:"unique"``, nested ones as JSON Pointers such as ``/customer/id``. ``by_queue``: whether the queue counts.
    ``by_period``: a length of at least a second, ISO 8601, timedelta or seconds; one job per window. Windows start at
    multiples of it, and a job belongs to that of its ``scheduled_at``. Without it a finished job counts until it is
    pruned.
    ``by_state``: the states that count, by default all but ``cancelled`` and ``discarded``; ``running`` is ``active``.
    ``pending``, ``scheduled``, ``available`` and ``running`` are required. Without ``retryable`` a job whose retry is
    due is discarded if another one counts as its duplicate.
    """
    period = None if by_period is None else _length(by_period, "by_period")
    if period is not None and period < timedelta(seconds=1):
        raise InvalidPolicy.at(
            "by_period", "is shorter than a second", value=by_period, hint="River takes a second or more."
        )
    args_count = _args(by_args, "by_args")
    states = ALL - {JobState.CANCELLED, JobState.DISCARDED} if by_state is None else _river_states(by_state)
    queue_counts = _flag(by_queue, "by_queue")
    if not args_count and period is None and not queue_counts and by_state is None:
        return None
    window = Window.ROLLING
    if period is not None:
        window = Window.FIXED
    elif not TERMINAL.isdisjoint(states):
        window = Window.RETENTION
    return UniquePolicy(
        **_counting(args_count, queue_counts),
        period=period,
        states=tuple(states),
        on_conflict=OnConflict.IGNORE,
        window=window,
        on_retry=OnRetry.RUN if JobState.RETRYABLE in states else OnRetry.DISCARD,
    )


def newest_waits(
    *, args: bool | Collection[str] = True, queue: bool = False, meta: Collection[str] = ()
) -> UniquePolicy:
    """Let only the newest job wait: it replaces the job that waited. Running jobs go on.

    ``args``: True for all of them, or the names of those that count; False for none. ``queue``: whether it counts.
    ``meta``: the names in meta that count. A failed job is discarded when its retry is due and a newer job waits.
    With a `Limit` of ``running=1`` on the same key, the newest job waits until the running one has ended.
    """
    return UniquePolicy(
        **_counting(_args(args, "args"), _flag(queue, "queue"), meta),
        states=tuple(WAITING),
        on_conflict=OnConflict.REPLACE,
        on_retry=OnRetry.DISCARD,
    )


def debounce(
    delay: str | timedelta | float,
    *,
    args: bool | Collection[str] = True,
    queue: bool = False,
    meta: Collection[str] = (),
) -> UniquePolicy:
    """Run when no enqueue has come for the ``delay``: each enqueue replaces the waiting job and restarts the delay.

    ``delay``: an ISO 8601 duration, a timedelta, or seconds. An enqueue with its own ``delay`` or ``scheduled_at`` uses
    that. The other options are those of `newest_waits`. A running job goes on while the newest waits.
    """
    return replace(newest_waits(args=args, queue=queue, meta=meta), delay=positive_delay(delay, "delay")[0])


def throttle(
    period: str | timedelta | float,
    *,
    args: bool | Collection[str] = True,
    queue: bool = False,
    meta: Collection[str] = (),
) -> UniquePolicy:
    """Run at once, then ignore further enqueues for a period, counted from that enqueue.

    ``period``: an ISO 8601 duration, a timedelta, or seconds. The other options are those of `newest_waits`. A job that
    was cancelled or discarded does not count.
    """
    return UniquePolicy(
        **_counting(_args(args, "args"), _flag(queue, "queue"), meta),
        period=_length(period, "period"),
        states=(*INCOMPLETE, JobState.COMPLETED),
        on_conflict=OnConflict.IGNORE,
    )


def once_per_window(
    period: str | timedelta | float,
    *,
    args: bool | Collection[str] = True,
    queue: bool = False,
    meta: Collection[str] = (),
) -> UniquePolicy:
    """Run once per period of the clock, such as each hour or each day in UTC; ignore further enqueues in the period.

    ``period``: as for `throttle`, but periods start at multiples of their length since 1970-01-01 UTC, and a job
    belongs to the period of its ``scheduled_at``. Two jobs can follow each other closely, at the end of one period and
    the start of the next. The other options are those of `newest_waits`.
    """
    return replace(throttle(period, args=args, queue=queue, meta=meta), window=Window.FIXED)


def _counting(args: bool | Collection[str], queue: bool, meta: Collection[str] = ()) -> dict[str, Any]:
    meta = _names(meta, "meta", "a list of the names that count")
    counted = {"queue": queue, "args": bool(args), "meta": bool(meta)}
    return {
        "keys": ["type", *(name for name, counts in counted.items() if counts)],
        "args_keys": None if isinstance(args, bool) else args,
        "meta_keys": meta or None,
    }


def _args(value: Any, option: str) -> bool | Collection[str]:
    if isinstance(value, bool):
        return value
    names = _names(value, option, "True, False, or a list of the names that count")
    if not names:
        raise InvalidPolicy.at(option, "names nothing that counts", value=value, hint="Write False, or name one.")
    return names


def _names(value: Any, option: str, instead: str) -> Collection[str]:
    if not isinstance(value, (list, tuple, set, frozenset)):
        hint = f"Write [{shorten(value)}]." if isinstance(value, str) else ""
        raise InvalidPolicy.at(option, f"must be {instead}", value=value, hint=hint)
    for index, name in enumerate(value):
        if not isinstance(name, str):
            raise InvalidPolicy.at(f"{option}[{index}]", "must be a string", value=name)
    return value


def _flag(value: Any, option: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidPolicy.at(option, "must be True or False", value=value)
    return value


def _length(value: Any, option: str) -> timedelta:
    try:
        return timedelta(milliseconds=milliseconds(value, option))
    except InvalidRequest as error:
        raise InvalidPolicy(error.message, details=error.details) from None


def _river_states(value: Any) -> frozenset[JobState]:
    known = {**{str(state): state for state in JobState}, "running": JobState.ACTIVE}
    states = set()
    for index, name in enumerate(_names(value, "by_state", "a list of states")):
        if name not in known:
            hint = did_you_mean(name, known)
            raise InvalidPolicy.at(f"by_state[{index}]", "is not a known state", value=name, hint=hint)
        if known[name] in states:
            raise InvalidPolicy.at("by_state", "names the same state twice", value=name, hint="Name it once.")
        states.add(known[name])
    if missing := [name for name in RIVER_REQUIRES if known[name] not in states]:
        raise InvalidPolicy.at(
            "by_state",
            f"lacks {', '.join(missing)}: River requires {', '.join(RIVER_REQUIRES)}, as it could not resolve a"
            " conflict when a job moves to one of them",
            value=list(map(str, value)),
            hint="Add what is missing, or write a UniquePolicy, which takes any states.",
        )
    return frozenset(states)
