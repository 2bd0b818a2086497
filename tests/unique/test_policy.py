import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ojs_unique import InvalidPolicy, JobState, OnConflict, UniquePolicy
from django_ojs_unique.ojs.states import INCOMPLETE
from tests.support.json_values import NFC_TEXT

SIZES = st.integers(0, 4)
NAMES = st.lists(NFC_TEXT, min_size=1, max_size=4, unique=True)


@st.composite
def policies(draw):
    """Valid policies, as JSON objects."""
    keys = draw(st.permutations(["type", "queue", "args", "meta"]).flatmap(lambda p: st.just(p[: draw(SIZES)])))
    return {
        "keys": keys,
        "args_keys": draw(st.none() | NAMES) if "args" in keys else None,
        "meta_keys": draw(NAMES) if "meta" in keys else draw(st.none() | st.just([])),
        "period": draw(st.sampled_from([None, "PT1H", "PT0.5S", "P7D", "P1M", "P1Y2M3DT4H5M6S"])),
        "states": draw(st.lists(st.sampled_from([*map(str, JobState)]), min_size=1, unique=True)),
        "on_conflict": draw(st.sampled_from([*map(str, OnConflict)])),
    }


@pytest.mark.slow
@given(policies())
def test_a_policy_survives_its_json_object(value):
    policy = UniquePolicy.parse(value)
    emitted = policy.to_dict()
    assert UniquePolicy.parse(json.loads(json.dumps(emitted))) == policy
    assert UniquePolicy.parse(emitted).to_dict() == emitted


@pytest.mark.slow
@given(policies(), st.randoms())
def test_the_order_in_which_a_policy_lists_things_means_nothing(value, random):
    other = {**value}
    for name in ("keys", "args_keys", "meta_keys", "states"):
        if value[name]:
            other[name] = random.sample(value[name], len(value[name]))
    one, two = UniquePolicy.parse(value), UniquePolicy.parse(other)
    assert one == two
    assert hash(one) == hash(two)
    assert one.to_dict() == two.to_dict()


@pytest.mark.slow
@given(policies())
def test_the_type_is_always_a_key(value):
    assert UniquePolicy.parse(value).keys[0] == "type"


def test_the_defaults_are_the_specifications():
    assert UniquePolicy().to_dict() == {
        "keys": ["type"],
        "args_keys": None,
        "meta_keys": None,
        "period": None,
        "states": ["available", "active", "scheduled", "retryable", "pending"],
        "on_conflict": "reject",
    }
    assert UniquePolicy.parse({}) == UniquePolicy() == UniquePolicy(keys=[])
    assert set(UniquePolicy().states) == INCOMPLETE


def test_a_policy_is_parsed_as_it_is():
    policy = UniquePolicy(period="P1D")
    assert UniquePolicy.parse(policy) is policy


def test_a_policy_cannot_be_changed():
    with pytest.raises(AttributeError):
        UniquePolicy().period = "PT1H"


@pytest.mark.parametrize(
    "value",
    [
        {"keys": ["args"], "args_keys": None},
        {"meta_keys": []},
        {"keys": ["type"], "args_keys": []},
        {"keys": ("type", "queue")},
        {"keys": {"type", "queue"}},
        {"keys": ["meta"], "meta_keys": ["a"]},
        {"states": [JobState.ACTIVE, "completed"]},
        {"on_conflict": OnConflict.IGNORE},
        {"period": timedelta(hours=1)},
        {"period": "P1W"},
        {"period": None},
        {"keys": ["args"], "args_keys": [""]},
        {"keys": ["args"], "args_keys": [f"/{number}/a" for number in range(100)]},
        {"keys": ["args"], "args_keys": ["/a/b", "/a/bc", "ab", "a/b"]},
    ],
)
def test_what_the_specification_allows_is_accepted(value):
    assert isinstance(UniquePolicy.parse(value), UniquePolicy)


