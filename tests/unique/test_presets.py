from dataclasses import replace
from datetime import timedelta
from inspect import getdoc, signature

import pytest

from django_ojs_unique.exceptions import InvalidRequest
from django_ojs_unique.ojs import states
from django_ojs_unique.ojs.states import ALL, INCOMPLETE, WAITING, JobState
from django_ojs_unique.unique import presets
from django_ojs_unique.unique.policy import OnConflict, OnRetry, UniquePolicy, Window
from django_ojs_unique.unique.presets import (
    debounce,
    newest_waits,
    once_per_window,
    resque_uniqueue,
    river,
    sidekiq,
    throttle,
)
from tests.ojs.test_public_names import python

REQUIRED = ["pending", "scheduled", "available", "running"]
FUNCTIONS = [name for name in presets.__all__ if name.islower()]


def test_the_named_sets_are_those_of_the_states():
    assert (presets.ALL, presets.INCOMPLETE, presets.WAITING) == (states.ALL, states.INCOMPLETE, states.WAITING)


@pytest.mark.slow
def test_the_presets_import_without_django():
    code = "import sys\nfrom django_ojs_unique.unique.presets import river\nriver(True)\nprint('django' in sys.modules)"
    assert python(code) == "False"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_preset_is_documented_and_names_each_option(name):
    function = getattr(presets, name)
    text = getdoc(function) + (getdoc(newest_waits) if "newest_waits" in getdoc(function) else "")
    assert all(f"``{option}``" in text for option in signature(function).parameters)


@pytest.mark.parametrize(
    "policy",
    [
        resque_uniqueue(),
        sidekiq(60),
        sidekiq("PT1M", "start"),
        river(by_args=["/customer/id"], by_period=900),
        river(by_queue=True),
        river(by_state=REQUIRED),
        newest_waits(args=["id"], meta=["tenant"]),
        debounce("PT1M"),
        throttle("PT1H"),
        once_per_window("P1D"),
    ],
)
def test_a_preset_survives_its_json_object(policy):
    assert UniquePolicy.parse(policy.to_dict()) == policy


# Sidekiq


@pytest.mark.parametrize("unique_for", [600, 600.0, "PT10M", "PT600S", timedelta(minutes=10)])
def test_sidekiq_counts_type_queue_and_args_for_a_time(unique_for):
    assert sidekiq(unique_for) == UniquePolicy(
        keys=["type", "queue", "args"], period="PT10M", states=tuple(INCOMPLETE), on_conflict="ignore", window="due"
    )


def test_sidekiq_can_let_go_at_the_start():
    assert set(sidekiq(60, unique_until="start").states) == INCOMPLETE - {JobState.ACTIVE, JobState.RETRYABLE}
    assert sidekiq(60, unique_until="success") == sidekiq(60)


# River


def test_river_without_options_means_no_uniqueness():
    assert river() is None
    assert river(by_args=False, by_period=None, by_queue=False, by_state=None) is None


@pytest.mark.parametrize(
    ("options", "keys", "args_keys"),
    [
        ({"by_args": True}, ("type", "args"), None),
        ({"by_args": ["b", "/a/b"]}, ("type", "args"), ("/a/b", "b")),
        ({"by_args": {"a"}}, ("type", "args"), ("a",)),
        ({"by_queue": True}, ("type", "queue"), None),
        ({"by_args": True, "by_queue": True}, ("type", "queue", "args"), None),
        ({"by_period": 60}, ("type",), None),
        ({"by_state": REQUIRED}, ("type",), None),
    ],
)
def test_river_options_choose_what_counts(options, keys, args_keys):
    policy = river(**options)
    assert (policy.keys, policy.args_keys, policy.on_conflict) == (keys, args_keys, OnConflict.IGNORE)


@pytest.mark.parametrize(
    ("options", "window", "on_retry"),
    [
        ({"by_args": True}, Window.RETENTION, OnRetry.RUN),
        ({"by_state": [*REQUIRED, "completed"]}, Window.RETENTION, OnRetry.DISCARD),
        ({"by_state": [*REQUIRED, "retryable"]}, Window.ROLLING, OnRetry.RUN),
        ({"by_state": REQUIRED}, Window.ROLLING, OnRetry.DISCARD),
        ({"by_period": "PT1H"}, Window.FIXED, OnRetry.RUN),
        ({"by_period": "PT1H", "by_state": REQUIRED}, Window.FIXED, OnRetry.DISCARD),
    ],
)
def test_river_options_choose_the_window_and_what_a_retry_does(options, window, on_retry):
    policy = river(**options)
    assert (policy.window, policy.on_retry) == (window, on_retry)


def test_river_spells_active_running_and_takes_both():
    assert river(by_state=REQUIRED) == river(by_state=["active", "pending", "scheduled", "available"])
    assert set(river(by_args=True).states) == ALL - {JobState.CANCELLED, JobState.DISCARDED}


@pytest.mark.parametrize("period", [1, "PT1S", timedelta(seconds=1), 1.5, "P7D"])
def test_river_takes_a_period_of_a_second_or_more(period):
    assert river(by_period=period).window is Window.FIXED


# Recipes


def test_the_newest_waits_beside_what_runs():
    policy = newest_waits()
    assert (policy.keys, set(policy.states)) == (("type", "args"), WAITING)
    assert (policy.on_conflict, policy.on_retry) == (OnConflict.REPLACE, OnRetry.DISCARD)


