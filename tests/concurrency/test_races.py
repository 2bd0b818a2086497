"""Many callers, one key, one moment (OJS unique jobs, "Strong"; S0-087, S0-114, S0-160, S0-161)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connections, transaction
from django.utils import timezone

from django_ojs_unique import OnConflict, UniquePolicy, lifecycle
from django_ojs_unique.db.fields import new_id
from django_ojs_unique.exceptions import JobIdTaken
from django_ojs_unique.models import Job
from django_ojs_unique.ojs.states import INCOMPLETE, TERMINAL, JobState
from tests.support.audit import Answer, Claimed, ask, assert_serial, audit
from tests.support.processes import PATIENCE, together

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.torture]

RACERS = 8
ROUNDS = 8
FAR = datetime(2099, 1, 1, tzinfo=UTC)
STRATEGIES = [str(strategy) for strategy in OnConflict]


def in_processes(functions: list[Callable[[int], Any]], rounds: int = ROUNDS) -> list[list[Any]]:
    return together(functions, rounds=rounds)


def in_threads(functions: list[Callable[[int], Any]], rounds: int = ROUNDS) -> list[list[Any]]:
    barrier = threading.Barrier(len(functions))
    answers: dict[int, list[Any]] = {}
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            answers[index] = [functions[index](number) for number in range(rounds) if barrier.wait(PATIENCE) >= 0]
        except BaseException as error:
            errors.append(error)
            barrier.abort()
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise min(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError))
    return [list(round_) for round_ in zip(*(answers[index] for index in range(len(functions))), strict=True)]


def contender(unique: Any, number: int, **options: Any) -> Answer:
    return ask(f"race.r{number}", unique=unique, **options)


def in_atomic(function: Callable[[int], Any], number: int) -> Any:
    with transaction.atomic():
        return function(number)


def of_round(rows: list[Job], number: int) -> list[Job]:
    return [row for row in rows if row.type == f"race.r{number}"]


runners = pytest.mark.parametrize("run", [in_processes, in_threads], ids=["processes", "threads"])
placings = pytest.mark.parametrize("placed", [None, in_atomic], ids=["autocommit", "atomic"])


def place(placed: Any, function: Callable[[int], Any]) -> Callable[[int], Any]:
    return partial(placed, function) if placed else function


@runners
@placings
def test_of_many_rejecting_enqueues_one_is_admitted_and_all_others_name_it(run, placed):
    answers = run([place(placed, partial(contender, {}))] * RACERS)
    rows = audit()
    assert len(rows) == ROUNDS
    for number, round_ in enumerate(answers):
        (row,) = of_round(rows, number)
        assert sorted(answer.outcome for answer in round_) == ["created"] + ["duplicate"] * (RACERS - 1)
        assert {answer.id for answer in round_} == {row.pk}


@runners
@placings
def test_of_many_ignoring_enqueues_one_is_admitted_and_all_others_answer_with_it(run, placed):
    answers = run([place(placed, partial(contender, {"on_conflict": "ignore"}))] * RACERS)
    rows = audit()
    assert len(rows) == ROUNDS
    for number, round_ in enumerate(answers):
        (row,) = of_round(rows, number)
        assert sorted(answer.outcome for answer in round_) == ["created"] + ["deduplicated"] * (RACERS - 1)
        assert {answer.id for answer in round_} == {row.pk}


@runners
@placings
@pytest.mark.parametrize("strategy", ["replace", "replace_except_schedule"])
def test_many_replacing_enqueues_leave_one_live_job_and_cancel_each_other_one_once(run, placed, strategy):
    answers = run([place(placed, partial(contender, {"on_conflict": strategy}))] * RACERS)
    rows = audit()
    for number, round_ in enumerate(answers):
        rows_of_round = of_round(rows, number)
        assert len(rows_of_round) == RACERS
        assert [row.state for row in rows_of_round if row.state not in TERMINAL] == ["available"]
        cancelled = {row.pk: row.replaced_by_id for row in rows_of_round if row.state == "cancelled"}
        assert len(cancelled) == RACERS - 1
        assert all(answer.admitted for answer in round_)
        assert {old: answer.id for answer in round_ for old in answer.replaced} == cancelled
        assert_serial(round_, rows_of_round)


@runners
def test_the_schedule_of_a_replaced_job_survives_a_race_of_replacements(run):
    for number in range(ROUNDS):
        contender({}, number, scheduled_at=FAR)
    run([partial(contender, {"on_conflict": "replace_except_schedule"})] * RACERS)
    rows = audit()
    for number in range(ROUNDS):
        (live,) = [row for row in of_round(rows, number) if row.state not in TERMINAL]
        assert (live.state, live.scheduled_at) == ("scheduled", FAR)


@runners
@placings
def test_a_race_of_mixed_strategies_answers_as_some_serial_order_would(run, placed):
    answers = run([place(placed, partial(contender, {"on_conflict": s})) for s in STRATEGIES * 2])
    rows = audit()
    for number, round_ in enumerate(answers):
        rows_of_round = of_round(rows, number)
        assert len([row for row in rows_of_round if row.state not in TERMINAL]) == 1
        assert len([answer for answer in round_ if answer.admitted]) == len(rows_of_round)
        assert_serial(round_, rows_of_round)


COUNTING_AVAILABLE = [
    UniquePolicy(states=["available"]),
    UniquePolicy(states=["available", "active"], period="PT1H"),
    UniquePolicy(period="P1M"),
    UniquePolicy(states=list(JobState)),
    UniquePolicy(states=["available", "completed"], period="P1Y", on_conflict="ignore"),
    UniquePolicy(states=list(INCOMPLETE), period="P1D", on_conflict="ignore"),
    UniquePolicy(states=["available", "scheduled"], on_conflict="ignore"),
    UniquePolicy(states=["available", "cancelled"], period="PT5M"),
]


@runners
@placings
def test_of_enqueues_whose_policies_differ_but_all_count_the_first_one_is_admitted(run, placed):
    answers = run([place(placed, partial(contender, policy)) for policy in COUNTING_AVAILABLE])
    rows = audit()
    assert len(rows) == ROUNDS
    for number, round_ in enumerate(answers):
        assert {answer.id for answer in round_} == {row.pk for row in of_round(rows, number)}


BLIND_TO_EACH_OTHER = [
    UniquePolicy(states=["active"]),
    UniquePolicy(states=["available"]),
    UniquePolicy(states=["scheduled"], on_conflict="ignore"),
    UniquePolicy(states=["completed", "cancelled"], on_conflict="replace"),
    UniquePolicy(on_conflict="replace"),
    UniquePolicy(states=list(JobState), on_conflict="replace_except_schedule"),
    UniquePolicy(states=["available", "cancelled"], on_conflict="ignore"),
    UniquePolicy(states=["active", "cancelled"], on_conflict="replace"),
]


@runners
@placings
def test_a_race_of_policies_that_do_not_count_each_other_answers_as_some_serial_order_would(run, placed):
    answers = run([place(placed, partial(contender, policy)) for policy in BLIND_TO_EACH_OTHER])
    rows = audit()
    for number, round_ in enumerate(answers):
        assert_serial(round_, of_round(rows, number))


def claimer(number: int) -> Claimed | None:
    """Take the first job of the round that shows up, as a worker would; give up after a few looks."""
    for _ in range(50):
        waiting = Job.objects.filter(type=f"race.r{number}", state="available").values_list("pk", flat=True).first()
        taken = waiting and lifecycle.claim(
            Job.objects.filter(pk=waiting),
            timezone.now(),
            worker_id="w",
            token=uuid4(),
            lease=timedelta(minutes=5),
        )
        if taken:
            return Claimed(waiting)
    return None


@runners
def test_a_race_of_policies_and_workers_answers_as_some_serial_order_would(run):
    policies = [
        UniquePolicy(states=["available"]),
        UniquePolicy(states=["available"], on_conflict="replace"),
        UniquePolicy(),
        UniquePolicy(on_conflict="replace"),
        UniquePolicy(states=["available", "active", "cancelled"]),
        UniquePolicy(states=["active"], on_conflict="ignore"),
    ]
    answers = run([*(partial(contender, policy) for policy in policies), claimer, claimer], rounds=ROUNDS * 2)
    rows = audit()
    for number, round_ in enumerate(answers):
        assert_serial([answer for answer in round_ if answer], of_round(rows, number))


def identified(id: UUID, unique: Any, index: int, number: int) -> str:
    """Enqueue jobs of different keys under one id."""
    chosen = UUID(int=id.int + number)
    try:
        return str(Job.objects.enqueue(f"race.r{number}.i{index}", unique=unique, id=chosen).outcome)
    except JobIdTaken:
        return "taken"


@runners
@pytest.mark.parametrize("unique", [None, {}, {"on_conflict": "replace"}], ids=["no policy", "reject", "replace"])
def test_of_many_enqueues_under_one_id_one_is_admitted_and_all_others_are_told_that_it_is_taken(run, unique):
    id = new_id()
    answers = run([partial(identified, id, unique, index) for index in range(RACERS)])
    assert len(audit()) == ROUNDS
    for round_ in answers:
        assert sorted(round_) == ["created"] + ["taken"] * (RACERS - 1)


def test_two_replacements_of_several_duplicates_neither_deadlock_nor_leave_one_behind():
    for number in range(ROUNDS):
        for _ in range(6):
            Job.objects.enqueue(f"race.r{number}", unique={"states": ["completed"]})
    answers = together([partial(contender, {"on_conflict": "replace"})] * RACERS, rounds=ROUNDS)
    rows = audit()
    for number, round_ in enumerate(answers):
        assert [row.state for row in of_round(rows, number) if row.state not in TERMINAL] == ["available"]
        assert sum(len(answer.replaced) for answer in round_) == 6 + RACERS - 1


def batch_mover(number: int) -> None:
    """Promote and expire in one UPDATE each, over many rows, as the maintenance does."""
    lifecycle.promote(Job.objects.all(), timezone.now())
    lifecycle.expire(Job.objects.all(), timezone.now())


def test_replacements_of_several_duplicates_stand_up_to_batch_moves_of_the_same_rows():
    due = timezone.now() + timedelta(milliseconds=1)
    for number in range(ROUNDS):
        for _ in range(6):
            Job.objects.enqueue(f"race.r{number}", unique={"states": ["completed"]}, scheduled_at=due)
    together([*[partial(contender, {"on_conflict": "replace"})] * 4, batch_mover, batch_mover], rounds=ROUNDS)
    rows = audit()
    for number in range(ROUNDS):
        assert len([row for row in of_round(rows, number) if row.state not in TERMINAL]) == 1
