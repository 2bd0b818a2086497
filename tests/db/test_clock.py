"""One clock, the database's: a machine whose own clock is wrong promotes, retries and rescues at the right time."""

import time as time_module
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ojs_unique import job
from django_ojs_unique.db.clock import DatabaseClock
from django_ojs_unique.maintenance import timers
from django_ojs_unique.models import Job
from django_ojs_unique.worker import Worker

pytestmark = pytest.mark.django_db(transaction=True)
HOUR = timedelta(hours=1)


@pytest.fixture(params=[-1, 1], ids=["an hour back", "an hour forward"])
def jump(request, monkeypatch):
    """Let this machine's clock jump; return the real one."""
    now, seconds = timezone.now, time_module.time

    def jump():
        monkeypatch.setattr(timezone, "now", lambda: now() + request.param * HOUR)
        monkeypatch.setattr(time_module, "time", lambda: seconds() + request.param * 3600)

    jump.now = now
    return jump


def test_the_clock_asks_the_database_once_and_goes_on_by_itself():
    clock = DatabaseClock("default")
    with CaptureQueriesContext(connection) as queries:
        moments = [clock.now() for _ in range(3)]
    assert len(queries) == 1
    assert moments == sorted(moments)
    assert {moment.tzinfo for moment in moments} == {UTC}


def test_the_clock_says_what_the_database_says():
    before = DatabaseClock("default").read()
    Job.objects.enqueue("t")
    Job._base_manager.update(started_at=before)
    assert Job.objects.get().started_at - before < timedelta(milliseconds=1)


def test_a_jump_of_this_machines_clock_moves_it_by_nothing(jump):
    clock = DatabaseClock("default")
    before = clock.now()
    jump()
    assert timedelta() <= clock.now() - before < HOUR / 2
    assert timedelta() <= clock.read() - before < HOUR / 2


@pytest.mark.slow
def test_scheduled_jobs_are_promoted_by_the_databases_clock(handlers, jump):
    job("t")(lambda: None)
    now = jump.now()
    Job.objects.enqueue("t", {}, queue="due", scheduled_at=now + HOUR)
    Job.objects.enqueue("t", {}, queue="later", scheduled_at=now + HOUR / 2)
    Job._base_manager.filter(queue="due").update(run_at=now - timedelta(minutes=1))
    jump()
    Worker().run(drain=True)
    assert dict(Job.objects.values_list("queue", "state")) == {"due": "completed", "later": "scheduled"}


@pytest.mark.slow
def test_a_retry_is_due_by_the_databases_clock(handlers, jump):
    job("t", retry={"initial_interval": "PT5M", "jitter": False})(lambda: 1 / 0)
    row = Job.objects.enqueue("t").job
    jump()
    Worker().run(drain=True)
    row.refresh_from_db()
    assert timedelta() < row.run_at - jump.now() <= timedelta(minutes=5)
    occurred = datetime.fromisoformat(row.errors[0]["occurred_at"])
    assert abs(occurred - jump.now()) < HOUR / 2


@pytest.mark.slow
def test_what_a_run_writes_down_is_the_databases_time(handlers, jump):
    job("t")(lambda: None)
    row = Job.objects.enqueue("t").job
    jump()
    Worker().run(drain=True)
    row.refresh_from_db()
    assert row.created_at - timedelta(seconds=1) < row.started_at <= row.finished_at < row.created_at + HOUR / 2


@pytest.mark.parametrize(
    "clock", [lambda: DatabaseClock("default").now(), lambda: timezone.now()], ids=["database's", "machine's"]
)
def test_a_live_lease_is_not_rescued_and_a_dead_one_is_whoever_asks(take, jump, clock):
    for _ in range(2):
        Job.objects.enqueue("t")
    (live,) = take(1, lease=HOUR / 2)
    (dead,) = take(1, lease=-HOUR / 2)
    jump()
    timers.rescue(Job.objects.all(), clock())
    assert dict(Job.objects.values_list("pk", "state")) == {live.pk: "active", dead.pk: "available"}
