"""A request costs as much CPU as its size, whatever it says: nothing in it is multiplied by another thing in it.

``OJS_TEST_EXAMPLES=10000`` sends as many requests of which any part is exchanged for something large.
"""

import json
import os
import time
from urllib.parse import urlencode
from uuid import uuid4

import pytest
from django.db import connection
from hypothesis import Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

JOBS, EXPLAIN, WORKFLOWS = "/ojs/v1/jobs", "/ojs/v1/jobs/explain", "/ojs/v1/workflows"
MOST_SECONDS = 2.5
"""Of CPU: each of these requests needs less than one on a machine that is not busy."""
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


LARGE = {
    "names": MANY[:20_000],
    "objects": [{"name": name} for name in MANY[:10_000]],
    "members": dict.fromkeys(MANY[:20_000], 1),
    "numbers": [1.5] * 60_000,
    "a text": "a" * 300_000,
    "dots": "a" + ".a" * 100_000,
    "pointer": "/a" * 100_000,
    "wildcards": "*?" * 100_000,
    "marks": MARKS[:100_000],
    "signs": "é!" * 60_000,
    "digits": "PT" + "9" * 200_000 + "S",
    "fraction": "2030-01-01T00:00:00." + "9" * 200_000 + "Z",
    "fields": "1," * 100_000,
    "a long number": 10**4000,
    "a large number": 1e308,
    "deep": json.loads("[" * 99 + "]" * 99),
    "deep objects": json.loads('{"é":' * 90 + json.dumps(MANY[:20_000]) + "}" * 90),
    "nothing": None,
}
OPTIONS = {
    "queue": "q",
    "priority": 1,
    "tags": ["a", "b"],
    "timeout_ms": 1000,
    "visibility_timeout": "PT5S",
    "scheduled_at": "+PT1H",
    "expires_at": "+P1D",
    "metadata": {"a": 1},
    "rate_limit": {"max_per_second": 5},
    "limits": [{"key": ["type", "args.a"], "running": 1, "name": "n"}, {"key": ["meta.a"], "per_hour": 5}],
    "retry": {"max_attempts": 3, "backoff_coefficient": 2, "max_interval": "PT1M", "non_retryable_errors": ["a", "b"]},
    "unique": {
        "keys": ["type", "args", "meta"],
        "args_keys": ["a", "/b/c"],
        "meta_keys": ["a"],
        "period": "PT1H",
        "states": ["available", "active"],
        "on_conflict": "replace",
    },
}
KEYED = {**TASK, "options": {"key": "k", "key_mode": "preserve_run_at", "key_scope": "global", "delay": "PT1H"}}
FULL = {"type": "t", "args": {"a": 1, "b": {"c": 2}}, "meta": {"a": 1}, "schema": "s", "own": [1], "options": OPTIONS}
BESIDE = {**TASK, "args": [{"a": 1, "b": {"c": 2}}], "meta": {"a": 1}}
CRON = {"name": "c", "expression": "*/5 * * * *", "timezone": "Europe/Berlin", "overlap_policy": "skip"}
LIST = {"limit": "5", "offset": "1", "cursor": "c"}
REQUESTS = [
    ("POST", JOBS, FULL),
    ("POST", JOBS, KEYED),
    ("POST", EXPLAIN, FULL),
    ("POST", f"{JOBS}/batch", {"jobs": [FULL, BESIDE, KEYED]}),
    ("POST", f"{JOBS}/bulk", {"jobs": [FULL, BESIDE]}),
    (
        "POST",
        WORKFLOWS,
        {
            "type": "batch",
            "name": "n",
            "own": 1,
            "options": {name: value for name, value in OPTIONS.items() if name != "expires_at"},
            "jobs": [BESIDE, {"type": "chain", "steps": [BESIDE, {**BESIDE, "name": "m"}], "options": {"tags": ["a"]}}],
            "callbacks": {"on_success": BESIDE, "on_failure": BESIDE},
        },
    ),
    (
        "POST",
        WORKFLOWS,
        {
            "name": "n",
            "steps": [
                {"id": "a", **BESIDE, "depends_on": []},
                {"id": "b", **BESIDE, "depends_on": []},
                {"id": "c", **TASK, "depends_on": ["a", "b"], "options": {"callback_type": "on_success"}},
            ],
        },
    ),
    (
        "POST",
        "/ojs/v1/cron",
        {**CRON, "description": "d", "job_template": {**BESIDE, "options": {"tags": ["a"], "retry": {}}}},
    ),
    (
        "POST",
        "/ojs/v1/workers/fetch",
        {"queues": ["a", "b"], "types": ["t", "u"], "count": 2, "worker_id": "w", "wait": 0},
    ),
    (
        "POST",
        "/ojs/v1/workers/ack",
        {"job_id": "ID", "lease_token": str(uuid4()), "attempt": 1, "result": {"a": 1}},
    ),
    (
        "POST",
        "/ojs/v1/workers/nack",
        {
            "job_id": "ID",
            "error": {
                "code": "c",
                "type": "t",
                "message": "m",
                "details": {"traceback": "t", "a": 1},
                "backtrace": ["b"],
            },
        },
    ),
    (
        "POST",
        "/ojs/v1/workers/progress",
        {"job_id": "ID", "progress": 0.5, "progress_note": "n", "visibility_timeout_ms": 5},
    ),
    (
        "POST",
        "/ojs/v1/workers/heartbeat",
        {
            "worker_id": "w",
            "active_jobs": ["ID"],
            "lease_tokens": [str(uuid4())],
            "hostname": "h",
            "queues": ["a"],
            "pid": 1,
        },
    ),
    ("POST", f"{JOBS}/ID/retry", {"dry_run": True, "force": True}),
    (
        "GET",
        JOBS,
        {**LIST, "state": "active", "queue": "q", "type": "t", "key": "k", "worker_id": "w", "since": "PT1H"},
    ),
    ("GET", WORKFLOWS, {**LIST, "state": "running", "type": "chain", "name": "n"}),
    ("GET", "/ojs/v1/events", {"after": "0", "limit": "5", "types": "job.enqueued", "queues": "q", "job_types": "t"}),
    ("DELETE", JOBS, {"key": "k", "type": "t", "key_scope": "type"}),
]
"""Requests with every member that a client may send; GET and DELETE have theirs in the query."""
EXAMPLES = int(os.environ.get("OJS_TEST_EXAMPLES", "200" if connection.vendor == "sqlite" else "0"))


