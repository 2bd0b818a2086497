"""The kept encoder writes what `json.JSONEncoder` with the same options writes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ojs_unique.ojs import encoder as ours
from tests.support.json_values import VALUES

OPTIONS = [
    {},
    {"ensure_ascii": False},
    {"sort_keys": True},
    {"ensure_ascii": False, "sort_keys": True, "allow_nan": False},
]
values = VALUES | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


@pytest.mark.slow
@pytest.mark.parametrize("is_fast", [True, False])
@pytest.mark.parametrize("options", OPTIONS)
@given(value=values)
def test_it_writes_what_the_standard_library_writes(value, options, is_fast):
    with pytest.MonkeyPatch.context() as patch:
        if not is_fast:
            patch.setattr(ours.library, "c_make_encoder", None)
        encode = ours.encoder(**options)
        assert encode(value) == json.dumps(value, separators=(",", ":"), **options)
        assert encode([value, value]) == json.dumps([value, value], separators=(",", ":"), **options)


def test_it_refuses_what_the_standard_library_refuses():
    with pytest.raises(TypeError, match="not JSON serializable"):
        ours.encoder()([object()])
    with pytest.raises(ValueError, match="not JSON compliant"):
        ours.encoder(allow_nan=False)([float("inf")])
    assert ours.encoder()([float("inf")]) == "[Infinity]"
