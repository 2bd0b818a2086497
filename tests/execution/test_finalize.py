from collections import Counter
from datetime import timedelta
from threading import Event, Thread
from uuid import uuid4

import pytest
from django.db import connection, transaction
from django.utils import timezone

from django_ojs_unique.execution import finalize as finalizing
from django_ojs_unique.execution.errors import ERRORS_KEPT
from django_ojs_unique.execution.run_result import RunResult
from django_ojs_unique.models import Job
from tests.support.processes import PATIENCE

pytestmark = pytest.mark.django_db


def finalize(jobs, runs):
    """Finalize runs and count what became of them."""
    return Counter(outcome for _, outcome in finalizing.finalize(jobs, runs))


def failed(job, *types, **record):
    error = {"type": types[0], "code": "handler_error", "message": "no", "attempt": job.attempt, **record}
    return RunResult(job, error=error, error_types=types)


def test_a_batch_is_finalized_together_and_results_are_kept(take):
    for number in range(5):
        Job.objects.enqueue("t", {"n": number})
    claimed = take()
    runs = [RunResult(job, result={"n": 3} if job.args["n"] == 3 else None) for job in claimed]
    assert finalize(Job.objects.all(), runs) == {"completed": 5}
    assert {job.args["n"]: job.result for job in Job.objects.all()} == {0: None, 1: None, 2: None, 3: {"n": 3}, 4: None}
    assert not Job.objects.exclude(state="completed", lease_token=None, finished_at__isnull=False).exists()


def test_no_job_finished_before_its_handler(take):
    for number in range(3):
        Job.objects.enqueue("t", {"n": number})
    now = timezone.now()
    runs = [RunResult(job, at=now + timedelta(seconds=job.args["n"])) for job in take()]
    finalize(Job.objects.all(), runs)
    ended = dict(Job.objects.values_list("pk", "finished_at"))
    assert all(ended[run.job.pk] >= run.at for run in runs)


def test_of_two_runs_of_one_job_the_first_is_finalized_and_the_other_is_left_for_later(take):
    Job.objects.enqueue("t")
    (lost,) = take()
    Job._base_manager.update(state="available")
    (held,) = take()
    runs = [RunResult(lost, result=1), RunResult(held, result=2)]
    assert [(run.result, outcome) for run, outcome in finalizing.finalize(Job.objects.all(), runs)] == [(1, "refused")]
    assert [outcome for _, outcome in finalizing.finalize(Job.objects.all(), runs[1:])] == ["completed"]
    assert Job.objects.get().result == 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite locks no rows")
def test_a_run_whose_row_is_locked_is_neither_waited_for_nor_refused(take):
    Job.objects.enqueue("t")
    (job,) = take()
    locked, done = Event(), Event()

    def hold():
        with transaction.atomic():
            list(Job.objects.select_for_update())
            locked.set()
            done.wait(PATIENCE)  # whoever waits for the row gets it then, and completes
        connection.close()

    thread = Thread(target=hold)
    thread.start()
    assert locked.wait(PATIENCE)
    outcomes = finalizing.finalize(Job.objects.all(), [RunResult(job)])
    done.set()
    thread.join()
    assert outcomes == []
    assert [outcome for _, outcome in finalizing.finalize(Job.objects.all(), [RunResult(job)])] == ["completed"]


def test_a_falsy_result_is_stored_and_is_not_null(take):
    Job.objects.enqueue("t")
    (job,) = take()
    finalize(Job.objects.all(), [RunResult(job, result=0)])
    assert Job.objects.get().result == 0


@pytest.mark.parametrize("result", [None, {"a": 1}])
def test_a_completion_under_a_stale_token_is_refused(take, result):
    Job.objects.enqueue("t")
    (job,) = take()
    Job._base_manager.update(lease_token=uuid4())
    assert finalize(Job.objects.all(), [RunResult(job, result=result)]) == {"refused": 1}
    assert Job.objects.get().state == "active"


