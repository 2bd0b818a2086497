from datetime import timedelta

import pytest
from django.utils import timezone

from django_ojs_unique.execution import leases
from django_ojs_unique.execution.finalize import finalize
from django_ojs_unique.execution.run_result import RunResult
from django_ojs_unique.maintenance import timers
from django_ojs_unique.models import Job, SuppressedEnqueue

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def test_a_scheduled_job_becomes_available_when_its_time_has_come():
    now = timezone.now()
    Job.objects.enqueue("t", {"n": 1}, scheduled_at=now + HOUR)
    Job.objects.enqueue("t", {"n": 2}, scheduled_at=now + 3 * HOUR)
    assert timers.promote(Job.objects.all(), now) == 0
    assert timers.promote(Job.objects.all(), now + HOUR) == 1
    row = Job.objects.get(state="available")
    assert (row.args["n"], row.enqueued_at, row.scheduled_at, row.run_at) == (1, now + HOUR, now + HOUR, None)


def test_a_job_that_is_promoted_late_takes_the_place_of_its_time():
    now = timezone.now()
    Job.objects.enqueue("t", scheduled_at=now + HOUR)
    timers.promote(Job.objects.all(), now + 2 * HOUR)
    assert Job.objects.get().enqueued_at == now + HOUR


def test_promotion_works_through_more_than_one_batch(monkeypatch):
    monkeypatch.setattr(timers, "BATCH", 3)
    now = timezone.now()
    for number in range(7):
        Job.objects.enqueue("t", {"n": number}, scheduled_at=now + HOUR)
    assert timers.promote(Job.objects.all(), now + HOUR) == 7


def test_a_waiting_job_that_expired_is_discarded_and_a_running_one_is_not(take):
    now = timezone.now()
    Job.objects.enqueue("t", {"n": 1}, expires_at=now + HOUR)
    take()
    Job.objects.enqueue("t", {"n": 2}, expires_at=now + HOUR)
    Job.objects.enqueue("t", {"n": 3}, expires_at=now + 3 * HOUR)
    assert timers.expire(Job.objects.all(), now + HOUR) == 1
    assert {job.args["n"]: job.state for job in Job.objects.all()} == {1: "active", 2: "discarded", 3: "available"}


def test_a_job_whose_lease_ran_out_is_available_again_and_the_attempt_counts(take):
    Job.objects.enqueue("t")
    (stale,) = take(lease=-HOUR)
    assert timers.rescue(Job.objects.all(), timezone.now()) == 1
    row = Job.objects.get()
    assert (row.state, row.attempt, row.lease_token) == ("available", 1, None)
    assert "Lease expired" in row.errors[0]["message"]
    assert [outcome for _, outcome in finalize(Job.objects.all(), [RunResult(stale)])] == ["refused"]


def test_a_job_that_is_taken_back_goes_to_the_end_of_its_queue(take):
    Job.objects.enqueue("t")
    take(lease=-HOUR)
    now = timezone.now() + HOUR
    timers.rescue(Job.objects.all(), now)
    assert Job.objects.get().enqueued_at == now


@pytest.mark.parametrize("on_exhaustion", ["discard", "dead_letter"])
def test_a_lost_lease_on_the_last_attempt_discards(take, on_exhaustion):
    Job.objects.enqueue("t", retry={"max_attempts": 1, "on_exhaustion": on_exhaustion})
    take(lease=-HOUR)
    timers.rescue(Job.objects.all(), timezone.now())
    row = Job.objects.get()
    assert (row.state, row.dead_letter) == ("discarded", on_exhaustion == "dead_letter")


@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("attempt", [0, 2])
def test_an_attempt_that_was_not_confirmed_does_not_count(take, most, attempt):
    Job.objects.enqueue("t", retry={"max_attempts": most})
    Job._base_manager.update(attempt=attempt)
    for _ in range(2):
        take(lease=leases.Lease(-HOUR, unconfirmed=True))
        timers.rescue(Job.objects.all(), timezone.now())
    row = Job.objects.get()
    assert (row.state, row.attempt, row.unconfirmed, len(row.errors)) == ("available", attempt, None, 2)
    assert row.errors[-1]["retryable"] is True
    take(lease=leases.Lease(-HOUR))
    timers.rescue(Job.objects.all(), timezone.now())
    assert (Job.objects.get().state == "discarded") == (attempt + 1 >= most)


def test_an_attempt_that_was_confirmed_counts(take):
    for number in range(3):
        Job.objects.enqueue("t", {"n": number})
    first, second, third = take(lease=leases.Lease(HOUR, unconfirmed=True))
    assert leases.confirm(Job.objects.all(), [first]) is True
    leases.extend(Job.objects.all(), [second], HOUR)
    leases.extend(Job.objects.all(), [third], HOUR, begun=False)
    Job._base_manager.update(lease_expires_at=timezone.now() - HOUR)
    timers.rescue(Job.objects.all(), timezone.now())
    assert leases.confirm(Job.objects.all(), [first]) is False
    assert dict(Job.objects.values_list("pk", "attempt")) == {first.pk: 1, second.pk: 1, third.pk: 0}


def test_a_live_lease_is_left_alone_and_a_heartbeat_extends_it(take):
    Job.objects.enqueue("t")
    held = take(lease=HOUR)
    assert timers.rescue(Job.objects.all(), timezone.now()) == 0
    before = Job.objects.get().lease_expires_at
    assert leases.extend(Job.objects.all(), held, 2 * HOUR) == {(held[0].pk, held[0].lease_token)}
    assert Job.objects.get().lease_expires_at > before


def test_a_heartbeat_does_not_retry_a_job_that_was_taken_back(take):
    Job.objects.enqueue("t")
    held = take(lease=-HOUR)
    timers.rescue(Job.objects.all(), timezone.now())
    assert leases.extend(Job.objects.all(), held, HOUR) == set()


def test_what_was_not_started_is_requeued_without_counting_the_attempt(take):
    Job.objects.enqueue("t")
    held = take()
    assert leases.requeue(Job.objects.all(), held) == (1, set())
    row = Job.objects.get()
    assert (row.state, row.attempt, row.started_at) == ("available", 0, None)


def test_suppressed_enqueues_are_kept_for_their_retention_only(settings):
    Job.objects.enqueue("t", unique={})
    for _ in range(2):
        Job.objects.enqueue("t", unique={"on_conflict": "ignore"})
    first = SuppressedEnqueue.objects.order_by("pk").first()
    SuppressedEnqueue.objects.filter(pk=first.pk).update(created_at=timezone.now() - 2 * HOUR)
    assert SuppressedEnqueue.objects.prune(timezone.now()) == 0
    settings.OJS_UNIQUE = {"SUPPRESSED_RETENTION": "PT1H"}
    assert SuppressedEnqueue.objects.prune(timezone.now()) == 1
    assert SuppressedEnqueue.objects.count() == 1
