"""Retries beside each other and beside enqueues: of one key, one job lives."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, transaction
from django.utils import timezone

from django_ojs_unique import DuplicateJob, lifecycle
from django_ojs_unique.exceptions import InvalidTransition
from django_ojs_unique.models import Job
from django_ojs_unique.ojs.states import INCOMPLETE, JobState
from tests.support.audit import ask, audit
from tests.support.processes import Child, Parent, together, wait_until_blocked

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.torture]

ROUNDS = 8


def dead(number: int) -> UUID:
    """Make a discarded job of the round's key."""
    job = Job.objects.enqueue(f"race.r{number}", unique={}).job
    row = Job._base_manager.filter(pk=job.pk)
    row.update(state=JobState.ACTIVE, lease_token=(token := job.pk))
    assert lifecycle.discard(row, timezone.now(), token=token, errors=[])
    return job.pk


def retry(ids: list[UUID], number: int, **options: Any) -> str:
    try:
        replaced = Job.objects.get(pk=ids[number]).retry(**options)
    except DuplicateJob:
        return "refused"
    except InvalidTransition:
        return "was live"
    return f"retried, {len(replaced)} cancelled"


def enqueue(strategy: str, number: int) -> str:
    return str(ask(f"race.r{number}", unique={"on_conflict": strategy}).outcome)


def live(number: int) -> int:
    return Job.objects.filter(type=f"race.r{number}", state__in=sorted(INCOMPLETE)).count()


def generations(count: int) -> list[list[UUID]]:
    return [[dead(number) for number in range(ROUNDS)] for _ in range(count)]


def test_of_many_retries_of_one_key_that_skip_one_succeeds():
    answers = together([partial(retry, ids) for ids in generations(4)], rounds=ROUNDS)
    audit()
    for number, round_ in enumerate(answers):
        assert sorted(round_) == ["refused"] * 3 + ["retried, 0 cancelled"]
        assert live(number) == 1


def test_many_retries_of_one_key_that_replace_leave_one_live_job():
    answers = together([partial(retry, ids, replace=True) for ids in generations(4)], rounds=ROUNDS)
    audit()
    for number, round_ in enumerate(answers):
        assert sorted(round_) == ["retried, 0 cancelled"] + ["retried, 1 cancelled"] * 3
        assert live(number) == 1


def test_one_job_is_retried_once():
    (ids,) = generations(1)
    answers = together([partial(retry, ids, replace=True)] * 4, rounds=ROUNDS)
    audit()
    assert {tuple(sorted(round_)) for round_ in answers} == {("retried, 0 cancelled", *["was live"] * 3)}


@pytest.mark.parametrize("strategy", ["reject", "ignore", "replace"])
@pytest.mark.parametrize("replace", [False, True])
def test_a_retry_beside_an_enqueue_leaves_one_live_job(strategy, replace):
    (ids,) = generations(1)
    together([partial(retry, ids, replace=replace), partial(enqueue, strategy)], rounds=ROUNDS)
    audit()
    for number in range(ROUNDS):
        assert live(number) == 1


def test_a_replacing_retry_beside_replacing_enqueues_over_a_live_job_leaves_one():
    (ids,) = generations(1)
    for number in range(ROUNDS):
        enqueue("reject", number)
    together([partial(retry, ids, replace=True), *[partial(enqueue, "replace")] * 3], rounds=ROUNDS)
    audit()
    assert [live(number) for number in range(ROUNDS)] == [1] * ROUNDS


def retry_all(ids: list[UUID], number: int, **options: Any) -> str:
    result = Job.objects.filter(pk__in=ids).retry(**options)
    return f"{len(result.changed)} retried"


@pytest.mark.parametrize("replace", [False, True])
def test_retries_of_the_same_many_jobs_and_enqueues_leave_one_live_job_of_each_key(replace):
    ids = [dead(number) for number in range(ROUNDS)]
    others = [dead(number) for number in range(ROUNDS)]
    mixed = [id for pair in zip(ids, others, strict=True) for id in pair]
    together(
        [
            partial(retry_all, ids, replace=replace),
            partial(retry_all, mixed[::-1], replace=replace),
            partial(enqueue, "reject"),
            partial(enqueue, "replace"),
        ],
        rounds=ROUNDS,
    )
    audit()
    assert [live(number) for number in range(ROUNDS)] == [1] * ROUNDS


def again(ids: list[UUID], number: int) -> str:
    return f"{len(Job.objects.filter(pk=ids[number]).enqueue_again().new)} new"


