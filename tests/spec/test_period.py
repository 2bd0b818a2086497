"""S0-140..S0-151: the window from the stored job's `created_at` to `created_at + period`."""

from datetime import UTC, datetime, timedelta
from itertools import product
from zoneinfo import ZoneInfo

import pytest
from django.utils import timezone

from django_ojs_unique import OnConflict, lifecycle
from tests.support.jobs import ALL_STATES, DAY, HOUR, attempt, columns, enqueue, fresh, live, outcome, put, row, stored

pytestmark = pytest.mark.django_db

TICK = timedelta(microseconds=1)
HOURLY = {"period": "PT1H"}


@pytest.mark.parametrize(
    ("age", "expected"),
    [
        pytest.param(timedelta(0), "rejected", id="S0-140-start"),
        pytest.param(HOUR - TICK, "rejected", id="S0-140-last-moment"),
        pytest.param(HOUR, "created", id="S0-141"),
        pytest.param(HOUR + TICK, "created", id="S0-141-later"),
    ],
)
@pytest.mark.parametrize("strategy", ["reject", "ignore"])
def test_the_window_is_half_open(age, expected, strategy, clock):
    enqueue(unique=HOURLY)
    clock.advance(age)
    answer = outcome(unique={**HOURLY, "on_conflict": strategy})
    assert answer == (expected if strategy == "reject" or expected == "created" else "deduplicated")


@pytest.mark.parametrize("strategy", list(map(str, OnConflict)))
@pytest.mark.parametrize("state", [pytest.param(s, id=f"S0-142-{s}") for s in ALL_STATES])
def test_after_the_window_a_new_job_is_created_whatever_the_state(state, strategy, clock):
    unique = {**HOURLY, "states": ALL_STATES, "on_conflict": strategy}
    old = stored(state, unique=unique)
    before = columns(old)
    clock.advance(HOUR)
    assert outcome(unique=unique) == "created"
    assert columns(old) == {**before, "unique_states": frozenset()}


@pytest.mark.parametrize("state", [pytest.param("available", id="S0-143"), pytest.param("active", id="S0-143-active")])
def test_then_two_live_jobs_share_the_key_and_the_window_of_the_newer_one_holds(state, clock):
    old = stored(state, unique=HOURLY)
    clock.advance(HOUR)
    new = enqueue(unique=HOURLY).job
    assert set(live()) == {old, new}
    clock.advance(HOUR - TICK)
    assert attempt(unique=HOURLY) == ("rejected", new)
    assert set(enqueue(unique={"on_conflict": "replace"}).replaced) == {old, new}


@pytest.mark.parametrize("strategy", [pytest.param(s, id=f"S0-144-{s}") for s in ("reject", "ignore")])
def test_refused_attempts_do_not_move_the_window(strategy, clock):
    enqueue(unique=HOURLY)
    for _ in range(3):
        clock.advance(HOUR / 4)
        assert outcome(unique={**HOURLY, "on_conflict": strategy}) in ("rejected", "deduplicated")
    clock.advance(HOUR / 4)
    assert outcome(unique={**HOURLY, "on_conflict": strategy}) == "created"


@pytest.mark.parametrize("state", [pytest.param(s, id=f"S0-145-{s}") for s in ALL_STATES])
def test_schedule_start_and_finish_do_not_move_the_window(state, clock):
    unique = {**HOURLY, "states": ALL_STATES}
    job = enqueue(unique=unique, scheduled_at=clock.now + HOUR / 2 if state == "scheduled" else None).job
    clock.advance(HOUR / 2)
    if state != "scheduled":
        put(job, state)
    clock.advance(HOUR / 2 - TICK)
    assert outcome(unique=unique) == "rejected"
    clock.advance(TICK)
    assert outcome(unique=unique) == "created"


@pytest.mark.parametrize("age", [pytest.param(1000 * DAY, id="S0-146")])
def test_without_a_period_a_job_counts_for_as_long_as_its_state_is_listed(age, clock):
    old = enqueue().job
    clock.advance(age)
    assert outcome() == "rejected"
    put(old, "completed")
    assert outcome() == "created"


