"""When periodic jobs are due. An oracle that looks at every minute judges what happens when the clocks change."""

import copy
import pickle
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from django_ojs_unique import InvalidRequest
from django_ojs_unique.ojs.cron import Cron, OverlapPolicy
from tests.support.refusals import refused

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
NOW = datetime(2026, 2, 12, 10, 7, 30, 5, tzinfo=UTC)


def utc(*moment):
    return datetime(*moment, tzinfo=UTC)


def occurrences(cron, after, until):
    """Return all occurrences in (after, until]."""
    found = []
    while (after := cron.next_after(after)) is not None and after <= until:
        found.append(after)
    return found


def local(cron, *day):
    """Return the occurrences of a local day and the night after it, as the clocks of the zone show them."""
    zone = ZoneInfo(cron.timezone)
    start = datetime(*day, tzinfo=zone)
    shown = [moment.astimezone(zone) for moment in occurrences(cron, start - MINUTE, start + DAY)]
    return [moment.strftime("%H:%M%z")[:-2] for moment in shown if moment.date() == start.date()]


# What an expression means


@pytest.mark.parametrize(
    ("expression", "following"),
    [
        ("30 2 * * *", utc(2026, 2, 13, 2, 30)),
        ("*/15 * * * *", utc(2026, 2, 12, 10, 15)),
        ("0 9 * * MON-FRI", utc(2026, 2, 13, 9)),
        ("0 9 * * 0", utc(2026, 2, 15, 9)),
        ("0 9 * * 7", utc(2026, 2, 15, 9)),
        ("0 9 * * sun", utc(2026, 2, 15, 9)),
        ("0 0 1 JAN,MAR *", utc(2026, 3, 1)),
        ("0 0 13 * FRI", utc(2026, 2, 13)),
        ("*/10 * * * * *", utc(2026, 2, 12, 10, 7, 40)),
        ("0 0 29 2 *", utc(2028, 2, 29)),
        ("0 0 30 2 1-5", utc(2026, 2, 13)),
        ("@yearly", utc(2027, 1, 1)),
        ("@annually", utc(2027, 1, 1)),
        ("@monthly", utc(2026, 3, 1)),
        ("@weekly", utc(2026, 2, 15)),
        ("@daily", utc(2026, 2, 13)),
        ("@midnight", utc(2026, 2, 13)),
        ("@hourly", utc(2026, 2, 12, 11)),
        ("@every PT5M", utc(2026, 2, 12, 10, 10)),
        ("@every PT1S", utc(2026, 2, 12, 10, 7, 31)),
        ("@every 5m", utc(2026, 2, 12, 10, 10)),
        ("@every 1h30m", utc(2026, 2, 12, 10, 30)),
        ("@every 1.5h", utc(2026, 2, 12, 10, 30)),
        ("@every 1500ms", utc(2026, 2, 12, 10, 7, 31, 500_000)),
    ],
)
def test_the_next_occurrence(expression, following):
    assert Cron(expression).next_after(NOW) == following


def test_the_next_occurrence_is_later_than_the_moment():
    assert Cron("0 9 * * *").next_after(utc(2026, 2, 12, 9)) == utc(2026, 2, 13, 9)
    assert Cron("@every PT5M").next_after(utc(2026, 2, 12, 10, 5)) == utc(2026, 2, 12, 10, 10)


def test_an_expression_means_the_clocks_of_its_zone():
    assert Cron("0 9 * * *", "Europe/Berlin").next_after(NOW) == utc(2026, 2, 13, 8)
    assert Cron("0 9 * * *", "Asia/Kolkata").next_after(NOW) == utc(2026, 2, 13, 3, 30)


def test_an_interval_counts_from_the_epoch_so_that_all_workers_agree():
    cron = Cron("@every PT7M")
    assert (cron.next_after(NOW) - datetime.fromtimestamp(0, UTC)) % timedelta(minutes=7) == timedelta()
    assert cron.next_after(NOW) == cron.next_after(NOW + timedelta(seconds=1))


def test_at_the_end_of_the_calendar_nothing_follows():
    assert Cron("0 9 * * *").next_after(datetime.max.replace(tzinfo=UTC)) is None
    assert Cron("@every P1D").next_after(datetime.max.replace(tzinfo=UTC)) is None


def test_a_cron_can_be_copied_pickled_and_compared():
    cron = Cron("0 9 * * *", "Europe/Berlin", args={"a": [1]})
    assert copy.deepcopy(cron) == pickle.loads(pickle.dumps(cron)) == cron
    assert repr(Cron("@daily")).count("=") == 5


