"""S0-163: a loser waits for the winner, and is admitted if that one rolls back."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from django.db import connections, transaction

from tests.support.jobs import attempt, before_the_insert, enqueue, live
from tests.support.processes import PATIENCE

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("strategy", "commits", "expected"),
    [
        pytest.param("reject", False, "created", id="S0-163-reject"),
        pytest.param("ignore", False, "created", id="S0-163-ignore"),
        pytest.param("replace", False, "created", id="S0-163-replace"),
        pytest.param("reject", True, "rejected", id="S0-163-reject-commit"),
        pytest.param("ignore", True, "deduplicated", id="S0-163-ignore-commit"),
        pytest.param("replace", True, "replaced", id="S0-163-replace-commit"),
    ],
)
def test_a_loser_waits_for_the_winner_and_is_admitted_if_that_one_rolls_back(strategy, commits, expected):
    stored, waiting = Event(), Event()

    def winner():
        try:
            with transaction.atomic():
                job = enqueue().job
                stored.set()
                assert waiting.wait(PATIENCE)
                transaction.set_rollback(not commits)
            return job
        finally:
            stored.set()
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(winner)
        assert stored.wait(PATIENCE)
        with before_the_insert(waiting.set):
            answer, job = attempt(unique={"on_conflict": strategy})
        first = other.result()
    assert answer == expected
    assert (job == first) is (expected in ("rejected", "deduplicated"))
    assert live().count() == 1
