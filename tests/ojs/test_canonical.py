import enum
import json
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from unicodedata import normalize
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ojs_unique.exceptions import InvalidRequest
from django_ojs_unique.ojs.canonical import DEEPEST, canonical, plain, to_nfc
from tests.support.json_values import OBJECTS, TEXT, VALUES, decomposed, same_json, shuffled
from tests.support.refusals import refused


class Color(enum.StrEnum):
    RED = "red"


class Size(enum.IntEnum):
    BIG = 3


class Plain(enum.Enum):
    ONE = "one"


@pytest.mark.slow
@given(VALUES, st.integers())
def test_the_order_of_object_keys_never_matters_at_any_depth(value, seed):
    assert canonical(shuffled(value, random.Random(seed))) == canonical(value)


@pytest.mark.slow
@given(VALUES)
def test_equal_text_in_another_unicode_form_is_canonically_the_same(value):
    assert canonical(decomposed(value)) == canonical(value)


@pytest.mark.slow
@given(VALUES)
def test_the_text_reads_back_to_the_same_json_so_that_different_values_have_different_texts(value):
    assert same_json(json.loads(canonical(value), parse_int=float), to_nfc(value))


MARKS = st.text(st.sampled_from("!\u0300\u0301\u0327\u0344\u0345\u0f73"), min_size=40, max_size=60)


@given(st.lists(st.sampled_from(["a", "é", "\u1e69"]) | MARKS, max_size=5).map("".join))
def test_many_combining_characters_in_a_row_have_the_same_nfc(text):
    assert to_nfc(text) == normalize("NFC", text)


@pytest.mark.slow
@given(VALUES)
def test_plain_leaves_json_as_it_is(value):
    assert same_json(plain(value, "args"), value)


@pytest.mark.slow
@given(OBJECTS)
def test_plain_copies_so_that_later_changes_of_the_original_do_not_reach_the_job(value):
    copy = plain(value, "args")
    value["later"] = True
    assert "later" not in copy


@pytest.mark.slow
@given(TEXT)
def test_to_nfc_is_what_unicode_says(text):
    assert to_nfc(text) == normalize("NFC", text)


def test_list_order_matters():
    assert canonical([1, 2]) != canonical([2, 1])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (42, "42"),
        (True, 1),
        (False, 0),
        (None, 0),
        (None, ""),
        (None, False),
        ({"a": None}, {}),
        ([], {}),
        ([[]], []),
        ("", []),
        ("true", True),
        ("null", None),
        (0.1, 0.2),
        ("é", "e"),
        ("ﬁ", "fi"),
        (2**53 - 1, 2**53 - 2),
    ],
)
def test_different_json_values_have_different_texts(one, other):
    assert canonical(one) != canonical(other)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (1, "1"),
        (-0.0, "0"),
        (1e21, "1e+21"),
        (0.000001, "0.000001"),
        (1e-7, "1e-7"),
        (True, "true"),
        (None, "null"),
        ('é\u001f"\\/', '"é\\u001f\\"\\\\/"'),
        ("e\u0301", '"\u00e9"'),
        ("\u2028", '"\u2028"'),
        ({"b": [1, {"d": 4, "c": 3}], "a": {}}, '{"a":{},"b":[1,{"c":3,"d":4}]}'),
        # U+1F600 is D83D DE00 in UTF-16, which sorts before FF21; by code point it would sort after.
        ({"\uff21": 1, "\U0001f600": 2}, '{"\U0001f600":2,"\uff21":1}'),
        # The keys are sorted after they are composed: "é" (E9) comes after "f", "e" + U+0301 before it.
        ({"e\u0301": 1, "f": 2}, '{"f":2,"\u00e9":1}'),
    ],
)
def test_canonical_writes_rfc_8785_over_nfc(value, text):
    assert canonical(value) == text


@pytest.mark.parametrize(
    ("value", "path", "problem"),
    [
        ({"a": float("nan")}, "args.a", "not a number that JSON can carry"),
        ({"a": [0, float("inf")]}, "args.a[1]", "not a number that JSON can carry"),
        ({"a": {"b": -float("inf")}}, "args.a.b", "not a number that JSON can carry"),
        ({"a": 2**53}, "args.a", "2^53-1"),
        ([-(2**53)], "args[0]", "2^53-1"),
        ({"a": {"b": [1, {"c": "\ud800"}]}}, "args.a.b[1].c", "lone surrogate"),
        ({"\udfff": 1}, "args", "lone surrogate"),
        ({"a": "x\x00"}, "args.a", "U+0000"),
        ({"a": {"\x00": 1}}, "args.a", "U+0000"),
        ({"a": b"bytes"}, "args.a", "bytes"),
        ({"a": bytearray(b"x")}, "args.a", "bytearray"),
        ({"a": {1}}, "args.a", "set"),
        ({"a": frozenset()}, "args.a", "frozenset"),
        ({"items": [1, 2, 3, {"price": Decimal("1.5")}]}, "args.items[3].price", "Decimal"),
        ({"a": datetime(2026, 1, 1, tzinfo=UTC)}, "args.a", "datetime"),
        ({"a": date(2026, 1, 1)}, "args.a", "date"),
        ({"a": UUID(int=1)}, "args.a", "UUID"),
        ({"a": object()}, "args.a", "object"),
        ({"a": (i for i in ())}, "args.a", "generator"),
        ({"a": 1j}, "args.a", "complex"),
        ({"a": Plain.ONE}, "args.a", "Plain"),
        ({"a": {1: 2}}, "args.a", "object key that is a int"),
        ({"a": {None: 2}}, "args.a", "object key that is a NoneType"),
        ({"a": {("t",): 2}}, "args.a", "object key that is a tuple"),
        ({"a": {"\u00e9": 1, "e\u0301": 2}}, "args.a", "same text in Unicode NFC"),
    ],
)
def test_plain_refuses_what_json_or_a_database_cannot_carry_and_names_the_path(value, path, problem):
    with pytest.raises(InvalidRequest) as caught:
        plain(value, "args")
    assert caught.value.details["field"] == path
    assert problem in caught.value.message
    assert caught.value.message.startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((1, (2,)), [1, [2]]),
        (Color.RED, "red"),
        (Size.BIG, 3),
        ({Color.RED: Size.BIG}, {"red": 3}),
        (2**53 - 1, 2**53 - 1),
        (True, True),
    ],
)
def test_plain_turns_tuples_into_lists_and_enum_members_into_their_values(value, expected):
    result = plain(value, "args")
    assert result == expected
    assert type(result) is type(expected)
    assert repr(result) == repr(expected)


def nested(levels):
    value = 0
    for _ in range(levels):
        value = [value]
    return value


def test_plain_follows_a_hundred_levels():
    assert plain(nested(DEEPEST), "args") == nested(DEEPEST)


@pytest.mark.slow
@pytest.mark.parametrize("levels", [DEEPEST + 1, 100_000])
def test_plain_refuses_more_levels_instead_of_exhausting_the_stack(levels):
    with refused(InvalidRequest, "args", names="100"):
        plain({"a": nested(levels)}, "args")


def test_plain_refuses_a_value_that_holds_itself():
    value = []
    value.append(value)
    with refused(InvalidRequest, "args", names="100"):
        plain(value, "args")


def test_plain_shortens_the_path_through_a_long_key():
    with pytest.raises(InvalidRequest) as caught:
        plain({"k" * 10_000: object()}, "args")
    assert len(caught.value.message) < 400
