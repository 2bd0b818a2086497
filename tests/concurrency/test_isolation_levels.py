"""No double insert under any isolation level, and serialization failures surface only to who can retry (S0-162)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.utils import timezone

from django_ojs_unique import DuplicateJob
from django_ojs_unique.db.fields import new_id
from django_ojs_unique.exceptions import JobIdTaken
from django_ojs_unique.models import Job, WorkerProcess
from django_ojs_unique.ojs.states import TERMINAL
from django_ojs_unique.worker import heartbeat
from tests.support.audit import Answer, ask, assert_serial, audit
from tests.support.processes import Child, Parent, together
from tests.support.rows import insert

pytestmark = pytest.mark.django_db(transaction=True)

LEVELS = {
    "postgresql": ["READ_COMMITTED", "REPEATABLE_READ", "SERIALIZABLE"],
    "mysql": ["read committed", "repeatable read"],
}.get(connection.vendor, [])
SNAPSHOT = {"postgresql": "REPEATABLE_READ", "mysql": "repeatable read"}.get(connection.vendor)
BY_SQL = "by SQL"
STRATEGIES = ["reject", "ignore", "replace", "replace_except_schedule"]
RACERS, ROUNDS = 8, 8

pytestmark = [pytestmark, pytest.mark.skipif(not LEVELS, reason="SQLite knows one isolation level")]


def isolate(level: str | None) -> None:
    """Let this process's connection run at an isolation level; "by SQL" is one that Django does not know of."""
    if level == BY_SQL:
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        return
    if connection.vendor == "postgresql":
        from psycopg import IsolationLevel

        level = IsolationLevel[level]
    connection.close()
    connection.settings_dict["OPTIONS"] = {**connection.settings_dict["OPTIONS"], "isolation_level": level}
    connection.ensure_connection()


def contender(level: str, strategy: str, number: int) -> Answer:
    if number == 0:
        isolate(level)
    return ask(f"race.r{number}", unique={"on_conflict": strategy})


def in_atomic(level: str, strategy: str, number: int) -> Answer | None:
    """Enqueue in a caller's transaction, which the database may give up."""
    if number == 0:
        isolate(level)
    try:
        with transaction.atomic():
            list(Job.objects.filter(type=f"race.r{number}"))
            return ask(f"race.r{number}", unique={"on_conflict": strategy})
    except OperationalError as error:
        if is_serialization_failure(error):
            return None
        raise


def is_serialization_failure(error: OperationalError) -> bool:
    cause = error.__cause__
    return getattr(cause, "sqlstate", None) in {"40001", "40P01"} or cause.args[0] in {1205, 1213, 1020}


def check(answers: list[list[Answer | None]]) -> None:
    rows = audit()
    for number, round_ in enumerate(answers):
        rows_of_round = [row for row in rows if row.type == f"race.r{number}"]
        given = [answer for answer in round_ if answer]
        assert {answer.id for answer in given if answer.admitted} == {row.pk for row in rows_of_round}
        if given:
            assert len([row for row in rows_of_round if row.state not in TERMINAL]) == 1
        assert_serial(given, rows_of_round)


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_race_outside_transactions_is_exact_and_no_serialization_failure_reaches_a_caller(level, strategy):
    check(together([partial(contender, level, strategy)] * RACERS, rounds=ROUNDS))


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_a_race_of_mixed_strategies_is_exact_and_no_serialization_failure_reaches_a_caller(level):
    check(together([partial(contender, level, strategy) for strategy in STRATEGIES * 2], rounds=ROUNDS))


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_a_race_inside_callers_transactions_never_inserts_twice(level):
    check(together([partial(in_atomic, level, strategy) for strategy in STRATEGIES * 2], rounds=ROUNDS))


def late(parent: Parent, level: str, action: Callable[[], Any]) -> Any:
    """Take a snapshot, let the parent do something, and then act in the same transaction."""
    isolate(level)
    try:
        with transaction.atomic():
            list(Job.objects.all())
            parent.tell()
            parent.hear()
            return action()
    except OperationalError as error:
        return getattr(error.__cause__, "sqlstate", None)


def enqueue(strategy: str) -> str:
    return ask("t", unique={"on_conflict": strategy}).outcome


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("level", [*LEVELS[1:], *([BY_SQL] if connection.vendor == "mysql" else [])])
def test_a_winner_that_the_callers_snapshot_cannot_see_is_never_doubled(start, level, strategy):
    child: Child = start(late, level, partial(enqueue, strategy))
    child.hear()
    Job.objects.enqueue("t", unique={})
    child.tell()
    answer = child.result()
    if connection.vendor == "postgresql":
        assert answer == "40001"
    else:
        assert answer == {"reject": "duplicate", "ignore": "deduplicated"}.get(strategy, "replaced")
    assert len([row for row in audit() if row.state not in TERMINAL]) == 1


def taken(id: Any, options: Any) -> str:
    try:
        return str(Job.objects.enqueue("t", id=id, **options).outcome)
    except JobIdTaken:
        return "taken"
    except DuplicateJob:
        return "duplicate"


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"unique": None}, {"unique": {}}, {"unique": {"on_conflict": "replace"}}, {"key": "k"}],
    ids=["no policy", "reject", "replace", "key"],
)
@pytest.mark.parametrize("level", LEVELS[1:])
def test_an_id_that_was_taken_after_the_callers_snapshot_is_still_said_to_be_taken(start, level, options):
    id = new_id()
    child: Child = start(late, level, partial(taken, id, options))
    child.hear()
    Job.objects.enqueue("other", id=id)
    child.tell()
    assert child.result() == ("40001" if connection.vendor == "postgresql" else "taken")
    assert len(audit()) == 1


def manual(parent: Parent) -> Any:
    """Write and enqueue in a transaction of one's own making (autocommit off)."""
    transaction.set_autocommit(False)
    insert(type="mine", queue="q")
    Job.objects.filter(type="shared").update(priority=1)
    parent.tell()
    parent.hear()
    try:
        answer = ask("t", unique={}).outcome
        transaction.commit()
    except OperationalError as error:
        transaction.rollback()
        return "given up" if is_serialization_failure(error) else repr(error)
    return answer


def rival(parent: Parent) -> str:
    """Hold the key and much else, then want what `manual` holds, so that the database gives `manual` up."""
    try:
        with transaction.atomic():
            for number in range(200):
                insert(type=f"weight.{number}", queue="q")
            ask("t", unique={})
            parent.tell()
            parent.hear()
            Job.objects.filter(type="shared").update(priority=2)
    except OperationalError:
        return "given up"
    return "committed"


@pytest.mark.slow
def test_a_deadlock_in_a_manual_transaction_never_loses_what_the_caller_wrote_before(start):
    from tests.support.processes import wait_until_blocked

    insert(type="shared", queue="q")
    first, second = start(manual), start(rival)
    first.hear()
    second.hear()
    first.tell()
    wait_until_blocked(1)
    second.tell()
    theirs, mine = second.result(), first.result()
    assert "given up" in (theirs, mine)
    assert Job.objects.filter(type="mine").exists() == (mine != "given up")
    audit()


def beat(level: str, number: int) -> None:
    if number == 0:
        isolate(level)
    heartbeat.say_hello("default", "w", timezone.now())


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_no_heartbeat_fails_for_another_one_of_the_same_worker(level: str) -> None:
    together([partial(beat, level)] * 4, rounds=40)
    assert WorkerProcess.objects.count() == 1
