"""A worker may read the job that its account has the lease of, and no other (docs: security)."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from django_ojs_unique import job
from django_ojs_unique.execution.claim import claim
from django_ojs_unique.models import Job
from tests.support.secrets import ARGS, META, assert_hidden

from .conftest import OJSClient

pytestmark = pytest.mark.django_db

GROUPS = {
    "producers": ["rest_framework.permissions.IsAdminUser"],
    "workers": ["rest_framework.permissions.IsAuthenticated"],
}


@pytest.fixture(autouse=True)
def groups(settings):
    """Let everybody who is logged in work, and staff enqueue."""
    settings.OJS_UNIQUE = {"API": {"PERMISSIONS": GROUPS}}


def worker(name):
    client = Client()
    client.force_login(User.objects.create_user(name))
    return OJSClient(client)


def paths(job):
    return f"/ojs/v1/jobs/{job['id']}", f"/ojs/v1/jobs/{job['id']}/progress"


@pytest.fixture
def mine(ojs):
    """A worker, and the job that it has fetched."""
    ojs.enqueue(args=[7])
    ada = worker("ada")
    (fetched,) = ada.fetch(worker_id="w")
    return ada, fetched


def test_a_worker_reads_the_job_that_it_holds(mine):
    ada, held = mine
    whole, progress = (ada.get(path) for path in paths(held))
    assert (whole.status_code, progress.status_code) == (200, 200)
    assert (whole.json()["job"]["id"], whole.json()["job"]["args"]) == (held["id"], [7])
    assert not {"lease_token", "lease_expires_at"} & {*whole.json()["job"]}


def test_a_worker_reads_no_other_job(ojs, mine, refused):
    ada, held = mine
    (waiting, foreign) = ojs.enqueue(), ojs.enqueue(options={"queue": "foreign"})
    bob = worker("bob")
    bob.fetch("foreign", worker_id="w")
    unknown = {"id": "01890a5d-ac96-774b-bcce-b302099a8057"}
    for one in (waiting, foreign, unknown, {"id": "x"}):
        for path in paths(one):
            assert "has its lease" in refused(ada.get(path), 403, "x_forbidden")["message"]
    for path in paths(held):
        refused(bob.get(path), 403, "x_forbidden")


@pytest.mark.parametrize("end", ["ack", "nack", "cancelled", "lost"])
def test_a_worker_reads_a_job_no_longer_than_it_holds_it(ojs, mine, refused, end):
    ada, held = mine
    if end == "cancelled":
        ojs.delete(paths(held)[0])
    elif end == "lost":
        Job._base_manager.update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    else:
        ada.post(f"/ojs/v1/workers/{end}", {"job_id": held["id"]})
    for path in paths(held):
        refused(ada.get(path), 403, "x_forbidden")
        assert ojs.get(path).status_code == 200


def test_a_job_that_a_worker_of_the_project_runs_is_read_by_no_other(ojs, refused):
    stored = ojs.enqueue()
    options = {"types": None, "limit": 1, "worker_id": "w", "lease": timedelta(hours=1), "now": timezone.now()}
    claim(Job.objects.all(), queues=["default"], **options)
    refused(worker("ada").get(paths(stored)[0]), 403, "x_forbidden")


def test_a_worker_may_only_read_it(mine, refused):
    ada, held = mine
    path = paths(held)[0]
    refused(ada.delete(path), 403, "x_forbidden")
    refused(ada.post(f"{path}/activate"), 403, "x_forbidden")
    refused(ada.get("/ojs/v1/jobs"), 403, "x_forbidden")
    assert Job.objects.get().state == "active"


def test_who_may_not_work_reads_nothing_though_the_account_holds_it(mine, refused, settings):
    ada, held = mine
    settings.OJS_UNIQUE = {}
    for path in paths(held):
        refused(ada.get(path), 403, "x_forbidden")


def test_what_is_redacted_stays_masked(ojs, handlers):
    @job("bank.pay", redact=["iban"])
    def pay(iban, to, amount):
        pass

    ojs.enqueue("bank.pay", ARGS, meta=META)
    ada = worker("ada")
    (held,) = ada.fetch()
    assert_hidden(ada.get(paths(held)[0]).content.decode())


def test_the_anonymous_are_asked_to_log_in_unless_they_may_work(ojs, refused, settings):
    ojs.enqueue()
    anybody = OJSClient(Client())
    settings.OJS_UNIQUE = {"API": {"PERMISSIONS": {"workers": ["rest_framework.permissions.AllowAny"]}}}
    (held,) = anybody.fetch()
    assert anybody.get(paths(held)[0]).status_code == 200
    settings.OJS_UNIQUE = {}
    refused(anybody.get(paths(held)[0]), 401, "x_unauthenticated")
