"""A small database: rows, transactions, snapshots, row locks, and one unique index, as far as an enqueue needs them.

All rows have the same fingerprint, or none. A world is a value, and a statement takes one step from a world to the
next; so the explorer can go back to any world and take another step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

WAITING, EXPIRED, COMPLETED, CANCELLED = "waiting", "expired", "completed", "cancelled"
ALL = frozenset({WAITING, EXPIRED, COMPLETED, CANCELLED})


class Row(NamedTuple):
    """A job. It holds its key while its state is one of ``held``; ``counts`` are the states that its policy counts.

    ``writes``: how often it was written. A row that is written with the values that it has is a newer one, too.
    """

    id: int
    state: str
    held: frozenset[str]
    counts: frozenset[str]
    has_key: bool = True
    writes: int = 0

    @property
    def is_live(self) -> bool:
        return self.state == WAITING

    @property
    def is_expired(self) -> bool:
        """Whether it waits, but may not start any more."""
        return self.state == EXPIRED

    @property
    def is_holding(self) -> bool:
        return self.has_key and self.state in self.held


Rows = tuple[Row, ...]


class Level(NamedTuple):
    """A database at an isolation level.

    ``keeps_snapshot``: a transaction reads from one snapshot, and not each statement from its own. ``refuses_newer``: a
    write or a lock of a row that is newer than the snapshot ends the transaction. ``locks_keys``: an enqueue locks its
    key before it looks. ``one_writer``: a writer locks the whole database.
    """

    name: str
    keeps_snapshot: bool = False
    refuses_newer: bool = False
    locks_keys: bool = False
    one_writer: bool = False

    def __str__(self) -> str:
        return self.name


POSTGRESQL = Level("PostgreSQL, READ COMMITTED")
POSTGRESQL_SNAPSHOT = Level("PostgreSQL, REPEATABLE READ or SERIALIZABLE", keeps_snapshot=True, refuses_newer=True)
MARIADB = Level("MariaDB, READ COMMITTED", locks_keys=True)
MARIADB_SNAPSHOT = Level("MariaDB, REPEATABLE READ", keeps_snapshot=True, locks_keys=True)
SQLITE = Level("SQLite", keeps_snapshot=True, refuses_newer=True, one_writer=True)

KEY_LOCK = -1
"""What a transaction has in ``locks`` while it has locked the key, or is the only writer."""


class Transaction(NamedTuple):
    """An open transaction: its changes of rows (None: deleted), the rows that it locked, and what it read from.

    ``touches_index``: it inserted, changed or deleted a row that held the key, so that others wait for its end.
    ``pending``: what the first step of the statement found. ``broken``: the promise that its commit would break.
    ``is_begun``: it lasts until a commit; otherwise it is a statement of its own. ``is_fresh``: it is READ COMMITTED,
    whatever the level.
    """

    is_begun: bool = False
    is_fresh: bool = False
    snapshot: Rows | None = None
    changes: tuple[tuple[int, Row | None], ...] = ()
    locks: frozenset[int] = frozenset()
    touches_index: bool = False
    pending: Any = None
    savepoint: Any = None
    broken: str = ""

    def over(self, rows: Rows) -> Rows:
        """Return the rows as the transaction sees them."""
        changes = dict(self.changes)
        seen = {row.id: row for row in rows} | changes
        return tuple(row for _, row in sorted(seen.items()) if row is not None)


class World(NamedTuple):
    """What is committed, and the open transaction of each client, or None."""

    level: Level
    rows: Rows
    open: tuple[Transaction | None, ...]

    def of(self, client: int) -> Transaction:
        return self.open[client] or Transaction()

    def put(self, client: int, transaction: Transaction | None) -> World:
        return self._replace(open=(*self.open[:client], transaction, *self.open[client + 1 :]))

    def others(self, client: int) -> Iterator[Transaction]:
        return (one for number, one in enumerate(self.open) if number != client and one is not None)

    def current(self, client: int) -> Rows:
        """Return what is committed now, with the client's own changes."""
        return self.of(client).over(self.rows)

    def is_locked(self, client: int, id: int) -> bool:
        return any(id in other.locks for other in self.others(client))


class Step(NamedTuple):
    """A step of a statement: the next world, and the result if the statement ended with this step."""

    world: World
    result: Any = None
    ended: bool = True


