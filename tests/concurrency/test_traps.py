"""Interleavings that once broke exactness, each laid out step by step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection, transaction
from django.test import override_settings
from django.utils import timezone

from django_ojs_unique import UniquePolicy, lifecycle
from django_ojs_unique.db.fields import new_id
from django_ojs_unique.db.locking import unlocked
from django_ojs_unique.exceptions import JobIdTaken
from django_ojs_unique.models import Job
from django_ojs_unique.ojs.states import TERMINAL, JobState
from tests.support.audit import Answer, ask, audit
from tests.support.processes import Child, Parent, wait_until_blocked

pytestmark = pytest.mark.django_db(transaction=True)

FAR = datetime(2099, 1, 1, tzinfo=UTC)
concurrent_writers = pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer at a time")


def rows_of(id: UUID) -> Any:
    return Job.objects.filter(pk=id)


def claim(id: UUID) -> UUID:
    token = uuid4()
    assert lifecycle.claim(rows_of(id), timezone.now(), worker_id="w", token=token, lease=timedelta(minutes=5))
    return token


def complete(id: UUID) -> None:
    assert lifecycle.complete(rows_of(id), timezone.now(), token=claim(id))


def live() -> list[Job]:
    return [row for row in audit() if row.state not in TERMINAL]


@contextmanager
def at_statement(parent: Parent, chosen: Callable[[str], bool], *, after: bool = False) -> Any:
    """Tell the parent before (or after) the first chosen statement, and go on when it answers."""
    done = False

    def wrapper(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal done
        mine = not done and chosen(sql)
        done = done or mine
        try:
            if mine and not after:
                parent.tell("before")
                parent.hear()
            return execute(sql, params, many, context)
        finally:
            if mine and after:
                parent.tell("after")
                parent.hear()

    with connection.execute_wrapper(wrapper):
        yield


def is_insert(sql: str) -> bool:
    return "INSERT INTO" in sql and Job._meta.db_table in sql


def is_look(sql: str) -> bool:
    return sql.startswith(("SELECT", "(SELECT", "WITH found")) and "fingerprint" in sql and Job._meta.db_table in sql


# What was committed after the look


def blocking_id(parent: Parent, id: UUID) -> None:
    """Hold an id without committing it."""
    with transaction.atomic():
        Job.objects.enqueue("unrelated", id=id)
        parent.tell()
        parent.hear()
        transaction.set_rollback(True)


def enqueuer(parent: Parent, unique: Any, options: dict[str, Any]) -> Answer:
    return ask("t", unique=unique, **options)


@pytest.mark.slow
@pytest.mark.skipif(connection.vendor != "postgresql", reason="elsewhere a key is locked from the look to the insert")
@pytest.mark.parametrize("strategy", ["reject", "ignore", "replace"])
def test_a_job_that_is_admitted_and_started_while_another_enqueue_is_between_look_and_insert_still_counts(
    start, strategy
):
    # The narrow policy of the first lets its unique key go at the start; the second's policy counts running jobs.
    id = new_id()
    blocker: Child = start(blocking_id, id)
    blocker.hear()
    second: Child = start(enqueuer, {"on_conflict": strategy}, {"id": id})
    wait_until_blocked(1)
    first = ask("t", unique={"states": ["available"]})
    claim(first.id)
    blocker.tell()
    answer = second.result()
    assert first.outcome == "created"
    expected = {
        "reject": ("duplicate", first.id),
        "ignore": ("deduplicated", first.id),
        "replace": ("replaced", id),
    }
    assert (answer.outcome, answer.id) == expected[strategy]
    assert len(live()) == 1


def counting_finished(parent: Parent) -> Answer:
    """Enqueue, and tell the parent after the first look that follows the one without locks."""
    seen = []

    def is_next_look(sql: str) -> bool:
        seen.append(sql)
        return is_look(sql) and any(earlier.startswith("(") for earlier in seen[:-1])

    with at_statement(parent, is_next_look, after=True):
        return ask("t", unique={"states": ["completed"]})


@pytest.mark.slow
@concurrent_writers
def test_a_job_that_completes_between_the_looks_of_an_enqueue_that_counts_completed_ones_is_met(start):
    # The enqueue does not count the running job, and must release its unique key.
    job = ask("t", unique={})
    token = claim(job.id)
    child: Child = start(counting_finished)
    child.hear()
    with transaction.atomic():
        is_free = unlocked(rows_of(job.id)).exists()
        if is_free:
            lifecycle.complete(rows_of(job.id), timezone.now(), token=token)
    child.tell()
    assert child.result().outcome == ("duplicate" if is_free else "created")


def replacing_then_starting(parent: Parent) -> UUID:
    with transaction.atomic():
        answer = ask("t", unique={"states": ["available"], "on_conflict": "replace"})
        parent.tell()
        parent.hear()
        claim(answer.id)
    return answer.id


@pytest.mark.slow
@concurrent_writers
def test_a_replacement_that_started_while_another_replacement_waited_is_replaced_in_turn(start):
    ask("t", unique={})
    first: Child = start(replacing_then_starting)
    first.hear()
    second: Child = start(enqueuer, {"on_conflict": "replace"}, {})
    wait_until_blocked(1)
    first.tell()
    started = first.result()
    answer = second.result()
    assert answer.replaced == {started}
    assert [row.pk for row in live()] == [answer.id]


def stepping(parent: Parent, chosen: Callable[[str], bool], after: bool, unique: Any) -> Answer:
    connection.ensure_connection()
    with at_statement(parent, chosen, after=after):
        return ask("t", unique=unique)


@pytest.mark.slow
def test_a_unique_key_that_was_committed_after_the_look_is_not_released(start):
    # The incoming policy does not count the stored job by its age, so the look lets it pass and releases its key;
    # meanwhile that job is gone and a fresh one, which does count, has taken its place.
    old = Job.objects.enqueue("t", unique={}).job
    rows_of(old.pk).update(created_at=timezone.now() - timedelta(hours=2))
    child: Child = start(stepping, is_look if connection.vendor == "mysql" else is_insert, True, {"period": "PT1H"})
    child.hear()
    rows_of(old.pk).get().cancel()
    fresh = ask("t", unique={})
    child.tell()
    answer = child.result()
    assert fresh.outcome == "created"
    assert (answer.outcome, answer.id) == ("duplicate", fresh.id)
    assert rows_of(fresh.id).get().holds_unique_key
    audit()


@pytest.mark.slow
@pytest.mark.parametrize("move", [complete, lambda id: rows_of(id).get().cancel()], ids=["completes", "is cancelled"])
@pytest.mark.parametrize("strategy", ["reject", "ignore", "replace", "replace_except_schedule"])
def test_a_holder_that_ends_right_after_a_lost_insert_frees_the_key_without_an_error(start, strategy, move):
    # The policy counts nothing that the holder ever is, so that the look lets the insert happen.
    holder = Job.objects.enqueue("t", unique={}).job
    lost = is_look if connection.vendor == "mysql" else is_insert  # there the holder is locked once the key is
    child: Child = start(stepping, lost, True, {"states": ["pending"], "on_conflict": strategy})
    child.hear()
    move(holder.pk)
    child.tell()
    answer = child.result()
    assert answer.outcome == "created"
    assert [row.pk for row in live()] == [answer.id]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["reject", "ignore"])
def test_a_holder_that_completes_between_look_and_insert_counts_where_completed_is_listed(start, strategy):
    holder = Job.objects.enqueue("t", unique={}).job
    unique = {"states": ["pending", "completed"], "on_conflict": strategy}
    # A policy that counts finished jobs is finalized under locks: the holder can complete before the look only.
    child: Child = start(stepping, is_insert if connection.vendor == "sqlite" else is_look, True, unique)
    child.hear()
    complete(holder.pk)
    child.tell()
    answer = child.result()
    assert answer.id == holder.pk
    assert [row.pk for row in audit()] == [holder.pk]


@pytest.mark.slow
@pytest.mark.skipif(connection.vendor != "postgresql", reason="elsewhere a key is locked from the look to the insert")
@pytest.mark.parametrize("strategy", ["reject", "ignore"])
def test_a_rival_that_came_and_completed_between_look_and_insert_counts_where_completed_is_listed(start, strategy):
    unique = {"states": ["pending", "completed"], "on_conflict": strategy}
    child: Child = start(stepping, lambda sql: sql.startswith("INSERT") and is_insert(sql), False, unique)
    child.hear()
    rival = ask("t", unique={})
    complete(rival.id)
    child.tell()
    answer = child.result()
    assert answer.id == rival.id
    assert [row.pk for row in audit()] == [rival.id]


@pytest.mark.slow
def test_a_holder_that_ends_between_the_lost_insert_and_the_second_look_frees_the_key(start):
    holder = Job.objects.enqueue("t", unique={}).job
    child: Child = start(stepping, is_look, False, {})
    kind, answer = child.receive()
    if kind == "said":  # not every database needs a second look
        rows_of(holder.pk).get().cancel()
        child.tell()
        answer = child.result()
    assert answer.outcome == ("created" if kind == "said" else "duplicate")
    audit()


# A lost insert undoes what the look decided


def starting_up(parent: Parent, starts: bool) -> UUID:
    """Enqueue a job that does not count scheduled ones, and perhaps start it, in one transaction."""
    with transaction.atomic():
        answer = ask("t", unique={"states": ["available", "active"]})
        parent.tell()
        parent.hear()
        if starts:
            claim(answer.id)
    return answer.id


def released_scheduled() -> Job:
    job: Job = Job.objects.enqueue("t", unique={}, scheduled_at=FAR).job
    # A policy that does not count it is admitted past it, and then goes.
    Job.objects.enqueue("t", unique={"states": ["completed"]}).job.cancel()
    job.refresh_from_db()
    assert (job.state, job.holds_unique_key) == ("scheduled", False)
    return job


def without_replacing_active(parent: Parent) -> Answer:
    with override_settings(OJS_UNIQUE={"REPLACE_ACTIVE": False}):
        return ask("t", unique={"on_conflict": "replace"})


@pytest.mark.slow
@concurrent_writers
def test_a_replacement_that_is_refused_on_the_second_look_cancels_nothing(start):
    old = released_scheduled()
    first: Child = start(starting_up, True)
    first.hear()
    second: Child = start(without_replacing_active)
    wait_until_blocked(1)
    first.tell()
    running = first.result()
    answer = second.result()
    assert (answer.outcome, answer.id) == ("duplicate", running)
    old.refresh_from_db()
    assert (old.state, old.replaced_by_id) == ("scheduled", None)
    audit()


@pytest.mark.slow
@concurrent_writers
def test_a_schedule_is_inherited_from_the_newest_duplicate_of_the_last_look_only(start):
    old = released_scheduled()
    first: Child = start(starting_up, False)
    first.hear()
    second: Child = start(enqueuer, {"on_conflict": "replace_except_schedule"}, {})
    wait_until_blocked(1)
    first.tell()
    newest = first.result()
    answer = second.result()
    assert answer.replaced == {old.pk, newest}
    (row,) = live()
    assert (row.pk, row.state, row.scheduled_at) == (answer.id, "available", None)


# Ids


def id_holder(parent: Parent, id: UUID, fate: str) -> None:
    with transaction.atomic():
        Job.objects.enqueue("unrelated", id=id)
        parent.tell()
        parent.hear()
        transaction.set_rollback(fate == "roll back")


def id_wanter(parent: Parent, id: UUID, unique: Any) -> str:
    connection.ensure_connection()
    parent.tell()
    try:
        return str(Job.objects.enqueue("t", id=id, unique=unique).outcome)
    except JobIdTaken:
        return "taken"


@pytest.mark.slow
@pytest.mark.parametrize("unique", [None, {}, {"on_conflict": "replace"}], ids=["no policy", "reject", "replace"])
@pytest.mark.parametrize(("fate", "expected"), [("commit", "taken"), ("roll back", "created")])
def test_an_id_that_another_transaction_holds_is_taken_when_it_commits_and_free_when_it_rolls_back(
    start, unique, fate, expected
):
    id = new_id()
    first: Child = start(id_holder, id, fate)
    first.hear()
    second: Child = start(id_wanter, id, unique)
    second.hear()
    wait_until_blocked(1)
    first.tell()
    first.result()
    assert second.result() == expected
    assert len(audit()) == 1


def test_a_taken_id_is_never_swallowed_while_the_key_is_held_too():
    holder = Job.objects.enqueue("t", unique={}).job
    with pytest.raises(JobIdTaken):
        Job.objects.enqueue("t", unique={"on_conflict": "replace"}, id=holder.pk)
    (row,) = audit()
    assert (row.state, row.holds_unique_key) == ("available", True)


# The states in which a replaced row holds its key


@pytest.mark.parametrize("strategy", ["replace", "replace_except_schedule"])
def test_a_replaced_job_that_holds_its_key_while_cancelled_does_not_block_its_successor(strategy):
    policy = UniquePolicy(states=list(JobState), on_conflict=strategy)
    answers = [ask("t", unique=policy) for _ in range(3)]
    assert [answer.outcome for answer in answers] == ["created", "replaced", "replaced"]
    rows = {row.pk: row for row in audit()}
    assert [rows[answer.id].state for answer in answers] == ["cancelled", "cancelled", "available"]
    assert [rows[answer.id].holds_unique_key for answer in answers] == [False, False, True]


def test_a_job_cancelled_manually_that_holds_its_key_while_cancelled_still_keeps_others_out():
    job = Job.objects.enqueue("t", unique={"states": list(JobState)}).job
    job.cancel()
    assert ask("t", unique={"states": list(JobState)}).outcome == "duplicate"


# Payloads


@pytest.mark.parametrize("depth", [10, 31, 32, 33, 60])
def test_json_of_any_depth_comes_back_as_it_went_in_and_still_identifies_its_job(depth):
    nested: Any = "leaf"
    for level in range(depth):
        nested = {"in": nested} if level % 2 else [nested]
    args = {"tree": nested}
    answer = ask("t", args, unique={"keys": ["type", "args"]})
    assert rows_of(answer.id).get().args == args
    assert ask("t", args, unique={"keys": ["type", "args"]}).outcome == "duplicate"
    assert ask("t", args, unique={"keys": ["type", "args"], "on_conflict": "ignore"}).id == answer.id


# SQLite


@pytest.mark.slow
@pytest.mark.skipif(connection.vendor != "sqlite", reason="about SQLite's locks")
def test_deferred_transactions_that_begin_with_an_enqueue_never_fail_on_an_upgrade(start):
    children = [start(deferred, strategy) for strategy in ["reject", "replace", "ignore", "replace"]]
    for child in children:
        child.hear()
    for child in children:
        child.tell()
    for child in children:
        assert child.result() == 20
    assert len(live()) == 20


def deferred(parent: Parent, strategy: str) -> int:
    connection.settings_dict["OPTIONS"] = {**connection.settings_dict["OPTIONS"], "transaction_mode": "DEFERRED"}
    connection.ensure_connection()
    parent.tell()
    parent.hear()
    for number in range(20):
        with transaction.atomic():
            ask(f"t{number}", unique={"on_conflict": strategy})
            Job.objects.count()
    return 20


# Retry


def retrying(parent: Parent, id: UUID) -> str:
    from django_ojs_unique import DuplicateJob

    job = rows_of(id).get()
    with at_statement(parent, lambda sql: sql.startswith("SELECT")):
        try:
            job.retry()
        except DuplicateJob:
            return "refused"
    return "retried"


@pytest.mark.slow
@pytest.mark.skipif(connection.vendor == "sqlite", reason="there is one writer at a time")
def test_a_retry_is_refused_when_a_duplicate_was_admitted_while_it_looked(start):
    job = Job.objects.enqueue("t", unique={}).job
    token = claim(job.pk)
    assert lifecycle.discard(rows_of(job.pk), timezone.now(), token=token, errors=[])
    child: Child = start(retrying, job.pk)
    child.hear()
    answer = ask("t", unique={})
    child.tell()
    assert (child.result(), answer.outcome) == ("refused", "created")
    assert len(live()) == 1
