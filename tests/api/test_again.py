"""Retry, and enqueue again, over HTTP."""

import pytest

from django_ojs_unique.models import Job
from tests.support.jobs import fresh, stored

pytestmark = pytest.mark.django_db


def path(job, what):
    return f"/ojs/v1/jobs/{job.pk}/{what}"


def test_a_cancelled_job_is_retried(ojs):
    job = stored("cancelled")
    answer = ojs.post(path(job, "retry"))
    assert (answer.status_code, answer.json()["job"]["state"]) == (200, "available")
    assert fresh(job).state == "available"


def test_a_live_duplicate_refuses_the_retry_unless_the_body_says_otherwise(ojs, refused):
    dead, live = stored("discarded"), stored("available")
    error = refused(ojs.post(path(dead, "retry")), 409, "duplicate")
    assert error["details"]["existing_job_id"] == str(live.pk)
    assert ojs.post(path(dead, "retry"), {"replace": True}).status_code == 200
    assert (fresh(dead).state, fresh(live).state) == ("available", "cancelled")


def test_what_a_retry_would_do_is_said_and_not_done(ojs):
    dead, alone = stored("discarded"), stored("discarded", type="other")
    live = stored("available")
    said = ojs.post(path(dead, "retry"), {"dry_run": True}).json()["preview"]
    assert said["duplicates"] == [{"id": str(live.pk), "state": "available"}]
    said = ojs.post(path(alone, "retry"), {"dry_run": True}).json()["preview"]
    assert said == {"allowed": True, "message": "No live duplicate exists: it is retried.", "duplicates": []}
    said = ojs.post(path(live, "retry"), {"dry_run": True}).json()["preview"]
    assert (said["allowed"], said["message"][:16]) == (False, "It is available:")
    assert (fresh(dead).state, fresh(alone).state) == ("discarded", "discarded")


def test_a_finished_job_is_enqueued_again_and_answers_as_an_enqueue_does(ojs, refused):
    old = stored("completed", unique={"on_conflict": "ignore"})
    said = ojs.post(path(old, "enqueue-again"), {"dry_run": True}).json()["preview"]
    assert (said["allowed"], said["message"]) == (True, "A new job is created: no stored job is a duplicate now.")
    assert Job.objects.count() == 1
    answer = ojs.post(path(old, "enqueue-again"))
    assert (answer.status_code, answer.json()["job"]["type"]) == (201, old.type)
    new = answer.json()["job"]["id"]
    assert new != str(old.pk)
    again = ojs.post(path(old, "enqueue-again"))
    assert (again.status_code, again.json()["job"]["id"], again.json()["deduplicated"]) == (200, new, True)
    refused(ojs.post(f"/ojs/v1/jobs/{new}/enqueue-again"), 409, "conflict")


@pytest.mark.parametrize(
    ("what", "body", "field"),
    [
        ("retry", {"forced": True}, "forced"),
        ("retry", {"force": "yes"}, "force"),
        ("retry", {"force": True, "replace": True}, "replace"),
        ("retry", {"force": True, "replace": True, "dry_run": True}, "replace"),
        ("enqueue-again", {"force": True}, "force"),
        ("enqueue-again", {"dry_run": 1}, "dry_run"),
    ],
)
def test_a_body_that_is_not_understood_is_refused_with_the_field(ojs, refused, what, body, field):
    job = stored("discarded")
    assert refused(ojs.post(path(job, what), body), 400, "invalid_request")["details"]["field"] == field
    assert fresh(job).state == "discarded"


@pytest.mark.parametrize("what", ["retry", "enqueue-again"])
def test_a_job_that_there_is_not_is_not_found(ojs, refused, what):
    refused(ojs.post(f"/ojs/v1/jobs/00000000-0000-7000-8000-000000000000/{what}"), 404, "not_found")
