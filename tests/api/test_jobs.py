"""One job: look, cancel, activate, explain (HTTP binding, "Job endpoints")."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ojs_unique.db.fields import new_id
from django_ojs_unique.models import Job, SuppressedEnqueue

PAST = timezone.now() - timedelta(hours=1)


def change(job, **values):
    Job._base_manager.filter(pk=job["id"]).update(**values)


def test_a_job_is_read_twice_with_the_same_bytes_and_no_write(ojs):
    job = ojs.enqueue("t", [1], options={"scheduled_at": "+P1D", "expires_at": "+P2D"}, own=1)
    path = f"/ojs/v1/jobs/{job['id']}"
    with CaptureQueriesContext(
        connection,
    ) as queries:
        first = ojs.get(path)
    assert not [query for query in queries if "UPDATE" in query["sql"] or "INSERT" in query["sql"]]
    assert ojs.get(path).content == first.content
    assert first.json() == {"job": job}


@pytest.mark.parametrize(
    "id", ["nothing", "%00", "01890a5d-ac96-774b-bcce-b302099a8057", "x" * 5000, "é", "a%0Ab", " "]
)
@pytest.mark.parametrize(("method", "end"), [("get", ""), ("delete", ""), ("post", "/activate")])
def test_what_is_no_job_is_not_found(ojs, refused, id, method, end):
    error = refused(getattr(ojs, method)(f"/ojs/v1/jobs/{id}{end}"), 404, "not_found")
    assert error["details"]["resource_type"] == "job"
    assert len(str(error)) < 2000


def test_an_id_is_found_only_as_it_is_written(ojs, refused):
    id = ojs.enqueue("t")["id"]
    refused(ojs.get(f"/ojs/v1/jobs/{id.upper()}"), 404, "not_found")
    refused(ojs.get(f"/ojs/v1/jobs/{id.replace('-', '')}"), 404, "not_found")
    refused(ojs.get(f"/ojs/v1/jobs/{id}/"), 404, "not_found")


@pytest.mark.parametrize(
    "values",
    [
        {"state": "available"},
        {"state": "scheduled", "run_at": timezone.now() + timedelta(days=1)},
        {"state": "pending", "enqueued_at": None},
        {"state": "retryable", "run_at": timezone.now() + timedelta(days=1)},
        {"state": "active", "started_at": PAST, "lease_expires_at": timezone.now() + timedelta(days=1)},
    ],
    ids=lambda values: values["state"],
)
def test_a_job_that_is_not_finished_is_cancelled(ojs, values):
    job = ojs.enqueue("t")
    change(job, **values)
    answer = ojs.delete(f"/ojs/v1/jobs/{job['id']}")
    cancelled = answer.json()["job"]
    assert answer.status_code == 200
    assert (cancelled["state"], cancelled["previous_state"]) == ("cancelled", values["state"])
    assert cancelled["cancelled_at"]
    assert not cancelled.keys() & {"completed_at", "discarded_at"}
    seen = ojs.get(f"/ojs/v1/jobs/{job['id']}").json()["job"]
    assert {**seen, "previous_state": values["state"]} == cancelled


@pytest.mark.parametrize("state", ["completed", "cancelled", "discarded"])
def test_a_finished_job_stays_as_it_is(ojs, refused, state):
    job = ojs.enqueue("t")
    change(job, state=state, finished_at=PAST)
    before = Job.objects.values().get()
    error = refused(ojs.delete(f"/ojs/v1/jobs/{job['id']}"), 409, "conflict")
    assert error["details"]["job_id"] == job["id"]
    assert error["details"]["current_state"] == state
    assert error["details"]["expected_state"] == ["active", "available", "pending", "retryable", "scheduled"]
    assert Job.objects.values().get() == before


def test_only_a_pending_job_is_activated(ojs, refused):
    job = ojs.enqueue(options={"pending": True})
    answer = ojs.post(f"/ojs/v1/jobs/{job['id']}/activate")
    assert (answer.status_code, answer.json()["job"]["state"]) == (200, "available")
    assert answer.json()["job"]["enqueued_at"]
    error = refused(ojs.post(f"/ojs/v1/jobs/{job['id']}/activate", {}), 409, "conflict")
    assert error["details"] == {"job_id": job["id"], "current_state": "available", "expected_state": ["pending"]}
    later = ojs.enqueue(options={"scheduled_at": "+P1D"})
    refused(ojs.post(f"/ojs/v1/jobs/{later['id']}/activate"), 409, "conflict")
    assert ojs.get(f"/ojs/v1/jobs/{later['id']}").json()["job"]["state"] == "scheduled"


def test_what_time_has_done_to_a_job_is_seen_by_reading_it(ojs, refused):
    due = ojs.enqueue(options={"scheduled_at": "+P1D"})
    change(due, run_at=PAST)
    assert ojs.get(f"/ojs/v1/jobs/{due['id']}").json()["job"]["state"] == "available"
    expired = ojs.enqueue(options={"expires_at": "+P1D"})
    other = ojs.enqueue(options={"expires_at": "+P1D"})
    change(expired, expires_at=PAST)
    change(other, expires_at=PAST)
    seen = ojs.get(f"/ojs/v1/jobs/{expired['id']}").json()["job"]
    assert (seen["state"], "discarded_at" in seen, "completed_at" in seen) == ("discarded", True, False)
    assert Job.objects.get(pk=other["id"]).state == "available"
    refused(ojs.delete(f"/ojs/v1/jobs/{other['id']}"), 409, "conflict")


def test_an_explanation_says_what_an_enqueue_would_do_and_writes_nothing(ojs, refused):
    unique = {"keys": ["type", "args"], "period": "PT1H", "on_conflict": "ignore"}
    job = ojs.enqueue("email.send", {"user_id": 42}, unique=unique)
    body = {"type": "email.send", "args": {"user_id": 42}, "unique": unique}
    rows = list(Job.objects.values())
    explained = ojs.post("/ojs/v1/jobs/explain", body).json()["explanation"]
    assert explained["action"] == "ignore"
    assert explained["canonical_text"] == '{"args":{"user_id":42},"type":"email.send"}'
    assert explained["unique_key"] == Job.objects.get().fingerprint
    assert explained["unique"]["period"] == "PT1H"
    (duplicate,) = explained["duplicates"]
    assert (duplicate["job_id"], duplicate["state"]) == (job["id"], "available")
    assert duplicate["until"] > duplicate["created_at"] == job["created_at"]
    plain = ojs.post("/ojs/v1/jobs/explain", {"type": "t", "args": []}).json()["explanation"]
    assert (plain["action"], plain["duplicates"]) == ("create", [])
    error = refused(ojs.post("/ojs/v1/jobs/explain", {**body, "options": {"priority": 101}}), 400, "invalid_request")
    assert error["details"]["field"] == "options.priority"
    assert list(Job.objects.values()) == rows
    assert not SuppressedEnqueue.objects.exists()


def test_an_id_of_another_version_in_the_path_finds_its_job(ojs):
    """The Python side takes any UUID."""
    from uuid import uuid4

    job = Job.objects.enqueue("t", id=uuid4()).job
    assert ojs.get(f"/ojs/v1/jobs/{job.pk}").json()["job"]["id"] == str(job.pk)
    assert ojs.get(f"/ojs/v1/jobs/{new_id()}").status_code == 404


@pytest.mark.parametrize("options", [{}, {"unique": {"keys": ["type"], "on_conflict": "replace"}}])
def test_an_id_that_is_taken_is_told_before_the_enqueue_is_refused(ojs, refused, options):
    body = {"type": "t", "args": [], "id": "01890a5d-ac96-774b-bcce-b302099a8057", "options": options}
    assert ojs.post("/ojs/v1/jobs/explain", body).json()["explanation"]["action"] == "create"
    ojs.enqueue(**body)
    explained = ojs.post("/ojs/v1/jobs/explain", body).json()["explanation"]
    assert (explained["action"], explained["reason"]) == ("reject", f"a job with the id {body['id']} already exists.")
    refused(ojs.post("/ojs/v1/jobs", body), 409, "duplicate")
