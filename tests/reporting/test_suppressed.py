"""Which members of args and meta an attempt asked for otherwise."""

import pytest

from django_ojs_unique.models import Job
from django_ojs_unique.reporting.suppressed import LONGEST_SHOWN, MOST_DIFFERENCES, differences


def compare(old, new):
    job = Job(type="email.send", queue="default", args=old, meta={})
    return [(each.path, each.old, each.new) for each in differences(job, job.type, new, {})]


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ({"a": 1, "b": [1]}, {"b": [1], "a": 1}, []),
        ({"a": 1}, {"a": 1.0}, []),
        ({"a": 1}, {"a": True}, [("args.a", "1", "true")]),
        ({"a": None}, {}, [("args.a", "null", None)]),
        ({}, {"ä": "ö"}, [("args.ä", None, '"ö"')]),
        ([1, 2], [1, 3, 4], [("args[1]", "2", "3"), ("args[2]", None, "4")]),
        ([1], {"a": 1}, [("args", "[1]", '{"a": 1}')]),
        ("text", {}, [("args", '"text"', "{}")]),
    ],
)
def test_members_are_told_apart(old, new, found):
    assert compare(old, new) == found


def test_a_long_member_is_shortened():
    ((_, old, _),) = compare({"a": list(range(10_000))}, {"a": 1})
    assert len(old) == LONGEST_SHOWN
    assert old.endswith("…")


def test_one_more_than_is_shown_tells_that_there_are_more():
    assert len(compare(list(range(1000)), [])) == MOST_DIFFERENCES + 1
