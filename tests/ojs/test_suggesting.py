"""A class of the specification that is called with an unknown member says which one was meant."""

import copy
import dataclasses
import inspect
import pickle

import pytest

from django_ojs_unique import Cron, InvalidPolicy, RetryPolicy, UniquePolicy


@pytest.mark.parametrize(
    ("cls", "members", "said"),
    [
        (UniquePolicy, {"keyy": []}, "UniquePolicy() has no member 'keyy'. Did you mean 'keys'?"),
        (UniquePolicy, {"perod": "P1D", "keys": 1}, "UniquePolicy() has no member 'perod'. Did you mean 'period'?"),
        (UniquePolicy, {"by_args": True}, "UniquePolicy() has no member 'by_args'. Valid: 'keys', 'args_keys', "),
        (UniquePolicy, {"duration": None}, "UniquePolicy() has no member 'duration'. Valid: 'keys', "),
        (RetryPolicy, {"max_attempt": 1}, "RetryPolicy() has no member 'max_attempt'. Did you mean 'max_attempts'?"),
        (Cron, {"expression": "@daily", "tz": "UTC"}, "Cron() has no member 'tz'. Valid: 'expression', 'timezone', "),
    ],
)
def test_an_unknown_member_is_a_type_error_that_names_the_one_it_resembles(cls, members, said):
    with pytest.raises(TypeError) as caught:
        cls(**members)
    assert str(caught.value).startswith(said)


def test_any_other_mistake_is_said_as_ever():
    with pytest.raises(TypeError, match="expression"):
        Cron()
    with pytest.raises(TypeError, match="positional"):
        RetryPolicy(*range(20))
    with pytest.raises(InvalidPolicy, match="Did you mean 'active'"):
        UniquePolicy(states=["activ"])
    with pytest.raises(InvalidPolicy, match="Did you mean 'ignore'"):
        UniquePolicy(on_conflict="ignor")
    with pytest.raises(InvalidPolicy, match="Did you mean 'period'"):
        UniquePolicy.parse({"perod": "P1D"})


def test_the_class_stays_what_it_was():
    policy = UniquePolicy(period="P1D")
    assert list(inspect.signature(UniquePolicy).parameters)[:2] == ["keys", "args_keys"]
    assert (
        dataclasses.replace(policy, period="P1D") == policy == copy.copy(policy) == pickle.loads(pickle.dumps(policy))
    )
    with pytest.raises(TypeError, match="Did you mean 'period'"):
        dataclasses.replace(policy, perod="P1D")
