"""S1-12..S1-23, layer 3: Sidekiq's `unique_for` and `unique_until`, by `sidekiq()`.

`test_idempotent_design` shows what the layers are; here is what the preset adds to them.
"""

from datetime import timedelta

import pytest

from django_ojs_unique import job, lifecycle
from django_ojs_unique.models import Job
from django_ojs_unique.ojs.states import ALL, INCOMPLETE
from django_ojs_unique.unique.presets import sidekiq
from tests.support.jobs import HOUR, attempt, claim, enqueue, fresh, outcome, row, stored

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)


def shows(statement):
    """Name the statement that a test without parameters shows."""
    return pytest.mark.parametrize((), [pytest.param(id=statement)])


@pytest.mark.parametrize("unique_for", [60, "PT1M", MINUTE], ids=["S1-12", "S1-12-iso", "S1-12-timedelta"])
def test_the_same_class_and_args_within_unique_for_are_answered_with_the_job_that_is_there(unique_for, clock):
    policy = sidekiq(unique_for)
    first = enqueue(args=[42], unique=policy).job
    clock.advance(timedelta(seconds=59))
    assert attempt(args=[42], unique=policy) == ("deduplicated", first)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"args": [43]}, id="S1-13-other-args"),
        pytest.param({"args": [42, "more"]}, id="S1-13-more-args"),
        pytest.param({"type": "u"}, id="S1-13-other-class"),
        pytest.param({"queue": "urgent"}, id="S1-13-other-queue"),
    ],
)
def test_other_work_is_admitted(change):
    first = {"args": [42], "unique": sidekiq(60)}
    enqueue(**first)
    assert outcome(**{**first, **change}) == "created"


@pytest.mark.parametrize("until", [pytest.param("success", id="S1-14"), pytest.param("start", id="S1-14-start")])
def test_after_unique_for_the_same_work_is_admitted_although_the_first_still_waits(until, clock):
    policy = sidekiq(60, until)
    first = enqueue(unique=policy).job
    clock.advance(MINUTE)
    assert outcome(unique=policy) == "created"
    assert fresh(first).state == "available"


@pytest.mark.parametrize("state", [pytest.param(str(s), id=f"S1-15-{s}") for s in sorted(ALL)])
def test_until_start_a_job_counts_until_a_worker_takes_it(state):
    policy = sidekiq(60, "start")
    stored(state, unique=policy)
    assert outcome(unique=policy) == ("deduplicated" if state in ("scheduled", "pending", "available") else "created")


@pytest.mark.parametrize("state", [pytest.param(str(s), id=f"S1-16-{s}") for s in sorted(ALL)])
def test_until_success_a_job_counts_until_it_has_finished(state):
    policy = sidekiq(60)
    stored(state, unique=policy)
    assert outcome(unique=policy) == ("deduplicated" if state in INCOMPLETE else "created")


@shows("S1-15-what-differs")
def test_until_start_a_job_that_failed_counts_again_when_it_is_due(clock):
    policy = sidekiq("PT10M", "start")
    first = enqueue(unique=policy).job
    token = claim(first)
    assert lifecycle.schedule_retry(row(first), clock.now + MINUTE, token=token, errors=[{"type": "e"}]) == 1
    assert Job.objects.explain("t", unique=policy).action == "create"
    clock.advance(MINUTE)
    assert lifecycle.promote(row(first), clock.now) == 1
    assert attempt(unique=policy) == ("deduplicated", first)


@shows("S1-14-with-its-delay")
def test_the_time_of_a_scheduled_job_counts_from_when_it_is_due(clock):
    policy = sidekiq(60)
    enqueue(unique=policy, scheduled_at=clock.now + HOUR)
    clock.advance(HOUR)
    assert outcome(unique=policy) == "deduplicated"
    clock.advance(MINUTE)
    assert outcome(unique=policy) == "created"


@shows("S1-12-declared")
def test_a_class_declares_it_and_one_call_switches_it_off(handlers):
    @job("deployment.check", queue="urgent", unique=sidekiq("PT1M", unique_until="start"))
    def check(deployment_id):
        pass

    assert [check.enqueue(1).created for _ in range(2)] == [True, False]
    assert check.using(unique=None).enqueue(1).created
