"""An HTTP worker whose job was cancelled counts for the limit until it reports the end, or its lease ends."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from django_ojs_unique.db.now import DatabaseNow
from django_ojs_unique.models import Job, StoppedRun

from .conftest import THREADED, OJSClient

pytestmark = [pytest.mark.django_db, pytest.mark.every_database]

ACK, NACK, HEARTBEAT = (f"/ojs/v1/workers/{what}" for what in ("ack", "nack", "heartbeat"))
LIMIT = [{"name": "erp", "key": [], "running": 1}]


@pytest.fixture
def stopped(ojs: OJSClient) -> dict[str, Any]:
    """A job that was fetched by worker w1, then cancelled; another one waits for its slot."""
    job, _ = (ojs.enqueue("t", [], options={"limits": LIMIT}) for _ in range(2))
    (fetched,) = ojs.fetch(worker_id="w1")
    assert ojs.delete(f"/ojs/v1/jobs/{job['id']}").status_code == 200
    assert ojs.fetch() == []
    return fetched


@pytest.mark.parametrize(("path", "more"), [(ACK, {}), (NACK, {"error": {"message": "x"}}), (NACK, {"requeue": True})])
def test_a_report_of_the_end_is_refused_and_frees_the_slot(ojs, stopped, refused, path, more):
    refused(ojs.post(path, {"job_id": stopped["id"], "worker_id": "w1", **more}), 409, "conflict")
    assert len(ojs.fetch()) == 1
    assert not StoppedRun.objects.exists()


def test_it_is_free_when_the_lease_ends(ojs, stopped):
    StoppedRun.objects.update(lease_expires_at=DatabaseNow() - timedelta(seconds=1))
    assert len(ojs.fetch()) == 1


def test_the_report_of_another_worker_account_or_lease_frees_nothing(ojs, stopped, refused):
    client = Client(**THREADED)
    client.force_login(User.objects.create_user("other", is_staff=True))
    token = str(Job.objects.values_list("id", flat=True)[0])
    for who, more in ((ojs, {"worker_id": "w2"}), (OJSClient(client), {}), (ojs, {"lease_token": token})):
        refused(who.post(ACK, {"job_id": stopped["id"], **more}), 409, "conflict")
    assert ojs.fetch() == []
    refused(ojs.post(ACK, {"job_id": stopped["id"], "lease_token": stopped["lease_token"]}), 409, "conflict")
    assert len(ojs.fetch()) == 1


def test_a_heartbeat_that_names_it_extends_the_lease_and_does_not_say_so(ojs, stopped):
    StoppedRun.objects.update(lease_expires_at=DatabaseNow() + timedelta(seconds=9))
    before = StoppedRun.objects.get().lease_expires_at
    for token in (str(Job.objects.values_list("id", flat=True)[0]), stopped["lease_token"]):
        assert StoppedRun.objects.get().lease_expires_at == before
        beat = {"worker_id": "w1", "active_jobs": [stopped["id"]], "lease_tokens": [token]}
        assert ojs.post(HEARTBEAT, beat).json()["jobs_extended"] == []
    assert StoppedRun.objects.get().lease_expires_at > before


def test_progress_ends_no_run(ojs, stopped):
    answer = ojs.put(f"/ojs/v1/jobs/{stopped['id']}/progress", {"percentage": 50, "worker_id": "w1"})
    assert answer.json()["accepted"] is False
    assert ojs.fetch() == []


def test_a_job_that_is_retried_meanwhile_counts_once(ojs, stopped, refused):
    Job.objects.get(pk=stopped["id"]).retry()
    refused(ojs.post(ACK, {"job_id": stopped["id"], "worker_id": "w1"}), 409, "conflict")
    assert len(ojs.fetch()) == 1
    assert ojs.fetch() == []
