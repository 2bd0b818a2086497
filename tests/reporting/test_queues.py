"""How deep each queue is, and everything about all of them at once."""

from datetime import timedelta
from uuid import UUID

import pytest

from django_ojs_unique import job as declare
from django_ojs_unique.models import Queue
from django_ojs_unique.reporting import queues as report
from django_ojs_unique.reporting.activity import roll_up
from django_ojs_unique.reporting.overview import LONG_WAIT, overview
from django_ojs_unique.reporting.queues import UNFINISHED, Now, in_use, now, queues, together, unfinished
from django_ojs_unique.reporting.times import SPANS
from tests.support.past import NOW, ago, job, worker

pytestmark = pytest.mark.django_db
HOUR = SPANS["hour"]


def by_name(found):
    return {each.name: each for each in found}


def test_unfinished_jobs_are_counted_by_state_and_the_oldest_available_one_is_named():
    job(ago(minutes=1), queue="emails")
    oldest = job(ago(minutes=9), queue="emails")
    job(ago(minutes=20), queue="emails", state="scheduled")
    job(ago(minutes=20), queue="emails", state="active")
    job(ago(minutes=20), queue="emails", state="completed")
    job(ago(minutes=20), queue="emails", enqueued_at=None)
    job(ago(minutes=5), queue="reports", state="retryable")
    job(ago(minutes=5), queue="reports", state="pending")
    job(ago(minutes=5), queue="done", state="discarded")
    emails, reports = queues("default")
    assert (emails.name, emails.depth) == ("emails", {"available": 3, "scheduled": 1, "active": 1})
    assert (emails.oldest, emails.waits_since) == (oldest.pk, ago(minutes=9))
    assert (emails.unfinished, emails.waiting, emails.running) == (5, 3, 1)
    assert (reports.name, reports.depth, reports.oldest) == ("reports", {"retryable": 1, "pending": 1}, None)
    assert unfinished("default", ["emails", "reports", "none"]) == {"emails": 5, "reports": 2}


def test_a_queue_is_in_use_with_a_job_in_any_unfinished_state():
    for state in UNFINISHED:
        job(ago(minutes=1), state=state, queue=f"of-{state}")
    job(ago(minutes=1), state="completed", queue="done")
    assert in_use("default") == {f"of-{state}" for state in UNFINISHED}


def test_the_oldest_job_is_found_among_those_of_all_priorities():
    for priority in (-100, -3, 0, 7, 100):
        job(ago(minutes=5), queue="emails", priority=priority)
        job(ago(minutes=30), queue="emails", priority=priority, enqueued_at=None)
    for minutes, priority in ((9, -3), (8, 100), (7, -100)):
        job(ago(minutes=minutes), queue="emails", priority=priority)
    oldest = job(ago(minutes=10), queue="emails", priority=0)
    job(ago(minutes=20), queue="emails", priority=50, state="active")
    job(ago(minutes=20), queue="reports", priority=50)
    job(ago(minutes=20), queue="unknown", enqueued_at=None)
    emails, reports, unknown = queues("default")
    assert (emails.oldest, emails.waits_since, emails.waiting) == (oldest.pk, ago(minutes=10), 14)
    assert reports.waits_since == ago(minutes=20)
    assert (unknown.oldest, unknown.waits_since, unknown.waiting) == (None, None, 1)


def test_queues_with_a_row_or_a_name_are_there_without_jobs():
    Queue.objects.create(name="paused", paused_at=NOW)
    Queue.objects.limit("limited", 3)
    found = by_name(queues("default", ["named", "paused"]))
    assert list(found) == ["limited", "named", "paused"]
    assert (found["paused"].paused_at, found["limited"].limit, found["named"].depth) == (NOW, 3, {})


