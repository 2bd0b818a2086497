"""What the package does, statement by statement: each function is one operation, and yields its statements.

An enqueue, single or in bulk, and a retry look, judge and write as `enqueue.submit` and `operations.retry` do by
`unique.plan`. What follows the look is one piece here, as it is there: the rows that it locked decide.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from .database import (
    ALL,
    CANCELLED,
    COMPLETED,
    WAITING,
    Begin,
    Commit,
    Insert,
    Level,
    Lock,
    LockKey,
    Read,
    RollBackToSavepoint,
    Row,
    Savepoint,
    Statement,
    Update,
)

Program = Generator[Statement, Any, str]

PLAIN = frozenset({WAITING})
"""The default: it counts unfinished jobs."""
LAX = frozenset[str]()
"""A policy that counts no state that occurs here, as ``states: ["scheduled"]`` would: it is admitted past every job."""
THROTTLE = frozenset({WAITING, COMPLETED})
"""A policy that counts completed jobs, too."""

TRIES = 3
"""How many races an operation may lose here; the package bears a hundred."""


class Mechanism(NamedTuple):
    """How the promise is kept.

    ``hands_on``: who is admitted past a live job holds the key in every state, and whoever takes the key from such a
    row leaves it to a live job. ``reads_currently``: in an old snapshot, InnoDB is asked for the rows as they are.
    ``starts_fresh``: outside the caller's transaction, an enqueue that must see finished jobs runs at READ COMMITTED.
    ``looks_again``: on PostgreSQL, after the insert, also where only unfinished jobs count, if a stored job gave way.
    """

    hands_on: bool = True
    reads_currently: bool = True
    starts_fresh: bool = True
    looks_again: bool = True


OLD = Mechanism(hands_on=False, reads_currently=False, starts_fresh=False)
NEW = Mechanism()


@dataclass(frozen=True)
class Context:
    """Where an operation runs: by which mechanism, on what, and whether in its caller's transaction."""

    mechanism: Mechanism
    level: Level
    in_transaction: bool


def enqueue(context: Context, counts: frozenset[str], strategy: str, in_bulk: bool = False) -> Program:
    """Enqueue a job; ``in_bulk``: it first reads without locks, and then locks what it may change."""
    level, mechanism = context.level, context.mechanism
    held = counts | {WAITING}
    if not level.locks_keys and not level.one_writer and COMPLETED not in counts:
        if (yield Insert(counts, held, unless_live=True)):
            return "created"
        if strategy != "replace":
            holder = next((row for row in (yield Read()) if row.is_holding), None)
            if holder is not None and holder.state in counts:
                return "refused"
    yield from _atomic(context)
    for lost in range(TRIES):
        yield Savepoint()
        if level.locks_keys or level.one_writer:
            yield LockKey()
        currently = level.locks_keys and (lost > 0 or (mechanism.reads_currently and context.in_transaction))
        if in_bulk and not lost and not currently:
            stored = yield from _look_before_locks(counts, strategy)
        else:
            stored = yield Lock(partial(_matters, counts), currently)
        counted = [row for row in stored if row.state in counts]
        if counted and strategy != "replace":
            yield from _end(context)
            return "refused"
        cancelled = [row for row in counted if row.is_live]
        gave_way = bool(cancelled) or any(row.held for row in stored)
        for_others = mechanism.hands_on and (yield from _holds_for_others(stored, cancelled))
        yield from _make_way(stored, cancelled)
        if (yield Insert(counts, ALL if for_others else held)):
            if (
                level.locks_keys
                or level.one_writer
                or not ((gave_way and mechanism.looks_again) or COMPLETED in counts)
            ):
                yield from _end(context)
                return "created"
            known = {row.id for row in stored}
            # The newest row is the new job.
            if all(row.id in known or row.state not in counts for row in (yield Read())[:-1] if row.has_key):
                yield from _end(context)
                return "created"
        yield RollBackToSavepoint()
    yield from _end(context)
    return "contended"


def _look_before_locks(counts: frozenset[str], strategy: str) -> Generator[Statement, Any, list[Row]]:
    found = [row for row in (yield Read()) if _matters(counts, row)]
    kept = [row for row in found if strategy != "replace" and (row.state in counts or not row.is_holding)]
    changeable = {row.id for row in found if row not in kept}
    if not changeable:
        return kept
    locked = yield Lock(lambda row: row.id in changeable, False)
    return [*kept, *(row for row in locked if row.has_key)]


def _matters(counts: frozenset[str], row: Row) -> bool:
    return row.has_key and (row.state in counts or row.is_holding or (row.is_expired and WAITING in counts))


def _make_way(stored: list[Row], cancelled: list[Row]) -> Generator[Statement, Any, None]:
    for row in stored:
        if row in cancelled:
            yield Update(row.id, _any, lambda row: row._replace(state=CANCELLED, held=LAX))
        elif row.held:
            yield Update(row.id, _any, lambda row: row._replace(held=LAX))


