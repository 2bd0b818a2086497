"""`travel`: what depends on time happens as if the time had been waited for, and nothing is left afterwards."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.db.models.functions import Now
from django.utils import timezone

from django_ojs_unique import Cron, InvalidRequest, RetryPolicy, UniquePolicy, job
from django_ojs_unique.db.clock import database_now
from django_ojs_unique.execution.claim import claim
from django_ojs_unique.models import CronJob, Job, SuppressedEnqueue
from django_ojs_unique.testing import assert_enqueued, run_jobs, run_one, tick, time_travel, travel
from django_ojs_unique.worker import Worker
from tests.support.refusals import refused

pytestmark = pytest.mark.django_db

SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
FOREVER = ["available", "active", "scheduled", "retryable", "pending", "completed"]


@pytest.fixture
def handler(handlers):
    @job("t")
    def handler():
        """Do nothing."""

    return handler


def throttled(period, **more):
    return UniquePolicy(period=period, states=FOREVER, on_conflict="ignore", **more)


def is_near(moment, expected):
    return abs(moment - expected) < MINUTE


def clocks():
    """Return the time that each clock of the engine and of Django tells."""
    user = User.objects.create(username=str(timezone.now()))
    told = [
        timezone.now(),
        database_now("default"),
        user.date_joined,
        User.objects.annotate(now=Now()).values_list("now", flat=True).get(pk=user.pk),
        Job(type="t").created_at,
        Job.objects.enqueue("clock.read").job.created_at,
    ]
    user.delete()
    return told


# The clocks


@pytest.mark.parametrize("to", [HOUR, "PT1H", 3600, -DAY, timedelta(microseconds=1), "P7D"])
def test_all_clocks_move_and_come_back(to):
    before = datetime.now(UTC)
    away = before + {"PT1H": HOUR, 3600: HOUR, "P7D": 7 * DAY}.get(to, to)
    with travel(to):
        assert all(is_near(told, away) for told in clocks())
    assert all(is_near(told, before) for told in clocks())


def test_a_moment_can_be_travelled_to():
    moment = datetime(2031, 3, 30, 3, tzinfo=timezone.get_default_timezone())
    with travel(moment):
        assert all(is_near(told, moment) for told in clocks())
        assert timezone.localtime().day == 30


def test_a_journey_may_begin_where_another_package_has_frozen_the_time(monkeypatch):
    class Meta(type):
        """As freezegun has one."""

        def __instancecheck__(cls, value):
            return isinstance(value, datetime)

    class Frozen(datetime, metaclass=Meta):
        @classmethod
        def now(cls, tz=None):
            return datetime(2030, 1, 1, 12, tzinfo=tz)

    for module in (timezone, time_travel):
        monkeypatch.setattr(module, "datetime", Frozen)
    with travel("P1D"):
        assert timezone.now() == datetime(2030, 1, 2, 12, tzinfo=UTC)


def test_a_month_is_counted_on_the_calendar():
    with travel(datetime(2027, 1, 31, 12, tzinfo=UTC)), travel("P1M"):
        assert is_near(timezone.now(), datetime(2027, 2, 28, 12, tzinfo=UTC))


def test_journeys_add_up():
    start = timezone.now()
    with travel("P1D"):
        with travel("PT2H"):
            assert all(is_near(told, start + DAY + 2 * HOUR) for told in clocks())
        with travel(datetime(2040, 1, 1, tzinfo=UTC)):
            assert timezone.now().year == 2040
        assert is_near(timezone.now(), start + DAY)


def test_time_goes_on():
    with travel("P1D"):
        first = timezone.now()
        while timezone.now() == first:
            pass
        assert first < timezone.now() < first + MINUTE


def test_a_block_that_fails_leaves_nothing():
    seams = timezone.datetime, "resolve_expression" in vars(Now)
    with pytest.raises(ZeroDivisionError), travel("P1D"):
        1 / 0  # noqa: B018
    assert (timezone.datetime, "resolve_expression" in vars(Now)) == seams
    assert timezone.datetime is datetime


def test_djangos_own_module_still_knows_a_datetime():
    moment = datetime(2026, 1, 1, 12, tzinfo=UTC)
    with travel("P1D"):
        assert timezone.template_localtime(moment).hour == 13  # in Berlin


@pytest.mark.parametrize("to", ["1 day", "P", "-P1D", True, float("nan"), 10**400, None, datetime(2030, 1, 1)])
def test_what_is_no_time_is_refused(to):
    with refused(InvalidRequest, "to"), travel(to):
        pass


# Uniqueness


def test_a_window_is_open_until_its_end_and_no_longer(database, handler):
    def enqueue():
        return handler.using(unique=throttled("PT1H")).enqueue().outcome

    assert enqueue() == "created"
    run_jobs()
    with travel(HOUR - MINUTE):
        assert enqueue() == "deduplicated"
    with travel(HOUR):
        assert enqueue() == "created"
        run_jobs()
        with travel(HOUR - MINUTE):
            assert enqueue() == "deduplicated"
        with travel(HOUR):
            assert enqueue() == "created"


@pytest.mark.parametrize("strategy", ["reject", "replace"])
def test_a_window_of_waiting_jobs_ends_too(handler, strategy):
    policy = UniquePolicy(period="P7D", on_conflict=strategy)
    first = handler.using(unique=policy).enqueue().job
    with travel("P7D"):
        result = handler.using(unique=policy).enqueue()
    first.refresh_from_db()
    assert (result.created, result.replaced, first.state) == (True, (), "available")


def test_batches_and_explanations_keep_the_same_time(handler):
    item = {"type": "t", "unique": throttled("PT1H")}
    handler.using(unique=throttled("PT1H")).enqueue()
    with travel("PT59M"):
        assert str(Job.objects.enqueue_many([item])) == "1 deduplicated"
        assert "would ignore" in str(Job.objects.explain(**item))
    with travel("PT1H"):
        assert "would create" in str(Job.objects.explain(**item))
        assert str(Job.objects.enqueue_many([item, item])) == "1 created, 1 deduplicated"


def test_fixed_windows_change_at_their_edges(handler):
    daily = throttled("P1D", window="fixed")
    noon = datetime(2030, 5, 1, 12, tzinfo=UTC)
    with travel(noon):
        assert handler.using(unique=daily).enqueue().created
        with travel(12 * HOUR - MINUTE):
            assert handler.using(unique=daily).enqueue().deduplicated
        with travel(12 * HOUR):
            assert handler.using(unique=daily).enqueue().created


def test_a_calendar_month_opens_on_the_calendar(handler):
    with travel(datetime(2027, 1, 31, 12, tzinfo=UTC)):
        assert handler.using(unique=throttled("P1M")).enqueue().created
        with travel(datetime(2027, 2, 28, 11, tzinfo=UTC)):
            assert handler.using(unique=throttled("P1M")).enqueue().deduplicated
        with travel(datetime(2027, 2, 28, 13, tzinfo=UTC)):
            assert handler.using(unique=throttled("P1M")).enqueue().created


# Schedules, retries, expiry


def test_a_scheduled_job_runs_when_it_is_due_and_not_before(handler):
    handler.using(scheduled_at=timezone.now() + DAY).enqueue()
    with travel(DAY - MINUTE):
        assert run_jobs() == []
    with travel(DAY):
        (ran,) = run_jobs()
    assert ran.outcome == "completed"
    assert is_near(ran.job.finished_at, timezone.now() + DAY)


def test_a_keyed_job_is_rewritten_by_the_same_time(handler):
    def edited():
        return Job.objects.enqueue("t", key="document", scheduled_at=timezone.now() + HOUR).outcome

    assert edited() == "created"
    with travel("PT50M"):
        assert edited() == "replaced"
    with travel("PT70M"):
        assert run_jobs() == []
    with travel("PT110M"):
        assert len(run_jobs()) == 1


@pytest.mark.slow
def test_retries_fall_due_one_after_the_other(handlers):
    @job("t", retry=RetryPolicy(max_attempts=3, initial_interval="PT1H", max_interval="PT9H", jitter=False))
    def handler():
        raise ValueError

    row = handler.enqueue().job
    assert [ran.outcome for ran in run_jobs(raise_errors=False)] == ["retried"]
    with travel("PT50M"):
        assert run_jobs(raise_errors=False) == []
    with travel("PT1H"):
        assert [ran.outcome for ran in run_jobs(raise_errors=False)] == ["retried"]
        with travel("PT1H"):  # the second delay is twice as long
            assert run_jobs(raise_errors=False) == []
        with travel("PT2H"):
            assert [ran.outcome for ran in run_jobs(raise_errors=False)] == ["discarded"]
    row.refresh_from_db()
    assert [error["attempt"] for error in row.errors] == [1, 2, 3]


def test_a_job_expires_while_it_waits(handler):
    row = handler.using(expires_at=timezone.now() + HOUR).enqueue().job
    with travel("PT1H"):
        assert run_jobs() == []
    row.refresh_from_db()
    assert (row.state, is_near(row.finished_at, timezone.now() + HOUR)) == ("discarded", True)


# Leases


def take(lease=MINUTE):
    (taken,) = claim(
        Job.objects.all(),
        queues=["default"],
        types=["t"],
        limit=1,
        worker_id="dead",
        lease=lease,
        now=timezone.now(),
    )
    return taken


def test_a_lease_runs_out_and_another_worker_takes_the_job(handler):
    row = handler.enqueue().job
    take()
    with travel(MINUTE - 10 * SECOND):
        assert run_jobs() == []
    with travel(MINUTE + SECOND):
        (ran,) = run_jobs()
    assert (ran.job.pk, ran.job.attempt, ran.outcome) == (row.pk, 2, "completed")


def test_a_lease_that_is_taken_on_the_way_counts_from_there(database, handler):
    handler.enqueue()
    with travel(DAY):
        taken = take()
        taken.refresh_from_db()
        assert is_near(taken.lease_expires_at, timezone.now() + MINUTE)
        assert run_jobs() == []
        with travel(MINUTE - 10 * SECOND):
            assert run_jobs() == []
        with travel(HOUR):
            assert len(run_jobs()) == 1


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_worker_travels_along(handler):
    handler.using(scheduled_at=timezone.now() + DAY).enqueue()
    assert Worker().run(drain=True).finalized == 0
    with travel(DAY):
        assert Worker().run(drain=True).completed == 1


# Retention


def test_finished_jobs_and_attempts_are_pruned_in_their_time(handler):
    policy = UniquePolicy(on_conflict="ignore")
    row = handler.using(unique=policy).enqueue().job
    handler.using(unique=policy).enqueue()
    run_jobs()
    with travel("P6D"):
        run_jobs()
        assert Job.objects.filter(pk=row.pk).exists()
    with travel("P8D"):
        run_jobs()
        assert not Job.objects.filter(pk=row.pk).exists()
        assert SuppressedEnqueue.objects.exists()
    with travel("P31D"):
        run_one()
        assert not SuppressedEnqueue.objects.exists()


def test_a_row_that_keeps_a_window_open_outlives_its_retention(handler):
    handler.using(unique=throttled("P30D")).enqueue()
    run_jobs()
    with travel("P29D"):
        run_jobs()
        assert handler.using(unique=throttled("P30D")).enqueue().deduplicated
    with travel("P30D"):
        run_jobs()
        assert not Job.objects.exists()
        assert handler.using(unique=throttled("P30D")).enqueue().created


# Periodic jobs


def test_periodic_jobs_are_enqueued_when_they_are_due(handlers):
    @job("report.daily", cron=Cron("0 6 * * *", timezone="Europe/Berlin"))
    def report():
        """Do nothing."""

    with travel(datetime(2026, 3, 27, 12, tzinfo=UTC)):
        assert tick() == []
        with travel(datetime(2026, 3, 28, 4, 59, tzinfo=UTC)):
            assert tick() == []
        with travel(datetime(2026, 3, 28, 5, 1, tzinfo=UTC)):
            assert [row.type for row in tick()] == ["report.daily"]
            assert tick() == []
            run_jobs()
        with travel(datetime(2026, 3, 29, 4, 1, tzinfo=UTC)):  # summer time has begun
            assert len(tick()) == 1
            assert_enqueued(report, count=2)
            assert CronJob.objects.get().run_count == 2


def test_periodic_jobs_run_in_their_tests_only_when_asked_for(handlers):
    @job("report.daily", cron="@daily")
    def report():
        """Do nothing."""

    tick()
    with travel("P2D"):
        assert run_jobs() == []


@pytest.mark.django_db(databases=["default", "other"])
def test_another_database_travels_too(handler):
    jobs = Job.objects.using("other")
    jobs.enqueue("t", scheduled_at=timezone.now() + DAY)
    with travel(DAY):
        assert len(run_jobs(using="other")) == 1


def test_a_test_that_fails_on_its_journey_is_back(handler):
    with suppress(AssertionError), travel("P1D"):
        assert_enqueued("nobody.there")
    assert is_near(timezone.now(), datetime.now(UTC))