def test_beyond_a_bound_jobs_are_counted_only_when_it_must_be_exact(monkeypatch):
    monkeypatch.setattr(report, "MOST_COUNTED", 2)
    for _ in range(4):
        job(NOW, queue="many")
    for _ in range(2):
        job(NOW, queue="few")
    few, many = queues("default")
    assert (few.waiting, many.waiting) == (2, 3)
    assert [queue.waiting for queue in queues("default", exact=True)] == [2, 4]


def test_beyond_a_bound_queues_are_looked_at_only_if_they_are_named_or_it_must_be_exact(monkeypatch):
    monkeypatch.setattr(report, "MOST_QUEUES", 2)
    for name in "abcd":
        oldest = job(ago(minutes=5), queue=name)
    seen = queues("default", ["d", "e"])
    assert [(each.name, each.waiting) for each in seen] == [("a", 1), ("b", 1), ("d", 1), ("e", 0)]
    assert (by_name(seen)["d"].oldest, by_name(seen)["d"].waits_since) == (oldest.pk, ago(minutes=5))
    assert [each.waiting for each in queues("default", exact=True)] == [1] * 4
    assert (together(seen).is_cut, together(seen).waits_cut) == (True, True)
    monkeypatch.setattr(report, "MOST_QUEUES", 5)
    assert (now("default").is_cut, now("default").waits_cut) == (False, False)


def test_beyond_a_bound_of_partitions_another_job_may_have_waited_longer(monkeypatch):
    for number in range(3):
        job(ago(minutes=number), queue="emails", blocked_by=f"k{number:032}", limits=[])
    assert (now("default").waits_since, now("default").waits_cut) == (ago(minutes=2), False)
    monkeypatch.setattr(report, "MOST_BLOCKS", 2)
    assert now("default").waits_cut


def test_the_number_of_statements_does_not_depend_on_the_rows(django_assert_num_queries):
    job(NOW)
    for number in range(2):
        with django_assert_num_queries(2):
            queues("default")
        for name in "abcdefgh":
            job(NOW, queue=f"{name}{number}")
            Queue.objects.limit(f"{name}{number}", 1)


def test_all_queues_together_take_one_statement(django_assert_num_queries):
    with django_assert_num_queries(1):
        assert now("default") == Now({})
    oldest = job(ago(minutes=9), queue="emails", priority=-5)
    job(ago(minutes=8), queue="emails")
    job(ago(minutes=7), queue="reports")
    job(ago(minutes=70), queue="reports", state="active")
    with django_assert_num_queries(1):
        seen = now("default")
    assert seen == Now({"available": 3, "active": 1}, "emails", oldest.pk, ago(minutes=9))
    assert seen == together(queues("default"))


# everything at once


@pytest.mark.parametrize(
    ("waited", "paused", "long"),
    [(LONG_WAIT, False, False), (LONG_WAIT * 1.01, False, True), (LONG_WAIT * 1.01, True, False)],
)
def test_a_wait_is_long_in_a_queue_that_is_not_paused(waited, paused, long):
    job(NOW - waited, queue="emails")
    if paused:
        Queue.objects.pause("emails")
    emails = next(each for each in overview("default", HOUR, NOW).queues if each.queue.name == "emails")
    assert emails.waits_long(NOW) == long


def test_what_runs_is_told_by_worker():
    worker("w1")
    late = job(ago(minutes=1), state="active", worker_id="w1")
    early = job(ago(minutes=5), state="active", worker_id="w1")
    job(ago(minutes=5), state="completed", worker_id="w1")
    other = job(ago(minutes=5), state="active", worker_id="w2")
    assert overview("default", HOUR, NOW).running == {"w1": [early, late], "w2": [other]}
    assert overview("default", HOUR, NOW, with_workers=False).running == {}