def _holds_for_others(stored: list[Row], cancelled: list[Row]) -> Generator[Statement, Any, bool]:
    """Whether a new job must hold the key for a live job that does not hold it."""
    if any((row.is_live or row.is_expired) and row not in cancelled for row in stored):
        return True
    if any(row in cancelled and row.held == ALL for row in stored):
        return True  # perhaps; to look would not be worth it
    return any(row.held == ALL for row in stored) and any(_is_left(row) for row in (yield Read()))


def cancel(context: Context, which: int) -> Program:
    return (yield from _move(which, lambda row: row.is_live, CANCELLED))


def complete(context: Context, which: int) -> Program:
    return (yield from _move(which, lambda row: row.is_live, COMPLETED))


def sweep(context: Context, which: int) -> Program:
    return (yield from _move(which, lambda row: row.is_expired, CANCELLED))


def _move(which: int, fits: Any, state: str) -> Program:
    if (row := _choose((yield Read()), which, fits)) is None:
        return "nothing"

    def move(row: Row) -> Row:
        return row._replace(state=state, held=row.held if state in row.held else LAX)

    return str((yield Update(row.id, fits, move)))


def delete(context: Context, which: int) -> Program:
    return (yield from _free(context, which, lambda row: None))


def release(context: Context, which: int) -> Program:
    return (yield from _free(context, which, lambda row: row._replace(held=LAX, has_key=False)))


def _free(context: Context, which: int, change: Any) -> Program:
    if (chosen := _choose((yield Read()), which, lambda row: row.has_key)) is None:
        return "nothing"
    yield from _atomic(context)
    yield Savepoint()
    if context.level.one_writer:
        yield LockKey()
    locked = yield Lock(lambda row: row.id == chosen.id, context.level.locks_keys)
    for row in locked:
        yield Update(row.id, _any, change)
        if row.is_holding and row.held == ALL:
            yield from _hand_on(context)
    yield from _end(context)
    return "done"


def retry(context: Context, which: int, force: bool) -> Program:
    level = context.level
    chosen = _choose((yield Read()), which, lambda row: row.state == CANCELLED and row.has_key)
    if chosen is None:
        return "nothing"
    yield from _atomic(context)
    for lost in range(TRIES):
        yield Savepoint()
        if level.locks_keys or level.one_writer:
            yield LockKey()
        dead = yield Lock(lambda row: row.id == chosen.id and row.state == CANCELLED and row.has_key, lost > 0)
        if not dead:
            break
        if force:
            yield Update(chosen.id, _any, lambda row: row._replace(state=WAITING))
            if not (yield from _hand_on(context)):
                yield RollBackToSavepoint()
                continue
            break
        others = yield Lock(
            lambda row: row.id != chosen.id and row.has_key and (row.is_live or row.is_holding),
            level.locks_keys and lost > 0,
        )
        if any(row.state in chosen.counts for row in others if row.is_live):
            break
        for row in others:
            yield Update(row.id, _any, lambda row: row._replace(held=LAX))
        for_others = context.mechanism.hands_on and any(row.is_live for row in others)
        done = yield Update(chosen.id, _any, _to_life_for_others if for_others else _to_life)
        if done is True:
            break
        yield RollBackToSavepoint()
    yield from _end(context)
    return "done"


def _to_life(row: Row) -> Row:
    return row._replace(state=WAITING, held=row.held or row.counts | {WAITING})


def _to_life_for_others(row: Row) -> Row:
    return row._replace(state=WAITING, held=row.held or ALL)


def _hand_on(context: Context) -> Generator[Statement, Any, bool]:
    """Let a row hold the key if a live job does not; return False after a lost race."""
    if not context.mechanism.hands_on:
        return True
    currently = context.level.locks_keys
    left = yield Lock(_is_left, currently)
    if not left:
        return True
    holders = yield Lock(lambda row: row.is_holding, currently)
    to_hold = holders[0] if holders else left[0]
    return bool((yield Update(to_hold.id, _any, lambda row: row._replace(held=ALL))) is True)


def look(context: Context) -> Program:
    """Read something, which takes the snapshot of a transaction."""
    yield Read()
    return "done"


def _is_left(row: Row) -> bool:
    return row.has_key and row.is_live and not row.held


def _any(row: Row) -> bool:
    return True


def _choose(rows: Any, which: int, fits: Any) -> Row | None:
    fitting = [row for row in rows if fits(row)]
    return fitting[which] if fitting else None


def _atomic(context: Context) -> Generator[Statement, Any, None]:
    if not context.in_transaction:
        yield Begin(context.mechanism.starts_fresh)


def _end(context: Context) -> Generator[Statement, Any, None]:
    if not context.in_transaction:
        yield Commit()
