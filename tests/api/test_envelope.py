"""The job envelope: what a client may send and what it gets back (HTTP binding, "Basics", "Job envelope")."""

from datetime import UTC, datetime, timedelta

import pytest
from django.test import override_settings

from django_ojs_unique import RetryPolicy, UniquePolicy
from django_ojs_unique.db.fields import new_id
from django_ojs_unique.models import Job
from django_ojs_unique.ojs.moments import rfc3339

ID = "01890a5d-ac96-774b-bcce-b302099a8057"
FULL = {
    "specversion": "1.0",
    "id": ID,
    "type": "invoice.render",
    "args": ["INV-7", {"format": "pdf", "deep": [None, 1.5, -2, [[{}]], "é"]}],
    "meta": {"tenant_id": "t1", "trace": {"a": [1]}},
    "schema": "urn:ojs:schema:invoice.render:v1",
    "options": {
        "queue": "billing.high-1",
        "priority": 5,
        "timeout_ms": 30_000,
        "visibility_timeout_ms": 60_000,
        "scheduled_at": "2300-01-02T03:04:05Z",
        "expires_at": "2300-01-03T03:04:05.120Z",
        "retry": {"max_attempts": 5},
        "tags": ["a", "b"],
    },
    "x_own": {"any": ["thing"]},
    "flag": False,
    "nothing": None,
}


def test_a_full_job_comes_back_as_it_was_sent(ojs):
    answer = ojs.post("/ojs/v1/jobs", FULL)
    job = answer.json()["job"]
    assert answer.status_code == 201
    for name in ("specversion", "id", "type", "args", "meta", "schema", "x_own", "flag", "nothing"):
        assert job[name] == FULL[name]
    for name in FULL["options"].keys() - {"retry"}:
        assert job[name] == FULL["options"][name]
    assert job["retry"] == RetryPolicy(max_attempts=5).to_dict()
    assert (job["state"], job["attempt"], job["max_attempts"]) == ("scheduled", 0, 5)
    assert ojs.get(f"/ojs/v1/jobs/{ID}").json() == {"job": job}


def test_a_minimal_job_has_the_defaults_and_nothing_without_a_value(ojs):
    job = ojs.enqueue("t", [])
    assert job == {
        "specversion": "1.0",
        "id": job["id"],
        "type": "t",
        "queue": "default",
        "args": [],
        "meta": {},
        "state": "available",
        "priority": 0,
        "attempt": 0,
        "max_attempts": 3,
        "created_at": job["created_at"],
        "enqueued_at": job["created_at"],
    }
    assert datetime.fromisoformat(job["created_at"]).tzinfo
    assert job["created_at"].endswith("Z")
    assert len(job["created_at"]) == len("2026-02-12T10:30:00.123Z")


def test_options_may_stand_at_the_top_level_and_those_of_options_win(ojs):
    beside = {"queue": "top", "priority": 7, "tags": ["top"], "timeout": 5, "retry_policy": {"max_attempts": 1}}
    job = ojs.enqueue(**beside)
    assert (job["queue"], job["priority"], job["tags"], job["timeout_ms"]) == ("top", 7, ["top"], 5000)
    assert job["max_attempts"] == 1
    within = {"queue": "in", "priority": -7, "timeout_ms": 1, "retry": {"max_attempts": 2}}
    job = ojs.enqueue(**beside, options=within)
    assert (job["queue"], job["priority"], job["tags"], job["timeout_ms"]) == ("in", -7, ["top"], 1)
    assert job["max_attempts"] == 2


@pytest.mark.parametrize(
    ("beside", "name", "value"),
    [
        ({"timeout": "PT60S", "timeout_ms": 30_000}, "timeout_ms", 60_000),
        ({"visibility_timeout": "PT60S", "visibility_timeout_ms": 30_000}, "visibility_timeout_ms", 60_000),
        ({"retry_policy": {"max_attempts": 5}, "retry": {"max_attempts": 2}}, "max_attempts", 5),
        ({"scheduled_at": "2999-01-01T00:00:00Z", "delay": "PT1H"}, "scheduled_at", "2999-01-01T00:00:00Z"),
        ({"delay_until": "2999-01-01T00:00:00Z", "delay": "PT1H"}, "scheduled_at", "2999-01-01T00:00:00Z"),
    ],
)
def test_of_two_names_of_an_option_beside_the_type_the_same_one_always_counts(ojs, beside, name, value):
    assert ojs.enqueue(**beside)[name] == ojs.enqueue(**dict(reversed(beside.items())))[name] == value