@pytest.mark.parametrize(
    ("value", "field", "said"),
    [
        ({"keys": ["argz"]}, "unique.keys[0]", "Did you mean 'args'?"),
        ({"keys": ["type", "Type"]}, "unique.keys[1]", "Did you mean 'type'?"),
        ({"keys": ["zebra"]}, "unique.keys[0]", "Valid: 'type', 'queue', 'args', 'meta'."),
        ({"keys": ["args", "args"]}, "unique.keys", "Name it once."),
        ({"keys": "type"}, "unique.keys", "Write ['type']."),
        ({"keys": None}, "unique.keys", "must be a list of strings"),
        ({"keys": {"type": True}}, "unique.keys", "must be a list of strings"),
        ({"keys": [1]}, "unique.keys[0]", "must be a string"),
        ({"keys": ["type", None]}, "unique.keys[1]", "must be a string"),
        ({"keys": ["type", ["args"]]}, "unique.keys[1]", "must be a string"),
        ({"keys": ["type "]}, "unique.keys[0]", "Did you mean 'type'?"),
        ({"keys": ["args"], "args_keys": []}, "unique.args_keys", "drop 'args' from keys"),
        ({"args_keys": ["a"]}, "unique.args_keys", "Add 'args' to keys."),
        ({"keys": ["args"], "args_keys": "a"}, "unique.args_keys", "Write ['a']."),
        ({"keys": ["args"], "args_keys": [1]}, "unique.args_keys[0]", "must be a string"),
        ({"keys": ["args"], "args_keys": ["a", "a"]}, "unique.args_keys", "Name it once."),
        ({"keys": ["args"], "args_keys": ["\u00e9", "e\u0301"]}, "unique.args_keys", "Name it once."),
        *(
            (
                {"keys": ["args", "meta"], "args_keys": ["a"], "meta_keys": ["a"], name: list(map(str, range(101)))},
                f"unique.{name}",
                "the limit is 100",
            )
            for name in ("keys", "args_keys", "meta_keys", "states")
        ),
        ({"keys": ["args"], "args_keys": ["k" * 256]}, "unique.args_keys[0]", "longer than 255 characters"),
        *(
            ({"keys": ["args"], "args_keys": names}, "unique.args_keys", "a part of it")
            for names in (["a", "/a/b"], ["/a/b", "/a"], ["/a", "a"], ["/a/b/c", "/a!", "/a", "b"], ["a/b", "/a~1b/c"])
        ),
        ({"keys": ["meta"]}, "unique.meta_keys", "must name at least one key"),
        ({"keys": ["meta"], "meta_keys": None}, "unique.meta_keys", "must name at least one key"),
        ({"keys": ["meta"], "meta_keys": []}, "unique.meta_keys", "must name at least one key"),
        ({"meta_keys": ["a"]}, "unique.meta_keys", "Add 'meta' to keys."),
        ({"states": []}, "unique.states", "is empty"),
        ({"states": ()}, "unique.states", "is empty"),
        ({"states": "active"}, "unique.states", "Write ['active']."),
        ({"states": None}, "unique.states", "must be a list of strings"),
        ({"states": ["running"]}, "unique.states[0]", "is not a known name"),
        ({"states": ["Active"]}, "unique.states[0]", "Did you mean 'active'?"),
        ({"states": ["active", "active"]}, "unique.states", "Name it once."),
        ({"states": ["canceled"]}, "unique.states[0]", "Did you mean 'cancelled'?"),
        ({"on_conflict": "Reject"}, "unique.on_conflict", "Did you mean 'reject'?"),
        ({"on_conflict": "skip"}, "unique.on_conflict", "is not a known strategy"),
        ({"on_conflict": None}, "unique.on_conflict", "must be a string"),
        ({"on_conflict": ["ignore"]}, "unique.on_conflict", "must be a string"),
        ({"period": 5}, "unique.period", "must be a string"),
        ({"period": True}, "unique.period", "must be a string"),
        ({"period": ["PT1H"]}, "unique.period", "must be a string"),
        ({"period": ""}, "unique.period", "'PT1H'"),
        ({"period": "1h"}, "unique.period", "is not an ISO 8601 duration"),
        ({"period": "PT0S"}, "unique.period", "is zero"),
        ({"period": "P2000Y"}, "unique.period", "longer than 1000 years"),
        ({"period": timedelta()}, "unique.period", "is zero"),
        ({"period": timedelta(hours=-1)}, "unique.period", "is not an ISO 8601 duration"),
        ({"period": timedelta.max}, "unique.period", "longer than 1000 years"),
        ({"on_confict": "ignore"}, "unique.on_confict", "Did you mean 'on_conflict'?"),
        ({"Keys": ["type"]}, "unique.Keys", "Did you mean 'keys'?"),
        ({"duration": "PT1H"}, "unique.duration", "is not a member"),
        ({1: 2}, "unique.1", "is not a member"),
        (["type"], "unique", "must be an object"),
        ("type", "unique", "must be an object"),
        (True, "unique", "must be an object"),
        (0, "unique", "must be an object"),
    ],
)
def test_what_it_does_not_allow_is_refused_with_the_field_and_the_hint(value, field, said):
    with pytest.raises(InvalidPolicy) as caught:
        UniquePolicy.parse(value)
    error = caught.value
    assert error.code == "invalid_request"
    assert error.details["field"] == field
    assert said in error.message