@pytest.mark.parametrize("delay", [60, 60.0, "PT1M", timedelta(minutes=1)])
def test_a_debounce_delays_the_newest_that_waits(delay):
    assert debounce(delay, args=["id"]) == replace(newest_waits(args=["id"]), delay="PT1M")


def test_a_debounce_may_count_on_the_calendar():
    assert debounce("P1M").delay == "P1M"


def test_throttle_and_once_per_window_differ_in_where_the_window_starts():
    once, throttled = once_per_window("PT1H"), throttle("PT1H")
    assert (once.window, throttled.window) == (Window.FIXED, Window.ROLLING)
    for policy in (once, throttled):
        assert set(policy.states) == {*INCOMPLETE, JobState.COMPLETED}
        assert (policy.period, policy.on_conflict) == ("PT1H", OnConflict.IGNORE)


@pytest.mark.parametrize(
    "recipe",
    [newest_waits, lambda **o: debounce(60, **o), lambda **o: throttle(60, **o), lambda **o: once_per_window(60, **o)],
)
@pytest.mark.parametrize(
    ("options", "keys", "args_keys", "meta_keys"),
    [
        ({}, ("type", "args"), None, None),
        ({"args": False}, ("type",), None, None),
        ({"args": ["user_id"], "queue": True}, ("type", "queue", "args"), ("user_id",), None),
        ({"args": False, "meta": ["tenant"]}, ("type", "meta"), None, ("tenant",)),
    ],
)
def test_a_recipe_is_told_what_counts(recipe, options, keys, args_keys, meta_keys):
    policy = recipe(**options)
    assert (policy.keys, policy.args_keys, policy.meta_keys) == (keys, args_keys, meta_keys)


# Refusals

POSITIVE = "must be a positive length of time"
VARIES = "is no fixed length of time: years and months vary"


@pytest.mark.parametrize(
    ("call", "field", "said"),
    [
        (lambda: sidekiq("1 minute"), "unique_for", "'PT30S', a timedelta, or seconds."),
        (lambda: sidekiq("P1M"), "unique_for", VARIES),
        (lambda: sidekiq(0), "unique_for", POSITIVE),
        (lambda: sidekiq(-1), "unique_for", POSITIVE),
        (lambda: sidekiq(True), "unique_for", POSITIVE),
        (lambda: sidekiq(None), "unique_for", POSITIVE),
        (lambda: sidekiq(float("nan")), "unique_for", POSITIVE),
        (lambda: sidekiq(float("inf")), "unique_for", POSITIVE),
        (lambda: sidekiq(10**400), "unique_for", POSITIVE),
        (lambda: sidekiq(timedelta.max), "unique_for", POSITIVE),
        (lambda: sidekiq(60, "sucess"), "unique_until", "Did you mean 'success'?"),
        (lambda: sidekiq(60, "start "), "unique_until", "Did you mean 'start'?"),
        (lambda: sidekiq(60, None), "unique_until", "must be 'success' or 'start'"),
        (lambda: sidekiq(60, ["start"]), "unique_until", "must be 'success' or 'start'"),
        (lambda: river(by_args="id"), "by_args", "Write ['id']."),
        (lambda: river(by_args=[]), "by_args", "Write False, or name one."),
        (lambda: river(by_args=None), "by_args", "must be True, False, or a list"),
        (lambda: river(by_args=1), "by_args", "must be True, False, or a list"),
        (lambda: river(by_args=["a", 1]), "by_args[1]", "must be a string"),
        (lambda: river(by_args=["a", "a"]), "unique.args_keys", "Name it once."),
        (lambda: river(by_queue="default"), "by_queue", "must be True or False"),
        (lambda: river(by_period="P1Y"), "by_period", VARIES),
        (lambda: river(by_period="PT0.999S"), "by_period", "a second or more"),
        (lambda: river(by_state="available"), "by_state", "Write ['available']."),
        (lambda: river(by_state=[]), "by_state", "lacks pending, scheduled, available, running: "),
        (lambda: river(by_state=[*REQUIRED, "active"]), "by_state", "Name it once."),
        (lambda: river(by_state=[*REQUIRED, ["completed"]]), "by_state[4]", "must be a string"),
        (lambda: river(by_state=[*REQUIRED, "finished"]), "by_state[4]", "is not a known state"),
        (lambda: newest_waits(args="id"), "args", "Write ['id']."),
        (lambda: newest_waits(meta="tenant"), "meta", "Write ['tenant']."),
        (lambda: newest_waits(meta=[1]), "meta[0]", "must be a string"),
        (lambda: debounce(60, queue="one"), "queue", "must be True or False"),
        (lambda: debounce(0), "delay", "is zero"),
        (lambda: debounce(None), "delay", "must be a length of time"),
        (lambda: debounce("1m"), "delay", "'PT30S', a timedelta, or seconds."),
        (lambda: throttle(0), "period", POSITIVE),
        (lambda: once_per_window("P1M"), "period", VARIES),
    ],
)
def test_a_wrong_option_is_refused_with_its_name_and_the_hint(call, field, said):
    with pytest.raises(InvalidRequest) as refusal:
        call()
    assert refusal.value.details["field"] == field
    assert said in refusal.value.message
    assert len(refusal.value.message) < 400