# What is refused


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("", "five or six"),
        ("* * * *", "five or six"),
        ("* * * * * * *", "five or six"),
        ("0 9 * * ²", "five or six"),
        ("at nine", "five or six"),
        ("60 * * * *", "minute"),
        ("* 24 * * *", "hour"),
        ("* * 0 * *", "day-of-month"),
        ("* * 32 * *", "day-of-month"),
        ("* * * 13 *", "month"),
        ("* * * * 8", "day-of-week"),
        ("* * * * FRI-MON", "day-of-week"),
        ("60 * * * * *", "second"),
        ("*/0 * * * *", "minute"),
        ("1,,2 * * * *", "minute"),
        ("5-1 * * * *", "minute"),
        ("@reboot", "nickname"),
        ("@Daily", "'@daily'?"),
        ("@every", "''"),
        ("@every 5M", "'5M'"),
        ("@every 1h 30m", "'1h 30m'"),
        ("@every -5m", "'-5m'"),
        ("@every 90", "'90'"),
        ("@every 0s", "one second"),
        ("@every 999ms", "one second"),
        ("@every PT0S", "zero"),
        ("@every PT0.5S", "one second"),
        ("@every P1M", "months"),
        ("0 0 31 2 *", "never"),
        ("0 0 30 2 */7", "never"),
        ("0 0 31 4,6,9,11 *", "never"),
        ("*" * 300, "255"),
        (None, "string"),
        (5, "string"),
    ],
)
def test_an_expression_that_means_nothing_is_refused(expression, problem):
    with refused(InvalidRequest, "expression", names=problem):
        Cron(expression)


def test_an_expression_that_names_a_time_which_its_zone_always_leaves_out_never_fires():
    Cron("30 2 * 3 7L", "UTC")
    with refused(InvalidRequest, "expression", names="never"):
        Cron("30 2 * 3 7L", "Europe/Berlin")


@pytest.mark.parametrize("name", ["Mars/Olympus", "europe/berlin", "", "CET+1", "../UTC", "right/UTC", "a\0b", 5, []])
def test_a_zone_that_iana_does_not_know_is_refused(name):
    with refused(InvalidRequest, "timezone"):
        Cron("@daily", name)


@pytest.mark.parametrize("policy", ["Skip", "", "queue", None, 1, []])
def test_an_unknown_overlap_policy_is_refused(policy):
    with pytest.raises(InvalidRequest) as refusal:
        Cron("@daily", overlap_policy=policy)
    assert refusal.value.details["field"] == "overlap_policy"


def test_cancel_is_another_word_for_cancel_previous():
    assert Cron("@daily", overlap_policy="cancel").overlap_policy == OverlapPolicy.CANCEL_PREVIOUS


@pytest.mark.parametrize(
    ("args", "field"),
    [(None, "args"), (5, "args"), ("a", "args"), ({"at": NOW}, "args.at"), ([float("nan")], "args[0]")],
)
def test_args_that_no_job_can_have_are_refused(args, field):
    with refused(InvalidRequest, field):
        Cron("@daily", args=args)


@given(st.text(alphabet="0123456789*/,-LW#@ MONJAN\t²", max_size=30))
def test_whatever_the_text_it_is_a_schedule_or_refused(text):
    try:
        cron = Cron(text)
    except InvalidRequest:
        return
    assert cron.next_after(NOW) > NOW


# When the clocks change


BERLIN = "Europe/Berlin"


def test_a_local_time_that_does_not_exist_is_skipped():
    assert local(Cron("30 2 * * *", BERLIN), 2026, 3, 29) == []
    assert local(Cron("0 30 2 * * *", BERLIN), 2026, 3, 29) == []
    assert local(Cron("0-59/30 1-3 * * *", BERLIN), 2026, 3, 29) == ["01:00+01", "01:30+01", "03:00+02", "03:30+02"]


def test_a_local_time_that_occurs_twice_fires_once():
    assert local(Cron("30 2 * * *", BERLIN), 2026, 10, 25) == ["02:30+02"]
    assert local(Cron("0 30 2 * * *", BERLIN), 2026, 10, 25) == ["02:30+02"]
    assert local(Cron("*/30 2 * * *", BERLIN), 2026, 10, 25) == ["02:00+02", "02:30+02"]
    assert local(Cron("0 */2 * * *", BERLIN), 2026, 10, 25)[:3] == ["00:00+02", "02:00+02", "04:00+01"]


def test_an_expression_for_every_hour_goes_on_in_real_time():
    for expression in ("*/15 * * * *", "0,15,30,45 0-23 * * *", "0 */15 */1 * * *"):
        for start in (utc(2026, 3, 29), utc(2026, 10, 25)):
            quarters = [start + 15 * number * MINUTE for number in range(16)]
            assert occurrences(Cron(expression, BERLIN), start - MINUTE, start + 4 * HOUR - MINUTE) == quarters
    assert local(Cron("30 * * * *", BERLIN), 2026, 10, 25)[1:5] == ["01:30+02", "02:30+02", "02:30+01", "03:30+01"]
    assert local(Cron("30 * * * *", BERLIN), 2026, 3, 29)[1:3] == ["01:30+01", "03:30+02"]


def test_a_change_of_half_an_hour_repeats_and_leaves_out_half_an_hour():
    howe = "Australia/Lord_Howe"
    assert local(Cron("45 * * * *", howe), 2026, 4, 5)[:3] == ["00:45+11", "01:45+11", "01:45+10"]
    assert local(Cron("45 1 * * *", howe), 2026, 4, 5) == ["01:45+11"]
    assert local(Cron("15 2 * * *", howe), 2026, 10, 4) == []
    assert local(Cron("45 2 * * *", howe), 2026, 10, 4) == ["02:45+11"]


