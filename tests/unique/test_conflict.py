from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import permutations

import pytest

from django_ojs_unique import JobState, OnConflict, UniquePolicy
from django_ojs_unique.ojs.states import ALL, TERMINAL
from django_ojs_unique.unique.conflict import Action, Verdict, judge

NOW = datetime(2026, 2, 12, 12, tzinfo=UTC)
LATER = NOW + timedelta(days=1)
REPLACING = [OnConflict.REPLACE, OnConflict.REPLACE_EXCEPT_SCHEDULE]


@dataclass(frozen=True)
class Row:
    id: int
    state: str = "available"
    created_at: datetime = NOW
    scheduled_at: datetime | None = None
    enqueued_at: datetime | None = NOW
    expires_at: datetime | None = None
    started_at: datetime | None = None


def verdict(*rows, strategy="reject", replace_active=True, **policy):
    return judge(rows, UniquePolicy(on_conflict=strategy, **policy), NOW, replace_active=replace_active)


@pytest.mark.parametrize("strategy", OnConflict)
def test_without_stored_jobs_the_job_is_admitted(strategy):
    assert verdict(strategy=strategy) == Verdict(Action.ADMIT)


@pytest.mark.parametrize("strategy", OnConflict)
@pytest.mark.parametrize("state", JobState)
def test_a_job_in_a_state_that_is_not_listed_releases_its_unique_key_and_the_new_one_is_admitted(state, strategy):
    row = Row(1, state)
    assert verdict(row, strategy=strategy, states=ALL - {state}) == Verdict(Action.ADMIT, release=(row,))


@pytest.mark.parametrize("strategy", OnConflict)
@pytest.mark.parametrize("state", JobState)
def test_a_job_whose_window_has_ended_releases_its_unique_key_and_the_new_one_is_admitted(state, strategy):
    row = Row(1, state, NOW - timedelta(hours=1))
    assert verdict(row, strategy=strategy, states=ALL, period="PT1H") == Verdict(Action.ADMIT, release=(row,))


@pytest.mark.parametrize("strategy", OnConflict)
@pytest.mark.parametrize("state", ["available", "scheduled", "pending"])
def test_a_job_that_may_not_start_any_more_releases_its_unique_key_and_the_new_one_is_admitted(state, strategy):
    row = Row(1, state, expires_at=NOW)
    assert verdict(row, strategy=strategy) == Verdict(Action.ADMIT, release=(row,))


@pytest.mark.parametrize("row", [
    Row(1, expires_at=LATER), Row(1, expires_at=NOW, started_at=NOW), Row(1, "retryable", expires_at=NOW),
    Row(1, "active", expires_at=NOW),
])  # fmt: skip
def test_a_job_that_may_start_or_has_started_still_counts(row):
    assert verdict(row) == Verdict(Action.REJECT, row)


@pytest.mark.parametrize("replace_active", [True, False])
@pytest.mark.parametrize("state", JobState)
@pytest.mark.parametrize(("strategy", "action"), [("reject", Action.REJECT), ("ignore", Action.IGNORE)])
def test_reject_and_ignore_answer_with_the_duplicate_and_touch_nothing(strategy, action, state, replace_active):
    row = Row(1, state)
    assert verdict(row, strategy=strategy, states=ALL, replace_active=replace_active) == Verdict(action, row)


@pytest.mark.parametrize("strategy", REPLACING)
@pytest.mark.parametrize("state", sorted(ALL - TERMINAL - {JobState.ACTIVE}))
@pytest.mark.parametrize("replace_active", [True, False])
def test_the_replacing_strategies_cancel_a_waiting_duplicate(strategy, state, replace_active):
    row = Row(1, state)
    assert verdict(row, strategy=strategy, replace_active=replace_active) == Verdict(Action.ADMIT, row, cancel=(row,))


@pytest.mark.parametrize("strategy", REPLACING)
def test_a_running_duplicate_is_cancelled_where_that_is_allowed(strategy):
    row = Row(1, "active")
    assert verdict(row, strategy=strategy) == Verdict(Action.ADMIT, row, cancel=(row,))


