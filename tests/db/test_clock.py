"""One clock, the database's: a host whose own clock is wrong promotes, retries and rescues at the right time."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, connections, transaction
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ojs_unique import job
from django_ojs_unique.db import clock
from django_ojs_unique.db.clock import database_now, seconds_ahead
from django_ojs_unique.maintenance import timers
from django_ojs_unique.models import Job
from django_ojs_unique.worker import Worker
from tests.support.clocks import ON_A_SERVER, real_now

pytestmark = pytest.mark.django_db(transaction=True)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


@pytest.fixture(params=[-1, 1], ids=["an hour back", "an hour forward"])
def jump(request, host):
    """Let the clock of this host jump."""

    def jump():
        host.off = request.param * HOUR

    return jump


@pytest.fixture
def questions(monkeypatch):
    """Collect what is asked for the time."""
    asked, ask = [], clock._ask

    def note(*args):
        asked.append(args)
        return ask(*args)

    monkeypatch.setattr(clock, "_ask", note)
    return asked


# The clock


def test_nobody_who_counts_statements_sees_that_the_database_is_asked(host):
    with CaptureQueriesContext(connection) as queries, connection.execute_wrapper(lambda *args: 1 / 0):
        database_now("default")
    assert not queries.captured_queries


@ON_A_SERVER
def test_it_is_asked_once_in_a_while(host, questions):
    for _ in range(3):
        database_now("default")
    assert len(questions) == 1
    clock._readings["default"] = clock._readings["default"]._replace(until=0)
    database_now("default")
    assert len(questions) == 2


def test_a_clock_that_agrees_is_not_corrected(host):
    assert seconds_ahead("default") == 0


@ON_A_SERVER
def test_the_time_is_the_databases_after_each_jump(host):
    for hours in (0, 1, -1, 500, 0):
        host.off = hours * HOUR
        assert abs(database_now("default") - real_now()) < MINUTE


@ON_A_SERVER
@pytest.mark.parametrize("how", ["without a question", "in an event loop", "when the database does not answer"])
def test_a_jump_is_noticed_without_the_database(host, monkeypatch, how):
    async def ask():
        return database_now("default")

    before = database_now("default")
    monkeypatch.setattr(clock, "_ask", lambda *args: 1 / 0)
    host.ahead(hours=1)
    after = asyncio.run(ask()) if how == "in an event loop" else database_now("default", may_ask="not" in how)
    assert abs(after - before) < MINUTE


@ON_A_SERVER
def test_a_jump_of_the_databases_clock_is_noticed_after_seconds(host, monkeypatch):
    database_now("default")
    monkeypatch.setattr(clock, "_ask", lambda *args: (3599.9, 3600.1))
    assert seconds_ahead("default") == 0
    reading = clock._readings["default"]
    assert reading.until - clock._time_of(clock._STEADY) <= clock.SECONDS
    clock._readings["default"] = reading._replace(until=0)
    assert seconds_ahead("default") == -3600


@ON_A_SERVER
def test_a_replaced_now_stays_replaced(host, monkeypatch):
    moment = datetime(2026, 2, 12, 12, tzinfo=UTC)
    monkeypatch.setattr(timezone, "now", lambda: moment)
    assert database_now("default") == moment


@ON_A_SERVER
def test_it_is_asked_in_the_callers_transaction_and_leaves_it_as_it_is(host):
    with transaction.atomic():
        database_now("default")
        Job.objects.enqueue("t")
        transaction.set_rollback(True)
    assert not Job.objects.exists()


@ON_A_SERVER
def test_in_a_broken_transaction_the_last_answer_counts_and_else_its_error(host):
    def broken_now():
        with transaction.atomic():
            transaction.set_rollback(True)
            return database_now("default")

    with pytest.raises(TransactionManagementError):
        broken_now()
    database_now("default")
    host.behind(hours=1)
    assert abs(broken_now() - real_now()) < MINUTE


@ON_A_SERVER
def test_it_connects_if_nobody_has(host):
    connections["default"].close()
    assert abs(database_now("default") - real_now()) < MINUTE


@ON_A_SERVER
def test_a_clock_that_is_off_is_said_once(host, caplog):
    caplog.set_level(logging.INFO, "django_ojs_unique.clock")
    for off in (0, 3, 3, 3.0001, 7, 0):
        host.behind(hours=off)
        database_now("default")
        database_now("default")
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in said] == ["WARNING", "WARNING", "INFO"]
    assert all("seconds behind that of database 'default'" in text for _, text in said[:2])


# What goes by it


@ON_A_SERVER
@pytest.mark.slow
def test_scheduled_jobs_are_promoted_by_the_databases_clock(handlers, jump):
    job("t")(lambda: None)
    now = timezone.now()
    jump()
    Job.objects.enqueue("t", {}, queue="due", scheduled_at=now + HOUR)
    Job.objects.enqueue("t", {}, queue="later", scheduled_at=now + HOUR / 2)
    Job._base_manager.filter(queue="due").update(run_at=now - timedelta(minutes=1))
    Worker().run(drain=True)
    assert dict(Job.objects.values_list("queue", "state")) == {"due": "completed", "later": "scheduled"}


@ON_A_SERVER
@pytest.mark.slow
def test_a_retry_is_due_by_the_databases_clock(handlers, jump):
    job("t", retry={"initial_interval": "PT5M", "jitter": False})(lambda: 1 / 0)
    row = Job.objects.enqueue("t").job
    jump()
    Worker().run(drain=True)
    row.refresh_from_db()
    assert timedelta() < row.run_at - real_now() <= timedelta(minutes=5)
    occurred = datetime.fromisoformat(row.errors[0]["occurred_at"])
    assert abs(occurred - real_now()) < HOUR / 2


@ON_A_SERVER
@pytest.mark.slow
def test_what_a_run_writes_down_is_the_databases_time(handlers, jump):
    job("t")(lambda: None)
    row = Job.objects.enqueue("t").job
    jump()
    Worker().run(drain=True)
    row.refresh_from_db()
    assert row.created_at - MINUTE < row.started_at <= row.finished_at < row.created_at + HOUR / 2


@pytest.mark.parametrize("off", [-HOUR, HOUR], ids=str)
def test_a_live_lease_is_not_rescued_and_a_dead_one_is_whoever_asks(take, off):
    for _ in range(2):
        Job.objects.enqueue("t")
    (live,) = take(1, lease=HOUR / 2)
    (dead,) = take(1, lease=-HOUR / 2)
    timers.rescue(Job.objects.all(), timezone.now() + off)
    assert dict(Job.objects.values_list("pk", "state")) == {live.pk: "active", dead.pk: "available"}
