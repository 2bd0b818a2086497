"""The OpenAPI document says what the server does (HTTP binding, "Basics"; docs: HTTP)."""

import json
import re
import subprocess
import sys

import jsonschema
import pytest
from django.test import override_settings
from django.urls import include, path
from django.utils import timezone
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.validation import validate_schema

from django_ojs_unique.api.openapi import generator
from django_ojs_unique.api.openapi.examples import EXAMPLES
from django_ojs_unique.api.wire.codec import ACCEPTED, MEDIA_TYPE
from django_ojs_unique.models import Job
from django_ojs_unique.ojs.states import JobState
from django_ojs_unique.wire import enqueue

from .routes import DESCRIBED, OPERATIONS, SOME_ID

JOBS, CRON = "/ojs/v1/jobs", {"name": "c", "expression": "@daily", "job_template": {"type": "t", "args": []}}

urlpatterns = [path("services/", include("django_ojs_unique.api.urls"))]
"""A project that puts the API below a path."""


@pytest.fixture
def document():
    return generator.document()


def described(document):
    return {
        f"{method.upper()} {path}": operation
        for path, item in document["paths"].items()
        for method, operation in item.items()
    }


@pytest.mark.slow
def test_the_document_is_made_without_a_warning():
    generator._document.cache_clear()
    GENERATOR_STATS.reset()
    document = generator.document()
    assert not GENERATOR_STATS
    validate_schema(document)


def test_each_method_of_each_route_is_described(document):
    found = {re.sub("{[^}]*}", SOME_ID, operation) for operation in described(document)}
    assert found == {f"{method} {path}" for method, path in OPERATIONS}


def test_nothing_is_described_that_is_not_routed(document):
    routed = {re.sub("{[^}]*}", "{}", operation) for operation in described(document)}
    assert set(DESCRIBED) == routed


def test_each_operation_has_a_name_of_its_own(document):
    names = [operation["operationId"] for operation in described(document).values()]
    assert len(set(names)) == len(names)
    assert set(EXAMPLES) <= set(names)


def test_each_operation_says_who_may_call_and_what_an_error_is(document):
    for name, operation in described(document).items():
        assert operation["security"] == [{"tokenAuth": []}, {"cookieAuth": []}], name
        for status, response in operation["responses"].items():
            assert list(response["content"]) == list(ACCEPTED)
            assert {"OJS-Version", "X-Request-Id"} <= set(response["headers"])
            if int(status) >= 400 and not (name.endswith("/health") and status == "503"):
                assert response["content"][MEDIA_TYPE]["schema"] == {"$ref": "#/components/schemas/Refusal"}
        if "requestBody" in operation:
            assert list(operation["requestBody"]["content"]) == list(ACCEPTED)


def test_the_document_has_the_limits_and_names_of_the_engine(document):
    schemas = document["components"]["schemas"]
    assert set(schemas["Job"]["properties"]["state"]["enum"]) == set(JobState)
    assert schemas["Options"]["properties"]["priority"]["maximum"] == 100
    assert schemas["Enqueue"]["properties"]["type"]["maxLength"] == 255
    assert set(schemas["Options"]["properties"]) == set(enqueue._NAMES)


def test_no_parameter_is_described_that_is_not_read(document):
    for name, operation in described(document).items():
        query = {one["name"] for one in operation["parameters"] if one["in"] == "query"}
        assert query == set(DESCRIBED[re.sub("{[^}]*}", "{}", name)].query), name


def job_with(**options):
    return {"type": "t", "args": [], "options": options}


