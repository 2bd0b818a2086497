"""How far a job is: a worker says it, everybody who may read the job sees it (OJS progress chapter; docs: HTTP)."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from django_ojs_unique import job
from django_ojs_unique.models import Job
from django_ojs_unique.testing import run_jobs

from .conftest import OJSClient
from .leases import lasts, row

pytestmark = pytest.mark.django_db

REPORT = "/ojs/v1/workers/progress"


def path(job):
    return f"/ojs/v1/jobs/{job['id']}/progress"


@pytest.fixture
def held(ojs):
    """A job that a worker has fetched, as the worker got it."""
    ojs.enqueue(options={"retry": {"max_attempts": 9}})
    (fetched,) = ojs.fetch(worker_id="w")
    return fetched


def proof(job):
    return {"lease_token": job["lease_token"], "worker_id": "w"}


def test_a_worker_says_how_far_it_is_and_the_job_shows_it(ojs, held):
    answer = ojs.put(path(held), {"progress": 0.47, "progress_note": "14 of 30", **proof(held)})
    assert answer.status_code == 200
    said = answer.json()
    assert said.pop("lease_expires_at")
    known = {"job_id": held["id"], "state": "active", "progress": 0.47, "progress_note": "14 of 30", "data": None}
    assert said == {"id": held["id"], "accepted": True, **known}
    assert ojs.get(path(held)).json() == known
    shown = ojs.get(f"/ojs/v1/jobs/{held['id']}").json()["job"]
    assert (shown["progress"], shown["progress_note"]) == (0.47, "14 of 30")


def test_the_body_may_name_the_job_as_an_ack_does_and_count_in_percent(ojs, held):
    said = {"job_id": held["id"], "percentage": 47, "message": "14 of 30", **proof(held)}
    assert ojs.post(REPORT, said).json()["progress"] == 0.47
    assert (row(held).progress, row(held).progress_note) == (0.47, "14 of 30")


def test_a_job_of_which_nothing_was_said_has_no_progress(ojs, held):
    assert ojs.get(path(held)).json() == {"job_id": held["id"], "state": "active", "progress": None, "data": None}
    assert not {"progress", "progress_note"} & {*ojs.get(f"/ojs/v1/jobs/{held['id']}").json()["job"]}


def test_a_client_cannot_bring_the_progress_of_a_new_job(ojs):
    assert "progress" not in ojs.enqueue(progress=0.5, progress_note="mine")


@pytest.mark.parametrize(("sent", "stored"), [(1.3, 1.0), (-5, 0.0), (10**30, 1.0), (1, 1.0), (0, 0.0)])
def test_a_number_outside_the_range_becomes_its_nearer_end(ojs, held, sent, stored):
    assert ojs.put(path(held), {"progress": sent}).json()["progress"] == stored


def test_progress_never_goes_back_within_an_attempt(ojs, held):
    ojs.put(path(held), {"progress": 0.5, "progress_note": "half"})
    assert ojs.put(path(held), {"progress": 0.3, "progress_note": "again"}).json()["progress"] == 0.5
    assert ojs.put(path(held), {"progress_note": "a note alone"}).json()["progress"] == 0.5
    assert ojs.put(path(held), {"progress": 0.6}).json()["progress_note"] == "a note alone"


def test_a_retry_begins_without_progress_and_a_failed_job_keeps_it(ojs, held):
    ojs.put(path(held), {"progress": 0.73})
    ojs.post("/ojs/v1/workers/nack", {"job_id": held["id"]})
    assert ojs.get(path(held)).json()["progress"] == 0.73
    Job._base_manager.update(run_at=timezone.now() - timedelta(hours=1))
    ojs.fetch(worker_id="w")
    assert ojs.get(path(held)).json()["progress"] is None


def test_a_completed_job_has_come_to_the_end_if_it_said_anything(ojs, held):
    ojs.put(path(held), {"progress": 0.87})
    ojs.post("/ojs/v1/workers/ack", {"job_id": held["id"]})
    assert ojs.get(path(held)).json()["progress"] == 1
    ojs.enqueue()
    (silent,) = ojs.fetch()
    ojs.post("/ojs/v1/workers/ack", {"job_id": silent["id"]})
    assert ojs.get(path(silent)).json()["progress"] is None


def test_a_job_that_waits_again_has_no_progress(ojs, held):
    ojs.put(path(held), {"progress": 0.5})
    ojs.post("/ojs/v1/workers/nack", {"job_id": held["id"], "requeue": True})
    assert ojs.get(path(held)).json()["progress"] is None


def test_what_a_python_handler_says_is_shown_alike(ojs, handlers):
    @job("t", takes_context=True, retry={"max_attempts": 1})
    def handler(context):
        context.progress(0.25, "a quarter")
        raise ValueError

    stored = ojs.enqueue(args={})
    run_jobs(raise_errors=False)
    said = ojs.get(path(stored)).json()
    assert (said["state"], said["progress"], said["progress_note"]) == ("discarded", 0.25, "a quarter")


def test_progress_is_a_heartbeat(ojs, held):
    before = timezone.now()
    Job._base_manager.update(lease_expires_at=before + timedelta(minutes=5))
    ojs.put(path(held), {"progress": 0.1, "visibility_timeout_ms": 3_600_000, **proof(held)})
    assert lasts(held, timedelta(hours=1), before)
    Job._base_manager.update(timeout_ms=1_800_000)
    ojs.put(path(held), {"progress": 0.1})
    assert row(held).lease_expires_at == row(held).started_at + timedelta(minutes=30)


@pytest.mark.parametrize("end", ["ack", "nack"])
def test_a_report_of_a_job_that_nobody_runs_any_more_is_ignored_and_says_so(ojs, held, end):
    ojs.post(f"/ojs/v1/workers/{end}", {"job_id": held["id"]})
    before = Job.objects.values().get()
    answer = ojs.put(path(held), {"progress": 0.9, **proof(held)})
    state = {"ack": "completed", "nack": "retryable"}[end]
    assert answer.json() == {"id": held["id"], "job_id": held["id"], "state": state, "accepted": False}
    assert Job.objects.values().get() == before


def test_a_report_under_a_lease_that_has_ended_changes_nothing(ojs, refused, held):
    Job._base_manager.update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    assert ojs.put(path(held), {"progress": 0.9, **proof(held)}).json()["accepted"] is False
    (other,) = ojs.fetch(worker_id="w")
    for stale in ({"lease_token": held["lease_token"]}, {"attempt": 1}):
        error = refused(ojs.put(path(held), {"progress": 0.9, **stale}), 409, "conflict")
        assert "drop what you have of it" in error["message"]
    refused(ojs.put(path(held), {"progress": 0.9, "worker_id": "x"}), 409, "conflict")
    assert (row(held).progress, str(row(held).lease_token)) == (None, other["lease_token"])


def test_another_account_cannot_report(ojs, refused, held):
    client = Client()
    client.force_login(User.objects.create_user("stranger", is_staff=True))
    error = refused(OJSClient(client).put(path(held), {"progress": 0.9, **proof(held)}), 409, "conflict")
    assert "account" in error["message"]
    assert row(held).progress is None


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "progress"),
        ({"progress": None}, "progress"),
        ({"progress": "0.5"}, "progress"),
        ({"progress": True}, "progress"),
        ({"percentage": [1]}, "percentage"),
        ({"progress": 0.5, "progress_note": 5}, "progress_note"),
        ({"message": {}}, "message"),
        ({"progress": 0.5, "lease_token": "x"}, "lease_token"),
        ({"progress": 0.5, "visibility_timeout_ms": 0}, "visibility_timeout_ms"),
    ],
    ids=str,
)
def test_what_is_no_report_is_refused_by_the_name_of_the_member(ojs, refused, held, body, field):
    error = refused(ojs.put(path(held), body), 400, "invalid_request")
    assert error["details"]["field"] == field
    assert row(held).progress is None


@pytest.mark.parametrize("name", ["data", "checkpoint"])
def test_what_would_be_lost_is_refused(ojs, refused, held, name):
    error = refused(ojs.put(path(held), {"progress": 0.5, name: {"rows": 5}}), 422, "unsupported")
    assert error["details"]["field"] == name


def test_a_long_note_is_cut_and_a_strange_one_stored(ojs, held):
    ojs.put(path(held), {"progress": 0.5, "progress_note": "\0" + "ä" * 300})
    assert row(held).progress_note == "\N{REPLACEMENT CHARACTER}" + "ä" * 254


def test_what_is_no_job_is_not_found(ojs, refused):
    for id in ("nothing", "01890a5d-ac96-774b-bcce-b302099a8057"):
        refused(ojs.get(path({"id": id})), 404, "not_found")
        refused(ojs.put(path({"id": id}), {"progress": 0.5}), 404, "not_found")
        refused(ojs.post(REPORT, {"job_id": id, "progress": 0.5}), 404, "not_found")
