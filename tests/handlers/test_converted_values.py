"""Each type that an arg can have: its JSON, and that it comes back as it was."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, TypedDict
from uuid import UUID

import pytest
from django.db.models import TextChoices
from django.utils.functional import lazystr
from hypothesis import given
from hypothesis import strategies as st

from django_ojs_unique.exceptions import HandlerError, InvalidArgs, InvalidRequest
from django_ojs_unique.handlers.conversion.arguments import ConvertedArguments
from django_ojs_unique.handlers.registry import Definition
from django_ojs_unique.ojs.canonical import plain
from tests.support.refusals import refused

A_UUID = UUID("0191b1a2-0000-7000-8000-000000000001")


class Plan(TextChoices):
    FREE = "free"
    PAID = "paid"


class Level(IntEnum):
    LOW = 1


class Pairs(Enum):
    ONE = (1, 2)


@dataclass
class Line:
    price: Decimal
    count: int = 1
    seen: list[date] = field(default_factory=list)


@dataclass
class Tree:
    name: str
    children: "list[Tree]" = field(default_factory=list)


class Point(NamedTuple):
    x: float
    at: time | None = None


class Where(TypedDict):
    when: datetime
    note: NotRequired[str]


AccountId = NewType("AccountId", int)


def converted(hint):
    """Return what converts the arg ``a`` with this type hint."""

    def handler(a):
        pass

    handler.__annotations__ = {"a": hint}
    return ConvertedArguments(Definition("t", handler))


def to_json(hint, value):
    return plain(converted(hint).to_json({"a": value})["a"], "args.a")


def from_json(hint, stored):
    return converted(hint).from_json({"a": stored})["a"]


VALUES = [
    (int, 5, 5),
    (int, 2**53, "9007199254740992"),
    (int, -(2**70), "-1180591620717411303424"),
    (AccountId, 2**60, "1152921504606846976"),
    (float, 1.5, 1.5),
    (bool, True, True),
    (str, "text", "text"),
    (Decimal, Decimal("12.5"), "12.5"),
    (UUID, A_UUID, str(A_UUID)),
    (datetime, datetime(2026, 1, 2, 3, 4, tzinfo=UTC), "2026-01-02T03:04:00+00:00"),
    (datetime, datetime(2026, 1, 2, 3, 4), "2026-01-02T03:04:00"),
    (date, date(2026, 1, 2), "2026-01-02"),
    (time, time(3, 4, 5), "03:04:05"),
    (timedelta, timedelta(days=2, seconds=3), "P2DT00H00M03S"),
    (timedelta, -timedelta(hours=3), "-P0DT03H00M00S"),
    (bytes, b"\x00\xff", "AP8="),
    (Path, Path("a/b"), "a/b"),
    (Plan, Plan.PAID, "paid"),
    (Level, Level.LOW, 1),
    (Literal["a", "b"], "a", "a"),
    (Annotated[UUID, "of the user"], A_UUID, str(A_UUID)),
    (UUID | None, None, None),
    (UUID | None, A_UUID, str(A_UUID)),
    (int | str, 5, 5),
    (list[date], [date(2026, 1, 2)], ["2026-01-02"]),
    (Sequence[int], [1, 2**53], [1, "9007199254740992"]),
    (list[UUID | None], [None, A_UUID], [None, str(A_UUID)]),
    (tuple[int, ...], (1, 2), [1, 2]),
    (tuple[str, UUID], ("a", A_UUID), ["a", str(A_UUID)]),
    (set[int], {3, 1, 2}, [1, 2, 3]),
    (frozenset[UUID], frozenset({A_UUID}), [str(A_UUID)]),
    (frozenset[int], frozenset({9, 8, 1}), [1, 8, 9]),
    (dict[str, Decimal], {"a": Decimal(2)}, {"a": "2"}),
    (dict[int, str], {7: "x"}, {"7": "x"}),
    (Mapping[UUID, int], {A_UUID: 1}, {str(A_UUID): 1}),
    (dict, {"a": [1]}, {"a": [1]}),
    (Any, {"a": [1, None]}, {"a": [1, None]}),
    (Line, Line(Decimal("1.20"), 2, [date(2026, 1, 2)]), {"price": "1.2", "count": 2, "seen": ["2026-01-02"]}),
    (Tree, Tree("a", [Tree("b")]), {"name": "a", "children": [{"name": "b", "children": []}]}),
    (Point, Point(1.5, time(1)), {"x": 1.5, "at": "01:00:00"}),
    (Where, {"when": datetime(2026, 1, 1, tzinfo=UTC)}, {"when": "2026-01-01T00:00:00+00:00"}),
]


@pytest.mark.parametrize(("hint", "value", "stored"), VALUES)
def test_a_value_comes_back_as_it_was_and_its_json_is_taken_as_well(hint, value, stored):
    assert to_json(hint, value) == stored
    assert to_json(hint, stored) == stored
    back = from_json(hint, stored)
    assert (back, type(back)) == (value, type(value))


@pytest.mark.parametrize(
    ("hint", "values"),
    [
        (Decimal, [Decimal("1.50"), Decimal("1.5"), Decimal("15E-1"), "1.500"]),
        (Decimal, [Decimal("100"), Decimal("1E2"), 100]),
        (Decimal, [Decimal("0"), Decimal("-0.00")]),
        (datetime, [datetime(2026, 1, 2, 3, tzinfo=UTC), datetime(2026, 1, 2, 4, tzinfo=timezone(timedelta(hours=1)))]),
        (datetime, ["2026-01-02T03:00:00Z", datetime(2026, 1, 2, 3, tzinfo=UTC)]),
        (set[str], [["b", "a"], ["a", "b", "a"], frozenset("ab")]),
        (UUID, [A_UUID, str(A_UUID).upper()]),
        (int, [5, 5.0, "5", True + 4]),
        (str, ["x", lazystr("x")]),
        (list[int], [[1, 2], (1, 2), range(1, 3)]),
    ],
)
def test_equal_values_have_one_json(hint, values):
    assert len({str(to_json(hint, value)) for value in values}) == 1


@pytest.mark.parametrize(
    ("hint", "value", "field", "named"),
    [
        (int, "x", "args.a", "int"),
        (int, 1.5, "args.a", "fraction"),
        (int, None, "args.a", "int"),
        (str, 5, "args.a", "str"),
        (bool, 1, "args.a", "bool"),
        (float, "1.5", "args.a", "float"),
        (Decimal, 1.5, "args.a", "exact"),
        (Decimal, Decimal("NaN"), "args.a", "finite"),
        (Decimal, Decimal("1E+1000000"), "args.a", "exponent"),
        (Decimal, "x", "args.a", "Decimal"),
        (date, datetime(2026, 1, 1), "args.a", ".date()"),
        (datetime, date(2026, 1, 1), "args.a", "datetime"),
        (datetime, "yesterday", "args.a", "datetime"),
        (datetime, datetime.max.replace(tzinfo=timezone(-timedelta(hours=1))), "args.a", "datetime"),
        (timedelta, "soon", "args.a", "duration"),
        (bytes, "%", "args.a", "bytes"),
        (Plan, "gold", "args.a", "Plan"),
        (UUID, 5, "args.a", "UUID"),
        (list[int], "12", "args.a", "list"),
        (list[int], {1: 2}, "args.a", "list"),
        (list[int], [1, "x"], "args.a[1]", "int"),
        (tuple[int, int], (1,), "args.a", "tuple of 2"),
        (dict[str, int], [1], "args.a", "dict"),
        (dict[str, int], {"k": "x"}, "args.a.k", "int"),
        (Line, {"count": 1}, "args.a", "'price'"),
        (Line, {"price": "1", "prize": 1}, "args.a", "member 'prize'"),
        (Line, 5, "args.a", "Line"),
        (Where, {}, "args.a", "'when'"),
        (Where, [], "args.a", "Where"),
        (Any, A_UUID, "args.a", "UUID"),
        (dict[str, Any], {"k": A_UUID}, "args.a.k", "UUID"),
        (int | str, A_UUID, "args.a", "UUID"),
    ],
)
def test_what_would_not_come_back_is_refused_with_its_place(hint, value, field, named):
    with refused(InvalidRequest, field, names=named):
        to_json(hint, value)


@pytest.mark.parametrize(
    ("hint", "stored", "field", "named"),
    [
        (int, "x", "args.a", "int"),
        (date, 5, "args.a", "date"),
        (list[int], 5, "args.a", "list"),
        (list[int], ["x"], "args.a[0]", "int"),
        (tuple[int, int], [1], "args.a", "tuple of 2"),
        (dict[str, int], [], "args.a", "dict"),
        (Line, {"prize": 1}, "args.a", "Line"),
        (Line, {}, "args.a", "Line"),
    ],
)
def test_what_was_stored_for_another_type_is_an_error_that_says_so(hint, stored, field, named):
    with refused(InvalidArgs, field, names=named):
        from_json(hint, stored)


@pytest.mark.parametrize(
    ("hint", "named"),
    [
        (UUID | date, "UUID | date"),
        (complex, "complex"),
        (list[complex], "complex"),
        (dict[float, int], "float"),
        (dict[bool, int], "bool"),
        (dict[tuple[int, int], int], "tuple"),
        (Pairs, "Pairs"),
        ("Missing", "'Missing'"),
    ],
)
def test_a_hint_that_cannot_be_converted_is_refused_with_the_name_of_the_parameter(hint, named):
    with refused(HandlerError, names="'a'") as caught:
        converted(hint).check()
    assert named in caught.value.message


def test_only_the_hints_of_the_args_are_read():
    def handler(context: "Missing", a: "UUID", *more: int, **others: date) -> "Missing":  # noqa: F821
        pass

    args = ConvertedArguments(Definition("t", handler, takes_context=True))
    assert args.to_json([A_UUID, 2**60, 1]) == [str(A_UUID), str(2**60), 1]
    assert args.to_json({"a": A_UUID, "day": date(2026, 1, 2)}) == {"a": str(A_UUID), "day": "2026-01-02"}
    assert args.from_json([str(A_UUID), str(2**60), 1]) == [A_UUID, 2**60, 1]


@pytest.mark.slow
@given(
    st.dictionaries(st.integers(), st.tuples(st.decimals(allow_nan=False, allow_infinity=False, places=3), st.text())),
    st.sets(st.integers() | st.none()),
    st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=st.timezones()) | st.none(),
    st.timedeltas(),
)
def test_whatever_fits_the_hints_comes_back(pairs, numbers, moment, length):
    def handler(
        pairs: dict[int, tuple[Decimal, str]], numbers: set[int | None], moment: datetime | None, length: timedelta
    ) -> None:
        pass

    args = ConvertedArguments(Definition("t", handler))
    given = {"pairs": pairs, "numbers": numbers, "moment": moment, "length": length}
    stored = args.to_json(given)
    assert args.to_json(stored) == stored
    # Python finds a moment that the clocks of its zone skip unequal to the same moment in UTC.
    assert args.from_json(stored) == {**given, "moment": moment and moment.astimezone(UTC)}
