"""Retries before which somebody looks: `on_retry="discard"` (River, "Required states")."""

from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ojs_unique import JobState, UniquePolicy, lifecycle
from django_ojs_unique.maintenance import superseded, timers
from django_ojs_unique.models import Job
from django_ojs_unique.signals import job_discarded
from django_ojs_unique.unique.presets import newest_waits, river, throttle
from tests.support.jobs import HOUR, columns, enqueue, fresh, put, row, stored

pytestmark = pytest.mark.django_db

REQUIRED = ["pending", "scheduled", "available", "running"]
POLICY = river(by_args=True, by_state=REQUIRED)


def waiting(*, due_in=-HOUR, unique=POLICY):
    """Enqueue a job that has failed, and waits to run again."""
    job = stored("retryable", unique=unique)
    row(job).update(run_at=timezone.now() + due_in)
    return fresh(job)


def promote(after=timedelta(0)):
    return timers.promote(Job.objects.all(), timezone.now() + after)


def states(*jobs):
    return [str(fresh(job).state) for job in jobs]


@pytest.mark.parametrize("state", ["available", "active", "scheduled"])
def test_a_retry_is_discarded_while_a_newer_job_counts(state):
    first = waiting()
    second = stored(state, unique=POLICY)
    assert promote() == 0
    assert states(first, second) == ["discarded", state]
    assert str(second.pk) in fresh(first).errors[-1]["message"]


def test_the_first_statement_of_the_transaction_is_a_lock():
    waiting()
    with CaptureQueriesContext(connection) as queries:
        promote()
    texts = [query["sql"] for query in queries]
    begin = next(number for number, text in enumerate(texts) if text.startswith(("SAVEPOINT", "BEGIN")))
    begins_with = texts[begin + 1]
    assert begins_with.startswith(("DELETE", "UPDATE")) or " FOR UPDATE" in begins_with


@pytest.mark.parametrize("state", ["completed", "cancelled", "discarded"])
def test_a_job_that_no_longer_counts_is_no_reason_to_discard(state):
    first = waiting()
    second = stored(state, unique=POLICY)
    assert promote() == 1
    assert states(first, second) == ["available", state]


def test_a_finished_job_is_one_where_the_policy_counts_it():
    policy = river(by_args=True, by_state=[*REQUIRED, "completed"])
    first = waiting(unique=policy)
    second = stored("completed", unique=policy)
    assert promote() == 0
    assert states(first, second) == ["discarded", "completed"]


def test_a_period_that_is_over_counts_no_longer():
    policy = UniquePolicy(states=["available", "active"], period="PT1H", on_retry="discard")
    first = waiting(unique=policy)
    second = enqueue(unique=policy).job
    row(second).update(created_at=timezone.now() - HOUR)
    assert promote() == 1
    assert states(first, second) == ["available", "available"]


def test_a_retry_that_is_not_due_is_left_alone():
    first = waiting(due_in=HOUR)
    enqueue(unique=POLICY)
    before = columns(first)
    assert promote() == 0
    assert columns(first) == before


@pytest.mark.slow
def test_of_several_that_are_due_together_the_newest_goes_on():
    jobs = [waiting() for _ in range(4)]
    assert promote() == 1
    assert states(*jobs) == ["discarded", "discarded", "discarded", "available"]
    assert all(str(jobs[3].pk) in fresh(job).errors[-1]["message"] for job in jobs[:3])


@pytest.mark.slow
def test_one_that_is_due_later_finds_the_one_that_went_on():
    """It holds the key, and has still been superseded: the other one was promoted while it did not count."""
    first, second = waiting(), waiting(due_in=HOUR)
    assert fresh(second).holds_unique_key
    assert promote() == 1
    assert promote(after=2 * HOUR) == 0
    assert states(first, second) == ["available", "discarded"]


@pytest.mark.slow
@pytest.mark.parametrize("older_is_due_first", [True, False])
def test_where_retries_count_an_older_one_never_discards_a_newer_one(older_is_due_first):
    older, newer = [waiting(unique=UniquePolicy(states=["pending"])) for _ in range(2)]
    Job._base_manager.update(unique=newest_waits(args=False).to_dict())
    row(newer if older_is_due_first else older).update(run_at=timezone.now() + HOUR)
    promote()
    promote(after=2 * HOUR)
    assert states(older, newer) == ["discarded", "available"]


def test_a_retry_that_nobody_looks_at_counts_as_what_it_becomes():
    first, second = waiting(), waiting()
    row(second).update(unique=UniquePolicy(keys=["args"], states=["pending"]).to_dict())
    assert promote() == 1
    assert states(first, second) == ["discarded", "available"]


