from datetime import UTC, datetime, timedelta

import isodate
import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ojs_unique.ojs.durations import earliest_start, end_of, format_duration, parse_duration


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("PT5M", timedelta(minutes=5)),
        ("PT1H", timedelta(hours=1)),
        ("P1D", timedelta(days=1)),
        ("P7D", timedelta(days=7)),
        ("P1W", timedelta(weeks=1)),
        ("P0.5W", timedelta(days=3.5)),
        ("PT1H30M", timedelta(minutes=90)),
        ("P1DT2H3M4S", timedelta(days=1, hours=2, minutes=3, seconds=4)),
        ("PT0.5S", timedelta(milliseconds=500)),
        ("PT0.000001S", timedelta(microseconds=1)),
        ("PT1.5H", timedelta(minutes=90)),
        ("P0DT1S", timedelta(seconds=1)),
        ("PT36H", timedelta(hours=36)),
        ("PT90S", timedelta(seconds=90)),
        ("P007D", timedelta(days=7)),
        ("P365000D", timedelta(days=365_000)),
    ],
)
def test_a_fixed_length_is_a_timedelta(text, length):
    assert parse_duration(text) == length


@pytest.mark.parametrize(
    ("text", "years", "months", "rest"),
    [
        ("P1M", 0, 1, timedelta()),
        ("P1Y", 1, 0, timedelta()),
        ("P1Y2M3DT4H", 1, 2, timedelta(days=3, hours=4)),
        ("P1MT1M", 0, 1, timedelta(minutes=1)),
        ("P12000M", 0, 12_000, timedelta()),
        ("P1000Y", 1000, 0, timedelta()),
    ],
)
def test_years_and_months_stay_on_the_calendar(text, years, months, rest):
    assert parse_duration(text) == isodate.Duration(years=years, months=months) + rest


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "P",
        "PT",
        "P1DT",
        "1h",
        "pt1h",
        "PT1h",
        "3600",
        "PT1H\n",
        " PT1H",
        "PT1H ",
        "\nPT1H",
        "-PT1H",
        "+PT1H",
        "P-1D",
        "PT+1H",
        "PT0,5S",
        "PT.5S",
        "PT5.S",
        "PT1H1H",
        "PT1S1M",
        "P1W1D",
        "P1D1W",
        "P1H",
        "PT1D",
        "T1H",
        "P1",
        "PTH",
        "P0.5Y",
        "P1.5M",
        "P0001-00-00T00:00:00",
        "P\u0661D",
        "PT1H/PT2H",
        "R/PT1H",
        "PT1e3S",
    ],
)
def test_what_is_not_an_iso_8601_duration_is_refused(text):
    with pytest.raises(ValueError, match="ISO 8601"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["PT0S", "P0D", "P0W", "P0Y", "P0M", "P0Y0M0DT0H0M0S", "PT0.0S", "PT0.000000001S"])
def test_zero_is_refused(text):
    with pytest.raises(ValueError, match="zero"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["PT0.5H1M", "P1.5DT1H", "PT1.5M1S"])
def test_a_fraction_is_only_for_the_last_part(text):
    with pytest.raises(ValueError, match="fraction"):
        parse_duration(text)


@pytest.mark.parametrize(
    "text",
    [
        *("P1001Y", "P12001M", "P1000Y1D", "P365001D", "P999999999999Y", "P999999999999M", "P999999999999D"),
        *("P999999999999W", "PT999999999999H", "PT999999999999S", "P999Y999999999999D"),
    ],
)
def test_an_absurd_length_is_refused_and_never_overflows(text):
    with pytest.raises(ValueError, match="1000 years"):
        parse_duration(text)


def test_more_digits_than_a_number_has_are_refused_at_once():
    with pytest.raises(ValueError, match="ISO 8601"):
        parse_duration(f"P{'9' * 1_000_000}D")


@given(st.timedeltas(min_value=timedelta(microseconds=1), max_value=timedelta(days=365_000)))
def test_a_timedelta_survives_its_text(length):
    assert parse_duration(format_duration(length)) == length


@pytest.mark.parametrize(
    ("start", "text", "end"),
    [
        ("2026-01-31T12:00", "P1M", "2026-02-28T12:00"),
        ("2028-01-31T12:00", "P1M", "2028-02-29T12:00"),
        ("2024-02-29T00:00", "P1Y", "2025-02-28T00:00"),
        ("2024-02-29T00:00", "P4Y", "2028-02-29T00:00"),
        ("2026-12-15T00:00", "P1M", "2027-01-15T00:00"),
        ("2026-11-30T00:00", "P1Y3MT1H", "2028-02-29T01:00"),
        ("2026-03-28T12:00", "P1D", "2026-03-29T12:00"),
        ("2026-02-12T10:00", "PT1H", "2026-02-12T11:00"),
    ],
)
def test_the_end_of_a_window_is_counted_on_the_calendar(start, text, end):
    assert end_of(at(start), parse_duration(text)) == at(end)


DURATIONS = st.sampled_from(["PT1S", "PT1H", "P1D", "P30D", "P1M", "P3M", "P11M", "P13M", "P1Y", "P4Y", "P1Y1M1D"])
MOMENTS = st.datetimes(datetime(1990, 1, 1), datetime(2060, 1, 1), timezones=st.just(UTC))


@pytest.mark.slow
@given(MOMENTS, DURATIONS, st.timedeltas(timedelta(0), timedelta(days=5)))
def test_a_job_from_before_the_earliest_start_never_counts_any_more(now, text, before):
    duration = parse_duration(text)
    assert end_of(earliest_start(now, duration) - before, duration) <= now


@pytest.mark.slow
@given(MOMENTS, st.timedeltas(timedelta(microseconds=1), timedelta(days=3000)))
def test_the_earliest_start_is_exact_for_a_fixed_length(now, length):
    start = earliest_start(now, length)
    assert end_of(start, length) == now
    assert end_of(start + timedelta(microseconds=1), length) > now


@given(MOMENTS, DURATIONS)
def test_whatever_still_counts_is_younger_than_the_earliest_start(created_at, text):
    duration = parse_duration(text)
    last_moment = end_of(created_at, duration) - timedelta(microseconds=1)
    assert earliest_start(last_moment, duration) < created_at
