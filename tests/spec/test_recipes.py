"""The recipes of `presets`, as what they promise: which jobs wait, which are answered, which give way."""

from datetime import timedelta

import pytest
from django.utils import timezone

from django_ojs_unique.maintenance import timers
from django_ojs_unique.models import Job
from django_ojs_unique.unique.presets import debounce, newest_waits, once_per_window, throttle
from tests.support.jobs import ALL_STATES, HOUR, attempt, enqueue, fresh, live, outcome, put, stored

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)
DATA = newest_waits(args=["id"])


def test_beside_the_running_job_the_newest_waits():
    running = stored("active", args={"id": 1, "n": 0}, unique=DATA)
    answers = [outcome(args={"id": 1, "n": n}, unique=DATA) for n in (1, 2, 3)]
    assert answers == ["created", "replaced", "replaced"]
    waits = live().exclude(pk=running.pk).get()
    assert (waits.args["n"], waits.state) == (3, "available")
    assert fresh(running).state == "active"


@pytest.mark.parametrize("state", ["scheduled", "pending", "available", "retryable"])
def test_whatever_waits_gives_way_to_the_newest(state):
    old = stored(state, args={"id": 1, "n": 1}, unique=DATA)
    assert attempt(args={"id": 1, "n": 2}, unique=DATA)[0] == "replaced"
    assert fresh(old).state == "cancelled"


def test_a_running_job_that_fails_gives_way_to_the_newer_one_that_waits():
    running = stored("active", args={"id": 1, "n": 1}, unique=DATA)
    newer = enqueue(args={"id": 1, "n": 2}, unique=DATA).job
    Job._base_manager.filter(pk=running.pk).update(
        state="retryable", run_at=timezone.now(), lease_token=None, lease_expires_at=None
    )
    assert timers.promote(Job.objects.all(), timezone.now() + HOUR) == 0
    assert [fresh(running).state, fresh(newer).state] == ["discarded", "available"]


def test_a_running_job_that_fails_alone_is_retried():
    failed = stored("retryable", unique=DATA, args={"id": 1})
    assert timers.promote(Job.objects.all(), timezone.now() + 2 * HOUR) == 1
    assert fresh(failed).state == "available"


def test_a_debounced_job_moves_with_each_enqueue(clock):
    policy = debounce("PT1M", args=["id"])
    for n in range(3):
        job = enqueue(args={"id": 1, "n": n}, unique=policy).job
        clock.advance(timedelta(seconds=30))
    assert live().get() == job
    assert (job.args["n"], job.scheduled_at) == (2, clock.now + timedelta(seconds=30))


@pytest.mark.parametrize("state", ALL_STATES)
@pytest.mark.parametrize("policy", [throttle(3600), once_per_window("PT1H")], ids=["throttle", "once per window"])
def test_within_the_period_one_counts_unless_it_was_cancelled_or_discarded(policy, state):
    stored(state, unique=policy)
    assert outcome(unique=policy) == ("created" if state in ("cancelled", "discarded") else "deduplicated")


@pytest.mark.parametrize(
    ("policy", "answers"),
    [
        (throttle("PT1H"), ["deduplicated", "deduplicated", "created"]),
        (once_per_window("PT1H"), ["deduplicated", "created", "deduplicated"]),
    ],
    ids=["throttle", "once per window"],
)
def test_a_throttle_counts_from_the_job_and_a_window_from_its_edge(policy, answers, clock):
    clock.advance(timedelta(minutes=50))
    put(enqueue(unique=policy).job, "completed")
    found = []
    for minutes in (5, 5, 50):
        clock.advance(timedelta(minutes=minutes))
        found.append(outcome(unique=policy))
    assert found == answers
