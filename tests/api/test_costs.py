"""A request costs as much CPU as its size, whatever it says: nothing in it is multiplied by another thing in it."""

import json
import time

import pytest

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

JOBS, EXPLAIN, WORKFLOWS = "/ojs/v1/jobs", "/ojs/v1/jobs/explain", "/ojs/v1/workflows"
MOST_SECONDS = 2.5
"""Of CPU: each of these requests needs less than a second, and took from ten seconds to minutes before."""
MANY = [f"n{number}" for number in range(40_000)]
MARKS = "a" + "\u0301\u0327" * 80_000
ALIKE = {"ab" * 30 + str(number): 0 for number in range(12_000)}


def unique(args=None, **policy):
    return {"type": "t", "args": args or {}, "options": {"unique": {"keys": ["args"], **policy}}}


def limits(args, *limits):
    return {"type": "t", "args": args, "options": {"limits": [{"running": 1, **limit} for limit in limits]}}


def nested(levels):
    value = ["é" * 10_000]
    for _ in range(levels):
        value = {"a": value}
    return value


TASK = {"type": "t", "args": []}
BODIES = {
    **{name: (EXPLAIN, unique(**{name: MANY}), 400) for name in ("keys", "args_keys", "meta_keys", "states")},
    "a name that is none of many": (EXPLAIN, unique(ALIKE, args_keys=["ba" * 30]), 400),
    "parts of parts": (EXPLAIN, unique(nested(90), args_keys=["/a" * depth for depth in range(1, 90)]), 400),
    "combining characters": (EXPLAIN, unique([MARKS]), 200),
    "combining characters in a name": (EXPLAIN, unique({MARKS: MARKS}), 200),
    "parts of a limit": (EXPLAIN, limits({}, {"key": [f"args.{name}" for name in MANY]}), 400),
    "a large part of many limits": (
        EXPLAIN,
        limits([[1.5] * 100_000], *({"key": ["args"], "name": str(number)} for number in range(10))),
        400,
    ),
    "a long type": (EXPLAIN, {"type": "a" + ".a" * 1_500_000, "args": []}, 400),
    "more jobs than a workflow may have": (WORKFLOWS, {"type": "group", "jobs": [TASK] * 120_000}, 400),
    "large options of many jobs": (
        WORKFLOWS,
        {"type": "group", "options": {"metadata": {"a": [1] * 30_000}}, "jobs": [TASK] * 2_000},
        413,
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_hostile_body_is_cheap(name, ojs):
    path, body, status = BODIES[name]
    raw, before = json.dumps(body).encode(), time.process_time()
    answer = ojs.post(path, raw)
    spent = time.process_time() - before
    assert answer.status_code == status, answer.content[:500]
    assert spent < MOST_SECONDS
    assert len(answer.content) < 20_000 or status == 200


def test_a_list_of_names_in_a_query_is_short(ojs, refused, settings):
    asked = []
    settings.OJS_UNIQUE = {
        "EVENTS": True,
        "API": {"AUTHORIZE": lambda request, action, queue, type: asked.append(queue) is None},
    }
    names = [",".join(MANY[:number]) for number in (100, 101)]
    assert ojs.get(f"/ojs/v1/events?queues={names[0]}&job_types={names[0]}").status_code == 200
    assert len(asked) == 10_000
    for parameter in ("types", "queues", "job_types"):
        error = refused(ojs.get(f"/ojs/v1/events?{parameter}={names[1]}"), 400, "invalid_request")
        assert error["details"]["field"] == parameter
    refused(ojs.get(f"{JOBS}?state={'available,' * 101}"), 400, "invalid_request")


def test_the_options_of_a_workflow_count_for_each_job_that_takes_them(ojs, refused, settings):
    settings.OJS_UNIQUE = {"API": {"MAX_BODY_BYTES": 1000}}
    options, own = {"metadata": {"a": "x" * 300}, "queue": "q"}, {**TASK, "options": {"metadata": {}}}
    nested = {"type": "group", "options": options, "jobs": [TASK] * 3}
    assert ojs.post(WORKFLOWS, {**nested, "jobs": [TASK, TASK, own, own, TASK]}).status_code == 201
    for body, field in (
        ({**nested, "jobs": [TASK] * 4}, "options.metadata"),
        ({"type": "chain", "steps": [nested, TASK], "options": options}, "options.metadata"),
        ({"type": "chain", "steps": [TASK, {**nested, "jobs": [TASK] * 4}]}, "steps[1].options.metadata"),
    ):
        error = refused(ojs.post(WORKFLOWS, body), 413, "payload_too_large")
        assert error["details"]["field"] == field
