"""What happened over time: counts and waits, against rows made at known moments."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import UUID

import pytest
from django.utils.timezone import localtime

from django_ojs_unique.models import Job
from django_ojs_unique.ojs.states import JobState
from django_ojs_unique.reporting.activity import activity
from django_ojs_unique.reporting.times import SPANS
from django_ojs_unique.reporting.waits import SAMPLE, Spread, percentile, waits
from tests.support.past import NOW, ago, job, suppressed
from tests.support.rows import insert_all

pytestmark = pytest.mark.django_db
HOUR, DAY, WEEK = SPANS.values()


@pytest.mark.parametrize("span", SPANS.values(), ids=SPANS)
def test_a_span_has_equal_parts_and_now_lies_in_the_last(span):
    edges = span.edges(NOW)
    assert len(edges) == span.parts + 1
    assert {end - start for start, end in pairwise(edges)} == {span.length}
    assert edges[-2] <= NOW < edges[-1]


def test_parts_begin_on_round_local_times():
    assert {localtime(edge).minute % 5 for edge in HOUR.edges(NOW)} == {0}
    assert {localtime(edge).minute for edge in DAY.edges(NOW)} == {0}
    assert {localtime(edge).hour for edge in WEEK.edges(NOW)} == {0, 6, 12, 18}


def test_now_on_an_edge_begins_the_last_part():
    on_the_hour = datetime(2026, 3, 18, 14, tzinfo=UTC)
    assert DAY.edges(on_the_hour)[-2:] == [on_the_hour, on_the_hour + timedelta(hours=1)]


def test_jobs_are_counted_in_the_part_in_which_they_were_enqueued_and_ended():
    for minutes in (0, 1, 7, 54, 80):
        job(ago(minutes=minutes))
    job(ago(minutes=20), state="completed", waited=60 * 5, ran=1)
    job(ago(minutes=20), state="discarded", waited=60 * 10, ran=1)
    job(ago(minutes=20), state="discarded", waited=60 * 10, ran=2, dead_letter=True)
    job(ago(minutes=20), state="cancelled")
    for minutes in (3, 4, 61):
        suppressed(ago(minutes=minutes))
    happened = activity("default", HOUR, NOW)
    # The last part began at 14:00, the first at 13:05.
    assert list(happened.enqueued) == [1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 1, 2]
    assert list(happened.suppressed) == [0] * 10 + [2, 0]
    assert list(happened.completed) == [0] * 8 + [1, 0, 0, 0]
    assert list(happened.failed) == [0] * 9 + [2, 0, 0]


def test_a_moment_on_an_edge_belongs_to_the_part_that_begins_there():
    edges = HOUR.edges(NOW)
    job(edges[0])
    job(edges[1] - timedelta(microseconds=1))
    job(edges[1])
    job(edges[0] - timedelta(microseconds=1))
    job(edges[-1])
    assert list(activity("default", HOUR, NOW).enqueued) == [2, 1, *[0] * 10]


def test_a_job_is_counted_whatever_became_of_it_and_whatever_its_id():
    edges = HOUR.edges(NOW)
    for number, state in enumerate(JobState):
        job(edges[1], state=state, id=UUID(int=number))
        job(edges[1], state=state, id=UUID(int=2**128 - 1 - number))
    job(edges[0], state="completed", waited=-60 * 55, ran=0)  # the clock of the worker is behind
    job(edges[0], state="cancelled", payload_pruned=True)
    job(edges[0], state="discarded", dead_letter=True)
    assert list(activity("default", HOUR, NOW).enqueued) == [3, 16, *[0] * 10]


@pytest.mark.parametrize("span", [DAY, WEEK], ids=["day", "week"])
def test_longer_spans_count_the_same_way(span):
    edges = span.edges(NOW)
    for edge in edges[:-1]:
        job(edge, state="completed")
    happened = activity("default", span, NOW)
    assert list(happened.enqueued) == list(happened.completed) == [1] * span.parts


def test_what_ended_is_counted_by_queue_with_what_was_pruned_to_a_slim_row():
    job(ago(minutes=9), state="completed", queue="emails")
    job(ago(minutes=8), state="completed", queue="emails", payload_pruned=True)
    job(ago(minutes=8), state="discarded", queue="emails")
    job(ago(minutes=8), state="completed", queue="reports")
    job(ago(hours=3), state="completed", queue="old")
    assert activity("default", HOUR, NOW).by_queue == {
        ("emails", "completed"): 2,
        ("emails", "discarded"): 1,
        ("reports", "completed"): 1,
    }


@pytest.mark.every_database
def test_a_job_that_expired_was_enqueued_and_has_not_failed():
    job(ago(minutes=9), state="completed", queue="emails")
    job(ago(minutes=8), state="discarded", queue="emails", started_at=None)
    job(ago(minutes=8), state="discarded", queue="late", started_at=None)
    happened = activity("default", HOUR, NOW)
    assert (sum(happened.enqueued), sum(happened.completed), sum(happened.failed)) == (3, 1, 0)
    assert happened.by_queue == {("emails", "completed"): 1}


def test_what_happened_shortly_before_or_after_a_span_is_in_none_of_its_parts():
    first, *_, last = HOUR.edges(NOW)
    second, instant = timedelta(seconds=1), timedelta(microseconds=1)
    for end in (first - HOUR.length, first - instant, last, last + HOUR.length):
        job(first - 9 * HOUR.length, state="completed", waited=0, ran=(end - first + 9 * HOUR.length) / second)
    job(first - instant)
    job(first - second, state="cancelled")
    happened = activity("default", HOUR, NOW)
    parts = [happened.enqueued, happened.completed, happened.failed]
    assert [sum(numbers) for numbers in parts] == [0, 0, 0]
    assert not happened.by_queue


def test_a_queue_in_which_jobs_were_only_cancelled_has_no_activity():
    job(ago(minutes=20), queue="quiet", state="cancelled")
    assert not activity("default", HOUR, NOW).by_queue


@pytest.mark.slow
def test_waits_are_told_for_each_part_in_which_jobs_completed():
    start = HOUR.edges(NOW)[3]
    for number in range(1, 101):
        job(start, state="completed", waited=number / 10, ran=1)
    waited = waits("default", HOUR, NOW)
    assert waited.median == [None, None, None, 5.0, *[None] * 8]
    assert waited.p95 == [None, None, None, 9.5, *[None] * 8]
    assert not waited.is_sample


def test_the_same_jobs_tell_how_long_jobs_wait_by_queue_and_run_by_type():
    start = HOUR.edges(NOW)[3]
    for number in range(1, 21):
        job(start, state="completed", waited=number, ran=number / 2, queue="even" if number % 2 == 0 else "odd")
    job(start, state="discarded", waited=900, ran=900)
    seen = waits("default", HOUR, NOW)
    assert seen.by_queue == {"even": Spread(10, 10, 20, 20), "odd": Spread(10, 9, 19, 19)}
    assert seen.runs == {"email.send": Spread(20, 5, 9.5, 10)}


def test_what_failed_or_did_not_wait_for_its_run_is_left_out():
    job(ago(minutes=9), state="discarded", waited=100)
    job(ago(minutes=9), state="completed", waited=-100, ran=200)
    job(ago(minutes=9), state="completed", enqueued_at=None)
    job(ago(minutes=9), state="completed", waited=2, payload_pruned=True)
    assert [wait for wait in waits("default", HOUR, NOW).median if wait is not None] == [2.0]


def test_of_many_jobs_the_newest_are_asked(monkeypatch):
    monkeypatch.setattr("django_ojs_unique.reporting.waits.SAMPLE", 3)
    start = HOUR.edges(NOW)[3]
    for number in range(1, 6):
        job(start, state="completed", waited=number, ran=1)
    waited = waits("default", HOUR, NOW)
    assert waited.is_sample
    assert (waited.median[3], waited.p95[3]) == (4.0, 5.0)
    assert SAMPLE > 3


@pytest.mark.parametrize(
    ("numbers", "half", "most"),
    [([], None, None), ([7], 7, 7), ([1, 2], 1, 2), ([1, 2, 3], 2, 3), (range(1, 21), 10, 19), (range(1, 101), 50, 95)],
)
def test_a_percentile_is_one_of_the_numbers(numbers, half, most):
    assert percentile(list(numbers), 0.5) == half
    assert percentile(list(numbers), 0.95) == most


@pytest.mark.slow
@pytest.mark.parametrize("span", SPANS.values(), ids=SPANS)
def test_the_number_of_statements_does_not_depend_on_the_rows(span, django_assert_num_queries):
    for _ in range(2):
        with django_assert_num_queries(2 if span is HOUR else 3):
            activity("default", span, NOW)
        with django_assert_num_queries(1):
            waits("default", span, NOW)
        insert_all(
            Job(type="a", queue=f"q{n}", state="completed", created_at=ago(minutes=n), finished_at=ago(minutes=n))
            for n in range(60)
        )
