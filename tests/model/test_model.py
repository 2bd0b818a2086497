"""The model of `README.md`, explored: what the old mechanism admitted, and that the new one admits nothing."""

from __future__ import annotations

from typing import Any

import pytest

from . import mechanism as package
from .database import (
    CANCELLED,
    EXPIRED,
    MARIADB,
    MARIADB_SNAPSHOT,
    POSTGRESQL,
    POSTGRESQL_SNAPSHOT,
    SQLITE,
    WAITING,
    Begin,
    Commit,
    Level,
    RollBack,
    Row,
    Rows,
    World,
)
from .explorer import Call, Client, Explored, Script, explore
from .mechanism import LAX, NEW, OLD, PLAIN, THROTTLE, Context, Mechanism, Program

LEVELS = [POSTGRESQL, POSTGRESQL_SNAPSHOT, MARIADB, MARIADB_SNAPSHOT, SQLITE]
SNAPSHOTS = [POSTGRESQL_SNAPSHOT, MARIADB_SNAPSHOT]


def begin(context: Context) -> Program:
    yield Begin()
    return "begun"


def commit(context: Context) -> Program:
    yield Commit()
    return "committed"


def roll_back(context: Context) -> Program:
    yield RollBack()
    return "rolled back"


def enqueue(counts: frozenset[str], strategy: str = "reject", *, in_bulk: bool = False) -> Call:
    return Call(package.enqueue, (counts, strategy, in_bulk))


COMMIT, ROLL_BACK, BEGIN, LOOK = Call(commit), Call(roll_back), Call(begin), Call(package.look)
CANCEL_NEWEST, CANCEL_OLDEST = Call(package.cancel, (-1,)), Call(package.cancel, (0,))
COMPLETE, DELETE, RELEASE = (Call(one, (-1,)) for one in (package.complete, package.delete, package.release))
RETRY, RETRY_BY_FORCE = Call(package.retry, (0, False)), Call(package.retry, (0, True))
ANY = (
    enqueue(PLAIN),
    enqueue(PLAIN, "replace"),
    enqueue(LAX),
    CANCEL_NEWEST,
    CANCEL_OLDEST,
    COMPLETE,
    DELETE,
    RELEASE,
    RETRY,
    RETRY_BY_FORCE,
)
LOSES_ITS_KEY = (enqueue(LAX), RETRY, RETRY_BY_FORCE)
GOES = (enqueue(PLAIN, "replace"), CANCEL_NEWEST, CANCEL_OLDEST, DELETE)

DEAD: Rows = (Row(1, CANCELLED, LAX, PLAIN),)
DEAD_AND_LAX: Rows = (Row(1, CANCELLED, LAX, LAX),)


def alone(*steps: tuple[Call, ...]) -> Client:
    """Each call is a transaction of its own."""
    return Client(steps, in_transaction=False)


def in_transaction(*steps: tuple[Call, ...], ends: tuple[Call, ...] = (COMMIT,)) -> Client:
    script: Script = ((BEGIN,), *steps, ends)
    return Client(script, in_transaction=True)


def found(mechanism: Mechanism, level: Level, *clients: Client, rows: Rows = ()) -> Explored:
    world = World(level, rows, (None,) * len(clients))
    return explore(mechanism, world, clients, all_is_well if mechanism.hands_on else index_is_unique)


def index_is_unique(rows: Rows) -> str:
    return "two rows hold the key" if sum(row.is_holding for row in rows) > 1 else ""


def all_is_well(rows: Rows) -> str:
    is_left = any(row.has_key and row.is_live and not row.is_holding for row in rows)
    if is_left and not any(row.is_holding and row.held == package.ALL for row in rows):
        return "no row holds the key in every state, although a live job does not hold it"
    return index_is_unique(rows)


WINNER = in_transaction((enqueue(PLAIN),), (enqueue(LAX),), (CANCEL_NEWEST, DELETE))
WHO_WAITS = alone((enqueue(PLAIN),))
OTHERS = alone((enqueue(PLAIN),), (enqueue(LAX),), (CANCEL_NEWEST, DELETE))
IN_A_SNAPSHOT = in_transaction((LOOK,), (enqueue(PLAIN),))


def test_the_old_mechanism_admitted_a_job_that_had_waited_for_the_winner():
    explored = found(OLD, POSTGRESQL, WINNER, WHO_WAITS)
    assert explored.found is not None
    assert explored.found.promise == "job 2 is admitted beside [1], which it counts"
    print(explored.found)


@pytest.mark.parametrize("level", [MARIADB, SQLITE], ids=str)
def test_other_databases_refused_it(level):
    assert found(OLD, level, WINNER, WHO_WAITS).found is None


@pytest.mark.parametrize("level", SNAPSHOTS, ids=str)
def test_the_old_mechanism_admitted_a_job_whose_snapshot_was_older(level):
    assert found(OLD, level, OTHERS, IN_A_SNAPSHOT).found is not None


@pytest.mark.release
@pytest.mark.parametrize("rows", [DEAD, DEAD_AND_LAX], ids=["dead", "dead and lax"])
@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_no_job_is_admitted_beside_a_live_one_that_lost_its_key(level, rows):
    winner = in_transaction((enqueue(PLAIN),), LOSES_ITS_KEY, GOES, ends=(COMMIT, ROLL_BACK))
    assert found(NEW, level, winner, alone((enqueue(PLAIN),)), rows=rows).found is None
    if level.keeps_snapshot:
        others = alone((enqueue(PLAIN),), LOSES_ITS_KEY, GOES)
        assert found(NEW, level, others, IN_A_SNAPSHOT, rows=rows).found is None


