import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ojs_unique import JobState
from django_ojs_unique.ojs import states
from django_ojs_unique.ojs.states import MOVES, from_mask, to_mask


@pytest.mark.slow
@given(st.frozensets(st.sampled_from(JobState)))
def test_a_set_of_states_survives_its_mask(chosen):
    assert from_mask(to_mask(chosen)) == chosen
    assert to_mask([*chosen, *chosen]) == to_mask(chosen)


@given(st.integers(0, 255))
def test_every_mask_is_a_set_of_states(mask):
    assert to_mask(from_mask(mask)) == mask


def test_the_bits_that_lie_in_databases_never_change():
    assert {str(state): state.bit for state in JobState} == {
        "available": 1,
        "active": 2,
        "scheduled": 4,
        "retryable": 8,
        "pending": 16,
        "completed": 32,
        "cancelled": 64,
        "discarded": 128,
    }


def test_the_named_groups_are_the_specifications():
    assert {"completed", "cancelled", "discarded"} == states.TERMINAL
    assert {"available", "active", "scheduled", "retryable", "pending"} == states.INCOMPLETE
    assert {"available", "scheduled", "retryable", "pending"} == states.WAITING
    assert {"scheduled", "retryable"} == states.TIMED
    assert set(JobState) == states.ALL


@pytest.mark.parametrize(
    ("source", "targets"),
    [
        ("scheduled", {"available", "cancelled", "discarded"}),
        ("pending", {"available", "cancelled", "discarded"}),
        ("available", {"active", "cancelled", "discarded"}),
        ("active", {"available", "completed", "retryable", "cancelled", "discarded"}),
        ("retryable", {"available", "cancelled", "discarded"}),
        ("completed", set()),
        ("cancelled", {"available", "scheduled", "pending"}),
        ("discarded", {"available", "scheduled", "pending"}),
    ],
)
def test_the_table_of_moves_is_the_designs(source, targets):
    assert MOVES[JobState(source)] == targets
    assert len(MOVES) == 8
