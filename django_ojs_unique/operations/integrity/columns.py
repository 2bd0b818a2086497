"""What the columns of a row must be beside its uniqueness: one list, which `verify` finds by and repairs by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from uuid import uuid4

from ...conf import settings
from ...db.clock import database_now
from ...exceptions import OJSError
from ...ojs.blocking import LIMITED, UNBLOCKED
from ...ojs.limits import are_readable
from ...ojs.retry import RetryPolicy
from ...ojs.states import TERMINAL, TIMED, JobState
from .problems import Kind


class Rule(NamedTuple):
    """What is wrong with a row if ``breaks(row)``, and the fields that ``repair(row)`` writes then."""

    kind: Kind
    breaks: Callable[[Any], bool]
    repair: Callable[[Any], dict[str, Any]]


def _now(row: Any) -> Any:
    """Return the time: not when it may have been, so that nothing is pruned before anybody has looked."""
    return database_now(row._state.db)


def _stray_times(row: Any) -> list[str]:
    stray = [] if row.state in TIMED else ["run_at"]
    stray += [] if row.state == JobState.ACTIVE else ["lease_token", "lease_expires_at"]
    return [name for name in stray if getattr(row, name) is not None]


def _block(row: Any) -> str:
    return row.fair_partition or (LIMITED if row.limits else UNBLOCKED)


def _own_blocks(row: Any) -> Iterator[str]:
    """Yield what may block a row: in a fair queue, the job's partition there may follow that of a limit."""
    yield from (_block(row), LIMITED)
    if not row.limits:
        yield UNBLOCKED
    for limit in row.limits or ():
        yield from (limit["id"], f"{limit['id']}{row.fair_partition or ''}")


def _is_blocked_by_another(row: Any) -> bool:
    return row.state == JobState.AVAILABLE and are_readable(row.limits) and row.blocked_by not in _own_blocks(row)


def _has_unreadable_retry_policy(row: Any) -> bool:
    try:
        if row.retry_options is not None:
            RetryPolicy.parse(row.retry_options)
    except OJSError:
        return True
    return False


_SHAPES = {"meta": dict, "tags": list}

RULES = (
    Rule(
        Kind.FINISH,
        lambda row: (row.finished_at is not None) != (row.state in TERMINAL),
        lambda row: {"finished_at": _now(row) if row.state in TERMINAL else None},
    ),
    Rule(Kind.TIMER, lambda row: bool(_stray_times(row)), lambda row: dict.fromkeys(_stray_times(row))),
    Rule(
        Kind.DUE,
        lambda row: row.state in TIMED and row.run_at is None,
        lambda row: {"run_at": row.scheduled_at if row.state == JobState.SCHEDULED and row.scheduled_at else _now(row)},
    ),
    Rule(
        Kind.LEASE,
        lambda row: row.state == JobState.ACTIVE and row.lease_expires_at is None,
        lambda row: {"lease_expires_at": _now(row), "lease_token": row.lease_token or uuid4()},
    ),
    Rule(
        Kind.PLACE,
        lambda row: row.state == JobState.AVAILABLE and row.enqueued_at is None,
        lambda row: {"enqueued_at": row.created_at},
    ),
    Rule(
        Kind.ATTEMPTS,
        lambda row: row.attempt < 0 or 0 < row.max_attempts < row.attempt,
        lambda row: {"attempt": 0} if row.attempt < 0 else {"max_attempts": row.attempt},
    ),
    Rule(Kind.QUEUE, lambda row: not row.queue, lambda row: {"queue": settings.default_queue}),
    Rule(Kind.ARGS, lambda row: not isinstance(row.args, (dict, list)), lambda row: {}),
    Rule(
        Kind.SHAPE,
        lambda row: any(not isinstance(getattr(row, name), shape) for name, shape in _SHAPES.items()),
        lambda row: {name: shape() for name, shape in _SHAPES.items() if not isinstance(getattr(row, name), shape)},
    ),
    Rule(Kind.RETRY, _has_unreadable_retry_policy, lambda row: {"retry_options": None}),
    Rule(Kind.LIMITS, lambda row: not are_readable(row.limits), lambda row: {"limits": None}),
    Rule(Kind.BLOCK, _is_blocked_by_another, lambda row: {"blocked_by": _block(row)}),
    Rule(
        Kind.DEAD_LETTER,
        lambda row: row.dead_letter and row.state != JobState.DISCARDED,
        lambda row: {"dead_letter": False},
    ),
    Rule(
        Kind.LOOSE,
        lambda row: row.fingerprint is None and bool(row.unique_states),
        lambda row: {"unique_states": frozenset()},
    ),
)
"""What must hold in each state, whatever the row's policy is."""