LATE: Rows = (Row(1, EXPIRED, PLAIN | {EXPIRED}, PLAIN),)
LATE_AND_PASSED: Rows = (Row(1, EXPIRED, LAX, PLAIN), Row(2, CANCELLED, package.ALL, PLAIN))
"""The newer job was admitted past the older one, and holds the key for it."""


@pytest.mark.parametrize("rows", [LATE, LATE_AND_PASSED], ids=["late", "late and passed"])
@pytest.mark.parametrize("counts", [PLAIN, THROTTLE], ids=["plain", "throttle"])
@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_an_expired_job_gives_way_to_one_of_several_enqueues(level, counts, rows):
    either = (enqueue(counts), enqueue(counts, in_bulk=True))
    assert found(NEW, level, alone(either), rows=rows).outcomes == {"created"}
    explored = found(NEW, level, alone(either), alone(either), alone((Call(package.sweep, (0,)),)), rows=rows)
    assert explored.found is None
    assert explored.outcomes >= {"created", "refused"}
    assert "contended" not in explored.outcomes


PASSING = alone((enqueue(PLAIN),), (COMPLETE,))
THROTTLE_ALONE, THROTTLE_LATER = alone((enqueue(THROTTLE),)), in_transaction((LOOK,), (enqueue(THROTTLE),))


BULK = (enqueue(PLAIN, in_bulk=True), enqueue(PLAIN, "replace", in_bulk=True), enqueue(LAX, "replace", in_bulk=True))
DEAD_AND_LIVE: Rows = (Row(1, CANCELLED, LAX, PLAIN), Row(2, WAITING, PLAIN, PLAIN))


@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_a_bulk_enqueue_misses_no_job_between_its_look_and_its_locks(level):
    clients = alone(BULK), alone((RETRY_BY_FORCE, RELEASE, CANCEL_NEWEST), (*LOSES_ITS_KEY, *GOES))
    assert found(NEW, level, *clients, rows=DEAD_AND_LIVE).found is None
    if not (level.locks_keys or level.one_writer):
        assert found(NEW._replace(looks_again=False), level, *clients, rows=DEAD_AND_LIVE).found is not None


@pytest.mark.parametrize(
    ("part", "level", "clients"),
    [
        ("hands_on", POSTGRESQL, (WINNER, WHO_WAITS)),
        ("hands_on", POSTGRESQL_SNAPSHOT, (OTHERS, IN_A_SNAPSHOT)),
        ("reads_currently", MARIADB_SNAPSHOT, (PASSING, THROTTLE_LATER)),
        ("starts_fresh", POSTGRESQL_SNAPSHOT, (PASSING, THROTTLE_ALONE)),
    ],
    ids=lambda one: "clients" if isinstance(one, tuple) and not hasattr(one, "_fields") else str(one),
)
def test_each_part_of_the_mechanism_is_needed_somewhere(part, level, clients):
    assert found(NEW._replace(**{part: False}), level, *clients).found is not None
    assert found(NEW, level, *clients).found is None


@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_a_throttle_meets_the_plain_job_that_came_and_went_except_in_a_callers_snapshot_on_postgresql(level):
    assert found(NEW, level, PASSING, THROTTLE_ALONE).found is None
    explored = found(NEW, level, PASSING, THROTTLE_LATER)
    assert (explored.found is not None) == (level == POSTGRESQL_SNAPSHOT)


@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_a_throttle_meets_what_another_throttled_job_did_everywhere(level):
    passing = alone((enqueue(THROTTLE),), (COMPLETE,))
    for throttle in (THROTTLE_ALONE, THROTTLE_LATER):
        assert found(NEW, level, passing, throttle).found is None


def test_every_outcome_occurs():
    winner = in_transaction((enqueue(PLAIN),), (CANCEL_NEWEST, COMPLETE), ends=(COMMIT, ROLL_BACK))
    explored = found(NEW, POSTGRESQL, winner, alone((enqueue(PLAIN), enqueue(PLAIN, "replace"))))
    assert explored.found is None
    assert explored.outcomes >= {"created", "refused", "rolled back", "committed"}


SLOW: list[Any] = [
    (in_transaction(ANY, ANY, ANY, ends=(COMMIT, ROLL_BACK)), alone((enqueue(PLAIN), enqueue(PLAIN, "replace")))),
    (alone(ANY, ANY, ANY), in_transaction((LOOK,), (enqueue(PLAIN), enqueue(PLAIN, "replace")))),
    (alone(ANY, ANY), alone(BULK)),
    (
        in_transaction((enqueue(PLAIN),), LOSES_ITS_KEY, GOES),
        alone((enqueue(PLAIN), RETRY)),
        alone((RETRY_BY_FORCE, COMPLETE, DELETE)),
    ),
]


@pytest.mark.release
@pytest.mark.parametrize("clients", SLOW, ids=["waits", "older snapshot", "in bulk", "three clients"])
@pytest.mark.parametrize("rows", [(), DEAD, (Row(1, WAITING, PLAIN, PLAIN),)], ids=["empty", "dead", "live"])
@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_no_job_is_admitted_beside_a_live_one_whatever_others_do(level, rows, clients):
    explored = found(NEW, level, *clients, rows=rows)
    assert explored.found is None, explored.found