@pytest.mark.parametrize("type", ["a", "email.send", "a-b_c.d-e_f", "a1.b2", "x" * 255])
def test_types_of_the_binding_are_accepted(ojs, type):
    assert ojs.enqueue(type)["type"] == type


@pytest.mark.parametrize("priority", [-100, -10, 0, 10, 100])
def test_priorities_of_the_binding_are_accepted(ojs, priority):
    assert ojs.enqueue(options={"priority": priority})["priority"] == priority


def test_what_only_the_server_says_is_ignored(ojs):
    lies = {
        "state": "completed",
        "attempt": 7,
        "max_attempts": 99,
        "created_at": "1999-01-01T00:00:00Z",
        "enqueued_at": "x",
        "started_at": 5,
        "completed_at": {},
        "cancelled_at": [],
        "discarded_at": True,
        "error": {"code": "x"},
        "errors": [1],
        "result": 42,
        "worker_id": "w",
        "retry_delay_ms": 1,
        "previous_state": "active",
    }
    job = ojs.enqueue(**lies)
    assert (job["state"], job["attempt"], job["max_attempts"]) == ("available", 0, 3)
    assert job["created_at"] > "2026"
    assert job["enqueued_at"] == job["created_at"]
    assert not job.keys() & (lies.keys() - {"state", "attempt", "max_attempts", "created_at", "enqueued_at"})


def test_null_is_as_good_as_absent(ojs):
    options = dict.fromkeys(
        ("queue", "priority", "scheduled_at", "expires_at", "retry", "unique", "tags", "timeout_ms")
    )
    job = ojs.enqueue("t", [], meta=None, schema=None, specversion=None, options=options, rate_limit=None, pending=None)
    assert (job["queue"], job["priority"], job["state"], job["meta"]) == ("default", 0, "available", {})
    assert ojs.enqueue("t", [], options=None)["queue"] == "default"


def test_metadata_is_a_second_way_to_send_meta(ojs):
    assert ojs.enqueue(options={"metadata": {"a": 1}})["meta"] == {"a": 1}
    assert ojs.enqueue(meta={"b": 2, "a": 3}, options={"metadata": {"a": 1, "c": 4}})["meta"] == {
        "a": 3,
        "b": 2,
        "c": 4,
    }


def test_args_may_be_an_object_unless_the_project_wants_arrays(ojs, refused):
    assert ojs.enqueue("t", {"user_id": 42})["args"] == {"user_id": 42}
    with override_settings(OJS_UNIQUE={"API": {"ARRAYS_ONLY": True}}):
        error = refused(ojs.post("/ojs/v1/jobs", {"type": "t", "args": {"user_id": 42}}), 400, "invalid_request")
    assert error["details"]["field"] == "args"


def test_a_handler_declares_what_the_client_leaves_out(ojs, handlers, refused):
    from django_ojs_unique import job

    @job("declared", queue="own", priority=3, timeout="PT7S", unique=UniquePolicy(keys=["type"]))
    def declared():
        pass

    first = ojs.enqueue("declared", [], options={"unique": None})
    assert (first["queue"], first["priority"], first["timeout_ms"]) == ("own", 3, 7000)
    refused(ojs.post("/ojs/v1/jobs", {"type": "declared", "args": []}), 409, "duplicate")
    own = {"keys": ["type", "queue"]}
    assert ojs.enqueue("declared", [], options={"unique": own, "queue": "q"})["unique"]["keys"] == own["keys"]