@pytest.mark.parametrize(
    ("same_key", "listed", "open_window"),
    [
        pytest.param(*values, id=f"S0-147-{''.join(str(int(v)) for v in values)}")
        for values in product([True, False], repeat=3)
    ],
)
@pytest.mark.parametrize("strategy", ["reject", "ignore", "replace", "replace_except_schedule"])
def test_a_duplicate_needs_an_equal_key_and_a_listed_state_and_an_open_window(
    same_key, listed, open_window, strategy, clock
):
    policy = {"keys": ["args"], "period": "PT1H", "states": ["active"] if listed else ["available"]}
    old = put(enqueue("t", {"n": 1}, unique={"keys": ["args"]}).job, "active")
    clock.advance(HOUR - TICK if open_window else HOUR)
    answer = outcome("t", {"n": 1 if same_key else 2}, unique={**policy, "on_conflict": strategy})
    assert (answer != "created") is (same_key and listed and open_window)
    assert (fresh(old).state == "cancelled") is (answer == "replaced")


@pytest.mark.parametrize("strategy", [pytest.param(str(s), id=f"S0-148-{s}") for s in OnConflict])
def test_an_expired_holder_releases_its_unique_key_and_never_causes_a_conflict(strategy, clock):
    old = enqueue().job
    clock.advance(HOUR)
    new = enqueue(unique={**HOURLY, "on_conflict": strategy}).job
    assert (fresh(old).holds_unique_key, fresh(new).holds_unique_key) == (False, True)
    assert fresh(old).state == "available"
    assert outcome() == "rejected"


BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("created_at", "period", "end"),
    [
        # The clocks of Berlin go forward on 2026-03-29 and back on 2026-10-25: a day stays 24 hours.
        pytest.param("2026-03-28T12:00Z", "P1D", "2026-03-29T12:00Z", id="S0-149-spring"),
        pytest.param("2026-10-24T12:00Z", "P1D", "2026-10-25T12:00Z", id="S0-149-autumn"),
        pytest.param("2026-10-25T00:30Z", "PT1H", "2026-10-25T01:30Z", id="S0-149-repeated-hour"),
        pytest.param("2026-03-28T23:30Z", "P1M", "2026-04-28T23:30Z", id="S0-149-month"),
        pytest.param("2026-01-31T23:30Z", "P1M", "2026-02-28T23:30Z", id="S0-022-month-end"),
        pytest.param("2028-02-29T10:00Z", "P1Y", "2029-02-28T10:00Z", id="S0-022-leap-year"),
        pytest.param("2026-05-31T10:00Z", "P1M", "2026-06-30T10:00Z", id="S0-022-june"),
    ],
)
@pytest.mark.parametrize("zone", [UTC, BERLIN, ZoneInfo("Pacific/Auckland")], ids=str)
def test_neither_the_current_time_zone_nor_its_clock_changes_move_a_window(created_at, period, end, zone, clock):
    clock.now, end = datetime.fromisoformat(created_at), datetime.fromisoformat(end)
    unique = {"period": period}
    with timezone.override(zone):
        enqueue(unique=unique)
        clock.now = (end - TICK).astimezone(zone)
        assert outcome(unique=unique) == "rejected"
        clock.now = end.astimezone(zone)
        assert outcome(unique=unique) == "created"


@pytest.mark.parametrize(
    "strategy", [pytest.param(s, id=f"S0-150-{s}") for s in ("replace", "replace_except_schedule")]
)
def test_a_replacement_starts_the_window_anew(strategy, clock):
    enqueue(unique=HOURLY)
    clock.advance(HOUR / 2)
    new = enqueue(unique={**HOURLY, "on_conflict": strategy}).job
    assert fresh(new).created_at == clock.now
    clock.advance(HOUR - TICK)
    assert outcome(unique=HOURLY) == "rejected"
    clock.advance(TICK)
    assert outcome(unique=HOURLY) == "created"


@pytest.mark.parametrize(
    ("theirs", "mine", "expected"),
    [
        pytest.param("PT1H", "P1D", "rejected", id="S0-151-longer"),
        pytest.param("P1D", "PT1H", "created", id="S0-151-shorter"),
        pytest.param(None, "PT1H", "created", id="S0-151-theirs-none"),
        pytest.param("PT1H", None, "rejected", id="S0-151-mine-none"),
    ],
)
def test_the_period_of_the_new_job_decides(theirs, mine, expected, clock):
    enqueue(unique={"period": theirs})
    clock.advance(2 * HOUR)
    assert outcome(unique={"period": mine}) == expected


def test_the_stored_row_is_the_anchor_not_what_the_caller_remembers(clock):
    job = enqueue(unique=HOURLY).job
    row(job).update(created_at=clock.now - HOUR)
    assert outcome(unique=HOURLY) == "created"


def test_releasing_the_unique_key_does_not_end_the_window(clock):
    job = enqueue(unique=HOURLY).job
    lifecycle.release_unique_keys(row(job))
    assert outcome(unique=HOURLY) == "rejected"
