"""Who may report on a fetched job: the worker of this very lease, and nobody who held it before (docs: HTTP)."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from django_ojs_unique.models import Job

from .conftest import OJSClient

pytestmark = [pytest.mark.django_db, pytest.mark.every_database]

ACK, NACK, HEARTBEAT = (f"/ojs/v1/workers/{what}" for what in ("ack", "nack", "heartbeat"))


@pytest.fixture
def taken_over(ojs):
    """Let A fetch a job and freeze until its lease has run out, and B fetch it; return the job as each one got it."""

    def taken_over(a="a", b="b", requeued=False):
        ojs.enqueue(options={"retry": {"max_attempts": 9}})
        (before,) = ojs.fetch(**({"worker_id": a} if a else {}))
        if requeued:
            ojs.post(NACK, {"job_id": before["id"], "requeue": True})
        else:
            Job._base_manager.filter(pk=before["id"]).update(lease_expires_at=timezone.now() - timedelta(seconds=1))
        (after,) = ojs.fetch(**({"worker_id": b} if b else {}))
        assert after["id"] == before["id"]
        return before, after

    return taken_over


def row(job):
    return Job.objects.values().get(pk=job["id"])


def reports(job, **proof):
    """Yield what a worker may say of a job, by its path."""
    yield ACK, {"job_id": job["id"], "result": "late", **proof}
    yield NACK, {"job_id": job["id"], "error": {"message": "late"}, **proof}
    yield NACK, {"job_id": job["id"], "requeue": True, **proof}


@pytest.mark.slow
def test_a_fetched_job_carries_the_token_of_its_lease_and_no_other_answer_has_it(ojs):
    first, second = ojs.enqueue(), ojs.enqueue(queue="other", lease_token="mine")
    assert not {"lease_token"} & {*first, *second}
    jobs = ojs.fetch("default", "other", count=2)
    assert {job["lease_token"] for job in jobs} == {str(row(first)["lease_token"])}
    assert "lease_token" not in ojs.get(f"/ojs/v1/jobs/{first['id']}").json()["job"]
    ojs.post(ACK, {"job_id": first["id"], "lease_token": jobs[0]["lease_token"]})
    assert row(first)["state"] == "completed"


@pytest.mark.slow
@pytest.mark.parametrize(("a", "b"), [("a", "b"), ("a", "a"), (None, None), ("a", None)])
@pytest.mark.parametrize("requeued", [False, True])
@pytest.mark.parametrize("says", ["", "worker_id"])
def test_a_worker_that_was_thought_dead_can_neither_finalize_nor_keep_nor_requeue(
    ojs, refused, taken_over, a, b, requeued, says
):
    before, after = taken_over(a, b, requeued)
    stored = row(after)
    name = {says: a} if says and a else {}
    for path, body in reports(before, lease_token=before["lease_token"], **name):
        error = refused(ojs.post(path, body), 409, "conflict")
        assert "lease" in error["message"]
    beat = {"worker_id": a or "a", "active_jobs": [before["id"]], "visibility_timeout_ms": 1}
    answer = ojs.post(HEARTBEAT, {**beat, "lease_tokens": [before["lease_token"]]})
    assert answer.json()["jobs_extended"] == []
    assert row(after) == stored
    beat = {"worker_id": b or "b", "active_jobs": [after["id"]], "lease_tokens": [after["lease_token"]]}
    assert ojs.post(HEARTBEAT, beat).json()["jobs_extended"] == [after["id"]]
    answer = ojs.post(ACK, {"job_id": after["id"], "lease_token": after["lease_token"], "result": "ours"})
    assert answer.status_code == 200
    assert (row(after)["state"], row(after)["result"], row(after)["errors"][1:]) == ("completed", "ours", [])


@pytest.mark.slow
def test_the_attempt_fences_a_worker_that_sends_no_token(ojs, refused, taken_over):
    before, after = taken_over("a", "a")
    stored = row(after)
    for path, body in reports(before, worker_id="a", attempt=before["attempt"]):
        error = refused(ojs.post(path, body), 409, "conflict")
        assert "attempt 2" in error["message"]
    assert row(after) == stored
    assert ojs.post(NACK, {"job_id": after["id"], "worker_id": "a", "attempt": 2}).json()["state"] == "retryable"


@pytest.mark.slow
def test_whoever_sends_neither_is_fenced_by_the_name_of_the_worker(ojs, refused, taken_over):
    before, after = taken_over("a", "b")
    stored = row(after)
    for path, body in reports(before, worker_id="a"):
        refused(ojs.post(path, body), 409, "conflict")
    beat = {"worker_id": "a", "active_jobs": [before["id"]]}
    assert ojs.post(HEARTBEAT, beat).json()["jobs_extended"] == []
    assert row(after) == stored


@pytest.fixture
def stranger():
    """Another account that may work."""
    client = Client()
    client.force_login(User.objects.create_user("stranger", is_staff=True))
    return OJSClient(client)


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, "w"])
def test_another_account_can_do_nothing_to_a_job_though_it_knows_everything(ojs, stranger, refused, name):
    ojs.enqueue()
    (job,) = ojs.fetch(**({"worker_id": name} if name else {}))
    stored = row(job)
    proof = {"lease_token": job["lease_token"], "attempt": 1, **({"worker_id": name} if name else {})}
    for known in ({}, proof):
        for path, body in reports(job, **known):
            assert "account" in refused(stranger.post(path, body), 409, "conflict")["message"]
    beat = {"worker_id": name or "w", "active_jobs": [job["id"]], "lease_tokens": [job["lease_token"]]}
    assert stranger.post(HEARTBEAT, beat).json()["jobs_extended"] == []
    assert row(job) == stored
    assert ojs.post(ACK, {"job_id": job["id"], **proof}).status_code == 200


def test_a_job_that_a_worker_of_the_project_runs_is_none_of_an_http_worker(ojs, refused):
    from django_ojs_unique.execution.claim import claim

    Job.objects.enqueue("t")
    (job,) = claim(
        Job.objects.all(),
        queues=["default"],
        types=None,
        limit=1,
        worker_id="box:1",
        lease=timedelta(hours=1),
        now=timezone.now(),
    )
    for path, body in reports({"id": str(job.pk)}):
        refused(ojs.post(path, body), 409, "conflict")
    beat = {"worker_id": "box:1", "active_jobs": [str(job.pk)]}
    assert ojs.post(HEARTBEAT, beat).json()["jobs_extended"] == []
    assert row({"id": job.pk})["state"] == "active"


@pytest.mark.parametrize(
    ("path", "members", "field"),
    [
        *((ACK, {"lease_token": value}, "lease_token") for value in (5, "", "x", [], str(uuid4()).upper())),
        *((NACK, {"attempt": value}, "attempt") for value in (0, -1, "1", True, 1.0, 2**31)),
        *((HEARTBEAT, {"worker_id": "w", "lease_tokens": value}, "lease_tokens") for value in ("x", [5], ["x"], {})),
        (HEARTBEAT, {"worker_id": "w", "lease_tokens": [str(uuid4())] * 1001}, "lease_tokens"),
    ],
)
def test_a_proof_that_makes_no_sense_is_refused(ojs, refused, path, members, field):
    ojs.enqueue()
    (job,) = ojs.fetch()
    error = refused(ojs.post(path, {"job_id": job["id"], **members}), 400, "invalid_request")
    assert error["details"]["field"] == field
    assert row(job)["state"] == "active"


def test_a_project_can_require_the_token_of_each_report(ojs, refused, settings):
    settings.OJS_UNIQUE = {"API": {"REQUIRE_LEASE_TOKEN": True}}
    ojs.enqueue()
    (job,) = ojs.fetch(worker_id="w")
    stored, id, weaker = row(job), job["id"], {"worker_id": "w", "attempt": 1}
    progress = ("/ojs/v1/workers/progress", {"job_id": id, "progress": 0.5})
    for path, body in (*reports(job, **weaker), (progress[0], {**progress[1], **weaker})):
        for token in ({}, {"lease_token": None}):
            error = refused(ojs.post(path, {**body, **token}), 400, "invalid_request")
            assert error["details"]["field"] == "lease_token"
    refused(ojs.put(f"/ojs/v1/jobs/{id}/progress", {"progress": 0.5, **weaker}), 400, "invalid_request")
    for named in ({"active_jobs": [id]}, {"active_jobs": 1, "active_job_ids": [id]}):
        error = refused(ojs.post(HEARTBEAT, {"worker_id": "w", **named}), 400, "invalid_request")
        assert error["details"]["field"] == "lease_tokens"
    assert row(job) == stored
    assert ojs.post(HEARTBEAT, {"worker_id": "w"}).status_code == 200
    proof = {"lease_token": job["lease_token"]}
    beat = {"worker_id": "w", "active_jobs": [id], "lease_tokens": [job["lease_token"]]}
    assert ojs.post(HEARTBEAT, beat).json()["jobs_extended"] == [id]
    assert ojs.post(progress[0], {**progress[1], **proof}).json()["accepted"] is True
    assert ojs.post(ACK, {"job_id": id, **proof}).status_code == 200