@pytest.mark.parametrize("policy", [UniquePolicy(), throttle("PT1H"), river(by_args=True), None])
def test_other_retries_go_on_without_a_look(policy):
    job = waiting(unique=policy)
    with CaptureQueriesContext(connection) as queries:
        assert superseded.promote(Job.objects.all(), timezone.now()) == 0
    assert len(queries) == 1
    assert promote() == 1
    assert states(job) == ["available"]


def test_a_job_that_was_taken_out_of_uniqueness_goes_on():
    first = waiting()
    enqueue(unique=POLICY)
    first.release_unique_key()
    assert promote() == 1
    assert states(first) == ["available"]


@pytest.mark.parametrize("stored_policy", [{"on_retry": "never"}, {"on_retry": "discard", "states": "?"}, ["on_retry"]])
def test_a_policy_that_somebody_made_invalid_holds_nothing_up(stored_policy, caplog):
    first = waiting()
    enqueue(unique=POLICY)
    other = waiting(unique=river(by_args=True, by_queue=True, by_state=REQUIRED))
    row(first).update(unique=stored_policy)
    assert promote() == 2
    assert states(first, other) == ["available", "available"]
    assert "invalid unique policy" in caplog.text or stored_policy == ["on_retry"]


def test_a_policy_that_says_run_in_so_many_words_runs():
    first = waiting()
    enqueue(unique=POLICY)
    row(first).update(unique={**POLICY.to_dict(), "on_retry": "run"})
    assert promote() == 1
    assert states(first) == ["available"]


def test_what_happened_is_announced_and_logged(caplog):
    seen = []

    def receive(sender, job, error, using, **kwargs):
        seen.append((sender, job.pk, job.state, error["type"], using))

    job_discarded.connect(receive)
    try:
        first = waiting()
        second = enqueue(unique=POLICY).job
        promote()
    finally:
        job_discarded.disconnect(receive)
    assert seen == [(Job, first.pk, JobState.DISCARDED, "superseded", "default")]
    assert f"Job {first.pk} (t) discarded. Superseded: job {second.pk}, which is available, has the key." in caplog.text


@pytest.mark.slow
def test_what_was_superseded_can_be_retried_when_the_other_has_ended():
    first = waiting()
    second = enqueue(unique=POLICY).job
    promote()
    put(second, "completed")
    fresh(first).retry()
    assert states(first) == ["available"]


def test_retrying_manually_does_not_look():
    first = waiting()
    second = enqueue(unique=POLICY).job
    first.retry()
    assert states(first, second) == ["available", "available"]


@pytest.mark.slow
def test_many_keys_are_finalized_in_batches(monkeypatch):
    monkeypatch.setattr(superseded, "BATCH", 3)
    now = timezone.now()
    for number in range(8):
        for _ in range(2):
            put(enqueue(args={"n": number}, unique=POLICY).job, "retryable")
    assert timers.promote(Job.objects.all(), now + 2 * HOUR) == 8
    assert sorted(Job.objects.values_list("state", flat=True)) == ["available"] * 8 + ["discarded"] * 8


@pytest.mark.slow
def test_a_batch_costs_the_same_number_of_statements_whatever_its_size():
    def cost(keys):
        for number in range(keys):
            put(enqueue(f"t{keys}", {"n": number}, unique=POLICY).job, "retryable")
        with CaptureQueriesContext(connection) as queries:
            assert superseded.promote(Job.objects.filter(type=f"t{keys}"), timezone.now() + 2 * HOUR) == keys
        return len(queries)

    assert cost(1) == cost(50)


def locking(parent, pk):
    with transaction.atomic():
        Job.objects.select_for_update().get(pk=pk)
        parent.tell()
        parent.hear()


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite locks no rows")
@pytest.mark.parametrize("locked", [0, 1, 2])
def test_a_key_of_which_somebody_has_locked_a_retry_is_left_for_the_next_time(start, locked):
    jobs = [waiting() for _ in range(3)]
    other = waiting(unique=river(by_args=True, by_queue=True, by_state=REQUIRED))
    child = start(locking, jobs[locked].pk)
    child.hear()
    assert promote() == 1
    assert states(*jobs, other) == ["retryable"] * 3 + ["available"]
    child.tell()
    child.result()
    assert promote() == 1
    assert states(*jobs) == ["discarded", "discarded", "available"]


def test_no_move_is_made_twice():
    first, second = waiting(), waiting()
    assert lifecycle.cancel(row(second), timezone.now()) == 1
    assert [promote(), promote()] == [1, 0]
    assert states(first, second) == ["available", "cancelled"]
