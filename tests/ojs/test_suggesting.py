"""A class of the specification that is called with an unknown member says which one was meant."""

import copy
import dataclasses
import inspect
import pickle

import pytest

from django_ojs_unique import Cron, InvalidPolicy, RetryPolicy, UniquePolicy
from tests.support.refusals import refused


@pytest.mark.parametrize(
    ("cls", "members", "said"),
    [
        (UniquePolicy, {"keyy": []}, r"'keyy'.* 'keys'\?"),
        (UniquePolicy, {"perod": "P1D", "keys": 1}, r"'perod'.* 'period'\?"),
        (UniquePolicy, {"by_args": True}, "'by_args'.* 'keys', 'args_keys', "),
        (UniquePolicy, {"duration": None}, "'duration'.* 'keys', "),
        (RetryPolicy, {"max_attempt": 1}, r"'max_attempt'.* 'max_attempts'\?"),
        (Cron, {"expression": "@daily", "tz": "UTC"}, "'tz'.* 'expression', 'timezone', "),
    ],
)
def test_an_unknown_member_is_a_type_error_that_names_the_one_it_resembles(cls, members, said):
    with pytest.raises(TypeError, match=rf"{cls.__name__}\(\).*{said}"):
        cls(**members)


def test_any_other_mistake_is_said_as_ever():
    with pytest.raises(TypeError, match="expression"):
        Cron()
    with pytest.raises(TypeError, match="positional"):
        RetryPolicy(*range(20))
    with refused(InvalidPolicy, "unique.states[0]", names="'active'?"):
        UniquePolicy(states=["activ"])
    with refused(InvalidPolicy, "unique.on_conflict", names="'ignore'?"):
        UniquePolicy(on_conflict="ignor")
    with refused(InvalidPolicy, "unique.perod", names="'period'?"):
        UniquePolicy.parse({"perod": "P1D"})


def test_the_class_stays_what_it_was():
    policy = UniquePolicy(period="P1D")
    assert list(inspect.signature(UniquePolicy).parameters)[:2] == ["keys", "args_keys"]
    assert (
        dataclasses.replace(policy, period="P1D") == policy == copy.copy(policy) == pickle.loads(pickle.dumps(policy))
    )
    with pytest.raises(TypeError, match=r"'period'\?"):
        dataclasses.replace(policy, perod="P1D")