MORE = {"x_more": 1}
SENT = {
    "Enqueue": (JOBS, {**job_with(), **MORE}),
    "Options": (JOBS, job_with(**MORE)),
    "SentUnique": (JOBS, job_with(unique=MORE)),
    "SentRetry": (JOBS, job_with(retry=MORE)),
    "RateLimit": (JOBS, job_with(rate_limit={"max_per_second": 1, **MORE})),
    "Limit": (JOBS, job_with(limits=[{"key": ["type"], "running": 1, **MORE}])),
    "EnqueueBatch": (f"{JOBS}/batch", {"jobs": [job_with()], **MORE}),
    "RetryJob": (f"{JOBS}/JOB/retry", MORE),
    "EnqueueAgain": (f"{JOBS}/JOB/enqueue-again", MORE),
    "RetryDeadLetter": ("/ojs/v1/dead-letter/DEAD/retry", MORE),
    "DefineCron": ("/ojs/v1/cron", {**CRON, **MORE}),
    "JobTemplate": ("/ojs/v1/cron", {**CRON, "job_template": {**CRON["job_template"], **MORE}}),
    "StartWorkflow": ("/ojs/v1/workflows", {"type": "group", "jobs": [job_with()], **MORE}),
    "NestedWorkflow": (
        "/ojs/v1/workflows",
        {"type": "chain", "steps": [{"type": "group", "jobs": [job_with()], **MORE}]},
    ),
    "GraphStep": ("/ojs/v1/workflows", {"steps": [{"id": "a", **job_with(), **MORE}]}),
    "GraphOptions": ("/ojs/v1/workflows", {"steps": [{"id": "a", **job_with(**MORE)}]}),
    "MemberJob": ("/ojs/v1/workflows", {"type": "group", "jobs": [{**job_with(), **MORE}]}),
    "Callbacks": ("/ojs/v1/workflows", {"type": "batch", "jobs": [job_with()], "callbacks": {"x_more": job_with()}}),
    "Fetch": ("/ojs/v1/workers/fetch", {"queues": ["none"], **MORE}),
    "Ack": ("/ojs/v1/workers/ack", {"job_id": "ACTIVE", **MORE}),
    "Nack": ("/ojs/v1/workers/nack", {"job_id": "ACTIVE", **MORE}),
    "Failure": ("/ojs/v1/workers/nack", {"job_id": "ACTIVE", "error": MORE}),
    "Progress": (f"{JOBS}/ACTIVE/progress", {"progress": 0.5, **MORE}),
    "ProgressOf": ("/ojs/v1/workers/progress", {"job_id": "ACTIVE", "progress": 0.5, **MORE}),
    "Heartbeat": ("/ojs/v1/workers/heartbeat", {"worker_id": "w", **MORE}),
}
"""A request with an unknown member in each object that requests have."""


def objects_of(document):
    """Return the names of all objects that requests have."""
    found, ahead = set(), [one["requestBody"] for one in described(document).values() if "requestBody" in one]
    while ahead:
        for name in re.findall("#/components/schemas/([A-Za-z]+)", json.dumps(ahead.pop())):
            if name not in found:
                found.add(name)
                ahead.append(document["components"]["schemas"][name])
    return found


def test_each_object_that_requests_have_is_sent(document):
    assert set(SENT) == objects_of(document)


@pytest.mark.parametrize("name", SENT)
def test_the_document_says_whether_an_unknown_member_is_refused(name, ojs, document):
    ended, active, dead = (ojs.enqueue(options={"queue": queue}) for queue in ("ended", "active", "dead"))
    ojs.delete(f"{JOBS}/{ended['id']}")
    ojs.fetch("active")
    Job._base_manager.filter(pk=dead["id"]).update(state="discarded", dead_letter=True, finished_at=timezone.now())
    path, body = SENT[name]
    text = json.dumps([path, body])
    for place, job in (("JOB", ended), ("ACTIVE", active), ("DEAD", dead)):
        text = text.replace(place, job["id"])
    path, body = json.loads(text)
    answer = ojs.put(path, body) if name == "Progress" else ojs.post(path, body)
    is_refused = document["components"]["schemas"][name].get("additionalProperties") is False
    assert (answer.status_code in (400, 422)) is is_refused, answer.content
    assert is_refused or answer.status_code < 300
    assert "x_more" in answer.json().get("error", {}).get("message", "x_more")


def test_what_the_document_shows_as_an_example_fits_it(document):
    for operation in described(document).values():
        for name, value in EXAMPLES.get(operation["operationId"], {}).items():
            said = operation["requestBody"]["content"]["application/json"]
            assert {"summary": name, "value": value} in said["examples"].values()
            jsonschema.validate(value, {**said["schema"], "components": document["components"]})


