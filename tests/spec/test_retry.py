"""S0-170..S0-176: uniqueness is a question of the enqueue only; no later move asks it again."""

from datetime import timedelta

import pytest
from django.utils import timezone

from django_ojs_unique import DuplicateJob, lifecycle
from django_ojs_unique.exceptions import InvalidTransition
from tests.support.jobs import DAY, HOUR, attempt, claim, columns, enqueue, fresh, outcome, put, row, stored

pytestmark = pytest.mark.django_db

NO_RETRYABLE = {"states": ["available", "active"]}


def a_key_with_another_live_job(state):
    """Return a job in ``state`` and, beside it, a live job of the same key that holds it."""
    first = stored(state, unique={"states": ["pending"]})
    second = enqueue(unique={"states": ["completed"]}).job
    assert first.fingerprint == second.fingerprint
    assert fresh(second).holds_unique_key
    return first, second


@pytest.mark.parametrize("strategy", [pytest.param(s, id=f"S0-170-{s}") for s in ("reject", "ignore")])
def test_a_job_that_waits_for_its_retry_is_a_duplicate(strategy):
    holder = stored("retryable")
    answer, job = attempt(unique={"on_conflict": strategy})
    assert answer in ("rejected", "deduplicated")
    assert (job.pk, job.state) == (holder.pk, "retryable")


@pytest.mark.parametrize(
    "state", [pytest.param("retryable", id="S0-171"), pytest.param("scheduled", id="S0-172-scheduled")]
)
def test_promotion_never_checks_uniqueness(state):
    first, second = a_key_with_another_live_job(state)
    later = timezone.now() + 2 * DAY
    assert lifecycle.promote(row(first), later) == 1
    assert fresh(first).state == fresh(second).state == "available"


@pytest.mark.parametrize(
    "state", [pytest.param(s, id=f"S0-172-{s}-by-hand") for s in ("pending", "scheduled", "retryable")]
)
def test_retrying_manually_never_checks_uniqueness(state):
    first, second = a_key_with_another_live_job(state)
    first.retry()
    assert first.state == fresh(second).state == "available"


@pytest.mark.parametrize("move", [pytest.param(m, id=f"S0-172-{m}") for m in ("release", "rescue")])
def test_a_return_from_a_worker_never_checks_uniqueness(move):
    first = enqueue(unique={"states": ["available"]}).job
    token = claim(first)
    second = enqueue(unique={"states": ["available"]}).job
    now = timezone.now()
    if move == "release":
        assert lifecycle.requeue(row(first), token=token) == 1
    else:
        assert lifecycle.rescue(row(first), now, token=token, errors=[{"type": "visibility_timeout"}]) == 1
    assert (fresh(first).state, fresh(first).attempt) == ("available", 0 if move == "release" else 1)
    assert fresh(second).state == "available"


@pytest.mark.parametrize(
    "move", [pytest.param(m, id=f"S0-172-fresh-{m}") for m in ("claim", "retry", "complete", "discard")]
)
def test_no_move_of_a_worker_takes_a_unique_key_back(move):
    """A row that held its unique key only in the retryable state released it when it became available."""
    first, second = a_key_with_another_live_job("available")
    token = claim(first)
    now = timezone.now()
    moves = {
        "claim": lambda: None,
        "retry": lambda: lifecycle.schedule_retry(row(first), now, token=token, errors=[]),
        "complete": lambda: lifecycle.complete(row(first), now, token=token),
        "discard": lambda: lifecycle.discard(row(first), now, token=token, errors=[]),
    }
    moves[move]()
    assert not fresh(first).holds_unique_key
    assert fresh(second).holds_unique_key


@pytest.mark.parametrize("state", [pytest.param("discarded", id="S0-173")])
def test_exhausted_retries_free_the_key(state):
    stored(state)
    assert outcome() == "created"


