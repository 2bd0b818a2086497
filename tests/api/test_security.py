"""What a caller cannot do: act through somebody else's session, name code, see what is inside (docs: security)."""

import json
import logging
import sys

import pytest
from django.test import Client

from django_ojs_unique.api.wire.codec import MEDIA_TYPE
from django_ojs_unique.models import CronJob, Job

JOB = {"type": "t", "args": []}


@pytest.fixture
def browser(staff):
    """A browser in which a member of staff is logged in, and any page may send what it likes."""
    client = Client(enforce_csrf_checks=True)
    client.force_login(staff)
    return client


def post(client, body=JOB, content_type=MEDIA_TYPE, path="/ojs/v1/jobs", **options):
    return client.generic("POST", path, json.dumps(body).encode(), content_type=content_type, **options)


@pytest.mark.parametrize(
    "content_type",
    [MEDIA_TYPE, "application/json", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""],
)
def test_a_session_cannot_write_without_the_csrf_token(content_type, browser, refused):
    refused(post(browser, content_type=content_type), 403, "x_forbidden")
    browser.cookies["csrftoken"] = "a" * 32
    refused(post(browser, content_type=content_type), 403, "x_forbidden")
    assert not Job.objects.exists()


def test_a_session_cannot_delete_without_the_csrf_token(browser, refused):
    job = Job.objects.enqueue("t").job
    refused(browser.delete(f"/ojs/v1/jobs/{job.pk}"), 403, "x_forbidden")
    job.refresh_from_db()
    assert job.state == "available"


def test_a_session_with_the_csrf_token_can_write(browser):
    browser.cookies["csrftoken"] = "a" * 32
    assert post(browser, headers={"X-CSRFToken": "a" * 32}).status_code == 201


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b"]
)
def test_what_a_form_can_send_is_refused_even_with_the_token(content_type, browser, refused):
    browser.cookies["csrftoken"] = "a" * 32
    answer = post(browser, content_type=content_type, headers={"X-CSRFToken": "a" * 32})
    assert refused(answer, 400, "invalid_request")["details"]["field"] == "Content-Type"
    assert not Job.objects.exists()


def test_a_type_is_stored_and_never_imported(ojs):
    before = set(sys.modules)
    for type in ("this", "antigravity", "os.system", "tests.app.jobs", "builtins.exec"):
        job = ojs.enqueue(type, ["import this", {"__class__": "os"}, "{{ 7 * 7 }}", "'; DROP TABLE users; --"])
        assert ojs.get("/ojs/manifest").status_code == 200
        assert (job["type"], job["state"]) == (type, "available")
        assert job["args"] == ["import this", {"__class__": "os"}, "{{ 7 * 7 }}", "'; DROP TABLE users; --"]
    imported = set(sys.modules) - before
    assert not imported & {"this", "antigravity"}


def test_the_types_of_periodic_jobs_are_never_imported(ojs):
    body = {"name": "c", "expression": "@daily", "job_template": {"type": "this", "args": []}}
    assert ojs.post("/ojs/v1/cron", body).status_code == 201
    assert CronJob.objects.get(name="c").type == "this"
    assert "this" not in sys.modules


def test_what_fails_inside_stays_inside(ojs, refused, monkeypatch, caplog):
    def fail(*args):
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr("django_ojs_unique.models.managers.JobQuerySet.enqueue_request", fail)
    answer = ojs.post("/ojs/v1/jobs", JOB)
    refused(answer, 500, "backend_error")
    for secret in (b"hunter2", b"Traceback", b"managers", b"RuntimeError"):
        assert secret not in answer.content
    assert "hunter2" in caplog.text


def test_a_fingerprint_is_in_no_log_above_debug(ojs, refused, caplog):
    caplog.set_level(logging.INFO)
    unique = {"unique": {"keys": ["type", "args"]}}
    fingerprint = Job.objects.get(pk=ojs.enqueue("t", [1], options=unique)["id"]).fingerprint
    refused(ojs.post("/ojs/v1/jobs", {"type": "t", "args": [1], "options": unique}), 409, "duplicate")
    ojs.enqueue("t", [1], options={"unique": {**unique["unique"], "on_conflict": "replace"}})
    assert fingerprint not in caplog.text


def test_no_answer_is_kept_by_a_cache(ojs):
    for answer in (
        ojs.get("/ojs/manifest"),
        ojs.post("/ojs/v1/jobs", JOB),
        ojs.post("/ojs/v1/jobs", {}),
        ojs.get("/ojs/v1/nothing"),
    ):
        assert answer["Cache-Control"] == "no-store"
        assert answer["Content-Type"] == MEDIA_TYPE


def test_an_answer_is_the_media_type_of_the_binding_whatever_is_asked_for(ojs):
    answer = ojs.get("/ojs/v1/nothing?format=api", headers={"Accept": "text/html"})
    assert answer.content.startswith(b"{")
