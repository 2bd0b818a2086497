"""What happened to a job, and what it asked for, as far as its row tells."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from django_ojs_unique.enqueue.new_job import FOREVER
from django_ojs_unique.models import Job
from django_ojs_unique.reporting.job_options import duration, retries
from django_ojs_unique.reporting.timeline import LONGEST_MESSAGE, Event, failures, timeline

CREATED = datetime(2026, 11, 21, 13, tzinfo=UTC)
OTHER = UUID("019ab000-0000-7000-8000-000000000001")


def after(minutes):
    return CREATED + timedelta(minutes=minutes)


def row(**fields):
    return Job(**{"type": "email.send", "queue": "default", "created_at": CREATED, **fields})


def texts(job, *more):
    return [event.text for event in timeline(job, more)]


def error(minutes, **members):
    return {"type": "ValueError", "message": "bad", "attempt": 1, "occurred_at": after(minutes).isoformat(), **members}


def test_a_life_is_told_in_the_order_of_time():
    job = row(
        state="completed",
        attempt=2,
        enqueued_at=after(2),
        errors=[error(1, message="bad\nworse")],
        started_at=after(3),
        worker_id="host:1",
        finished_at=after(4),
        window_ends_at=after(60),
    )
    assert texts(job, Event(after(5), "ada: looked")) == [
        "Created",
        "Attempt 1 failed: ValueError: bad",
        "Became available",
        "Attempt 2 started by worker host:1",
        "Completed",
        "ada: looked",
        "Its window ends",
    ]


def test_each_attempt_has_begun_once():
    errors = [
        error(3, started_at=after(2).isoformat()),
        error(5, started_at="then", attempt=2),
        error(7, started_at=after(6).isoformat(), attempt=3),
    ]
    job = row(state="discarded", attempt=3, errors=errors, started_at=after(6), worker_id="w", finished_at=after(8))
    failed = "Attempt {} failed: ValueError: bad"
    assert texts(job) == [
        "Created",
        "Attempt 1 started",
        failed.format(1),
        failed.format(2),
        "Attempt 3 started by worker w",
        failed.format(3),
        "Discarded",
    ]


def test_what_waits_tells_what_is_to_come():
    job = row(state="scheduled", scheduled_at=after(5), run_at=after(5), expires_at=after(9), window_ends_at=FOREVER)
    assert texts(job) == ["Created", "Scheduled for", "Expires, unless it has started by then"]
    assert texts(row(state="retryable", run_at=after(5), started_at=after(1), attempt=1))[-1] == "Due to run again"


def test_a_replacement_names_the_other_job():
    job = row(state="cancelled", finished_at=after(1), replaced_by_id=OTHER)
    assert timeline(job)[-1] == Event(after(1), "Replaced by", OTHER)


def test_a_long_message_is_shortened():
    told = texts(row(errors=[error(1, message="x" * 5000)]))[-1]
    assert len(told) < LONGEST_MESSAGE + 30


def test_errors_are_read_newest_first_with_what_followed():
    told = failures(
        row(
            errors=[
                error(1, retryable=True, retry_delay_ms=1500),
                error(2, retryable=True, retry_delay_ms=None),
                error(3, retryable=False, details={"traceback": "Traceback"}),
            ]
        )
    )
    assert [failure.then for failure in told] == ["Not tried again.", "Tried again.", "Tried again after 1.5 s."]
    assert (told[0].traceback, told[0].at) == ("Traceback", after(3))


@pytest.mark.parametrize("entry", ["text", 7, [], {}, {"occurred_at": "2026-11-21T13:00:00+01:00"}])
def test_an_entry_that_says_nothing_is_kept_as_it_is(entry):
    assert failures(row(errors=[entry]))[0].raw == entry


def test_a_moment_without_a_zone_counts_as_utc():
    assert failures(row(errors=[{"type": "X", "occurred_at": "2026-11-21T13:00:00"}]))[0].at == CREATED


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (None, "Up to 3 attempts, the first wait 1 s, each one 2 times as long, up to 5 min, with jitter."),
        ({"max_attempts": 0}, "One attempt, no retry."),
        ({"backoff_strategy": "constant", "jitter": False}, "Up to 3 attempts, 1 s apart."),
        (
            {"backoff_strategy": "linear", "jitter": False},
            "Up to 3 attempts, the first wait 1 s, each one 1 s longer, up to 5 min.",
        ),
        (
            {"backoff_strategy": "polynomial", "jitter": False, "max_interval": "P1D"},
            "Up to 3 attempts, the first wait 1 s, then that times the attempt to the power of 2, up to 1 d.",
        ),
        ({"max_attempts": 1, "non_retryable_errors": ["a", "b.*"]}, "One attempt, no retry. No retry after a or b.*."),
    ],
)
def test_a_retry_policy_is_told_in_words(policy, said):
    assert retries(row(retry_options=policy)) == f"{said} When they are used up, it is discarded."


def test_a_broken_retry_policy_is_told():
    assert retries(row(retry_options={"max_attempts": "many"})).startswith("Its retry policy cannot be read")


def test_lengths_of_time_are_told_in_the_largest_unit_that_fits():
    assert [duration(ms) for ms in (None, 1500, 60_000, 7_200_000)] == ["", "1.5 s", "1 min", "2 h"]
