"""Whatever a client sends, it gets an error of the binding, and nothing is stored (HTTP binding, "Errors")."""

import json

import pytest
from django.db import connection
from django.test import override_settings
from hypothesis import given, settings
from hypothesis import strategies as st

from django_ojs_unique.db.fields import new_id
from django_ojs_unique.models import Job, Queue, SuppressedEnqueue

from .routes import OPERATIONS, SOME_ID, VIEWS

JOBS = "/ojs/v1/jobs"
UUID4 = "9b2e3c7a-4d5f-4a6b-8c7d-0e1f2a3b4c5d"
HUGE = 10**4000


def nothing_stored():
    return not (Job.objects.exists() or Queue.objects.exists() or SuppressedEnqueue.objects.exists())


@pytest.mark.slow
@pytest.mark.parametrize(
    "raw",
    [
        b"{ invalid json }",
        b"{",
        b'{"type": "t", "args": []} x',
        b'{"type": "t", "args": [],}',
        b"{'type': 't'}",
        b"\xff\xfe",
        b'{"type": "\xc3\x28"}',
        b'\xef\xbb\xbf{"type": "t", "args": []}',
        '{"type": "t", "args": []}'.encode("utf-16"),
        '{"type": "t", "args": []}'.encode("utf-32-be"),
        b'{"type": "t", "type": "u", "args": []}',
        b'{"type": "t", "args": [{"deep": [{"a": 1, "a": 1}]}]}',
        b'{"type": "t", "args": [NaN]}',
        b'{"type": "t", "args": [Infinity]}',
        b'{"type": "t", "args": [-Infinity]}',
        b'{"type": "t", "args": [1' + b"0" * 10_000 + b"]}",
        b'{"type": "t", "args": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        b'{"type": "t", "args": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}",
        b'{"type": "t", "args": ' + b"[" * 104 + b"]" * 104 + b"}",
        b"[" * 100_000,
        b"{" + b",".join(b'"%d":0' % n for n in range(100_000)) + b',"z":0,"z":0}',
        b'{"type": "t\x00"}',
        b"\x00",
    ],
    ids=range(23),
)
def test_what_is_not_json_is_refused(ojs, refused, raw):
    error = refused(ojs.post(JOBS, raw), 400, "invalid_payload")
    assert len(error["message"]) < 300
    assert nothing_stored()


@pytest.mark.parametrize("raw", [b"[]", b'[{"type": "t", "args": []}]', b"1", b'"t"', b"null", b"true", b"1.5"])
def test_json_that_is_no_object_is_refused(ojs, refused, raw):
    refused(ojs.post(JOBS, raw), 400, "invalid_request")


@pytest.mark.parametrize("raw", [b"", b" \n", b"{}"])
def test_nothing_is_no_job(ojs, refused, raw):
    assert refused(ojs.post(JOBS, raw), 400, "invalid_request")["details"]["field"] == "type"


@pytest.mark.parametrize(
    "type",
    [
        "text/plain",
        "application/xml",
        "application/jsonp",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "json",
        ";",
        "é",
        "x" * 10_000,
        "application/json, text/plain",
    ],
)
def test_other_content_types_are_refused(ojs, refused, type):
    answer = ojs.post(JOBS, {"type": "t", "args": []}, content_type=type)
    if type == ";":  # no media type at all
        assert answer.status_code == 201
    else:
        error = refused(answer, 400, "invalid_request")
        assert error["details"]["field"] == "Content-Type"
        assert len(error["message"]) < 300
        assert nothing_stored()


