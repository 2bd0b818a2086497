"""S0-120..S0-130: which states count. The matrix: eight states, listed or not, four strategies."""

from datetime import timedelta

import pytest
from django.utils import timezone

from django_ojs_unique import OnConflict, lifecycle
from django_ojs_unique.models import Job
from django_ojs_unique.ojs.states import TERMINAL
from tests.support.jobs import (
    ALL_STATES,
    DAY,
    DEFAULT_STATES,
    HOUR,
    attempt,
    claim,
    columns,
    enqueue,
    fresh,
    outcome,
    row,
    stored,
)

pytestmark = pytest.mark.django_db

ANSWERS = {str(strategy): "replaced" for strategy in OnConflict} | {"reject": "rejected", "ignore": "deduplicated"}


@pytest.mark.slow
@pytest.mark.parametrize("held", [pytest.param(True, id="held"), pytest.param(False, id="released")])
@pytest.mark.parametrize("strategy", [str(strategy) for strategy in OnConflict])
@pytest.mark.parametrize("listed", [pytest.param(True, id="listed"), pytest.param(False, id="not-listed")])
@pytest.mark.parametrize("state", ALL_STATES)
def test_the_matrix_of_states_and_strategies(state, listed, strategy, held):
    """Whether the stored row still holds its unique key must change no answer: the query decides meaning."""
    old = stored(state, unique={"states": ALL_STATES})
    if not held:
        lifecycle.release_unique_keys(row(old))
    before = columns(old)
    states = [state] if listed else [other for other in ALL_STATES if other != state]
    answer, job = attempt(unique={"states": states, "on_conflict": strategy})
    expected = ANSWERS[strategy] if listed else "created"
    if expected == "replaced" and state in TERMINAL:
        expected = "created"
    assert answer == expected
    after = columns(old)
    if expected == "replaced":
        assert (after["state"], after["replaced_by_id"]) == ("cancelled", job.pk)
    elif expected == "created":
        assert after == {**before, "unique_states": frozenset()}
    else:
        assert after == before
        assert job.pk == old.pk
    assert Job.objects.count() == (1 if expected in ("rejected", "deduplicated") else 2)
    assert sum(stored_job.holds_unique_key for stored_job in Job.objects.all()) <= 1


@pytest.mark.parametrize("state", [pytest.param(s, id=f"S0-120-{s}") for s in DEFAULT_STATES])
def test_by_default_a_job_that_is_not_finished_is_a_duplicate(state):
    stored(state)
    assert outcome() == "rejected"


@pytest.mark.parametrize("state", [pytest.param(str(s), id=f"S0-121-{s}") for s in sorted(TERMINAL)])
def test_by_default_a_finished_job_is_none(state):
    stored(state)
    assert outcome() == "created"


WELCOME = {"states": [*DEFAULT_STATES, "completed"], "period": "P7D", "on_conflict": "ignore"}


@pytest.mark.parametrize(
    ("age", "expected"), [pytest.param(DAY, "deduplicated", id="S0-122"), pytest.param(8 * DAY, "created", id="S0-123")]
)
def test_a_completed_job_counts_for_seven_days(age, expected, clock):
    job = stored("completed", unique=WELCOME)
    clock.advance(age)
    answer, named = attempt(unique=WELCOME)
    assert answer == expected
    assert (named.pk == job.pk) is (expected == "deduplicated")


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        pytest.param("active", "created", id="S0-124-active"),
        pytest.param("scheduled", "rejected", id="S0-124-scheduled"),
    ],
)
def test_a_narrow_list_counts_what_it_names(state, expected):
    stored(state)
    assert outcome(unique={"states": ["scheduled"]}) == expected


@pytest.mark.parametrize("state", [pytest.param("available", id="S0-125")])
def test_a_list_without_active_lets_the_next_job_in_once_the_first_has_started(state):
    unique = {"states": [state]}
    first = enqueue(unique=unique).job
    assert outcome(unique=unique) == "rejected"
    claim(first)
    assert outcome(unique=unique) == "created"
    assert fresh(first).state == "active"


@pytest.mark.parametrize(
    ("theirs", "mine", "state", "expected"),
    [
        pytest.param(DEFAULT_STATES, ["completed"], "available", "created", id="S0-126-theirs-wider"),
        pytest.param(ALL_STATES, DEFAULT_STATES, "completed", "created", id="S0-126-theirs-all"),
        pytest.param(["available"], DEFAULT_STATES, "active", "rejected", id="S0-126-mine-wider"),
        pytest.param(DEFAULT_STATES, ALL_STATES, "completed", "rejected", id="S0-126-mine-all"),
        pytest.param(["completed"], ["available"], "available", "rejected", id="S0-126-disjoint"),
    ],
)
def test_the_list_of_the_new_job_decides_not_the_stored_ones(theirs, mine, state, expected):
    stored(state, unique={"states": theirs})
    assert outcome(unique={"states": mine}) == expected


@pytest.mark.parametrize("state", [pytest.param(s, id=f"S0-127-{s}") for s in DEFAULT_STATES])
def test_cancelling_the_holder_manually_frees_the_key_at_once(state, received):
    holder = stored(state)
    holder.cancel()
    assert outcome() == "created"
    assert [arguments["replaced_by"] for name, arguments in received if name == "cancelled"] == [None]


@pytest.mark.parametrize("state", [pytest.param(s, id=f"S0-128-{s}") for s in ALL_STATES])
def test_deleting_the_holder_frees_the_key(state):
    stored(state, unique={"states": ALL_STATES}).delete()
    assert outcome(unique={"states": ALL_STATES}) == "created"


@pytest.mark.parametrize("states", [pytest.param(["discarded"], id="S0-129")])
def test_a_list_of_discarded_blocks_after_a_failure_and_not_before(states):
    first = enqueue(unique={"states": states}).job
    second = enqueue(unique={"states": states}).job
    token = claim(first)
    third = enqueue(unique={"states": states}).job
    lifecycle.discard(row(second), timezone.now(), token=None, errors=[])
    assert {fresh(job).state for job in (second, third)} == {"available"}
    assert lifecycle.discard(row(first), timezone.now(), token=token, errors=[]) == 1
    assert outcome(unique={"states": states}) == "rejected"


@pytest.mark.parametrize(
    "age", [pytest.param(HOUR, id="S0-130"), pytest.param(7 * DAY - timedelta(seconds=1), id="S0-130-late")]
)
def test_what_the_package_itself_deletes_never_reopens_a_promised_window(age, clock):
    """The scans delete records of suppressed enqueues, never jobs."""
    from django_ojs_unique.models import SuppressedEnqueue

    job = stored("completed", unique=WELCOME)
    attempt(unique=WELCOME)
    clock.advance(age)
    SuppressedEnqueue.objects.prune(clock.now + 365 * DAY)
    assert attempt(unique=WELCOME) == ("deduplicated", job)
