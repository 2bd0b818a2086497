"""Moves of a job: from which states they start, and under whose token."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from django_ojs_unique import lifecycle
from django_ojs_unique.ojs.states import MOVES, JobState
from tests.support.jobs import ALL_STATES, claim, columns, enqueue, put, row

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)

FENCED = {
    "complete": lambda rows, token: lifecycle.complete(rows, timezone.now(), token=token),
    "retry": lambda rows, token: lifecycle.schedule_retry(rows, timezone.now() + HOUR, token=token, errors=[]),
    "discard": lambda rows, token: lifecycle.discard(rows, timezone.now(), token=token, errors=[]),
    "requeue": lambda rows, token: lifecycle.requeue(rows, token=token),
    "rescue": lambda rows, token: lifecycle.rescue(rows, timezone.now(), token=token, errors=[]),
}
MADE_BY = {
    "cancel": (lambda rows: lifecycle.cancel(rows, timezone.now()), "cancelled"),
    "promote": (lambda rows: lifecycle.promote(rows, timezone.now() + 2 * HOUR * 24), "available"),
    "retry_waiting": (lambda rows: lifecycle.retry_waiting(rows, timezone.now()), "available"),
    "activate": (lambda rows: lifecycle.activate(rows, timezone.now()), "available"),
    "retry_finished": (lambda rows: lifecycle.retry_finished(rows, timezone.now()), "available"),
    "expire": (lambda rows: lifecycle.expire(rows, timezone.now() + HOUR), "discarded"),
    "claim": (
        lambda rows: lifecycle.claim(rows, timezone.now(), worker_id="w", token=uuid4(), lease=HOUR),
        "active",
    ),
}
STARTS = {
    "cancel": {"scheduled", "available", "pending", "active", "retryable"},
    "promote": {"scheduled", "retryable"},
    "retry_waiting": {"scheduled", "retryable", "pending"},
    "activate": {"pending"},
    "retry_finished": {"discarded", "cancelled"},
    "expire": {"scheduled", "available", "pending"},
    "claim": {"available"},
}


@pytest.mark.parametrize("name", FENCED)
def test_what_a_worker_does_needs_the_token_of_its_lease(name):
    job = enqueue().job
    token = claim(job)
    before = columns(job)
    assert FENCED[name](row(job), uuid4()) == 0
    assert columns(job) == before
    assert FENCED[name](row(job), token) == 1
    assert FENCED[name](row(job), token) == 0


@pytest.mark.parametrize("state", ALL_STATES)
@pytest.mark.parametrize("name", MADE_BY)
def test_a_move_starts_from_its_states_and_from_no_other(name, state):
    job = put(enqueue(expires_at=timezone.now() + HOUR / 2).job, state)
    before = columns(job)
    move, target = MADE_BY[name]
    moves = state in STARTS[name]
    assert move(row(job)) == moves
    after = columns(job)
    if moves:
        assert after["state"] == target
        assert JobState(target) in MOVES[JobState(state)]
    else:
        assert after == before


def test_only_what_is_due_is_promoted_and_only_what_is_late_expires():
    now = timezone.now()
    later = put(enqueue(expires_at=now + 3 * HOUR).job, "scheduled")
    assert lifecycle.promote(row(later), now) == lifecycle.expire(row(later), now) == 0


def test_only_scheduled_and_retryable_jobs_are_promoted_whatever_their_rows_say():
    dead = put(enqueue().job, "discarded")
    row(dead).update(run_at=timezone.now() - HOUR)
    assert lifecycle.promote(row(dead), timezone.now()) == 0


@pytest.mark.parametrize("state", ["available", "completed"])
def test_a_job_that_leaves_uniqueness_keeps_neither_fingerprint_nor_unique_states_nor_window(state):
    job = put(enqueue(unique={"states": [*ALL_STATES], "period": "P1D"}).job, state)
    assert columns(job)["window_ends_at"] > timezone.now()
    assert lifecycle.leave_uniqueness(row(job)) == 1
    after = columns(job)
    assert (after["fingerprint"], after["unique_states"]) == (None, frozenset())
    assert after["window_ends_at"] == after["finished_at"]
    assert lifecycle.leave_uniqueness(row(job)) == 0


def test_a_job_that_has_run_before_keeps_its_start_when_it_is_requeued():
    job = enqueue().job
    lifecycle.schedule_retry(row(job), timezone.now(), token=claim(job), errors=[])
    lifecycle.promote(row(job), timezone.now())
    token = claim(job)
    started_at = columns(job)["started_at"]
    assert lifecycle.requeue(row(job), token=token) == 1
    assert (columns(job)["started_at"], columns(job)["attempt"]) == (started_at, 1)