class Refused(Exception):
    """The database ends the transaction: a row is newer than its snapshot."""


Predicate = Callable[[Row], bool]


class Statement:
    """What a client sends. `step` returns None while the statement must wait; it may raise Refused."""

    def step(self, world: World, client: int) -> Step | None:
        raise NotImplementedError


def _begin(world: World, client: int) -> tuple[World, Transaction, Rows]:
    """Return the rows that a statement that begins now sees."""
    own = world.of(client)
    snapshot = own.snapshot if own.snapshot is not None else world.rows
    own = own._replace(snapshot=snapshot if world.level.keeps_snapshot and not own.is_fresh else None)
    return world.put(client, own), own, own.over(snapshot)


def _lock_key(world: World, client: int) -> World | None:
    own = world.of(client)
    if world.is_locked(client, KEY_LOCK):
        return None
    if world.level.one_writer and own.snapshot not in (None, world.rows):
        raise Refused  # SQLITE_BUSY_SNAPSHOT
    return world.put(client, own._replace(locks=own.locks | {KEY_LOCK}))


def _write(own: Transaction, before: Row | None, after: Row | None) -> Transaction:
    row = before or after
    assert row is not None
    touches = own.touches_index or any(one is not None and one.is_holding for one in (before, after))
    changes = {**dict(own.changes), row.id: after}
    return own._replace(
        changes=tuple(sorted(changes.items())), locks=own.locks | {row.id}, touches_index=touches, pending=None
    )


def _find(rows: Iterable[Row], id: int) -> Row | None:
    return next((row for row in rows if row.id == id), None)


def _must_be_visible(world: World, own: Transaction, row: Row | None, id: int) -> None:
    """Raise Refused if the row is not the one in the snapshot, where the database is so strict."""
    is_strict = world.level.refuses_newer and own.snapshot is not None and id not in dict(own.changes)
    if is_strict and _find(own.snapshot or (), id) != row:
        raise Refused


@dataclass(frozen=True)
class Begin(Statement):
    """BEGIN; ``is_fresh``: at READ COMMITTED, where a snapshot would be an obstacle."""

    is_fresh: bool = False

    def step(self, world: World, client: int) -> Step:
        return Step(world.put(client, Transaction(is_begun=True, is_fresh=self.is_fresh and world.level.refuses_newer)))


@dataclass(frozen=True)
class Commit(Statement):
    def step(self, world: World, client: int) -> Step:
        return Step(world._replace(rows=world.current(client)).put(client, None), world.of(client).broken)


@dataclass(frozen=True)
class RollBack(Statement):
    def step(self, world: World, client: int) -> Step:
        return Step(world.put(client, None))


@dataclass(frozen=True)
class Savepoint(Statement):
    def step(self, world: World, client: int) -> Step:
        own = world.of(client)
        return Step(world.put(client, own._replace(savepoint=own._replace(savepoint=None))))


@dataclass(frozen=True)
class RollBackToSavepoint(Statement):
    """Undo what was done since. The snapshot stays, and so does a key lock (InnoDB keeps all locks)."""

    def step(self, world: World, client: int) -> Step:
        own = world.of(client)
        locks = own.savepoint.locks | (own.locks & {KEY_LOCK})
        return Step(world.put(client, own.savepoint._replace(snapshot=own.snapshot, locks=locks)))


@dataclass(frozen=True)
class LockKey(Statement):
    """Wait until no other transaction has the key lock, and lock it."""

    def step(self, world: World, client: int) -> Step | None:
        locked = _lock_key(world, client)
        return None if locked is None else Step(locked)


@dataclass(frozen=True)
class Read(Statement):
    """SELECT: all rows that the client sees."""

    def step(self, world: World, client: int) -> Step:
        world, _, rows = _begin(world, client)
        return Step(world, rows)


