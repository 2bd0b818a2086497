"""Leases, on real processes: kept while the worker lives, lost when it falls silent, and then of no more effect."""

import signal
from datetime import timedelta

import pytest
from django.utils import timezone

from django_ojs_unique.execution.run_result import RunResult
from django_ojs_unique.maintenance import timers
from django_ojs_unique.models import Job
from django_ojs_unique.worker.finalizer import Finalizer
from tests.support.commands import enqueue

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

LEASE, SHORT = timedelta(seconds=0.6), timedelta(seconds=1)


@pytest.mark.parametrize("type", ["hold", "hold.async"])
def test_a_job_that_runs_longer_than_its_lease_keeps_it(place, type):
    place.rescuing_nobody("--lease", "0.6")
    job = enqueue(type)
    place.wait_for("began")
    first = place.wait_for_state(job, state="active")
    extended = place.wait_for_state(job, lease_expires_at__gt=first.lease_expires_at + 2 * LEASE)
    assert (extended.attempt, extended.lease_token) == (1, first.lease_token)
    place.open("gate")
    assert place.wait_for_state(job, state="completed").errors == []
    assert len(place.events("began")) == 1


def test_the_lease_of_a_job_goes_before_that_of_its_worker(place):
    place.rescuing_nobody("--lease", "3600")
    job = enqueue("hold.shortly")
    place.wait_for("began")
    first = place.wait_for_state(job, state="active")
    assert first.lease_expires_at - first.started_at < timedelta(hours=1)
    extended = place.wait_for_state(job, lease_expires_at__gt=first.lease_expires_at + 2 * SHORT)
    assert (extended.attempt, extended.lease_token) == (1, first.lease_token)
    place.open("gate")
    assert place.wait_for_state(job, state="completed").errors == []


def test_a_job_of_a_killed_worker_returns_with_its_attempt_counted_and_an_error(place):
    worker = place.rescuing_nobody("--lease", "1")
    job = enqueue()
    place.wait_for("began")
    place.wait_until_confirmed()
    worker.kill()
    place.runworker()
    place.wait_for("began", 2)
    row = place.wait_for_state(job, state="active", attempt=2)
    (error,) = row.errors
    assert (error["type"], error["attempt"], error["retryable"]) == ("visibility_timeout", 1, True)
    assert "Lease expired" in error["message"]
    place.open("gate")
    place.wait_for_state(job, state="completed", attempt=2)


@pytest.mark.parametrize(("on_exhaustion", "dead_letter"), [("discard", False), ("dead_letter", True)])
def test_the_last_attempt_of_a_killed_worker_discards_the_job(place, on_exhaustion, dead_letter):
    worker = place.rescuing_nobody()
    job = enqueue("hold.shortly", retry={"max_attempts": 1, "on_exhaustion": on_exhaustion})
    place.wait_for("began")
    worker.kill()
    place.runworker()
    row = place.wait_for_state(job, state="discarded")
    assert (row.attempt, row.dead_letter, row.errors[0]["retryable"]) == (1, dead_letter, False)
    assert len(place.events("began")) == 1


def test_a_worker_of_another_queue_takes_back_what_a_dead_one_held(place):
    worker = place.rescuing_nobody("--queue", "a")
    job = enqueue("hold.shortly", queue="a")
    place.wait_for("began")
    place.wait_until_confirmed()
    worker.kill()
    place.runworker("--queue", "b")
    assert place.wait_for_state(job, state="available").attempt == 1


def test_a_stopped_worker_that_wakes_up_can_neither_complete_nor_start_what_others_have_taken(place):
    zombie = place.rescuing_nobody("--lease", "1", "--concurrency", "1", OJS_TEST_WORK_AHEAD="100")
    jobs = [enqueue() for _ in range(6)]
    place.wait_for("began")
    place.wait(lambda: Job.objects.filter(state="active").count() == 6, "the worker holds all jobs")
    place.wait(lambda: Job.objects.filter(state="active", unconfirmed=None).exists(), "the first attempt counts")
    zombie.freeze()
    place.open("gate")
    place.runworker("--lease", "10")
    for job in jobs:
        place.wait_for_state(job, state="completed")
    before = list(Job.objects.order_by("pk").values())
    zombie.signal(signal.SIGCONT)
    place.wait(lambda: "refused" in zombie.output, "the result is refused")
    assert zombie.stop() == 0
    assert list(Job.objects.order_by("pk").values()) == before
    assert sorted(row["attempt"] for row in before) == [1, 1, 1, 1, 1, 2]
    assert len(place.events("began")) == 7
    assert [event.attempt for event in place.events("began") if event.pid == zombie.pid] == [1]


def test_a_stopped_worker_that_wakes_up_to_an_error_neither_retries_nor_discards(place):
    zombie = place.rescuing_nobody("--lease", "1")
    jobs = [
        Job.objects.enqueue(type, {"gate": "gate", "fails": True}, retry={"max_attempts": attempts}).job
        for type, attempts in [("hold", 2), ("hold", 3)]
    ]
    place.wait_for("began", 2)
    place.wait_until_confirmed()
    zombie.freeze()
    other = place.runworker("--lease", "10")
    place.wait_for("began", 4)
    before = list(Job.objects.order_by("pk").values())
    other.freeze()
    place.open("gate")
    zombie.signal(signal.SIGCONT)
    place.wait(lambda: zombie.output.count("refused") == 2, "both results are refused")
    zombie.kill()
    unchanged = [{**row, "lease_expires_at": None} for row in before]
    assert [{**row, "lease_expires_at": None} for row in Job.objects.order_by("pk").values()] == unchanged
    other.signal(signal.SIGCONT)
    place.wait_for_state(jobs[0], state="discarded", attempt=2)
    assert place.wait_for_state(jobs[1], attempt=3).errors[0]["type"] == "visibility_timeout"


def test_a_stopped_worker_may_take_its_own_job_again_and_only_the_new_run_counts(place):
    zombie = place.rescuing_nobody("--lease", "1", "--concurrency", "2")
    job = enqueue()
    place.wait_for("began")
    place.wait_until_confirmed()
    zombie.freeze()
    other = place.runworker("--queue", "elsewhere")
    place.wait_for_state(job, state="available", attempt=1)
    other.kill()
    zombie.signal(signal.SIGCONT)
    place.wait_for("began", 2)
    assert {event.pid for event in place.events("began")} == {zombie.pid}
    place.open("gate")
    row = place.wait_for_state(job, state="completed")
    assert (row.attempt, len(row.errors)) == (2, 1)
    place.wait(lambda: "refused" in zombie.output, "the first result is refused")
    assert zombie.stop() == 0
    assert "1 completed" in zombie.output
    assert "1 refused" in zombie.output


@pytest.mark.parametrize("error", [None, {"type": "ValueError", "message": "no", "attempt": 1}])
@pytest.mark.parametrize("order", [1, -1])
def test_two_runs_of_one_job_that_end_together_are_told_apart(take, order, error):
    Job.objects.enqueue("t")
    (old,) = take(lease=timedelta(seconds=-1))
    assert timers.rescue(Job.objects.all(), timezone.now()) == 1
    (new,) = take()
    outcomes = {}
    finalizer = Finalizer(
        Job.objects.all(), lambda finalized: outcomes.update({id(run.job): outcome for run, outcome in finalized})
    )
    for job in [old, new][::order]:
        finalizer.put(RunResult(job, error=error))
    while finalizer.finalize_waiting():
        pass
    assert Job.objects.get().state == ("retryable" if error else "completed")
    assert outcomes == {id(old): "refused", id(new): "retried" if error else "completed"}