def places(value, at=()):
    """Yield the path of each part of a JSON value, the whole included."""
    yield at
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in members:
        yield from places(one, (*at, name))


def exchanged(body, at, value):
    """Return a body with another value at a place, if it still has the place."""
    if not at:
        return value
    first, rest = at[0], at[1:]
    if isinstance(body, dict) and first in body:
        return {**body, first: exchanged(body[first], rest, value)}
    if isinstance(body, list) and isinstance(first, int):
        return [exchanged(one, rest, value) if place == first else one for place, one in enumerate(body)]
    return body


REQUEST_PLACES = [(number, at) for number, (_, _, body) in enumerate(REQUESTS) for at in places(body)]


@pytest.mark.every_database
@pytest.mark.skipif(not EXAMPLES, reason="OJS_TEST_EXAMPLES is not set, and SQLite has run them")
def test_whatever_is_exchanged_in_a_request_it_is_cheap_and_never_a_5xx(ojs, settings, forgotten):
    settings.OJS_UNIQUE = {"EVENTS": True, "API": {"MAX_WAIT": 0.01}}
    id = ojs.enqueue("t")["id"]
    ojs.fetch()

    def call(method, path, body):
        path = path.replace("ID", id)
        if method == "POST":
            return ojs.post(path, json.dumps(body).replace('"ID"', f'"{id}"').encode())
        query = urlencode(body if isinstance(body, dict) else {"limit": body}, doseq=True)
        return getattr(ojs, method.lower())(f"{path}?{query}")

    for request in REQUESTS:  # what is loaded at the first request does not count
        call(*request)

    @hypothesis_settings(max_examples=EXAMPLES, phases=[Phase.generate])
    @given(st.sampled_from(REQUEST_PLACES), st.lists(st.sampled_from(sorted(LARGE)), min_size=2, max_size=2), st.data())
    def send(place, kinds, data):
        number, at = place
        method, path, body = REQUESTS[number]
        body = exchanged(body, at, LARGE[kinds[0]])
        if data.draw(st.booleans()):
            other = data.draw(st.sampled_from([other for one, other in REQUEST_PLACES if one == number]))
            body = exchanged(body, other, LARGE[kinds[1]])
        before = time.process_time()
        answer = call(method, path, body)
        spent = time.process_time() - before
        assert answer.status_code < 500, (method, path, at, kinds)
        assert spent < MOST_SECONDS, (method, path, at, kinds)

    send()