def test_a_failure_under_a_stale_token_neither_retries_nor_discards(take):
    Job.objects.enqueue("t")
    (job,) = take()
    Job._base_manager.update(lease_token=uuid4())
    assert finalize(Job.objects.all(), [failed(job, "E")]) == {"refused": 1}
    assert Job.objects.get().errors == []


@pytest.mark.parametrize("end", [RunResult, lambda job: failed(job, "E")])
def test_the_result_of_a_cancelled_job_is_refused(take, end):
    Job.objects.enqueue("t")
    (job,) = take()
    Job.objects.get().cancel()
    assert finalize(Job.objects.all(), [end(job)]) == {"refused": 1}
    assert Job.objects.get().state == "cancelled"


@pytest.mark.slow
def test_the_result_of_a_replaced_job_is_refused_and_the_new_job_waits(take):
    Job.objects.enqueue("t", unique={})
    (job,) = take()
    new = Job.objects.enqueue("t", unique={"on_conflict": "replace"})
    assert [replaced.pk for replaced in new.replaced] == [job.pk]
    assert finalize(Job.objects.all(), [RunResult(job)]) == {"refused": 1}
    assert {row.pk: row.state for row in Job.objects.all()} == {job.pk: "cancelled", new.job.pk: "available"}


def test_a_failure_is_retried_after_the_delay_of_the_policy(take):
    Job.objects.enqueue("t", retry={"initial_interval": "PT10S", "jitter": False})
    (job,) = take()
    run = failed(job, "E")
    assert finalize(Job.objects.all(), [run]) == {"retried": 1}
    row = Job.objects.get()
    assert (row.state, row.lease_token, (row.run_at - run.at).total_seconds()) == ("retryable", None, 10)
    assert row.errors == [{**run.error, "retryable": True, "retry_delay_ms": 10_000}]


def test_the_last_failure_discards(take):
    Job.objects.enqueue("t", retry={"max_attempts": 1})
    (job,) = take()
    assert finalize(Job.objects.all(), [failed(job, "E")]) == {"discarded": 1}
    row = Job.objects.get()
    assert (row.state, row.errors[-1]["retryable"]) == ("discarded", False)
    assert row.finished_at is not None


@pytest.mark.parametrize(("entry", "discarded"), [("ValueError", True), ("app.*", True), ("app.Other", False)])
def test_a_non_retryable_error_discards_at_once(take, entry, discarded):
    Job.objects.enqueue("t", retry={"non_retryable_errors": [entry]})
    (job,) = take()
    finalize(Job.objects.all(), [failed(job, "app.ValueError", "ValueError")])
    assert (Job.objects.get().state == "discarded") is discarded


def test_only_the_last_errors_are_kept(take):
    Job.objects.enqueue("t", retry={"max_attempts": 100})
    Job.objects.update(errors=[{"message": str(number)} for number in range(ERRORS_KEPT)])
    (job,) = take()
    finalize(Job.objects.all(), [failed(job, "E")])
    messages = [error["message"] for error in Job.objects.get().errors]
    assert messages == [*map(str, range(1, ERRORS_KEPT)), "no"]


def test_retry_and_completion_never_ask_about_uniqueness(take):
    """The holder released its unique key; a newer job holds the key; the old one still moves freely."""
    Job.objects.enqueue("t", {"n": 1}, unique={"states": ["available"]})
    (old,) = take()
    Job.objects.enqueue("t", {"n": 2}, unique={"states": ["available"]})
    finalize(Job.objects.all(), [failed(old, "E")])
    Job._base_manager.filter(pk=old.pk).update(run_at=timezone.now())
    from django_ojs_unique.maintenance.timers import promote

    assert promote(Job.objects.all(), timezone.now()) == 1
    assert sorted(Job.objects.values_list("state", flat=True)) == ["available", "available"]
