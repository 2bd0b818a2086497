"""What goes beyond the specification's rolling period: fixed windows, and the retention as a window."""

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from django_ojs_unique import OnConflict, UniquePolicy
from django_ojs_unique.enqueue.new_job import FOREVER
from django_ojs_unique.maintenance.prune import prune
from django_ojs_unique.models import Job
from tests.support.jobs import DAY, DEFAULT_STATES, HOUR, attempt, enqueue, fresh, outcome, put, stored

pytestmark = pytest.mark.django_db

WITH_COMPLETED = [*DEFAULT_STATES, "completed"]
HOURLY = UniquePolicy(period="PT1H", window="fixed", states=WITH_COMPLETED, on_conflict="ignore")
KEPT = UniquePolicy(window="retention", states=WITH_COMPLETED, on_conflict="ignore")


@pytest.mark.parametrize(
    ("after", "answer"),
    [
        (timedelta(minutes=59, seconds=59, microseconds=999999), "deduplicated"),
        (timedelta(hours=1), "created"),
    ],
)
def test_an_edge_belongs_to_the_window_that_starts_there(after, answer, clock):
    enqueue(unique=HOURLY)
    clock.advance(after)
    assert outcome(unique=HOURLY) == answer


def test_two_jobs_may_follow_each_other_closely_across_an_edge(clock):
    clock.advance(-timedelta(microseconds=1))
    enqueue(unique=HOURLY)
    clock.advance(timedelta(microseconds=1))
    assert outcome(unique=HOURLY) == "created"


@pytest.mark.parametrize("strategy", [str(strategy) for strategy in OnConflict])
def test_every_strategy_sees_its_own_window_only(strategy, clock):
    policy = UniquePolicy(period="PT1H", window="fixed", on_conflict=strategy)
    first, second = enqueue(unique=policy).job, enqueue(unique=policy, scheduled_at=clock.now + HOUR).job
    answer, job = attempt(unique=policy, scheduled_at=clock.now + HOUR)
    assert answer == {"reject": "rejected", "ignore": "deduplicated"}.get(strategy, "replaced")
    assert (job == second) is (answer != "replaced")
    assert fresh(first).state == "available"


def test_a_job_that_is_still_running_does_not_count_in_the_next_window(clock):
    stored("active", unique=HOURLY)
    clock.advance(HOUR)
    assert outcome(unique=HOURLY) == "created"


def test_a_finished_job_loses_its_payload_until_its_window_ends(clock):
    policy = UniquePolicy(period="P1D", window="fixed", states=WITH_COMPLETED, on_conflict="ignore")
    tomorrow = clock.now + DAY
    job = enqueue(unique=policy, scheduled_at=tomorrow).job
    job.retry()
    job = put(job, "completed")
    assert job.window_ends_at == datetime(2026, 2, 14, tzinfo=UTC)
    keep = {"completed": timedelta(seconds=1)}
    pruned = prune(Job.objects.all(), job.window_ends_at - timedelta(microseconds=1), retention=keep)
    assert (pruned.deleted, pruned.payload_pruned) == (0, 1)
    assert outcome(unique=policy, scheduled_at=tomorrow) == "deduplicated"
    assert prune(Job.objects.all(), job.window_ends_at, retention=keep).deleted == 1


@pytest.mark.parametrize("scheduled_at", [datetime(9999, 12, 31, 23, 59, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)])
def test_a_schedule_at_the_end_of_the_calendar_has_a_window(scheduled_at):
    policy = UniquePolicy(period="P7D", window="fixed", states=WITH_COMPLETED, on_conflict="ignore")
    first = enqueue(unique=policy, scheduled_at=scheduled_at).job
    assert outcome(unique=policy, scheduled_at=scheduled_at) == "deduplicated"
    assert first.window_ends_at <= FOREVER


def test_a_schedule_before_the_epoch_has_a_window_too():
    early = [datetime(1969, 12, 31, hour, minute, tzinfo=UTC) for hour, minute in ((22, 59), (23, 0), (23, 59))]
    answers = [outcome(unique=HOURLY, scheduled_at=moment) for moment in early]
    assert answers == ["created", "created", "deduplicated"]


def test_a_window_explains_itself(clock):
    explanation = Job.objects.explain("t", unique=HOURLY)
    assert explanation.canonical_text == '{"type":"t","window":"2026-02-12T12:00:00Z/PT1H"}'
    enqueue(unique=HOURLY)
    (duplicate,) = Job.objects.explain("t", unique=HOURLY).duplicates
    assert duplicate.until == clock.now + HOUR


def test_by_retention_a_finished_job_counts_until_it_is_pruned():
    job = put(enqueue(unique=KEPT).job, "completed")
    assert job.window_ends_at is None
    assert outcome(unique=KEPT) == "deduplicated"
    assert prune(Job.objects.all(), timezone.now() + 8 * DAY).deleted == 1
    assert outcome(unique=KEPT) == "created"