@pytest.mark.parametrize("name", ["scheduled_at", "delay_until"])
def test_a_future_time_schedules_and_a_past_one_is_as_if_absent(ojs, name):
    job = ojs.enqueue(options={name: "2300-01-01T00:00:00+02:00"})
    assert (job["state"], job["scheduled_at"]) == ("scheduled", "2299-12-31T22:00:00Z")
    assert "enqueued_at" not in job
    job = ojs.enqueue(options={name: "2020-01-01T00:00:00Z"})
    assert job["state"] == "available"
    assert "scheduled_at" not in job


@pytest.mark.parametrize(
    ("sent", "returned"),
    [
        ("2300-01-01T00:00:59Z", "2300-01-01T00:00:59Z"),
        ("2300-01-01T00:00:59.120Z", "2300-01-01T00:00:59.120Z"),
        ("2300-01-01T00:00:59.123456Z", "2300-01-01T00:00:59.123456Z"),
        ("2300-01-01t00:00:59z", "2300-01-01T00:00:59Z"),
        ("2300-01-01 00:00:59Z", "2300-01-01T00:00:59Z"),
        ("2300-01-01T00:00:59.1234567899Z", "2300-01-01T00:00:59.123456Z"),
        ("2300-01-01T00:00:59-23:59", "2300-01-01T23:59:59Z"),
        ("2020-01-01T00:00:59Z", "2020-01-01T00:00:59Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
        ("9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999999Z"),
    ],
)
def test_a_timestamp_comes_back_as_it_was_written(ojs, sent, returned):
    job = ojs.enqueue(options={"expires_at": sent})
    assert job["expires_at"] == returned
    assert rfc3339(Job.objects.get(pk=job["id"]).expires_at) == returned


@pytest.mark.parametrize("name", ["scheduled_at", "delay_until", "expires_at"])
@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("+PT90S", timedelta(seconds=90)),
        ("+P1D", timedelta(days=1)),
        ("+PT0.5S", timedelta(seconds=0.5)),
        ("+P1Y", None),
    ],
)
def test_a_relative_time_is_counted_from_receipt(ojs, name, text, length):
    before = datetime.now(UTC)
    job = ojs.enqueue(options={name: text})
    after = datetime.now(UTC)
    moment = datetime.fromisoformat(job["expires_at" if name == "expires_at" else "scheduled_at"])
    if length is None:
        assert moment.year == before.year + 1
    else:
        assert before + length <= moment <= after + length
    assert job["state"] == ("available" if name == "expires_at" else "scheduled")


def test_a_pending_job_waits_for_its_activation(ojs):
    job = ojs.enqueue(options={"pending": True})
    assert job["state"] == "pending"
    assert "enqueued_at" not in job


def test_aliases_of_the_retry_policy_are_understood(ojs):
    policy = {"initial_interval_ms": 500, "max_interval_ms": 60_000, "backoff_type": "linear", "jitter": None}
    retry = ojs.enqueue(options={"retry": policy})["retry"]
    assert (retry["initial_interval"], retry["max_interval"], retry["backoff_strategy"]) == ("PT0.5S", "PT1M", "linear")
    assert retry["jitter"] is True


@pytest.mark.parametrize(
    ("option", "name", "milliseconds"),
    [
        ({"timeout": 30}, "timeout_ms", 30_000),
        ({"timeout": 0.5}, "timeout_ms", 500),
        ({"timeout_ms": 1}, "timeout_ms", 1),
        ({"visibility_timeout": "PT30S"}, "visibility_timeout_ms", 30_000),
        ({"visibility_timeout_ms": 1500}, "visibility_timeout_ms", 1500),
    ],
)
def test_timeouts_are_returned_in_milliseconds(ojs, option, name, milliseconds):
    assert ojs.enqueue(options=option)[name] == milliseconds


@pytest.mark.parametrize(
    "type",
    [
        "application/openjobspec+json",
        "application/json",
        "APPLICATION/JSON",
        "application/json; charset=utf-8",
        'application/openjobspec+json;profile="x"',
        "",
    ],
)
def test_these_content_types_are_read(ojs, type):
    assert ojs.post("/ojs/v1/jobs", {"type": "t", "args": []}, content_type=type).status_code == 201