@dataclass(frozen=True)
class Lock(Statement):
    """SELECT ... FOR UPDATE: choose rows, then lock one after another, and leave out those that fit no longer.

    With ``currently`` it chooses from what is committed, as InnoDB's locking reads do, and else from the snapshot.
    """

    fits: Predicate
    currently: bool = False

    def step(self, world: World, client: int) -> Step | None:
        own = world.of(client)
        if own.pending is None:
            world, own, rows = _begin(world, client)
            if self.currently:
                # InnoDB reads the index itself: it waits for any row there that another transaction has written.
                if any(
                    row is not None and self.fits(row) for other in world.others(client) for _, row in other.changes
                ):
                    return None
                rows = world.current(client)
            ids = tuple(row.id for row in rows if self.fits(row))
            return Step(world.put(client, own._replace(pending=(ids, ()))), ended=False)
        ids, found = own.pending
        if not ids:
            return Step(world.put(client, own._replace(pending=None)), found)
        if world.is_locked(client, ids[0]):
            return None
        row = _find(world.current(client), ids[0])
        _must_be_visible(world, own, row, ids[0])
        if row is not None and self.fits(row):
            found = (*found, row)
            own = own._replace(locks=own.locks | {row.id})
        return Step(world.put(client, own._replace(pending=(ids[1:], found))), ended=False)


@dataclass(frozen=True)
class Update(Statement):
    """UPDATE or, if ``change`` returns None, DELETE of one row, if it ``fits`` at the start and under the lock.

    The result is whether it was written; "conflict" if it would hold the key beside another row.
    """

    id: int
    fits: Predicate
    change: Callable[[Row], Row | None]

    def step(self, world: World, client: int) -> Step | None:
        if world.level.one_writer:
            if (locked := _lock_key(world, client)) is None:
                return None
            world = locked
        own = world.of(client)
        if own.pending is None:
            world, own, rows = _begin(world, client)
            row = _find(world.current(client) if world.level.locks_keys else rows, self.id)
            if row is None or not self.fits(row):
                return Step(world, False)
            return Step(world.put(client, own._replace(pending="chosen")), ended=False)
        if world.is_locked(client, self.id):
            return None
        row = _find(world.current(client), self.id)
        _must_be_visible(world, own, row, self.id)
        if row is None or not self.fits(row):
            return Step(world.put(client, own._replace(pending=None)), False)
        after = self.change(row)
        if after is not None and after.is_holding and not row.is_holding:
            match _index(world, client):
                case "wait":
                    return None
                case "conflict":
                    return Step(world.put(client, own._replace(pending=None)), "conflict")
        if after is not None:
            after = after._replace(writes=row.writes + 1)
        return Step(world.put(client, _write(own, row, after)), True)


@dataclass(frozen=True)
class Insert(Statement):
    """INSERT ... ON CONFLICT DO NOTHING; with ``unless_live`` also WHERE NOT EXISTS (a live job).

    The result is whether it inserted. The row gets the next id. A commit afterwards breaks the promise if the job was
    inserted beside one that it counts.
    """

    counts: frozenset[str]
    held: frozenset[str]
    unless_live: bool = False

    def step(self, world: World, client: int) -> Step | None:
        if world.level.one_writer:
            if (locked := _lock_key(world, client)) is None:
                return None
            world = locked
        own = world.of(client)
        if own.pending is None:
            world, own, rows = _begin(world, client)
            if self.unless_live and any(
                row.has_key and (row.is_live or row.is_expired or row.is_holding) for row in rows
            ):
                return Step(world, False)
            return Step(world.put(client, own._replace(pending="chosen")), ended=False)
        rows = world.current(client)
        match _index(world, client):
            case "wait":
                return None
            case "conflict":
                holder = next(row for row in rows if row.is_holding)
                _must_be_visible(world, own, holder, holder.id)
                return Step(world.put(client, own._replace(pending=None)), False)
        used = [row.id for row in world.rows] + [id for one in world.open if one is not None for id, _ in one.changes]
        new = Row(max([0, *used]) + 1, WAITING, self.held, self.counts)
        beside = [row.id for row in rows if row.has_key and row.state in self.counts]
        broken = own.broken or (f"job {new.id} is admitted beside {beside}, which it counts" if beside else "")
        return Step(world.put(client, _write(own, None, new)._replace(broken=broken)), True)


def _index(world: World, client: int) -> str:
    """Look into the unique index as it is: "wait" for an open transaction that changed it, "conflict", or "free"."""
    if any(other.touches_index for other in world.others(client)):
        return "wait"
    return "conflict" if any(row.is_holding for row in world.current(client)) else "free"