WRONG = [
    *(("type", value) for value in (None, "", 5, True, [], {}, "T", "1a", "a b", "a.", ".a", "a..b", "a/b", "a" * 256)),
    *(("type", value) for value in ("é", "a\n", "a\x00", "\ud800", HUGE)),
    *(("args", value) for value in (None, "a", 5, 1.5, True)),
    *(("id", value) for value in (None, "", 5, [], UUID4, str(new_id()).upper(), str(new_id()) + "\n", new_id().hex)),
    *(("meta", value) for value in ("a", 5, [], True)),
    *(("schema", value) for value in (0, False, [], {}, "x" * 2049, "a\x00", "\ud800")),
    *(("specversion", value) for value in ("1.1", "2.0", "", 1, 1.0, [], "1")),
    *(("options", value) for value in ("a", 5, [], True)),
    *(("options.queue", value) for value in ("", "-a", ".a", "A", "a_b", "a b", "a\n", 5, [], "a" * 129, "\ud800")),
    *(("options.priority", value) for value in (101, -101, 5.0, "5", True, [], 1e400, HUGE)),
    *(("options.timeout_ms", value) for value in (0, -1, 1.5, "5", True, [], HUGE, 2**53)),
    *(("options.timeout", value) for value in (0, -1, True, [], 1e400, "PT", "5", "P1Y", "P1M", "")),
    *(("options.visibility_timeout_ms", value) for value in (0, -1, 1.5, "5", True, HUGE)),
    *(("options.visibility_timeout", value) for value in (0, "PT0S", "-PT5S", "pt5s", "P1Y", True, [])),
    *(("options.tags", value) for value in ("a", 5, {}, True)),
    *(("options.tags[1]", ["a", value]) for value in (5, None, "", "x" * 256)),
    *(("options.pending", value) for value in ("true", 1, 0, [], "")),
    *(("options.metadata", value) for value in ("a", 5, [])),
    *(("options.rate_limit", value) for value in (5, [], "a", {}, {"max_per_second": 5, "key": "a"})),
    *(("options.rate_limit.max_per_second", {"max_per_second": n}) for n in (0, -1, 1.5, "5", True, None, 2**31, HUGE)),
    *(
        (f"options.{name}", value)
        for name in ("scheduled_at", "delay_until", "expires_at")
        for value in (
            *("2030-01-01T00:00:00", "2030-01-01", "2030-01-01T00:00Z", "tomorrow", "", 5, 1.5, True, [], {}),
            *("2030-02-30T00:00:00Z", "2030-01-01T24:00:00Z", "2030-01-01T23:59:60Z", "2030-13-01T00:00:00Z"),
            *("0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z", "+10000-01-01T00:00:00Z", "9999-12-31T23:59:59-01:00"),
            *("0001-01-01T00:00:00+01:00", "2030-01-01T00:00:00+24:00"),
            *("2030-01-01T00:00:00+01:60", "٢030-01-01T00:00:00Z"),
            *("2030-01-01T00:00:00Z\n", "2030-01-01T00:00:00,5Z", "20300101T000000Z", "2030-01-01T00:00:00+0100"),
            *("+", "+P", "+PT0S", "+-PT5S", "+P9999Y", "+PT999999999999H", "-PT5S", "pt5s", "P", "+PT5S ", "+pt5s"),
        )
    ),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("field", "value"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_member_is_named(ojs, refused, field, value):
    body = {"type": "t", "args": [], "options": {"queue": "q", "rate_limit": {"max_per_second": 1}}}
    place, name = (body["options"], field[8:]) if field.startswith("options.") else (body, field)
    name = name.partition("[")[0].partition(".")[0]
    place[name] = value
    raw = json.dumps(body).replace("Infinity", "1e400").encode()
    error = refused(ojs.post(JOBS, raw), 400, "invalid_request")
    assert error["details"]["field"] == field
    assert field in error["message"]
    assert len(json.dumps(error)) < 2000
    assert nothing_stored()


def test_an_unknown_option_is_refused_with_a_suggestion_and_an_unknown_member_is_not(ojs, refused):
    error = refused(ojs.post(JOBS, {"type": "t", "args": [], "options": {"priorty": 5}}), 400, "invalid_request")
    assert error["message"] == "options.priorty: is not an option. Did you mean 'priority'?"
    for name in ("", "\ud800", "\x00", "é" * 5000, "queue ", "__class__"):
        refused(ojs.post(JOBS, {"type": "t", "args": [], "options": {name: 5}}), 400, "invalid_request")
    assert ojs.enqueue(priorty=5)["priorty"] == 5


def test_an_option_is_said_once(ojs, refused):
    options = {"delay_until": "+P1D", "scheduled_at": "+P2D"}
    refused(ojs.post(JOBS, {"type": "t", "args": [], "options": options}), 400, "invalid_request")


@pytest.mark.parametrize(
    ("member", "field"),
    [
        ({"args": [{"a": ["\ud800"]}]}, "args[0].a[0]"),
        ({"args": ["a\x00"]}, "args[0]"),
        ({"args": {"a\x00": 1}}, "args"),
        ({"args": [2**53]}, "args[0]"),
        ({"args": [1e300]}, "args[0]"),
        ({"args": {"é": 1, "e\u0301": 2}}, "args"),
        ({"meta": {"a": "\x00"}}, "meta.a"),
        ({"meta": {"\ud800": 1}}, "meta"),
        ({"own": "\ud800"}, "own"),
        ({"own": {"a": [2**60]}}, "own.a[0]"),
        ({"own\x00": 1}, "extra"),
        ({"\ud800": 1}, "extra"),
        ({"options": {"tags": ["a\x00"]}}, "options.tags[0]"),
    ],
)
def test_what_json_readers_or_databases_change_is_refused_with_its_path(ojs, refused, member, field):
    error = refused(ojs.post(JOBS, {"type": "t", "args": [], **member}), 400, "invalid_request")
    assert error["details"]["field"] == field
    assert nothing_stored()


@pytest.mark.parametrize("number", ["1e400", "-1e400", "1" + "0" * 400 + ".5"])
def test_a_number_beyond_every_float_is_refused(ojs, refused, number):
    refused(ojs.post(JOBS, b'{"type": "t", "args": [%s]}' % number.encode()), 400, "invalid_request")


@pytest.mark.parametrize("depth", [33, 60, 99])
def test_deep_values_come_back_unchanged_alone_and_in_a_batch(ojs, depth):
    deep = json.loads("[" * depth + "]" * depth)
    job = ojs.enqueue("t", deep, meta={"deep": deep[0]}, own=deep)
    answer = ojs.get(f"{JOBS}/{job['id']}").json()["job"]
    assert (answer["args"], answer["own"]) == (deep, deep)
    batch = ojs.post(f"{JOBS}/batch", {"jobs": [{"type": "t", "args": deep}]})
    assert batch.json()["jobs"][0]["args"] == deep


@pytest.mark.parametrize(
    "member",
    [
        {"args": ["x" * 2**20]},
        {"meta": {"a": "x" * 2**16}},
        {"options": {"metadata": {"a": "x" * 2**16}}},
        {"own": "x" * 2**16},
        {f"own{n}": "x" * 1000 for n in range(70)},
        {"options": {"tags": ["x" * 200] * 400}},
        {"args": [], "own": "x" * (4 * 2**20)},
    ],
    ids=range(7),
)
def test_what_is_too_large_is_refused(ojs, refused, member):
    refused(ojs.post(JOBS, {"type": "t", "args": [], **member}), 413, "payload_too_large")
    assert nothing_stored()


@pytest.mark.parametrize("length", ["9" * 30, "4194305"])
def test_a_declared_length_over_the_limit_is_refused_without_reading(ojs, refused, length):
    refused(ojs.post(JOBS, {"type": "t", "args": []}, CONTENT_LENGTH=length), 413, "payload_too_large")


@pytest.mark.parametrize("length", ["-1", "abc", "", "0", "1e3"])
def test_a_strange_length_is_no_body(ojs, refused, length):
    refused(ojs.post(JOBS, {"type": "t", "args": []}, CONTENT_LENGTH=length), 400, "invalid_request")


def test_a_body_that_ends_early_is_refused(ojs, refused):
    refused(ojs.post(JOBS, {"type": "t", "args": []}, CONTENT_LENGTH="10"), 400, "invalid_payload")
    for coding in ("chunked", "Chunked"):  # of a server that does not hand them on
        refused(ojs.post(JOBS, b"", HTTP_TRANSFER_ENCODING=coding), 400, "invalid_payload")


def test_a_client_that_goes_away_is_no_failure_of_the_server(ojs, refused, monkeypatch, caplog):
    from django.core.handlers.wsgi import WSGIRequest
    from django.http import UnreadablePostError

    def gone(*arguments):
        raise UnreadablePostError("gone")

    monkeypatch.setattr(WSGIRequest, "read", gone)
    refused(ojs.post(JOBS, {"type": "t", "args": []}), 400, "invalid_payload")
    assert not [record for record in caplog.records if record.name.startswith("django_ojs_unique")]


@pytest.mark.parametrize(
    ("max_attempts", "field"),
    [
        *(({"max_attempts": value}, "max_attempts") for value in (-1, 1.5, "3", True, [], 2**31)),
        *(({"backoff_coefficient": value}, "backoff_coefficient") for value in (0.9, "2", True, 1e400)),
        *(({"initial_interval": value}, "initial_interval") for value in ("1s", "", "PT0S", 5, "P1Y", "-PT1S")),
        *(({"initial_interval_ms": value}, "initial_interval_ms") for value in (0, 1.5, "5")),
        *(({"max_interval": value}, "max_interval") for value in ("PT0.5S", "x", [])),
        *(({"jitter": value}, "jitter") for value in (1, "true")),
        *(({"non_retryable_errors": value}, "non_retryable_errors") for value in ("a", [5], {}, ["\x00"])),
        *(({"on_exhaustion": value}, "on_exhaustion") for value in ("drop", 5, [])),
        *(({"backoff_strategy": value}, "backoff_strategy") for value in ("none", 5)),
        *(({"backoff_type": value}, "backoff_strategy") for value in ("none", 5)),
        ({"max_attemps": 5}, "max_attemps"),
    ],
)
@pytest.mark.parametrize("name", ["retry", "retry_policy"])
def test_an_invalid_retry_policy_is_a_validation_error(ojs, refused, name, max_attempts, field):
    raw = json.dumps({"type": "t", "args": [], "options": {name: max_attempts}}).replace("Infinity", "1e400").encode()
    error = refused(ojs.post(JOBS, raw), 422, "validation_error")
    assert error["type"] == "validation_error"
    assert field in error["message"]
    assert error["details"]["field"].startswith(f"options.{name}.{field}")
    assert nothing_stored()


@pytest.mark.parametrize("value", ["a", 5, [], True])
def test_a_retry_policy_is_an_object(ojs, refused, value):
    error = refused(ojs.post(JOBS, {"type": "t", "args": [], "options": {"retry": value}}), 422, "validation_error")
    assert error["details"]["field"] == "options.retry"


@pytest.mark.parametrize("method", ["PUT", "PATCH", "OPTIONS", "TRACE", "HEAD", "GET", "DELETE", "BREW"])
def test_another_method_is_not_allowed(ojs, method):
    response = ojs._client.generic(method, f"{JOBS}/batch")
    assert response.status_code == 405
    assert response["Allow"] == "POST"
    assert response["Content-Type"] == "application/openjobspec+json"
    assert response["OJS-Version"] == "1.0"
    assert response["X-Request-Id"]
    if method != "HEAD":
        assert response.json()["error"]["code"] == "invalid_request"


@pytest.mark.parametrize(
    "path",
    ["/ojs", "/ojs/", "/ojs/v1", "/ojs/v1/jobs/", "/ojs/v1//jobs", "/ojs/v2/jobs", "/ojs/v1/%0A", "/ojs/v1/é/%FF%00"],
)
@pytest.mark.parametrize("method", ["get", "post", "delete"])
def test_an_unknown_route_is_not_found_and_never_a_redirect(ojs, refused, path, method):
    error = refused(getattr(ojs, method)(path), 404, "not_found")
    assert error["details"]["resource_type"] == "route"


STRANGE = ["%00", "a%00b", "%FF%FE", "%F0%9F%92%A9", "%E2%80%AE", "x" * 2000, "1e9", "-1", "%27%22%5C%25", ""]


@pytest.mark.every_database
@pytest.mark.parametrize(
    ("path", "parameter"),
    [
        *((path, "") for method, path in OPERATIONS if SOME_ID in path),
        *((path, one) for method, path in OPERATIONS for one in getattr(VIEWS[path], method.lower()).operation.query),
    ],
)
def test_nothing_strange_in_a_path_or_a_query_reaches_the_database(ojs, path, parameter):
    for value in STRANGE:
        real = f"{path}?{parameter}={value}" if parameter else path.replace(SOME_ID, value)
        with override_settings(OJS_UNIQUE={"EVENTS": True}):
            answers = [ojs.get(real)]
            if not parameter:
                answers += [ojs.delete(real), ojs.post(real, {}), ojs.put(real, {"progress": 0.5})]
        assert {answer.status_code for answer in answers} <= {200, 400, 404, 405}
        assert "%00" not in value or 200 not in {answer.status_code for answer in answers}, real


def test_a_query_string_changes_nothing(ojs):
    answer = ojs.post(f"{JOBS}?a=%00&b=%FF&type=x", {"type": "t", "args": []})
    assert answer["Location"] == f"{JOBS}/{answer.json()['job']['id']}"


def test_a_strange_host_gets_an_error_of_the_binding(ojs, refused):
    with override_settings(
        ALLOWED_HOSTS=["testserver"],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
        ],
    ):
        refused(ojs.get("/ojs/v1/jobs/x", HTTP_HOST="evil.example:x"), 404, "not_found")


@pytest.mark.parametrize(
    "body", [{}, {"jobs": None}, {"jobs": []}, {"jobs": {}}, {"jobs": "a"}, {"jobs": 5}, {"job": []}]
)
@pytest.mark.parametrize("end", ["batch", "bulk"])
def test_a_batch_has_at_least_one_job(ojs, refused, end, body):
    assert refused(ojs.post(f"{JOBS}/{end}", body), 400, "invalid_request")["details"]["field"] == "jobs"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
TIMES = st.sampled_from(
    ["+PT5S", "+P999Y", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "1900-01-01T00:00:00Z"]
)
DURATIONS = st.sampled_from(["PT5S", "P1M", "P1000Y", "PT0.001S", "P999Y11M", "PT999999H"])


def mostly(strategy):
    return st.one_of(strategy, strategy, strategy, strategy, JSON)


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "queue": mostly(st.sampled_from(["a", "a" * 128])),
        "priority": mostly(st.integers(-100, 100)),
        "timeout_ms": mostly(st.integers(1, 2**53)),
        "visibility_timeout": mostly(DURATIONS),
        "scheduled_at": mostly(TIMES),
        "expires_at": mostly(TIMES),
        "tags": mostly(st.lists(st.text(max_size=5))),
        "metadata": mostly(st.dictionaries(st.text(max_size=3), JSON, max_size=2)),
        "pending": mostly(st.booleans()),
        "rate_limit": mostly(st.fixed_dictionaries({"max_per_second": mostly(st.integers(1, 2**31 - 1))})),
        "limits": mostly(
            st.lists(
                st.fixed_dictionaries(
                    {
                        "key": mostly(
                            st.lists(st.sampled_from(["type", "queue", "args", "meta.a", "args/0/b"]), unique=True)
                        )
                    },
                    optional={
                        "running": mostly(st.integers(1, 1_000_000)),
                        "per_hour": mostly(st.integers(1, 1_000_000)),
                        "weight": mostly(st.integers(1, 3)),
                        "name": mostly(st.text(max_size=100)),
                    },
                ),
                max_size=3,
            )
        ),
        "retry": mostly(
            st.fixed_dictionaries(
                {},
                optional={
                    "max_attempts": mostly(st.integers(0, 2**31 - 1)),
                    "backoff_coefficient": mostly(st.floats(1, 1e300)),
                    "initial_interval": mostly(DURATIONS),
                    "max_interval": mostly(DURATIONS),
                    "non_retryable_errors": mostly(st.lists(st.text(max_size=4), max_size=2)),
                },
            )
        ),
        "unique": mostly(
            st.fixed_dictionaries(
                {},
                optional={
                    "keys": mostly(st.lists(st.sampled_from(["type", "queue", "args"]), unique=True)),
                    "args_keys": mostly(st.lists(st.text(max_size=2), max_size=2)),
                    "period": mostly(DURATIONS),
                    "states": mostly(st.lists(st.sampled_from(["available", "completed", "discarded"]), unique=True)),
                    "on_conflict": mostly(st.sampled_from(["ignore", "replace", "replace_except_schedule", "reject"])),
                },
            )
        ),
    },
)
BODIES = st.fixed_dictionaries(
    {"type": mostly(st.sampled_from(["a", "a.b", "x" * 255])), "args": mostly(st.lists(JSON, max_size=3))},
    optional={
        "meta": mostly(st.dictionaries(st.text(max_size=3), JSON, max_size=2)),
        "schema": mostly(st.text(max_size=2048)),
        "options": mostly(OPTIONS),
        "id": JSON,
        "x": JSON,
        "é": JSON,
    },
)


@pytest.mark.slow
@settings(max_examples=75)
@given(body=st.one_of(BODIES, BODIES, BODIES, JSON))
def test_no_body_is_more_than_the_server_can_bear(ojs, body):
    """What is accepted comes back unchanged from the database, in whichever place it was sent."""
    before = Job.objects.count()
    answer = ojs.post(JOBS, json.dumps(body).encode())
    if answer.status_code in (200, 201):
        job = answer.json()["job"]
        seen = ojs.get(f"{JOBS}/{job['id']}").json()["job"]
        if answer.status_code == 201:
            assert seen["args"] == body["args"]
        if job["state"] == seen["state"]:  # else it had expired
            assert seen == job
    else:
        assert answer.status_code in (400, 409, 413, 422)
        assert Job.objects.count() == before
    assert connection.get_autocommit() or connection.in_atomic_block
    batch = ojs.post(f"{JOBS}/batch", {"jobs": [body, body]})
    assert batch.status_code in (201, 400, 409, 413, 422)
    assert ojs.post(f"{JOBS}/bulk", {"jobs": [body, {"type": "fine", "args": []}]}).status_code == 200