CHANGES = [
    (BERLIN, utc(2026, 3, 29, 1)),
    (BERLIN, utc(2026, 10, 25, 1)),
    ("America/New_York", utc(2026, 3, 8, 7)),
    ("America/New_York", utc(2026, 11, 1, 6)),
    ("Australia/Lord_Howe", utc(2026, 4, 4, 15)),
    ("Australia/Lord_Howe", utc(2026, 10, 3, 15, 30)),
    ("America/St_Johns", utc(2026, 11, 1, 4, 30)),
    ("Pacific/Chatham", utc(2026, 4, 4, 14)),
    ("America/Havana", utc(2026, 11, 1, 5)),  # midnight occurs twice
    ("Africa/Cairo", utc(2026, 4, 23, 22)),  # midnight does not exist
    ("Asia/Kolkata", utc(2026, 4, 4)),  # nothing happens
]
MINUTES = st.sampled_from(["*", "*/15", "*/7", "0", "15", "45", "30-59", "0,30"])
HOURS = st.sampled_from(["*", "*/2", "0-23", "0", "1", "2", "1-3", "0,23", "23"])
DAYS = st.sampled_from(["*", "1", "4", "5", "24", "25", "29"])


@pytest.mark.slow
@given(st.sampled_from(CHANGES), MINUTES, HOURS, DAYS)
def test_around_a_change_of_the_clocks_the_occurrences_are_those_that_the_clocks_show(change, minutes, hours, day):
    zone, moment = change
    expression = f"{minutes} {hours} {day} * *"
    start, end = moment - 26 * HOUR, moment + 26 * HOUR
    assert occurrences(Cron(expression, zone), start - MINUTE, end) == shown(expression, zone, start, end)


def shown(expression, zone, start, end):
    """Look at the clocks each minute."""
    sets = CronSim(expression, datetime(2000, 1, 1))
    every_hour = len(sets.hours) == 24
    found = []
    while start <= end:
        clock = start.astimezone(ZoneInfo(zone))
        matches = clock.minute in sets.minutes and clock.hour in sets.hours and sets.match_day(clock.date())
        if matches and (every_hour or not clock.fold):
            found.append(start)
        start += MINUTE
    return found


@pytest.mark.slow
@given(st.sampled_from(CHANGES), MINUTES, HOURS, st.integers(-3000, 3000), st.integers(0, 3000))
def test_the_latest_occurrence_is_the_last_of_all_those_in_between(change, minutes, hours, before, span):
    zone, moment = change
    cron = Cron(f"{minutes} {hours} * * *", zone)
    after = moment + before * MINUTE
    until = after + span * MINUTE
    between = occurrences(cron, after, until)
    assert cron.latest_until(after, until) == (between[-1] if between else None)
    assert all(earlier < later for earlier, later in pairwise(between))


@pytest.mark.parametrize("expression", ["* * * * * *", "* * * * *", "@every PT1S", "@every PT1.5S", "* * 2 * * *"])
def test_the_latest_occurrence_after_a_year_is_found_in_few_steps(expression):
    steps = []

    class Counted(Cron):
        def next_after(self, moment):
            steps.append(moment)
            return Cron.next_after(self, moment)

    cron = Counted(expression, BERLIN)
    latest = cron.latest_until(NOW - 365 * DAY, NOW)
    assert len(steps) < 50
    assert latest <= NOW < cron.next_after(latest)


def test_the_latest_occurrence_may_be_at_the_very_moment_and_never_at_the_start():
    cron = Cron("0 9 * * *")
    nine = utc(2026, 2, 12, 9)
    assert cron.latest_until(nine - MINUTE, nine) == nine
    assert cron.latest_until(nine, nine + HOUR) is None


@pytest.mark.slow
@given(st.sampled_from(CHANGES), MINUTES, HOURS, st.integers(-3000, 3000), st.integers(0, 3000), st.integers(1, 5))
def test_the_last_occurrences_are_the_last_of_all_those_in_between(change, minutes, hours, before, span, most):
    zone, moment = change
    cron = Cron(f"{minutes} {hours} * * *", zone)
    after = moment + before * MINUTE
    until = after + span * MINUTE
    assert cron.last(most, after, until) == occurrences(cron, after, until)[-most:][::-1]


@pytest.mark.parametrize(
    "expression", ["* * * * * *", "*/7 * * * *", "0 4 * * *", "0 0 29 2 *", "@every PT1.5S", "@every P9D"]
)
def test_the_last_occurrences_of_years_are_found_in_few_steps(expression):
    steps = []

    class Counted(Cron):
        def next_after(self, moment):
            steps.append(moment)
            return Cron.next_after(self, moment)

    found = Counted(expression, BERLIN).last(20, NOW - 10 * 365 * DAY, NOW)
    assert len(steps) < 150
    assert found == sorted(found, reverse=True)
    assert len(found) == (3 if "29 2" in expression else 20)
    assert Counted(expression).last(20, NOW, NOW) == []