@pytest.mark.slow
def test_a_job_as_the_server_shows_it_fits_the_document(ojs, document):
    def fits(value, name):
        reference = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        jsonschema.validate(value, reference, jsonschema.Draft202012Validator)

    full = {"queue": "mail", "timeout_ms": 60_000, "tags": ["a"], "unique": {}, "retry": {"max_attempts": 1}}
    shown = ojs.enqueue("t", [None], meta={"a": 1}, schema="urn:s", options=full, x_extra=[1])
    fits(shown, "Job")
    fits(ojs.get(f"/ojs/v1/jobs/{shown['id']}").json(), "OneJob")
    ojs.fetch("mail")
    fits(ojs.post("/ojs/v1/workers/nack", {"job_id": shown["id"], "error": {"code": "c"}}).json(), "Nacked")
    failed = ojs.get(f"/ojs/v1/jobs/{shown['id']}").json()
    assert failed["job"]["error"]["code"] == "c"
    fits(failed, "OneJob")
    fits(ojs.get("/ojs/v1/jobs/nothing").json(), "Refusal")


@pytest.mark.slow
def test_a_workflow_as_the_server_shows_it_fits_the_document(ojs, document):
    def fits(value, name):
        reference = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        jsonschema.validate(value, reference, jsonschema.Draft202012Validator)

    jobs = [{"type": "t", "args": []}, {"type": "chain", "steps": [{"type": "t", "args": []}]}]
    callbacks = {"on_success": {"type": "s", "args": [], "options": {"scheduled_at": "+PT1H", "timeout_ms": 1}}}
    answer = ojs.post("/ojs/v1/workflows", {"type": "batch", "jobs": jobs, "callbacks": callbacks, "x_extra": 1}).json()
    fits(answer, "OneWorkflow")
    (job,) = ojs.fetch()
    fits(job, "FetchedJob")
    fits(ojs.get(f"/ojs/v1/jobs/{job['id']}").json(), "OneJob")
    failure = {"job_id": job["id"], "error": {"code": "c", "message": "m", "retryable": False}}
    assert ojs.post("/ojs/v1/workers/nack", failure).status_code == 200
    path = f"/ojs/v1/workflows/{answer['workflow']['id']}"
    fits(ojs.get(path).json(), "OneWorkflow")
    fits(ojs.get("/ojs/v1/workflows").json(), "PageOfWorkflows")
    fits(ojs.delete(path).json(), "CancelledWorkflow")


@pytest.mark.parametrize(
    ("path", "example"),
    [
        *(("/ojs/v1/jobs", example) for example in EXAMPLES["enqueueJob"].values()),
        *(("/ojs/v1/workflows", example) for example in EXAMPLES["startWorkflow"].values()),
    ],
)
def test_the_server_accepts_the_examples(path, example, ojs):
    assert ojs.post(path, example).status_code == 201


def test_the_document_is_served(ojs, document):
    answer = ojs.get("/ojs/v1/openapi.json")
    assert answer.status_code == 200
    assert answer.json() == json.loads(json.dumps(document))
    assert answer.json()["servers"] == [{"url": "/"}]


def test_below_a_path_the_document_and_the_links_name_it(ojs):
    with override_settings(ROOT_URLCONF=__name__):
        assert ojs.get("/services/ojs/v1/openapi.json").json()["servers"] == [{"url": "/services"}]
        assert ojs.get("/services/ojs/manifest").json()["endpoints"]["health"] == "/services/ojs/v1/health"
        answer = ojs.post("/services/ojs/v1/jobs", {"type": "t", "args": []})
        assert ojs.get(answer["Location"]).status_code == 200
        assert "/services/ojs/v1/errors/" in ojs.get("/services/ojs/nothing").json()["error"]["docs_url"]


@pytest.mark.slow
def test_the_document_does_not_depend_on_what_the_project_says_of_its_own_api(document):
    generator._document.cache_clear()
    from drf_spectacular.settings import patched_settings

    with patched_settings({"TITLE": "Shop", "CAMELIZE_NAMES": True, "OAS_VERSION": "3.0.3"}):
        assert generator.document() == document


@pytest.mark.slow
def test_the_api_loads_without_what_writes_the_document():
    code = (
        "import os, django, sys; os.environ['DJANGO_SETTINGS_MODULE'] = 'tests.settings'; django.setup()\n"
        "import django_ojs_unique.api.urls; print('drf_spectacular' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
