"""`Limit`: its members, its refusals, and the keys of jobs."""

from __future__ import annotations

from typing import Any

import pytest

from django_ojs_unique import InvalidRequest, Limit
from django_ojs_unique.ojs.limits import (
    LONGEST_SHOWN,
    LONGEST_VALUE,
    MOST_PARTS,
    fair_partition_of,
    limits_of,
    stored_limits,
)
from django_ojs_unique.ojs.names import LONGEST_MEMBER
from tests.support.refusals import refused

JOB: dict[str, Any] = {"type": "t", "queue": "q", "args": {"customer": {"id": 7}, "n": 1}, "meta": {"tenant": "a"}}


@pytest.mark.parametrize(
    ("members", "field", "said"),
    [
        ({"key": "type", "running": 1}, "key", "must be a list of names"),
        ({"key": ["types"], "running": 1}, "key", "has a part that names nothing of a job"),
        ({"key": ["args."], "running": 1}, "key", "has a part that names nothing of a job"),
        ({"key": [7], "running": 1}, "key", "has a part that names nothing of a job"),
        ({"key": ["type", "type"], "running": 1}, "key", "names a part twice"),
        ({"key": ["args", "args.n"], "running": 1}, "key", "has args and a part of it"),
        ({"key": ["type"]}, "running", "is missing"),
        ({"key": ["type"], "running": 0}, "running", "must be a whole number from 1 to 1,000,000"),
        ({"key": ["type"], "running": True}, "running", "must be a whole number"),
        ({"key": ["type"], "running": 1.5}, "running", "must be a whole number"),
        ({"key": ["type"], "per_minute": -1}, "per_minute", "must be a whole number"),
        ({"key": ["type"], "per_minute": 1, "per_second": 1}, "per_minute", "cannot be combined with per_second"),
        ({"key": ["type"], "running": 2, "weight": 3}, "weight", "is more than running"),
        ({"key": ["type"], "per_hour": 2, "weight": 3}, "weight", "is more than per_hour"),
        ({"key": ["type"], "running": 1, "weight": 0}, "weight", "must be a whole number"),
        ({"running": 1}, "name", "is missing"),
        ({"key": ["type"], "running": 1, "name": "x" * 101}, "name", "must be printable text"),
        ({"key": ["type"], "running": 1, "name": "a\nb"}, "name", "must be printable text"),
        ({"keys": ["type"], "running": 1}, "keys", "Did you mean 'key'?"),
    ],
)
def test_a_wrong_limit_names_the_member_and_the_hint(members, field, said):
    with pytest.raises(InvalidRequest) as refusal:
        Limit.parse(members)
    assert refusal.value.details["field"] == f"limit.{field}"
    assert said in refusal.value.message


def test_a_limit_is_what_its_members_say():
    limit = Limit(key=["meta.tenant", "args/customer/id"], per_minute=5, weight=2)
    assert limit == Limit.parse(limit.to_dict()) == Limit(**limit.to_dict())
    assert (limit.name, limit.rate, limit.seconds) == ("args/customer/id,meta.tenant", 5, 60)
    stored = limit.of(**JOB)
    assert stored["key"] == {"args/customer/id": 7, "meta.tenant": "a"}
    assert (stored["rate"], stored["seconds"], stored["weight"]) == (5, 60, 2)


def test_a_key_is_shared_under_the_same_name_only():
    plain, named = Limit(key=["args.n"], running=1), Limit(key=["args.n"], running=1, name="calls")
    other = {**JOB, "type": "u", "queue": "r"}
    assert plain.of(**JOB)["id"] == plain.of(**other)["id"] != named.of(**JOB)["id"]
    assert Limit(key=["type"], running=1).of(**JOB)["id"] != Limit(key=["type"], running=1).of(**other)["id"]
    assert plain.of(**{**JOB, "args": [JOB["args"]]})["id"] == plain.of(**JOB)["id"]
    composed, decomposed = ({**JOB, "args": {"n": text}} for text in ("é", "e\u0301"))
    assert stored_limits([plain], **composed) == stored_limits([plain], **decomposed)


def test_a_key_has_few_parts_with_short_names_and_values():
    parts = [f"args.{number}" for number in range(MOST_PARTS)]
    assert len(Limit(key=parts, running=1).key) == MOST_PARTS
    for key in ([*parts, "type"], ["args." + "k" * LONGEST_MEMBER]):
        with refused(InvalidRequest, "limit.key"):
            Limit(key=key, running=1)
    limits = [Limit(key=["args"], running=1, name="a"), Limit(key=["args.n"], running=1, name="b")]
    assert stored_limits(limits, **{**JOB, "args": {"n": "k" * (LONGEST_VALUE - 10)}})
    with refused(InvalidRequest, "limit[0].key"):
        stored_limits(limits, **{**JOB, "args": {"n": "k" * LONGEST_VALUE}})


@pytest.mark.parametrize("args", [{}, {"m": 1}, [], [1], [{"n": 1}, {}]])
def test_a_job_that_lacks_a_part_of_its_key_is_refused(args):
    with refused(InvalidRequest, "limit.key"):
        Limit(key=["args.n"], running=1).of(**{**JOB, "args": args})


def test_a_long_value_is_stored_short():
    one, other = ({**JOB, "args": {"n": "x" * 500 + end}} for end in "ab")
    limit = Limit(key=["args"], running=1)
    assert len(limit.of(**one)["key"]["args"]) == LONGEST_SHOWN + 1
    assert limit.of(**one)["id"] != limit.of(**other)["id"]


def test_several_limits_have_names_of_their_own():
    one = Limit(key=["type"], running=1)
    assert limits_of(None) == ()
    assert limits_of(one) == limits_of([one]) == (one,)
    with refused(InvalidRequest, "limit[1].name"):
        limits_of([one, Limit(key=["type"], per_minute=1)])
    with refused(InvalidRequest, "limit", value="11"):
        limits_of([Limit(name=str(number), running=1) for number in range(11)])
    with refused(InvalidRequest, "limit", value="3"):
        limits_of(3)


def test_jobs_without_a_part_share_a_partition():
    partitions = [
        fair_partition_of(["meta.tenant"], **{**JOB, "meta": meta})
        for meta in ({"tenant": "a"}, {"tenant": None}, {}, {})
    ]
    assert len(set(partitions)) == 3
    assert partitions[2] == partitions[3]