@pytest.mark.parametrize(
    "value",
    [
        {"keys": "k" * 100_000},
        {"keys": ["k" * 100_000]},
        {"k" * 100_000: 1},
        {"states": "k" * 100_000},
        {"states": ["k" * 100_000]},
        {"args_keys": "k" * 100_000},
        {"period": "P" * 100_000},
        {"on_conflict": "k" * 100_000},
        {"keys": [10**5000]},
        "k" * 100_000,
    ],
    ids=["keys", "keys[0]", "member", "states", "states[0]", "args_keys", "period", "on_conflict", "integer", "policy"],
)
def test_a_huge_value_is_refused_in_few_words(value):
    with pytest.raises(InvalidPolicy) as caught:
        UniquePolicy.parse(value)
    assert len(caught.value.message) < 500
    assert len(json.dumps(caught.value.details)) < 500


NOON = datetime(2026, 2, 12, 12, tzinfo=UTC)
TICK = timedelta(microseconds=1)


@pytest.mark.parametrize("state", JobState)
@pytest.mark.parametrize("listed", [True, False])
def test_a_stored_job_counts_only_in_a_listed_state(state, listed):
    states = {state} if listed else set(JobState) - {state}
    assert UniquePolicy(states=states).is_duplicate(str(state), NOON, NOON) is listed


@pytest.mark.parametrize(
    ("period", "age", "counts"),
    [
        ("PT1H", timedelta(0), True),
        ("PT1H", timedelta(hours=1) - TICK, True),
        ("PT1H", timedelta(hours=1), False),
        ("PT1H", timedelta(hours=1) + TICK, False),
        (None, timedelta(days=9999), True),
        ("PT1H", -timedelta(days=1), True),
    ],
)
def test_a_window_is_half_open(period, age, counts):
    assert UniquePolicy(period=period).is_duplicate("available", NOON - age, NOON) is counts


@pytest.mark.parametrize(
    ("created_at", "now", "counts"),
    [
        ("2026-01-31T12:00", "2026-02-28T11:59", True),
        ("2026-01-31T12:00", "2026-02-28T12:00", False),
        ("2028-01-31T12:00", "2028-02-29T11:59", True),
        ("2028-01-31T12:00", "2028-02-29T12:00", False),
    ],
)
def test_a_month_is_a_month_of_the_calendar(created_at, now, counts):
    created_at, now = (datetime.fromisoformat(text).replace(tzinfo=UTC) for text in (created_at, now))
    assert UniquePolicy(period="P1M").is_duplicate("available", created_at, now) is counts


def test_a_window_has_two_ends_or_none():
    assert UniquePolicy().window_end(NOON) is None
    assert UniquePolicy().window_start(NOON) is None
    hour = UniquePolicy(period="PT1H")
    assert hour.window_end(NOON) == NOON + timedelta(hours=1)
    assert hour.window_start(NOON) == NOON - timedelta(hours=1)


# Beyond the specification


@pytest.mark.parametrize(
    ("value", "field", "said"),
    [
        ({"window": "fixed"}, "unique.period", "Write for example 'PT15M' or 'P1D'."),
        ({"window": "fixed", "period": "P1M"}, "unique.period", "without years and months"),
        ({"window": "fixed", "period": "P1Y2D"}, "unique.period", "without years and months"),
        ({"window": "retention", "period": "PT1H"}, "unique.period", "Leave out the period or the window."),
        ({"window": "rollin"}, "unique.window", "Did you mean 'rolling'?"),
        ({"window": "Fixed"}, "unique.window", "Did you mean 'fixed'?"),
        ({"window": None}, "unique.window", "must be a string"),
        ({"window": ["fixed"]}, "unique.window", "must be a string"),
        ({"on_retry": "discarded"}, "unique.on_retry", "Did you mean 'discard'?"),
        ({"on_retry": None}, "unique.on_retry", "must be a string"),
        ({"on_retry": True}, "unique.on_retry", "must be a string"),
    ],
)
def test_a_window_without_edges_and_an_unknown_choice_are_refused(value, field, said):
    with pytest.raises(InvalidPolicy) as caught:
        UniquePolicy.parse(value)
    assert caught.value.details["field"] == field
    assert said in caught.value.message


