"""Why jobs failed: by type and last error, of the newest only."""

from datetime import timedelta

import pytest

from django_ojs_unique.db.clock import database_now
from django_ojs_unique.maintenance import timers
from django_ojs_unique.models import Job
from django_ojs_unique.reporting import failures as report
from django_ojs_unique.reporting.failures import failures
from django_ojs_unique.reporting.overview import overview
from django_ojs_unique.reporting.times import SPANS
from tests.support.past import NOW, ago, job

pytestmark = pytest.mark.django_db
SINCE = ago(hours=1)


def failed(error="ValueError", *, minutes=5, state="discarded", type="email.send", message="", **fields):
    errors = [{"type": "Old"}, {"type": error, "message": message}] if error else []
    made = job(ago(minutes=minutes), state=state, errors=errors, **fields)
    Job.objects.filter(pk=made.pk).update(type=type)
    return made


def told():
    return [(cause.type, cause.error, cause.failed, cause.retrying) for cause in failures("default", SINCE).causes]


def test_failed_jobs_are_grouped_by_type_and_last_error_the_most_frequent_first():
    failed("OSError")
    for _ in range(2):
        failed()
    failed(type="other.job")
    failed(error=None)
    failed(minutes=90)
    job(ago(minutes=5), state="completed")
    assert told() == [
        ("email.send", "ValueError", 2, 0),
        ("email.send", "", 1, 0),
        ("email.send", "OSError", 1, 0),
        ("other.job", "ValueError", 1, 0),
    ]


def test_dead_letters_pruned_jobs_and_those_that_wait_for_a_retry_are_counted():
    failed(dead_letter=True)
    failed(error=None, payload_pruned=True)
    failed(state="retryable", run_at=NOW)
    failed("OSError", state="retryable", minutes=9000, run_at=NOW)
    assert told() == [("email.send", "ValueError", 1, 1), ("email.send", "", 1, 0), ("email.send", "OSError", 0, 1)]


@pytest.mark.every_database
def test_a_job_that_expired_and_never_ran_has_failed_nowhere():
    now = database_now("default")
    Job.objects.enqueue("t", expires_at=now + timedelta(minutes=1))
    timers.expire(Job.objects.all(), now + timedelta(minutes=2))
    assert Job.objects.get().state == "discarded"
    seen = overview("default", SPANS["hour"], now + timedelta(minutes=3))
    (queue,) = [each for each in seen.queues if each.queue.name == "default"]
    assert (queue.completed, queue.failed, queue.failure_rate) == (0, 0, None)
    assert (sum(seen.activity.enqueued), sum(seen.activity.failed)) == (1, 0)
    assert seen.failures.causes == []


@pytest.mark.every_database
def test_jobs_that_expired_do_not_hide_those_that_failed(monkeypatch):
    monkeypatch.setattr(report, "MOST_FAILED", 2)
    failed(minutes=30)
    for minutes in range(5):
        failed(error=None, minutes=2 + minutes, started_at=None)
    assert told() == [("email.send", "ValueError", 1, 0)]


def test_the_newest_one_is_named_with_its_message():
    failed(minutes=30, message="older")
    newest = failed(minutes=2, message="m" * 200, dead_letter=True)
    failed(minutes=20, message="old")
    (cause,) = failures("default", SINCE).causes
    assert (cause.newest, cause.at) == (newest.pk, newest.finished_at)
    assert cause.message.startswith("m" * 80)
    assert len(cause.message) < 100


def test_only_the_newest_are_looked_at_and_only_the_most_frequent_told(monkeypatch):
    monkeypatch.setattr(report, "MOST_FAILED", 3)
    monkeypatch.setattr(report, "MOST_CAUSES", 1)
    for number in range(2):
        failed("OSError", minutes=20 + number, dead_letter=number == 1)
        failed(minutes=2 + number, dead_letter=number == 0)
        failed(state="retryable")
    seen = failures("default", SINCE)
    assert [(cause.error, cause.failed, cause.retrying) for cause in seen.causes] == [("ValueError", 2, 2)]
    assert (seen.more, seen.failed_cut, seen.retrying_cut) == (1, True, False)


def test_it_takes_two_statements(django_assert_num_queries):
    for _ in range(2):
        with django_assert_num_queries(2):
            failures("default", SINCE - timedelta(days=7))
        failed()
        failed(state="retryable")
