"""A fetch that waited hands out a job for a minute, until its worker is heard of: it may have gone meanwhile."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from django_ojs_unique.api import waiting
from django_ojs_unique.models import Job
from django_ojs_unique.ojs.moments import milliseconds

from .leases import lasts, let_lease_end, row

pytestmark = [pytest.mark.django_db, pytest.mark.every_database]

ACK, NACK, HEARTBEAT = (f"/ojs/v1/workers/{what}" for what in ("ack", "nack", "heartbeat"))


@pytest.fixture
def meanwhile(monkeypatch):
    """Let something happen while a fetch waits, and wake the fetch."""

    def meanwhile(act):
        monkeypatch.setattr(waiting, "_rest", lambda seconds, rung, request: (act(), rung.set()))

    return meanwhile


@pytest.fixture
def waited(ojs, meanwhile):
    """Let a fetch wait until a job is enqueued, or made available by ``then``; return the job as it was fetched."""

    def waited(then=None, fetch=None, **members):
        meanwhile(then or (lambda: ojs.enqueue(**members)))
        (job,) = ojs.fetch(worker_id="w1", wait=20, **(fetch or {}))
        return job

    return waited


def is_first(job, before):
    return row(job).unconfirmed and lasts(job, timedelta(minutes=1), before)


def test_it_lasts_until_the_first_heartbeat_and_the_answer_says_so(ojs, waited):
    before = timezone.now()
    job = waited()
    stored = row(job)
    assert job["lease_expires_at"] == milliseconds(stored.lease_expires_at)
    assert is_first(job, before)
    answer = ojs.post(HEARTBEAT, {"worker_id": "w1", "active_jobs": [job["id"]]})
    assert answer.json()["jobs_extended"] == [job["id"]]
    assert lasts(job, timedelta(minutes=30), before)


def test_a_fetch_that_finds_a_job_at_once_has_the_usual_lease(ojs):
    ojs.enqueue()
    before = timezone.now()
    (job,) = ojs.fetch(wait=20)
    assert job["lease_expires_at"] == milliseconds(row(job).lease_expires_at)
    assert lasts(job, timedelta(minutes=30), before)


@pytest.mark.parametrize(
    ("given", "length"),
    [
        ({"fetch": {"visibility_timeout_ms": 600_000}}, timedelta(minutes=10)),
        ({"options": {"visibility_timeout_ms": 600_000}}, timedelta(minutes=10)),
        ({"options": {"visibility_timeout_ms": 5_000}}, timedelta(seconds=5)),
        ({"options": {"timeout_ms": 5_000}}, timedelta(seconds=5)),
    ],
    ids=["fetch", "longer job", "shorter job", "time limit"],
)
def test_what_a_fetch_or_a_job_says_of_its_lease_stands(waited, given, length):
    before = timezone.now()
    job = waited(**given)
    assert lasts(job, length, before)
    assert not is_first(job, before)


def test_a_lease_that_is_shorter_by_the_settings_stays_as_it_is(waited, settings):
    settings.OJS_UNIQUE = {"API": {"LEASE": "PT10S"}}
    before = timezone.now()
    assert lasts(waited(), timedelta(seconds=10), before)


@pytest.mark.slow
def test_the_attempt_of_a_worker_that_was_never_heard_of_does_not_count_once(ojs, waited):
    job = waited(options={"retry": {"max_attempts": 1}})
    let_lease_end(job)
    (again,) = ojs.fetch(worker_id="w1")
    assert (again["id"], again["attempt"]) == (job["id"], 1)
    (error,) = again["errors"]
    assert (error["type"], error["attempt"]) == ("visibility_timeout", 1)
    assert "does not count" in error["message"]


@pytest.mark.slow
def test_a_job_that_kills_each_worker_at_once_comes_to_its_last_attempt(ojs, waited):
    job = waited(options={"retry": {"max_attempts": 2}})
    attempts = [job["attempt"]]
    for _ in range(3):
        let_lease_end(job)
        assert ojs.get(f"/ojs/v1/jobs/{job['id']}").json()["job"]["state"] == "available"
        Job.objects.update(queue="elsewhere")
        job = waited(then=lambda: Job.objects.update(queue="default"))
        attempts.append(job["attempt"])
    assert attempts == [1, 1, 2, 2]
    let_lease_end(job)
    assert ojs.get(f"/ojs/v1/jobs/{job['id']}").json()["job"]["state"] == "discarded"


@pytest.mark.slow
def test_the_attempt_of_a_worker_that_was_heard_of_counts(ojs, waited):
    job = waited()
    ojs.post(HEARTBEAT, {"worker_id": "w1", "active_jobs": [job["id"]], "visibility_timeout_ms": 60_000})
    let_lease_end(job)
    assert [again["attempt"] for again in ojs.fetch()] == [2]


def test_the_attempt_of_a_worker_that_did_not_wait_counts(ojs):
    ojs.enqueue()
    (job,) = ojs.fetch(visibility_timeout_ms=60_000)
    let_lease_end(job)
    assert [again["attempt"] for again in ojs.fetch()] == [2]


@pytest.mark.slow
def test_a_time_limit_of_a_minute_is_a_time_limit(ojs, waited):
    job = waited(options={"timeout_ms": 60_000})
    let_lease_end(job)
    shown = ojs.get(f"/ojs/v1/jobs/{job['id']}").json()["job"]
    assert (shown["state"], shown["error"]["type"], shown["attempt"]) == ("retryable", "timeout", 1)


@pytest.mark.parametrize("path", [ACK, NACK])
def test_its_holder_finalizes_the_job(ojs, waited, path):
    job = waited()
    assert ojs.post(path, {"job_id": job["id"], "worker_id": "w1"}).status_code == 200


def test_all_jobs_of_a_fetch_have_it(ojs, meanwhile):
    for _ in range(3):
        Job.objects.enqueue("t", queue="elsewhere")
    meanwhile(lambda: Job.objects.update(queue="default"))
    before = timezone.now()
    jobs = ojs.fetch(wait=20, count=3)
    assert all(is_first(job, before) for job in jobs)


def test_a_server_that_serves_one_request_at_a_time_lets_no_fetch_wait(staff, monkeypatch):
    monkeypatch.setattr(waiting, "_rest", None)
    client = Client(**{"wsgi.multithread": False})
    client.force_login(staff)
    body = {"queues": ["default"], "wait": 20}
    answer = client.post("/ojs/v1/workers/fetch", body, content_type="application/json")
    assert (answer.json(), answer["Retry-After"]) == ({"jobs": []}, str(waiting.COME_BACK))


def test_a_client_that_has_gone_before_its_turn_is_handed_no_job(ojs, monkeypatch):
    job = ojs.enqueue()
    monkeypatch.setattr("django_ojs_unique.api.views.workers.has_gone", lambda request: True)
    assert ojs.fetch() == []
    assert (row(job).state, row(job).attempt) == ("available", 0)