def test_of_many_enqueues_again_of_one_job_one_is_admitted():
    (ids,) = generations(1)
    answers = together([partial(again, ids)] * 4, rounds=ROUNDS)
    audit()
    assert {tuple(sorted(round_)) for round_ in answers} == {("0 new",) * 3 + ("1 new",)}


def cancel_all(ids: list[UUID], number: int) -> str:
    result = Job.objects.filter(pk__in=ids).cancel()
    return f"{len(result.changed)}"


def test_of_many_bulk_cancellations_each_job_is_cancelled_by_one():
    ids = [Job.objects.enqueue(f"race.r{number}").job.pk for number in range(40)]
    ((*counts,),) = together([partial(cancel_all, ids[::step]) for step in (1, -1, 1, -1)], rounds=1)
    assert sum(map(int, counts)) == 40
    assert set(Job.objects.values_list("state", flat=True)) == {"cancelled"}


def enqueueing_slowly(parent: Parent, strategy: str) -> None:
    """Enqueue a job, and commit when the parent says so."""
    with transaction.atomic():
        enqueue(strategy, 0)
        parent.tell()
        parent.hear()


def retrying(parent: Parent, id: UUID, replace: bool = True) -> str:
    connection.ensure_connection()
    parent.tell()
    return retry([id], 0, replace=replace)


def test_a_replacing_retry_that_waited_for_a_replacement_cancels_the_newer_job(start):
    id = dead(0)
    enqueue("reject", 0)
    first: Child = start(enqueueing_slowly, "replace")
    first.hear()
    second: Child = start(retrying, id)
    second.hear()
    wait_until_blocked(1)
    first.tell()
    first.result()
    assert second.result() == "retried, 1 cancelled"
    audit()
    assert (live(0), Job.objects.get(pk=id).state) == (1, "available")


def retrying_slowly(parent: Parent, id: UUID) -> str:
    """Retry the job in place of the live one, and commit when the parent says so."""
    with transaction.atomic():
        answer = retry([id], 0, replace=True)
        parent.tell()
        parent.hear()
    return answer


def enqueueing(parent: Parent, strategy: str) -> str:
    connection.ensure_connection()
    parent.tell()
    return enqueue(strategy, 0)


@pytest.mark.parametrize(
    ("over_a_live_job", "strategy", "answer", "state"),
    [
        (False, "reject", "duplicate", "available"),
        (False, "ignore", "deduplicated", "available"),
        (False, "replace", "replaced", "cancelled"),
        (True, "replace", "replaced", "cancelled"),
    ],
)
def test_an_enqueue_that_waited_for_a_retry_finds_the_retried_job(start, over_a_live_job, strategy, answer, state):
    id = dead(0)
    if over_a_live_job:
        enqueue("reject", 0)
    first: Child = start(retrying_slowly, id)
    first.hear()
    second: Child = start(enqueueing, strategy)
    second.hear()
    wait_until_blocked(1)
    first.tell()
    assert first.result() == f"retried, {int(over_a_live_job)} cancelled"
    assert second.result() == answer
    audit()
    assert (live(0), Job.objects.get(pk=id).state) == (1, state)


def enqueueing_when_told(parent: Parent) -> str:
    parent.hear()
    return enqueue("reject", 0)


@pytest.mark.skipif(connection.vendor != "mysql", reason="elsewhere an old snapshot raises an error, or there is none")
@pytest.mark.parametrize("autocommit", [False, True])
@pytest.mark.parametrize(("replace", "answer"), [(True, "retried, 1 cancelled"), (False, "refused")])
def test_a_retry_in_an_old_snapshot_finds_the_newer_job(start, replace, answer, autocommit):
    id = dead(0)
    other: Child = start(enqueueing_when_told)
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    try:
        transaction.set_autocommit(autocommit)
        with transaction.atomic() if autocommit else nullcontext():
            assert Job.objects.filter(pk=id).exists()  # from now on there is a snapshot
            other.tell()
            assert other.result() == "created"
            assert retry([id], 0, replace=replace) == answer
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("replace", "answer", "state"), [(True, "retried, 1 cancelled", "available"), (False, "refused", "discarded")]
)
def test_a_retry_that_waited_for_an_enqueue_finds_its_job(start, replace, answer, state):
    id = dead(0)
    first: Child = start(enqueueing_slowly, "reject")
    first.hear()
    second: Child = start(retrying, id, replace)
    second.hear()
    wait_until_blocked(1)
    first.tell()
    first.result()
    assert second.result() == answer
    audit()
    assert (live(0), Job.objects.get(pk=id).state) == (1, state)