def test_what_goes_beyond_the_specification_is_named_only_when_chosen():
    assert {"window", "on_retry"}.isdisjoint(UniquePolicy(period="PT1H").to_dict())
    chosen = UniquePolicy(period="PT1H", window="fixed", on_retry="discard")
    assert UniquePolicy.parse(json.loads(json.dumps(chosen.to_dict()))) == chosen
    assert (chosen.to_dict()["window"], chosen.to_dict()["on_retry"]) == ("fixed", "discard")


def fixed(period):
    return UniquePolicy(period=period, window="fixed")


def moment(text):
    return datetime.fromisoformat(text)


QUARTER = "2026-02-12T15:15:00Z/PT15M"


@pytest.mark.parametrize(
    ("period", "at", "window"),
    [
        ("PT15M", "2026-02-12T15:15:00+00:00", QUARTER),
        ("PT15M", "2026-02-12T15:21:00+00:00", QUARTER),
        ("PT15M", "2026-02-12T15:29:59.999999+00:00", QUARTER),
        ("PT15M", "2026-02-12T15:30:00+00:00", "2026-02-12T15:30:00Z/PT15M"),
        ("PT900S", "2026-02-12T15:21:00+00:00", QUARTER),
        ("PT15M", "2026-02-12T20:51:00+05:30", QUARTER),
        ("PT15M", "2026-02-12T07:21:00-08:00", QUARTER),
        ("P1D", "2026-02-12T00:30:00+01:00", "2026-02-11T00:00:00Z/P1D"),
        ("P1D", "2016-12-31T23:59:59+00:00", "2016-12-31T00:00:00Z/P1D"),
        ("P1D", "2024-02-29T12:00:00+00:00", "2024-02-29T00:00:00Z/P1D"),
        ("P1W", "2026-02-12T12:00:00+00:00", "2026-02-12T00:00:00Z/P7D"),
        ("PT7M", "1970-01-01T00:06:59+00:00", "1970-01-01T00:00:00Z/PT7M"),
        ("PT7M", "1969-12-31T23:59:59+00:00", "1969-12-31T23:53:00Z/PT7M"),
        ("P1D", "1969-12-31T00:00:00+00:00", "1969-12-31T00:00:00Z/P1D"),
        ("PT0.25S", "2026-02-12T15:15:00.300000+00:00", "2026-02-12T15:15:00.250000Z/PT0.25S"),
        ("PT15M", "9999-12-31T23:59:59+00:00", "9999-12-31T23:45:00Z/PT15M"),
        ("P7D", "0001-01-01T00:00:00+00:00", "0001-01-01T00:00:00Z/P7D"),
    ],
)
def test_a_fixed_window_starts_at_a_multiple_of_its_length_in_utc(period, at, window):
    assert fixed(period).window_of(moment(at)) == window


@pytest.mark.slow
@given(st.datetimes(datetime(1902, 1, 1), datetime(9000, 1, 1), timezones=st.timezones()), st.integers(1, 10**6))
def test_a_moment_lies_in_its_fixed_window(at, seconds):
    policy = fixed(timedelta(seconds=seconds))
    end = policy.kept_until(at, at)
    start = end - timedelta(seconds=seconds)
    assert start <= at < end
    assert (start - datetime(1970, 1, 1, tzinfo=UTC)) % timedelta(seconds=seconds) == timedelta(0)
    assert policy.window_of(at) == policy.window_of(start) == policy.window_of(end - TICK) != policy.window_of(end)


def test_within_its_fixed_window_a_job_counts_by_its_fingerprint_alone():
    policy = fixed("PT15M")
    assert policy.window_end(NOON) is None
    assert policy.window_start(NOON) is None
    assert policy.is_duplicate("available", NOON - timedelta(days=9), NOON)


@pytest.mark.parametrize(
    ("policy", "end"),
    [
        (UniquePolicy(), None),
        (UniquePolicy(window="retention"), None),
        (UniquePolicy(period="PT1H"), NOON + timedelta(hours=1)),
        (fixed("PT1H"), NOON + timedelta(hours=4)),
    ],
)
def test_a_finished_job_is_kept_until_its_window_ends(policy, end):
    assert policy.kept_until(NOON, NOON + timedelta(hours=3, minutes=10)) == end


def test_a_fixed_window_that_leaves_the_calendar_has_no_end():
    assert fixed("P7D").kept_until(NOON, datetime.max.replace(tzinfo=UTC)) is None
