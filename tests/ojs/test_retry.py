import json
import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ojs_unique import InvalidRetryPolicy, RetryPolicy
from django_ojs_unique.ojs.retry import EXHAUSTION, MOST_ATTEMPTS, STRATEGIES
from tests.support.json_values import TEXT

INTERVALS = st.sampled_from(["PT0.1S", "PT1S", "PT30S"])
LONGER = st.sampled_from(["PT30S", "PT5M", "P1D"])


@st.composite
def policies(draw):
    """Valid policies, as JSON objects."""
    return {
        "max_attempts": draw(st.integers(0, MOST_ATTEMPTS)),
        "initial_interval": draw(INTERVALS),
        "backoff_coefficient": draw(st.integers(1, 10) | st.floats(1, 10)),
        "max_interval": draw(LONGER),
        "jitter": draw(st.booleans()),
        "non_retryable_errors": draw(st.lists(TEXT, max_size=3)),
        "on_exhaustion": draw(st.sampled_from(EXHAUSTION)),
        "backoff_strategy": draw(st.sampled_from(STRATEGIES)),
    }


@pytest.mark.slow
@given(policies())
def test_a_policy_survives_its_json_object(value):
    policy = RetryPolicy.parse(value)
    assert policy.to_dict() == value
    assert RetryPolicy.parse(json.loads(json.dumps(policy.to_dict()))) == policy


@pytest.mark.slow
@given(policies(), st.integers(1, 1000), st.floats(0, 1, exclude_max=True))
def test_a_delay_is_never_negative_and_never_longer_than_max_interval(value, attempt, random):
    policy = RetryPolicy.parse(value)
    assert timedelta(0) <= policy.delay(attempt, random) <= policy.longest


@pytest.mark.slow
@given(policies(), st.integers(1, 50))
def test_without_jitter_a_delay_never_shrinks(value, attempt):
    policy = RetryPolicy.parse({**value, "jitter": False})
    assert policy.delay(attempt, 0.9) <= policy.delay(attempt + 1, 0.1)


def test_the_defaults_are_ojs_defaults():
    assert (
        RetryPolicy.parse({}).to_dict()
        == RetryPolicy().to_dict()
        == {
            "max_attempts": 3,
            "initial_interval": "PT1S",
            "backoff_coefficient": 2.0,
            "max_interval": "PT5M",
            "jitter": True,
            "non_retryable_errors": [],
            "on_exhaustion": "discard",
            "backoff_strategy": "exponential",
        }
    )


def test_a_policy_is_parsed_as_it_is():
    policy = RetryPolicy(max_attempts=5)
    assert RetryPolicy.parse(policy) is policy


def test_intervals_may_be_timedeltas():
    policy = RetryPolicy(initial_interval=timedelta(seconds=2), max_interval=timedelta(hours=1))
    assert policy == RetryPolicy(initial_interval="PT2S", max_interval="PT1H")


@pytest.mark.parametrize(
    ("strategy", "coefficient", "seconds"),
    [
        ("exponential", 2.0, [10, 20, 40, 80, 100]),
        ("exponential", 1, [10, 10, 10, 10, 10]),
        ("linear", 2.0, [10, 20, 30, 40, 50]),
        ("constant", 2.0, [10, 10, 10, 10, 10]),
        ("polynomial", 2.0, [10, 40, 90, 100, 100]),
    ],
)
def test_each_strategy_grows_as_its_name_says_up_to_max_interval(strategy, coefficient, seconds):
    policy = RetryPolicy(
        initial_interval="PT10S",
        max_interval="PT100S",
        backoff_coefficient=coefficient,
        backoff_strategy=strategy,
        jitter=False,
    )
    assert [policy.delay(attempt, 0.7).total_seconds() for attempt in (1, 2, 3, 4, 5)] == seconds


@pytest.mark.parametrize(("random", "seconds"), [(0, 5), (0.5, 10), (0.999, 14.99)])
def test_jitter_scales_a_delay_from_a_half_to_one_and_a_half(random, seconds):
    policy = RetryPolicy(initial_interval="PT10S")
    assert policy.delay(1, random).total_seconds() == pytest.approx(seconds)


@pytest.mark.parametrize("strategy", ["exponential", "polynomial"])
@pytest.mark.parametrize("coefficient", [10.0, 10, 1e308])
def test_a_delay_that_would_overflow_is_max_interval(strategy, coefficient):
    policy = RetryPolicy(backoff_strategy=strategy, backoff_coefficient=coefficient, jitter=False)
    assert policy.delay(5000, 0) == timedelta(minutes=5)


@pytest.mark.parametrize(
    ("max_attempts", "failed_run", "again"),
    [(0, 1, False), (1, 1, False), (2, 1, True), (2, 2, False), (3, 2, True), (3, 4, False)],
)
def test_a_job_runs_again_while_runs_are_left(max_attempts, failed_run, again):
    assert RetryPolicy(max_attempts=max_attempts).allows(failed_run) is again


@pytest.mark.parametrize(
    ("errors", "seen", "gives_up"),
    [
        ([], ("ValueError",), False),
        (["ValueError"], ("ValueError",), True),
        (["ValueError"], ("KeyError", "ValueError"), True),
        (["ValueError"], ("ValueErrors",), False),
        (["auth.*"], ("auth.expired",), True),
        (["auth.*"], ("auth.token.expired",), True),
        (["auth.*"], ("auth",), False),
        (["auth.*"], ("authority.x",), False),
        (["auth*"], ("auth.expired",), False),
    ],
)
def test_errors_that_are_not_worth_a_retry_are_known_by_their_type(errors, seen, gives_up):
    assert RetryPolicy(non_retryable_errors=errors).gives_up_on(*seen) is gives_up