@pytest.mark.parametrize("user_id", [pytest.param(42, id="S0-174")])
def test_the_five_steps_of_the_specification(user_id, clock):
    job = {"type": "email.send", "args": {"user_id": user_id}, "unique": {"keys": ["type", "args"]}}
    a = enqueue(**job).job
    assert fresh(a).holds_unique_key

    token = claim(a)
    assert lifecycle.schedule_retry(row(a), clock.now + HOUR, token=token, errors=[{"type": "e"}]) == 1
    assert fresh(a).holds_unique_key

    with pytest.raises(DuplicateJob) as caught:
        enqueue(**job)
    assert caught.value.details == {"existing_job_id": str(a.pk), "existing_job_state": "retryable"}

    clock.advance(HOUR)
    assert lifecycle.promote(row(a), clock.now) == 1
    token = claim(a)
    assert lifecycle.discard(row(a), clock.now, token=token, errors=[{"type": "e"}, {"type": "e"}]) == 1
    assert (fresh(a).state, fresh(a).holds_unique_key) == ("discarded", False)

    assert enqueue(**job).created


@pytest.mark.parametrize(
    "live", [pytest.param(s, id=f"S0-175-{s}") for s in ("available", "active", "scheduled", "retryable")]
)
def test_a_retry_is_refused_naming_the_live_duplicate(live):
    dead = stored("discarded")
    alive = stored(live)
    before = columns(dead)
    with pytest.raises(DuplicateJob) as caught:
        dead.retry()
    assert caught.value.existing_job_id == alive.pk
    assert columns(dead) == before


@pytest.mark.parametrize("force", [pytest.param(True, id="S0-175-forced")])
def test_a_forced_retry_goes_beside_the_live_duplicate(force):
    dead = stored("discarded")
    alive = enqueue().job
    dead.retry(force=force)
    assert (dead.state, dead.attempt, dead.finished_at) == ("available", 0, None)
    assert not dead.holds_unique_key
    assert fresh(alive).holds_unique_key


@pytest.mark.parametrize(
    "other", [pytest.param(None, id="S0-175-alone"), pytest.param("completed", id="S0-175-finished")]
)
def test_a_retry_without_a_live_duplicate_gives_fresh_attempts(other):
    dead = stored("discarded")
    if other:
        stored(other)
    dead.retry()
    assert (dead.state, dead.attempt, dead.started_at, dead.finished_at) == ("available", 0, None, None)
    assert dead.errors == [{"type": "e"}]
    claim(dead)


def test_a_retried_job_counts_as_a_duplicate_again_although_it_has_no_unique_key():
    dead = stored("discarded")
    dead.retry()
    assert attempt() == ("rejected", dead)


@pytest.mark.parametrize("state", ["available", "active", "completed"])
def test_a_job_that_runs_or_has_completed_is_not_retried(state):
    job = stored(state)
    before = columns(job)
    with pytest.raises(InvalidTransition) as caught:
        job.retry()
    assert caught.value.details == {
        "job_id": str(job.pk),
        "current_state": state,
        "expected_state": ["cancelled", "discarded", "pending", "retryable", "scheduled"],
    }
    assert columns(job) == before


@pytest.mark.parametrize(
    "first_ends", [pytest.param("completed", id="S0-176"), pytest.param("discarded", id="S0-176-fails")]
)
def test_a_job_and_the_one_admitted_while_it_waited_for_its_retry_both_run(first_ends):
    a = enqueue(unique=NO_RETRYABLE).job
    put(a, "retryable")
    b = enqueue(unique=NO_RETRYABLE).job
    assert lifecycle.promote(row(a), timezone.now() + 2 * HOUR) == 1
    assert fresh(a).state == fresh(b).state == "available"
    for job, end in ((a, first_ends), (b, "completed")):
        token = claim(job)
        now = timezone.now() + timedelta(seconds=1)
        if end == "completed":
            assert lifecycle.complete(row(job), now, token=token) == 1
        else:
            assert lifecycle.discard(row(job), now, token=token, errors=[]) == 1
    assert (fresh(a).state, fresh(b).state) == (first_ends, "completed")
