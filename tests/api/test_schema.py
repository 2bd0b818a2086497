"""A table of members reads what clients send, writes what the server answers, and is its JSON Schema."""

from types import SimpleNamespace

import jsonschema
import pytest

from django_ojs_unique.api.openapi.generator import document
from django_ojs_unique.api.wire import workers
from django_ojs_unique.api.wire.codec import MEDIA_TYPE
from django_ojs_unique.exceptions import InvalidRequest
from django_ojs_unique.wire.schema import (
    Object,
    Value,
    anything,
    array,
    flag,
    mapping,
    number,
    one_of,
    text,
    time,
    whole,
)

NO = "is not what it must be"
KINDS = {
    "text": text("", 3, "[a-z]+", problem=NO),
    "whole": whole("", 1, 9, problem=NO),
    "number": number(problem=NO),
    "flag": flag(problem=NO),
    "texts": array(text(), "", 1, problem=NO),
    "mapping": mapping(problem=NO),
}
VALUES = ["a", "abcd", "A", "", 0, 1, 9, 10, 1.5, True, False, [], ["a"], [1], {}, {"a": 1}, None]


@pytest.fixture
def make(monkeypatch):
    """Make objects that are not in the document."""
    monkeypatch.setattr(Object, "components", {})
    return Object


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_what_is_refused_is_what_the_schema_refuses(kind, value):
    try:
        jsonschema.validate(value, KINDS[kind].schema)
    except jsonschema.ValidationError:
        with pytest.raises(InvalidRequest, match=f"^field: {NO} "):
            KINDS[kind].read(value, "field")
    else:
        assert KINDS[kind].read(value, "field") == value


def test_a_newline_at_the_end_is_no_part_of_a_pattern():
    with pytest.raises(InvalidRequest):
        KINDS["text"].read("a\n", "field")


def test_a_value_without_a_problem_is_left_to_what_reads_it():
    assert whole("", 1, 9).read("x", "field") == "x"
    assert whole(read=lambda value, field: f"{field} {value}").read(0, "field") == "field 0"


def test_null_is_as_if_left_out_unless_the_member_is_required(make):
    kind = make("Kind", {"name": text(), "size? weight?": whole()})
    assert kind.read({"name": "a", "size": None, "weight": 1, "other": 2}) == {"name": "a", "weight": 1}
    for body in ({}, {"name": None}):
        with pytest.raises(InvalidRequest, match=r"^at\.name: must be a string \(got None\)"):
            kind.read(body, "at.")


def test_a_strict_body_has_no_other_members_and_no_null(make):
    kind = make("Kind", {"force? replace?": flag()})
    assert kind.read_strictly({}) == {}
    assert kind.read_strictly({"force": False}) == {"force": False}
    with pytest.raises(InvalidRequest, match=r"^forc: is not known here\. Did you mean 'force'"):
        kind.read_strictly({"forc": True})
    with pytest.raises(InvalidRequest, match=r"^force: must be true or false"):
        kind.read_strictly({"force": None})


def test_an_answer_has_what_the_members_name_and_nothing_that_is_none(make):
    members = {
        "id": text(of="pk", write=str),
        "state?": one_of(("a", "b")),
        "double": whole(of=lambda source: source.size * 2),
        "gone? later?": text(),
        "told": number(null=True, of=lambda source: None),
        "added?": text(of=None),
    }
    source = SimpleNamespace(pk=7, state="a", size=2, gone=None, later="x")
    assert make("Kind", members).show(source) == {"id": "7", "state": "a", "double": 4, "later": "x", "told": None}
    assert make("Kind", members).show(source, only={"id"}) == {"id": "7"}


def test_a_description_names_members_bounds_and_help(make):
    inner = make("Inner", {"at": time()}, "Inside.")
    outer = make(
        "Outer",
        {
            "one": inner,
            "many?": [inner],
            "two?": inner.member("A second one."),
            "any?": anything(),
            "none?": text(null=True),
        },
    )
    assert make.components == {
        "Inner": {
            "type": "object",
            "description": "Inside.",
            "properties": {"at": {"type": "string", "format": "date-time"}},
            "required": ["at"],
        },
        "Outer": {
            "type": "object",
            "properties": {
                "one": {"$ref": "#/components/schemas/Inner"},
                "many": {"type": "array", "items": {"$ref": "#/components/schemas/Inner"}},
                "two": {"allOf": [{"$ref": "#/components/schemas/Inner"}], "description": "A second one."},
                "any": {},
                "none": {"type": ["string", "null"]},
            },
            "required": ["one"],
        },
    }
    assert outer.extended("More", {"more": Value({"type": "integer"})}).required == ["more", "one"]


def test_the_document_says_which_bodies_are_needed():
    paths = document()["paths"]
    needed = {
        operation["operationId"]: operation["requestBody"].get("required", False)
        for item in paths.values()
        for operation in item.values()
        if MEDIA_TYPE in operation.get("requestBody", {}).get("content", {})
    }
    assert {name for name, is_needed in needed.items() if not is_needed} == {
        "enqueueJobAgain",
        "putProgress",
        "retryDeadLetter",
        "retryJob",
    }
    assert {"ackJob", "defineCron", "enqueueJob", "enqueueJobs", "fetchJobs", "heartbeat"} <= needed.keys()


def test_a_fetch_of_very_many_jobs_gets_the_most_that_there_are():
    assert workers.FETCH.read({"queues": ["mail"], "count": 10**6})["count"] == workers.MOST_JOBS


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"progress": 0.5, "percentage": "half"}, (0.5, None)),
        ({"percentage": 25, "progress": None}, (0.25, None)),
        ({"progress_note": "a", "message": 1}, (None, "a")),
        ({"message": "b", "progress_note": None}, (None, "b")),
    ],
)
def test_of_two_names_for_the_same_only_the_first_is_looked_at(body, told):
    assert workers.read_report(body)[:2] == told