@pytest.mark.parametrize("strategy", REPLACING)
def test_a_running_duplicate_is_a_rejection_where_it_must_not_be_cancelled(strategy):
    row = Row(1, "active")
    assert verdict(row, strategy=strategy, replace_active=False) == Verdict(Action.REJECT, row)


@pytest.mark.parametrize("strategy", REPLACING)
def test_one_running_duplicate_among_several_rejects_the_whole_and_is_the_one_named(strategy):
    running, newest = Row(1, "active", NOW - timedelta(hours=1)), Row(2, "available")
    assert verdict(running, newest, strategy=strategy, replace_active=False) == Verdict(Action.REJECT, running)


@pytest.mark.parametrize("strategy", REPLACING)
def test_a_running_job_that_is_no_duplicate_does_not_forbid_a_replacement(strategy):
    running, waiting = Row(1, "active", NOW - timedelta(hours=2)), Row(2)
    answer = verdict(running, waiting, strategy=strategy, replace_active=False, period="PT1H")
    assert answer == Verdict(Action.ADMIT, waiting, cancel=(waiting,), release=(running,))


@pytest.mark.parametrize("strategy", REPLACING)
@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_a_finished_duplicate_stays_as_it_is_and_only_releases_its_unique_key(strategy, state):
    row = Row(1, state)
    assert verdict(row, strategy=strategy, states=ALL) == Verdict(Action.ADMIT, row, release=(row,))


@pytest.mark.parametrize("strategy", REPLACING)
def test_every_live_duplicate_is_cancelled_and_every_other_row_released(strategy):
    old = Row(1, "available", NOW - timedelta(hours=2))
    done = Row(2, "completed", NOW - timedelta(minutes=30))
    waiting = Row(3, "retryable", NOW - timedelta(minutes=20))
    newest = Row(4, "available", NOW - timedelta(minutes=10))
    answer = verdict(newest, old, done, waiting, strategy=strategy, states=ALL, period="PT1H")
    assert answer.action is Action.ADMIT
    assert answer.existing == newest
    assert set(answer.cancel) == {waiting, newest}
    assert set(answer.release) == {old, done}


@pytest.mark.parametrize(("strategy", "action"), [("reject", Action.REJECT), ("ignore", Action.IGNORE)])
def test_of_several_duplicates_the_newest_is_named_whatever_the_order_of_the_rows(strategy, action):
    rows = [Row(3, created_at=NOW - timedelta(minutes=2)), Row(1, "active"), Row(2, "pending")]
    assert {verdict(*order, strategy=strategy) for order in permutations(rows)} == {Verdict(action, rows[2])}


def test_a_newer_row_that_is_no_duplicate_is_not_named():
    duplicate, newer = Row(1, "available", NOW - timedelta(minutes=1)), Row(2, "completed")
    assert verdict(newer, duplicate).existing == duplicate


def test_replace_except_schedule_hands_down_the_schedule_of_a_scheduled_duplicate():
    row = Row(1, "scheduled", scheduled_at=LATER)
    answer = verdict(row, strategy="replace_except_schedule")
    assert answer == Verdict(Action.ADMIT, row, cancel=(row,), inherited_schedule=LATER)


@pytest.mark.parametrize("state", sorted(ALL - {JobState.SCHEDULED}))
def test_a_duplicate_that_is_not_scheduled_any_more_hands_down_nothing(state):
    row = Row(1, state, scheduled_at=LATER)
    assert verdict(row, strategy="replace_except_schedule", states=ALL).inherited_schedule is None


def test_only_the_newest_duplicate_hands_down_its_schedule():
    scheduled = Row(1, "scheduled", NOW - timedelta(minutes=1), LATER)
    assert verdict(scheduled, Row(2), strategy="replace_except_schedule").inherited_schedule is None


def test_replace_never_hands_down_a_schedule():
    assert verdict(Row(1, "scheduled", scheduled_at=LATER), strategy="replace").inherited_schedule is None
