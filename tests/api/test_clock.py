"""A web host whose clock is off: jobs go by the database's, whoever asks for them."""

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from django_ojs_unique import Limit, chain
from django_ojs_unique.models import CronJob, Job, Slot
from django_ojs_unique.workflows.advance import advance_due
from tests.support.clocks import ON_A_SERVER, real_now

from .leases import row

pytestmark = [pytest.mark.django_db, pytest.mark.every_database]

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
OFF = pytest.mark.parametrize("off", [-2 * HOUR, -MINUTE, 10 * MINUTE, 2 * HOUR], ids=str)
NOT_SURE = 10 * SECOND
"""An offset is measured as exactly as a busy database answers soon."""
ACK, NACK = "/ojs/v1/workers/ack", "/ojs/v1/workers/nack"


@pytest.fixture
def is_now():
    """Return the function that tells whether a moment lies between the beginning of the test and now."""
    began = timezone.now()
    return lambda moment: began - NOT_SURE < moment < real_now() + NOT_SURE


@ON_A_SERVER
@OFF
def test_a_request_makes_nothing_available_nor_discards_it_too_early(ojs, host, off):
    soon = timezone.now() + 5 * MINUTE
    host.off = off
    Job.objects.enqueue("later", scheduled_at=soon)
    Job.objects.enqueue("expiring", expires_at=soon)
    CronJob.objects.create(name="c", expression="@daily", type="t", created_at=soon - HOUR, next_run_at=soon)
    assert ojs.get("/ojs/v1/jobs").status_code == 200
    assert ojs.get("/ojs/v1/cron").json()["crons"][0]["run_count"] == 0
    assert dict(Job.objects.values_list("type", "state")) == {"later": "scheduled", "expiring": "available"}


@ON_A_SERVER
@OFF
def test_a_lease_over_http_ends_with_the_time_limit_by_the_databases_clock(ojs, host, is_now, off):
    ojs.enqueue(options={"timeout_ms": 40_000})
    host.off = off
    (job,) = ojs.fetch()
    assert is_now(row(job).lease_expires_at - 40 * SECOND)
    assert row(job).lease_expires_at - row(job).started_at == 40 * SECOND
    assert ojs.fetch() == []
    assert ojs.post(ACK, {"job_id": job["id"]}).status_code == 200


@pytest.fixture
def new_york(monkeypatch):
    """Let the database store the times of New York, where its kind of database stores local times."""

    def forget():
        for name in ("timezone", "timezone_name"):
            vars(here).pop(name, None)

    here = connection._connections[connection._alias]
    monkeypatch.setitem(here.settings_dict, "TIME_ZONE", "America/New_York")
    forget()
    here.ensure_timezone()
    yield
    monkeypatch.undo()
    forget()
    here.ensure_timezone()


def test_a_lease_lasts_where_the_database_stores_local_times(ojs, new_york):
    ojs.enqueue(options={"timeout_ms": 60_000})
    (job,) = ojs.fetch()
    assert timedelta() < row(job).lease_expires_at - timezone.now() <= MINUTE
    assert ojs.fetch() == []
    assert ojs.post(ACK, {"job_id": job["id"]}).status_code == 200


@ON_A_SERVER
@OFF
def test_a_rate_counts_by_the_databases_clock(ojs, host, is_now, off):
    for _ in range(6):
        Job.objects.enqueue("t", limit=Limit(name="r", per_minute=3))
    assert len(ojs.fetch(count=2)) == 2
    host.off = off
    assert len(ojs.fetch(count=6)) == 1
    host.off = -off
    assert ojs.fetch(count=6) == []
    assert all(map(is_now, Slot.objects.values_list("taken_at", flat=True)))


@ON_A_SERVER
@OFF
def test_a_failed_job_waits_by_the_databases_clock(ojs, host, is_now, off):
    ojs.enqueue(options={"retry": {"initial_interval": "PT5S", "jitter": False}})
    host.off = off
    (job,) = ojs.fetch()
    ojs.post(NACK, {"job_id": job["id"], "error": {"code": "e", "message": "m"}})
    assert is_now(row(job).run_at - 5 * SECOND)


@ON_A_SERVER
@OFF
def test_the_next_step_of_a_workflow_waits_by_the_databases_clock(ojs, host, is_now, off):
    chain({"type": "a"}, {"type": "b", "delay": 3}).enqueue()
    (job,) = ojs.fetch()
    host.off = off
    ojs.post(ACK, {"job_id": job["id"]})
    advance_due("default")
    assert is_now(Job.objects.get(type="b").run_at - 3 * SECOND)


@ON_A_SERVER
@OFF
def test_a_periodic_job_is_defined_by_the_databases_clock(ojs, host, is_now, off):
    host.off = off
    ojs.post("/ojs/v1/cron", {"name": "c", "expression": "@every PT1H", "job_template": {"type": "t", "args": []}})
    entry = CronJob.objects.get()
    assert is_now(entry.created_at)
    assert timedelta() < entry.next_run_at - real_now() <= HOUR + NOT_SURE