@pytest.mark.parametrize(
    ("value", "field", "said"),
    [
        ({"max_attempts": -1}, "retry.max_attempts", "from 0 to 2147483647"),
        ({"max_attempts": 2**31}, "retry.max_attempts", "whole number"),
        ({"max_attempts": 3.0}, "retry.max_attempts", "whole number"),
        ({"max_attempts": True}, "retry.max_attempts", "whole number"),
        ({"max_attempts": "3"}, "retry.max_attempts", "whole number"),
        ({"max_attempts": None}, "retry.max_attempts", "whole number"),
        ({"backoff_coefficient": 0.9}, "retry.backoff_coefficient", "at least 1"),
        ({"backoff_coefficient": math.inf}, "retry.backoff_coefficient", "number"),
        ({"backoff_coefficient": math.nan}, "retry.backoff_coefficient", "number"),
        ({"backoff_coefficient": True}, "retry.backoff_coefficient", "number"),
        ({"backoff_coefficient": "2"}, "retry.backoff_coefficient", "number"),
        ({"backoff_coefficient": 10**400}, "retry.backoff_coefficient", "number"),
        ({"jitter": 1}, "retry.jitter", "true or false"),
        ({"jitter": None}, "retry.jitter", "true or false"),
        ({"on_exhaustion": "dead_leter"}, "retry.on_exhaustion", "Did you mean 'dead_letter'?"),
        ({"on_exhaustion": "Discard"}, "retry.on_exhaustion", "Did you mean 'discard'?"),
        ({"on_exhaustion": ["discard"]}, "retry.on_exhaustion", "is not a known name"),
        ({"backoff_strategy": "expo"}, "retry.backoff_strategy", "exponential"),
        ({"backoff_strategy": None}, "retry.backoff_strategy", "is not a known name"),
        ({"non_retryable_errors": "ValueError"}, "retry.non_retryable_errors", "list of strings"),
        ({"non_retryable_errors": [1]}, "retry.non_retryable_errors", "list of strings"),
        ({"non_retryable_errors": None}, "retry.non_retryable_errors", "list of strings"),
        ({"initial_interval": "1s"}, "retry.initial_interval", "'PT1S'"),
        ({"initial_interval": "PT0S"}, "retry.initial_interval", "is zero"),
        ({"initial_interval": 1}, "retry.initial_interval", "must be a duration"),
        ({"initial_interval": None}, "retry.initial_interval", "must be a duration"),
        ({"initial_interval": timedelta(seconds=-1)}, "retry.initial_interval", "not an ISO 8601 duration"),
        ({"initial_interval": "P1M"}, "retry.initial_interval", "without years or months"),
        ({"max_interval": "P1Y"}, "retry.max_interval", "without years or months"),
        ({"max_interval": "P99999999D"}, "retry.max_interval", "longer than 1000 years"),
        ({"max_interval": "PT0.5S"}, "retry.max_interval", "must not be shorter than initial_interval"),
        ({"max_attempt": 3}, "retry.max_attempt", "Did you mean 'max_attempts'?"),
        ({"initial": "PT1S"}, "retry.initial", "is not a member"),
        ("PT1S", "retry", "must be an object"),
        ([3], "retry", "must be an object"),
        (3, "retry", "must be an object"),
    ],
)
def test_an_invalid_policy_is_refused_with_the_field_and_the_hint(value, field, said):
    with pytest.raises(InvalidRetryPolicy) as caught:
        RetryPolicy.parse(value)
    assert caught.value.details["field"] == field
    assert said in caught.value.message


@pytest.mark.parametrize(
    "value",
    [{"k" * 100_000: 1}, {"on_exhaustion": "k" * 100_000}, {"max_attempts": 10**5000}],
    ids=["member", "name", "integer"],
)
def test_a_huge_value_is_refused_in_few_words(value):
    with pytest.raises(InvalidRetryPolicy) as caught:
        RetryPolicy.parse(value)
    assert len(caught.value.message) < 500


@pytest.mark.parametrize("strategy", ["exponential", "polynomial"])
def test_the_power_of_a_large_whole_coefficient_is_not_computed(strategy):
    policy = RetryPolicy(backoff_strategy=strategy, backoff_coefficient=10**15, jitter=False)
    assert [policy.delay(attempt, 0.5) for attempt in (2, 3, 2**31 - 1)] == [policy.longest] * 3


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [
        ({}, 1 + 2),
        ({"max_attempts": 0}, 0),
        ({"max_attempts": 1}, 0),
        ({"max_attempts": 17}, 511 + 7 * 300),
        ({"max_attempts": 4, "backoff_strategy": "linear", "jitter": False}, 1 + 2 + 3),
        ({"max_attempts": 100_001, "backoff_strategy": "constant"}, 100_000),
        ({"max_attempts": MOST_ATTEMPTS}, 511 + (MOST_ATTEMPTS - 10) * 300),
    ],
)
def test_a_policy_tells_how_long_a_job_is_tried(policy, seconds):
    assert RetryPolicy(**policy).lasts == timedelta(seconds=seconds)
