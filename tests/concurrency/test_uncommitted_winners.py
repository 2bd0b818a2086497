"""Losers wait for an uncommitted winner and learn from its end (S0-163)."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, transaction

from django_ojs_unique.models import Job
from tests.support.audit import Answer, ask, audit
from tests.support.processes import Child, Parent, wait_until_blocked

pytestmark = pytest.mark.django_db(transaction=True)

LOSERS = 4
STRATEGIES = ["reject", "ignore", "replace", "replace_except_schedule"]


def winner(parent: Parent) -> Any:
    """Enqueue, and end the transaction as the parent says."""
    with transaction.atomic():
        job = Job.objects.enqueue("wait", unique={}).job
        parent.tell(job.pk)
        if parent.hear() == "roll back":
            transaction.set_rollback(True)
    return job.pk


def loser(parent: Parent, unique: Any, inside: bool) -> tuple[Answer, int]:
    """Enqueue the same, and count the rows afterwards in the same transaction."""
    connection.ensure_connection()
    parent.tell("starting")
    if not inside:
        return ask("wait", unique=unique), Job.objects.count()
    with transaction.atomic():
        return ask("wait", unique=unique), Job.objects.count()


def race_against(start: Any, fate: str, uniques: list[Any], inside: bool) -> tuple[Any, list[Answer]]:
    first: Child = start(winner)
    won = first.hear()
    losers = [start(loser, unique, inside) for unique in uniques]
    for child in losers:
        child.hear()
    wait_until_blocked(len(losers))
    first.tell(fate)
    assert first.result() == won
    return won, [child.result()[0] for child in losers]


insides = pytest.mark.parametrize("inside", [False, True], ids=["autocommit", "atomic"])


@pytest.mark.slow
@insides
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_waiting_enqueue_is_admitted_when_the_winner_rolls_back(start, strategy, inside):
    won, (answer,) = race_against(start, "roll back", [{"on_conflict": strategy}], inside)
    assert answer.outcome == "created"
    assert [row.pk for row in audit()] == [answer.id]
    assert answer.id != won


@pytest.mark.slow
@insides
@pytest.mark.parametrize("strategy", ["reject", "ignore"])
def test_of_many_waiting_enqueues_one_is_admitted_when_the_winner_rolls_back(start, strategy, inside):
    _, answers = race_against(start, "roll back", [{"on_conflict": strategy}] * LOSERS, inside)
    (row,) = audit()
    assert {answer.id for answer in answers} == {row.pk}
    assert [answer.outcome for answer in answers].count("created") == 1


@pytest.mark.slow
@insides
def test_many_waiting_replacements_leave_one_live_job_when_the_winner_rolls_back(start, inside):
    _, answers = race_against(start, "roll back", [{"on_conflict": "replace"}] * LOSERS, inside)
    rows = audit()
    assert sorted(row.state for row in rows) == ["available"] + ["cancelled"] * (LOSERS - 1)
    assert {answer.id for answer in answers} == {row.pk for row in rows}


@pytest.mark.slow
@insides
@pytest.mark.parametrize("strategy", ["reject", "ignore"])
def test_waiting_enqueues_are_told_of_the_duplicate_when_the_winner_commits(start, strategy, inside):
    won, answers = race_against(start, "commit", [{"on_conflict": strategy}] * LOSERS, inside)
    assert [row.pk for row in audit()] == [won]
    assert {(answer.outcome, answer.id) for answer in answers} == {
        ("duplicate" if strategy == "reject" else "deduplicated", won)
    }


@pytest.mark.slow
@insides
def test_waiting_replacements_cancel_the_winner_once_and_then_each_other(start, inside):
    won, answers = race_against(start, "commit", [{"on_conflict": "replace"}] * LOSERS, inside)
    rows = audit()
    assert sorted(row.state for row in rows) == ["available"] + ["cancelled"] * LOSERS
    assert sum(won in answer.replaced for answer in answers) == 1


def dying_winner(parent: Parent) -> None:
    with transaction.atomic():
        parent.tell(Job.objects.enqueue("wait", unique={}).job.pk)
        parent.hear()


@pytest.mark.slow
def test_a_waiting_enqueue_is_admitted_when_the_winner_is_killed(start):
    first: Child = start(dying_winner)
    won = first.hear()
    second: Child = start(loser, {}, False)
    second.hear()
    wait_until_blocked(1)
    first.kill()
    answer, _ = second.result()
    assert answer.outcome == "created"
    assert [row.pk for row in audit()] == [answer.id] != [won]


def replacing_winner(parent: Parent) -> None:
    with transaction.atomic():
        ask("wait", unique={"on_conflict": "replace"})
        parent.tell()
        parent.hear()
        transaction.set_rollback(True)


@pytest.mark.slow
def test_a_replacement_that_rolls_back_leaves_the_old_job_as_it_was(start):
    old = Job.objects.enqueue("wait", unique={}).job
    first: Child = start(replacing_winner)
    first.hear()
    (seen,) = Job.objects.all()
    assert (seen.pk, seen.state) == (old.pk, "available")
    first.tell()
    first.result()
    (row,) = audit()
    assert (row.pk, row.state, row.replaced_by_id, row.holds_unique_key) == (old.pk, "available", None, True)
