"""What an enqueue by key decides, without a database (Graphile Worker, "Job key")."""

import inspect
import unicodedata
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ojs_unique import InvalidRequest, JobState
from django_ojs_unique.ojs.states import TERMINAL
from django_ojs_unique.unique.fingerprint import canonical_text, fingerprint
from django_ojs_unique.unique.keys import (
    HOLDING,
    JobKey,
    KeyAction,
    KeyMode,
    KeyScope,
    is_mixed,
    judge,
    merge,
)
from django_ojs_unique.unique.policy import UniquePolicy
from tests.support.json_values import OBJECTS, VALUES
from tests.support.refusals import refused

WAITING = sorted(HOLDING - {JobState.ACTIVE, JobState.DISCARDED})
KEY_LOCKS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""What turns the direction of a text, and is refused."""
CHARACTERS = st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"], exclude_characters=KEY_LOCKS)
NOW = datetime(2026, 2, 12, 12, tzinfo=UTC)
KEYS = st.text(CHARACTERS, min_size=1, max_size=20)


@dataclass
class Holder:
    state: str
    attempt: int = 0
    expires_at: datetime | None = None
    started_at: datetime | None = None


def text(key, type="t", scope=KeyScope.TYPE):
    return JobKey(key, scope=scope).canonical_text(type)


# Decisions


@pytest.mark.parametrize("mode", KeyMode)
def test_without_a_holder_every_mode_creates(mode):
    assert judge(None, mode, NOW) is KeyAction.CREATE


@pytest.mark.parametrize(("state", "attempt"), list(product(sorted(HOLDING), [0, 1])))
def test_unsafe_dedupe_keeps_every_holder(state, attempt):
    assert judge(Holder(state, attempt), "unsafe_dedupe", NOW) is KeyAction.KEEP


@pytest.mark.parametrize("state", ["available", "discarded"])
def test_unsafe_dedupe_does_not_keep_a_holder_that_has_expired(state):
    assert judge(Holder(state, expires_at=NOW), "unsafe_dedupe", NOW) is KeyAction.REWRITE
    assert judge(Holder(state, 1, expires_at=NOW, started_at=NOW), "unsafe_dedupe", NOW) is KeyAction.KEEP


@pytest.mark.parametrize(("mode", "attempt"), list(product(["replace", "preserve_run_at"], [1, 3])))
def test_a_running_holder_is_succeeded(mode, attempt):
    assert judge(Holder("active", attempt), mode, NOW) is KeyAction.SUCCEED


@pytest.mark.parametrize("state", WAITING)
def test_a_waiting_holder_is_rewritten_with_or_without_its_time(state):
    assert judge(Holder(state), "replace", NOW) is KeyAction.REWRITE
    assert judge(Holder(state), "preserve_run_at", NOW) is KeyAction.REWRITE_BUT_TIME


@pytest.mark.parametrize("mode", ["replace", "preserve_run_at"])
@pytest.mark.parametrize(("state", "attempt"), [*product(WAITING, [1]), ("discarded", 0), ("discarded", 3)])
def test_a_holder_that_failed_before_is_rewritten_with_its_time(state, attempt, mode):
    assert judge(Holder(state, attempt), mode, NOW) is KeyAction.REWRITE


def test_a_job_holds_its_key_until_it_completes_or_is_cancelled():
    assert set(JobState) - HOLDING == {JobState.COMPLETED, JobState.CANCELLED}
    assert {JobState.DISCARDED} == HOLDING & TERMINAL


# Arguments


@pytest.mark.slow
@given(st.lists(VALUES), st.lists(VALUES), st.lists(VALUES))
def test_arrays_are_joined_in_order_whatever_the_grouping(first, second, third):
    assert merge(merge(first, second), third) == merge(first, merge(second, third)) == first + second + third
    assert not is_mixed(first, second)


@pytest.mark.slow
@given(st.lists(VALUES), OBJECTS)
def test_an_array_and_an_object_are_mixed_and_the_new_one_stays(array, object):
    assert is_mixed(array, object)
    assert is_mixed(object, array)
    assert merge(array, object) is object
    assert merge(object, array) is array


@pytest.mark.slow
@given(OBJECTS, OBJECTS)
def test_of_two_objects_the_new_one_stays(old, new):
    assert not is_mixed(old, new)
    assert merge(old, new) is new


def test_joining_changes_neither_array():
    old, new = [1], [2]
    assert merge(old, new) == [1, 2]
    assert (old, new) == ([1], [2])


# Names


@pytest.mark.parametrize("mode", KeyMode)
@pytest.mark.parametrize("scope", KeyScope)
def test_a_mode_and_a_scope_are_read_from_text(mode, scope):
    key = JobKey("k", str(mode), str(scope))
    assert (key.mode, key.scope) == (mode, scope)
    assert isinstance(key.mode, KeyMode)
    assert isinstance(key.scope, KeyScope)


@pytest.mark.parametrize(
    ("arguments", "field", "named"),
    [
        pytest.param(("k", "merge"), "key_mode", "'merge'", id="S4-04"),
        pytest.param(("k", "replace", "all"), "key_scope", "'all'", id="S4-31"),
        pytest.param(("k" * 513,), "key", "512", id="S4-34"),
        pytest.param(("",), "key", "empty", id="S4-34-empty"),
        pytest.param((b"k",), "key", "empty", id="S4-34-bytes"),
    ],
)
def test_a_bad_key_is_refused(arguments, field, named):
    with refused(InvalidRequest, field, names=named):
        JobKey(*arguments)


@pytest.mark.slow
@given(KEYS, KEYS, st.sampled_from(["t", "u", "t.u"]), st.sampled_from(["t", "u", "t.u"]))
def test_texts_are_equal_for_the_same_key_and_type_only(one, other, type, other_type):
    same = unicodedata.normalize("NFC", one) == unicodedata.normalize("NFC", other)
    assert (text(one, type) == text(other, other_type)) is (same and type == other_type)
    assert (text(one, type, "global") == text(other, other_type, "global")) is same
    assert text(one, type) != text(other, other_type, "global")


@pytest.mark.slow
@given(KEYS)
def test_a_key_is_never_the_text_of_a_policy(key):
    policy = canonical_text(UniquePolicy(keys=["type", "args"]), type="t", queue="q", args={"key": key}, meta={})
    assert fingerprint(policy) not in {fingerprint(text(key, "t", scope)) for scope in KeyScope}


def test_each_mode_says_what_it_does_and_one_that_it_is_dangerous():
    source = inspect.getsource(KeyMode)
    assert "Dangerous" in source.partition("UNSAFE_DEDUPE")[2]