def test_accept_is_ignored(ojs):
    assert ojs.get("/ojs/v1/jobs/x", headers={"accept": "text/html, image/png;q=0.9"}).status_code == 404
    assert ojs.post("/ojs/v1/jobs", {"type": "t", "args": []}, headers={"accept": "no/thing"}).status_code == 201


def test_a_clients_request_id_comes_back_and_one_is_made_otherwise(ojs):
    for given in ("abc-123", "a b", "x" * 255):
        assert ojs.get("/ojs/v1/jobs/x", headers={"x-request-id": given})["X-Request-Id"] == given
    for given in (None, "", "x" * 10_000, "é", "a\r\nSet-Cookie: b=c", "a\tb"):
        headers = {} if given is None else {"x-request-id": given}
        made = ojs.get("/ojs/v1/jobs/x", headers=headers)["X-Request-Id"]
        assert made.startswith("req_")
        assert made[4 + 14] == "7"


@pytest.mark.parametrize("version", ["1.0", "1"])
def test_served_versions_are_served(ojs, version):
    job = ojs.post("/ojs/v1/jobs", {"type": "t", "args": []}, headers={"ojs-version": version})
    assert job.status_code == 201


@pytest.mark.parametrize("version", ["2.0", "0.9", "x" * 1000, "é"])
def test_other_versions_are_not(ojs, refused, version):
    answer = ojs.post("/ojs/v1/jobs", {"type": "t", "args": []}, headers={"ojs-version": version})
    refused(answer, 422, "unsupported")
    assert not Job.objects.exists()


def test_a_mebibyte_is_accepted(ojs):
    args = ["x" * (2**20 - 100)]
    assert ojs.enqueue("t", args)["args"] == args


def test_an_id_in_use_is_told_with_the_state_of_its_job(ojs, refused):
    id = str(new_id())
    ojs.enqueue(id=id, options={"scheduled_at": "+P1D"})
    error = refused(ojs.post("/ojs/v1/jobs", {"type": "other", "args": [], "id": id}), 409, "duplicate")
    assert error["details"] == {"field": "id", "existing_job_id": id, "existing_job_state": "scheduled"}
    assert Job.objects.count() == 1


def test_a_rate_belongs_to_the_queue(ojs):
    from django_ojs_unique.models import Queue

    ojs.enqueue(options={"queue": "slow", "rate_limit": {"max_per_second": 5}})
    ojs.enqueue(options={"queue": "slow", "rate_limit": {"max_per_second": 2}})
    ojs.enqueue(options={"queue": "slow"})
    assert Queue.objects.get(name="slow").max_per_second == 2
    ojs.post("/ojs/v1/jobs", {"type": "t", "args": 5, "options": {"queue": "q", "rate_limit": {"max_per_second": 5}}})
    assert not Queue.objects.filter(name="q").exists()


@pytest.mark.parametrize("on_conflict", ["ignore", "reject"])
def test_a_duplicate_brings_no_rate_and_its_suppressed_enqueue_is_recorded(ojs, on_conflict):
    from django_ojs_unique.models import Queue, SuppressedEnqueue

    first = ojs.enqueue(options={"queue": "slow", "unique": {}})
    limited = {"queue": "slow", "unique": {"on_conflict": on_conflict}, "rate_limit": {"max_per_second": 5}}
    answer = ojs.post("/ojs/v1/jobs", {"type": "t", "args": [], "options": limited})
    assert answer.status_code == {"ignore": 200, "reject": 409}[on_conflict]
    assert not Queue.objects.filter(name="slow").exclude(max_per_second=None).exists()
    assert str(SuppressedEnqueue.objects.get().existing_job_id) == first["id"]


def test_a_job_that_comes_too_late_is_shown_discarded(ojs):
    job = ojs.enqueue(options={"expires_at": "2001-01-02T03:04:05Z"})
    assert (job["state"], "discarded_at" in job, "completed_at" in job) == ("discarded", True, False)
