"""The window ``due``, which is not in the specification: the period of a scheduled job begins at its time (Sidekiq)."""

from datetime import timedelta

import pytest
from django.utils import timezone

from django_ojs_unique import InvalidPolicy, UniquePolicy, presets
from django_ojs_unique.enqueue.duplicates import satisfied
from django_ojs_unique.models import Job, SuppressedEnqueue
from tests.support.jobs import HOUR, put, row

pytestmark = pytest.mark.django_db(transaction=True)

SIDEKIQ = presets.sidekiq(unique_for="PT10M")
MINUTE = timedelta(minutes=1)


def enqueue(**options):
    return Job.objects.enqueue("t", unique=SIDEKIQ, **options)


def enqueue_many(**options):
    (result,) = Job.objects.enqueue_many([{"type": "t", "unique": SIDEKIQ, **options}])
    return result


def due_in_an_hour(*, ago, state="scheduled"):
    """Return a job that was enqueued a while ago, to run an hour after that."""
    job = put(enqueue().job, state)
    created = timezone.now() - ago
    row(job).update(created_at=created, scheduled_at=created + HOUR)
    return job


each_enqueue = pytest.mark.parametrize("add", [enqueue, enqueue_many], ids=["single", "many"])


@each_enqueue
@pytest.mark.parametrize("state", ["scheduled", "available", "active", "retryable"])
def test_a_delayed_job_counts_for_its_delay_and_the_period(state, add):
    first = due_in_an_hour(ago=69 * MINUTE, state=state)
    assert add().job == first
    assert SuppressedEnqueue.objects.count() == 1
    assert list(Job.objects.duplicates_of(first.fingerprint, SIDEKIQ)) == [first]
    (told,) = Job.objects.explain("t", unique=SIDEKIQ).duplicates
    assert MINUTE / 2 < told.until - timezone.now() < MINUTE
    assert satisfied(Job.objects.all(), [first.fingerprint], SIDEKIQ, timezone.now())


@each_enqueue
@pytest.mark.parametrize("state", ["scheduled", "available", "active", "retryable"])
def test_a_delayed_job_counts_no_longer_than_its_delay_and_the_period(state, add):
    first = due_in_an_hour(ago=71 * MINUTE, state=state)
    assert Job.objects.explain("t", unique=SIDEKIQ).action == "create"
    assert not satisfied(Job.objects.all(), [first.fingerprint], SIDEKIQ, timezone.now())
    assert add().created
    assert not SuppressedEnqueue.objects.exists()


@each_enqueue
@pytest.mark.parametrize(("minutes", "created"), [(9, False), (11, True)])
def test_a_job_without_a_delay_counts_for_the_period_from_its_enqueue(minutes, created, add):
    row(enqueue().job).update(created_at=timezone.now() - minutes * MINUTE)
    assert add().created is created
    assert SuppressedEnqueue.objects.count() == (not created)


def test_it_is_for_unfinished_jobs_only():
    with pytest.raises(InvalidPolicy, match="unfinished"):
        UniquePolicy(window="due", period="PT1H", states=["available", "completed"])