def test_a_queue_is_listed_that_only_a_row_a_handler_a_worker_or_the_past_knows(handlers, settings):
    @declare("only.here", queue="by-handler")
    def handler():
        """Do nothing."""

    @declare("anywhere")
    def other():
        """Do nothing."""

    Queue.objects.limit("by-row", 1)
    worker(queues=["by-worker", "pattern-*", "!not-this"])
    job(ago(minutes=9), state="completed", queue="by-past")
    names = {each.queue.name for each in overview("default", HOUR, NOW).queues}
    assert {"by-handler", "by-row", "by-worker", "by-past", "default"} <= names
    assert not {"pattern-*", "!not-this", "not-this"} & names


def test_a_queue_tells_its_failure_rate():
    for state in ("completed", "completed", "completed", "discarded"):
        job(ago(minutes=9), state=state, queue="emails")
    job(NOW, queue="idle")
    found = {each.queue.name: each for each in overview("default", HOUR, NOW).queues}
    emails = found["emails"]
    assert (emails.completed, emails.failed, emails.failure_rate) == (3, 1, 0.25)
    assert found["idle"].failure_rate is None


@pytest.mark.every_database
def test_what_happened_is_observed_since_the_oldest_job_or_count_that_is_kept():
    def since():
        return NOW - overview("default", HOUR, NOW).observed_since

    assert since() == timedelta(0)
    job(NOW - timedelta(seconds=4), state="completed", waited=1, ran=1, id=UUID(int=3))
    assert since() == timedelta(seconds=4)
    job(ago(minutes=20), state="completed", id=UUID(int=2))
    assert since() == timedelta(minutes=20)
    old = job(ago(days=3), state="completed", id=UUID(int=1))
    assert since() == NOW - HOUR.edges(NOW)[0]
    roll_up("default", NOW)
    old.delete()
    week = SPANS["week"]
    first = week.edges(ago(days=3))[-1]  # when the part ends in which it was enqueued
    assert overview("default", week, NOW).observed_since == first


@pytest.mark.parametrize(
    ("present", "stranded"),
    [
        ({}, ["emails"]),
        ({"queues": ["*"]}, []),
        ({"queues": ["emails"]}, []),
        ({"queues": ["e*"]}, []),
        ({"queues": ["reports"]}, ["emails"]),
        ({"queues": ["*", "!emails"]}, ["emails"]),
        ({"queues": ["*"], "state": "stopping"}, ["emails"]),
        ({"queues": ["*"], "heard": NOW - timedelta(seconds=31)}, ["emails"]),
    ],
)
def test_jobs_are_stranded_where_no_worker_that_lives_takes_them(present, stranded):
    job(NOW, queue="emails")
    job(NOW, queue="later", state="scheduled")
    if present:
        worker(**present)
    assert overview("default", HOUR, NOW).stranded == stranded


def test_without_workers_nothing_is_said_about_them(django_assert_num_queries):
    job(NOW, queue="emails")
    worker(queues=["secret"])
    with django_assert_num_queries(9):
        seen = overview("default", HOUR, NOW, with_workers=False)
    assert (seen.workers, seen.stranded) == (None, [])
    assert "secret" not in {each.queue.name for each in seen.queues}


def test_everything_at_once_takes_eleven_statements(django_assert_num_queries):
    for number in range(2):
        job(NOW, queue=f"q{number}")
        worker(f"w{number}")
        with django_assert_num_queries(11):
            assert overview("default", HOUR, NOW).has_jobs


def test_of_many_queues_those_with_jobs_are_shown(monkeypatch):
    monkeypatch.setattr("django_ojs_unique.reporting.overview.MOST_QUEUES", 1)
    job(NOW, queue="zebra")
    Queue.objects.limit("ant", 1)
    seen = overview("default", HOUR, NOW)
    assert [each.queue.name for each in seen.queues] == ["zebra"]
    assert seen.more_queues >= 1


def test_whether_there_ever_was_a_job_is_known():
    assert not overview("default", HOUR, NOW).has_jobs
    job(ago(days=30), state="completed")
    assert overview("default", HOUR, NOW).has_jobs
