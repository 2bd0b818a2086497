"""An enqueue that loses a race after it has already acted starts over from what is then there.

The other enqueue runs in its own connection, at the one moment that matters: after the look, before the insert.
"""

import pytest
from django.contrib.contenttypes.models import ContentType
from django.db import OperationalError, connection, transaction

from django_ojs_unique import lifecycle
from django_ojs_unique.models import Job
from tests.support.jobs import (
    attempt,
    before_the_insert,
    before_the_look,
    columns,
    elsewhere,
    enqueue,
    fresh,
    live,
    outcome,
    row,
    stored,
)

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(
        connection.vendor == "sqlite", reason="SQLite has one writer at a time: no enqueue can be faster"
    ),
]

has_a_gap = pytest.mark.skipif(
    connection.vendor != "postgresql", reason="elsewhere a key is locked from the look to the insert"
)


def released(state):
    """A stored job that is a duplicate but holds no unique key, so that a narrower enqueue can come in beside it."""
    job = stored(state)
    lifecycle.release_unique_keys(row(job))
    return fresh(job)


def another_enqueue_after_the_first_cancel(state="available"):
    def slip_in():
        return elsewhere(lambda: stored(state, unique={"states": ["available", "active"]}))

    return before_the_insert(slip_in, when=lambda: Job.objects.filter(state="cancelled").exists())


@has_a_gap
@pytest.mark.parametrize("state", [pytest.param("active", id="S0-086")])
def test_a_replacement_that_ends_in_a_rejection_has_cancelled_nothing(state, settings):
    settings.OJS_UNIQUE = {"REPLACE_ACTIVE": False}
    before = columns(released("retryable"))
    with another_enqueue_after_the_first_cancel(state) as faster:
        answer, named = attempt(unique={"on_conflict": "replace"})
    assert (answer, named.pk) == ("rejected", faster[0].pk)
    assert Job.objects.values().get(pk=before["id"]) == before


@has_a_gap
@pytest.mark.parametrize("strategy", [pytest.param("replace", id="S0-087")])
def test_a_replacement_tells_of_every_job_that_it_cancelled(strategy, received):
    waiting = released("retryable")
    with another_enqueue_after_the_first_cancel() as faster:
        result = enqueue(unique={"on_conflict": strategy})
    assert str(result.outcome) == "replaced"
    assert fresh(waiting).state == fresh(faster[0]).state == "cancelled"
    assert {job.pk for job in result.replaced} == {waiting.pk, faster[0].pk}
    told = [arguments["job"].pk for name, arguments in received if name == "cancelled"]
    assert sorted(told) == sorted([waiting.pk, faster[0].pk])


@has_a_gap
@pytest.mark.parametrize("strategy", [pytest.param("replace_except_schedule", id="S0-102")])
def test_only_the_duplicate_that_is_the_newest_in_the_end_hands_down_its_schedule(strategy):
    released("scheduled")
    with another_enqueue_after_the_first_cancel():
        result = enqueue(unique={"on_conflict": strategy})
    assert str(result.outcome) == "replaced"
    assert (fresh(result.job).state, fresh(result.job).scheduled_at) == ("available", None)


@has_a_gap
@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        pytest.param("reject", "rejected", id="S0-160"),
        pytest.param("ignore", "deduplicated", id="S0-161-ignore"),
        pytest.param("replace", "replaced", id="S0-161-replace"),
        pytest.param("replace_except_schedule", "replaced", id="S0-161-replace_except_schedule"),
    ],
)
def test_an_enqueue_that_was_superseded_answers_as_if_it_had_come_second(strategy, expected):
    with before_the_insert(lambda: elsewhere(enqueue)) as faster:
        answer, job = attempt(unique={"on_conflict": strategy})
    assert answer == expected
    assert (job.pk == faster[0].job.pk) is (expected != "replaced")
    assert outcome() == "rejected"


@has_a_gap
@pytest.mark.parametrize("many", [False, True], ids=["one", "batch"])
def test_a_job_that_is_admitted_beside_a_newer_one_is_the_newest(many):
    blind = {"type": "t", "args": {"n": 1}, "unique": {"states": ["completed"], "on_conflict": "replace"}}
    with before_the_look(lambda: elsewhere(enqueue)) as faster:
        result = Job.objects.enqueue_many([blind])[0] if many else Job.objects.enqueue(**blind)
    assert result.created
    assert fresh(result.job).created_at > fresh(faster[0].job).created_at
    assert attempt(unique={"states": ["available"]})[1].pk == result.job.pk
    assert attempt(unique={"states": ["available", "cancelled", "completed"]})[1].pk == result.job.pk


LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


@pytest.fixture
def at_level():
    """Run the transactions of this connection at another isolation level."""
    session = {
        "postgresql": "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL",
        "mysql": "SET SESSION TRANSACTION ISOLATION LEVEL",
    }[connection.vendor]

    def set_level(level):
        with connection.cursor() as cursor:
            cursor.execute(f"{session} {level}")

    yield set_level
    set_level("READ COMMITTED")


@pytest.mark.parametrize("strategy", ["reject", "ignore", "replace"])
@pytest.mark.parametrize("level", [pytest.param(level, id=f"S0-162-{level}") for level in LEVELS])
def test_a_transaction_that_cannot_see_the_other_job_never_stores_a_second_one(level, strategy, at_level):
    at_level(level)
    try:
        with transaction.atomic():
            ContentType.objects.first()  # the snapshot is taken here
            first = elsewhere(enqueue).job
            answer, _ = attempt(unique={"on_conflict": strategy})
    except OperationalError:
        answer = "try again"
    serial = {"reject": "rejected", "ignore": "deduplicated", "replace": "replaced"}[strategy]
    assert answer == serial if level == "READ COMMITTED" else answer in (serial, "try again")
    assert live().count() == 1
    assert (fresh(first).state == "cancelled") is (answer == "replaced")


@has_a_gap
@pytest.mark.parametrize("level", [pytest.param(level, id=f"S0-162-alone-{level}") for level in LEVELS])
def test_outside_a_transaction_an_enqueue_at_any_level_gets_an_answer(level, at_level):
    at_level(level)
    with before_the_insert(lambda: elsewhere(enqueue)):
        assert outcome() == "rejected"
    assert outcome(unique={"on_conflict": "replace"}) == "replaced"
    assert live().count() == 1
