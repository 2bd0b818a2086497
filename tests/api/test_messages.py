"""What errors say: the bounds, the values as JSON has them, what to do (HTTP binding, "Errors")."""

import re

import pytest
from django.test import Client

from django_ojs_unique.exceptions import as_json
from django_ojs_unique.models import Job

pytestmark = pytest.mark.django_db

JOBS, FETCH, ACK, NACK, BEAT, CRON = (
    "/ojs/v1/jobs",
    *(f"/ojs/v1/workers/{what}" for what in ("fetch", "ack", "nack", "heartbeat")),
    "/ojs/v1/cron",
)
PYTHON = re.compile(r"\b(None|True|False)\b|got '|datetime|<class|\bdict\b|\blist\(|\btuple\b|\w+Error\b|<\w+ object")
WRONG = [None, True, False, "foo", "a\nb", ["a", None, True], {"a": None}, -1, 1.5, 2**53 + 1]
ID = "01890a5d-ac96-774b-bcce-b302099a8057"
BODIES = [
    *((JOBS, name) for name in ("type", "args", "id", "meta", "schema", "specversion", "options")),
    *((JOBS, f"options.{name}") for name in ("queue", "priority", "timeout_ms", "scheduled_at", "expires_at", "retry")),
    *((JOBS, f"options.{name}") for name in ("unique", "rate_limit", "tags", "metadata", "pending", "nothing")),
    *((JOBS, f"options.retry.{name}") for name in ("max_attempts", "jitter", "non_retryable_errors", "max_interval")),
    *((JOBS, f"options.unique.{name}") for name in ("keys", "period", "states", "on_conflict", "args_keys", "window")),
    *((FETCH, name) for name in ("queues", "types", "count", "wait", "worker_id", "visibility_timeout_ms")),
    *((ACK, name) for name in ("job_id", "worker_id", "lease_token", "attempt", "result")),
    *((NACK, name) for name in ("error", "requeue", "job_id", "error.code", "error.retryable")),
    *((BEAT, name) for name in ("worker_id", "active_jobs", "lease_tokens", "visibility_timeout_ms")),
    *((CRON, name) for name in ("name", "expression", "timezone", "overlap_policy", "enabled", "job_template")),
    ("/ojs/v1/jobs/batch", "jobs"),
    ("/ojs/v1/jobs/bulk", "jobs"),
    (f"/ojs/v1/dead-letter/{ID}/retry", "force"),
]
BASE = {
    JOBS: {"type": "t", "args": [{}]},
    FETCH: {"queues": ["q"]},
    ACK: {"job_id": ID},
    NACK: {"job_id": ID},
    BEAT: {"worker_id": "w"},
    CRON: {"name": "c", "expression": "@daily", "job_template": {"type": "t", "args": []}},
}


@pytest.mark.slow
@pytest.mark.parametrize(("path", "field"), BODIES)
def test_no_message_speaks_python(ojs, path, field, settings):
    settings.OJS_UNIQUE = {"API": {"MAX_WAITING": 0}}
    for value in WRONG:
        body = dict(BASE.get(path, {}))
        *parents, name = field.split(".")
        place = body
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = value
        answer = ojs.post(path, body)
        results = answer.json().get("results", [])
        for error in [answer.json().get("error"), *(result.get("error") for result in results)]:
            if error:
                assert not PYTHON.search(error["message"].replace('"foo"', "")), error["message"]
                assert error["message"].isprintable(), error["message"]


@pytest.mark.parametrize(
    ("options", "bound"),
    [
        ({"priority": 101}, "from -100 to 100"),
        ({"timeout_ms": 0}, "from 1 to 9007199254740991"),
        ({"visibility_timeout_ms": 2**53}, "from 1 to 9007199254740991"),
        ({"rate_limit": {"max_per_second": 2**31}}, "from 1 to 2147483647"),
        ({"retry": {"max_attempts": 2**31}}, "from 0 to 2147483647"),
        ({"queue": "q" * 129}, "128"),
        ({"tags": ["x" * 256]}, "255"),
    ],
)
def test_both_bounds_are_named(ojs, options, bound):
    answer = ojs.post(JOBS, {"type": "t", "args": [], "options": options})
    assert answer.status_code in (400, 422)
    assert bound in answer.json()["error"]["message"]


def test_a_session_without_the_csrf_token_is_told_so(staff, refused):
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(staff)
    error = refused(browser.post(JOBS, b"{}", content_type="application/json"), 403, "x_forbidden")
    assert "CSRF" in error["message"]
    assert "X-CSRFToken" in error["message"]
    assert "X-CSRFToken" in error["hint"]


@pytest.mark.parametrize("past", ["2020-01-01T00:00:00Z"])
def test_a_job_that_comes_too_late_to_start_is_discarded_in_the_answer(ojs, past):
    late = {"type": "t", "args": [], "options": {"expires_at": past}}
    alone = ojs.post(JOBS, late)
    batch = ojs.post(f"{JOBS}/batch", {"jobs": [late, {"type": "t", "args": []}]}).json()["jobs"]
    bulk = ojs.post(f"{JOBS}/bulk", {"jobs": [late]}).json()["results"][0]["job"]
    assert alone.status_code == 201
    for job in (alone.json()["job"], batch[0], bulk):
        assert job["state"] == "discarded"
        assert job == ojs.get(f"{JOBS}/{job['id']}").json()["job"]
    assert batch[1]["state"] == "available"
    assert Job.objects.filter(state="discarded").count() == 3


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        ("é", '"é"'),
        ("a\n", '"a\\n"'),
        ("\u202e", '"\\u202e"'),
        ([1, None, {"a": False}], '[1, null, {"a": false}]'),
        ("x" * 100, '"' + "x" * 59 + '…"'),
        ("\ud800", '"\\ud800"'),
    ],
)
def test_values_are_shown_as_json_has_them(value, text):
    assert as_json(value) == text
