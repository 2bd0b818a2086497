"""Rollups: the numbers of a page do not depend on them, and they outlive the jobs that they count."""

from datetime import timedelta
from random import Random
from threading import Timer

import pytest
from django.db import OperationalError, ProgrammingError, connection, connections
from django.db.models import Sum
from django.utils import timezone

from django_ojs_unique import job as job_of
from django_ojs_unique.models import ActivityRollup, Job
from django_ojs_unique.ojs.states import JobState
from django_ojs_unique.reporting.activity import ALL, COUNTED_AFTER, KEPT, QUARTER, activity, roll_up
from django_ojs_unique.reporting.times import SPANS
from django_ojs_unique.worker import Worker, housekeeper
from tests.support.past import NOW, ago, job, suppressed
from tests.support.processes import together

pytestmark = pytest.mark.django_db
DAY, WEEK = SPANS["day"], SPANS["week"]


def live_a_week(seed):
    """Store jobs at moments of the last ten days, many of them on the edges of quarters."""
    dice = Random(seed)
    quarter = NOW.replace(minute=0, second=0)
    for _ in range(150):
        created = quarter - dice.choice([QUARTER, timedelta(minutes=1)]) * dice.randrange(40 * 24)
        created -= dice.choice([timedelta(0), timedelta(microseconds=1), timedelta(seconds=dice.randrange(900))])
        state = dice.choice(list(JobState))
        waited, ran = dice.choice([0, 1, 899, 100_000]), dice.choice([0, 1, 900, 300_000])
        if created + timedelta(seconds=waited + ran) > NOW:
            waited = ran = 0
        never_ran = {"started_at": None} if state == JobState.DISCARDED and dice.random() < 0.5 else {}
        job(created, state=state, waited=waited, ran=ran, queue=dice.choice(["mail", "reports", "a"]), **never_ran)
        if dice.random() < 0.3:
            suppressed(created)


@pytest.mark.slow
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kathmandu"])
@pytest.mark.parametrize("until", [timedelta(0), timedelta(hours=7), timedelta(days=3)], ids=str)
def test_pages_show_the_same_numbers_with_rollups_and_without(zone, until, settings):
    settings.TIME_ZONE = zone
    live_a_week(seed=f"{zone} {until}")
    plain = [activity("default", span, NOW) for span in (DAY, WEEK)]
    assert plain[1].by_queue
    assert all(map(sum, (plain[1].enqueued, plain[1].suppressed, plain[1].completed, plain[1].failed)))
    roll_up("default", NOW - until)
    assert [activity("default", span, NOW) for span in (DAY, WEEK)] == plain


@pytest.mark.slow
def test_numbers_stay_when_the_jobs_are_deleted_or_run_again():
    live_a_week(seed="pruned")
    plain = activity("default", WEEK, NOW)
    roll_up("default", NOW)
    Job.objects.exclude(finished_at=None).filter(finished_at__lt=ago(hours=1)).delete()
    assert activity("default", WEEK, NOW) == plain


def test_what_happened_is_told_by_queue_and_of_all_queues():
    job(ago(hours=3), state="completed", waited=0, ran=60, queue="mail")
    job(ago(hours=3), state="discarded", waited=0, ran=60, queue="reports")
    suppressed(ago(hours=3))
    roll_up("default", NOW)
    numbers = ActivityRollup.objects.filter(enqueued__gt=0).order_by("queue")
    assert list(numbers.values_list("queue", "enqueued", "suppressed", "completed", "failed")) == [
        ("", 2, 1, 1, 1),
        ("mail", 1, 0, 1, 0),
        ("reports", 1, 0, 0, 1),
    ]
    assert len({row.start for row in numbers}) == 1


def test_where_nothing_happened_only_the_end_of_what_was_counted_has_a_row():
    due = roll_up("default", NOW)
    rows = ActivityRollup.objects.order_by("start")
    assert rows.count() == 1
    assert rows.last().start + 2 * QUARTER + COUNTED_AFTER == due
    assert rows.last().start + QUARTER + COUNTED_AFTER <= NOW < due


def test_a_quarter_is_counted_when_its_transactions_have_had_time_to_commit():
    quarter = NOW.replace(minute=0, second=0)
    due = roll_up("default", quarter)
    assert due == quarter + COUNTED_AFTER
    job(quarter - timedelta(seconds=1))  # it commits after the quarter
    assert roll_up("default", due - timedelta.resolution) == due
    assert not ActivityRollup.objects.filter(enqueued__gt=0)
    assert roll_up("default", due) == due + QUARTER
    assert ActivityRollup.objects.get(queue=ALL, enqueued=1).start == quarter - QUARTER


def test_a_job_that_should_have_run_long_ago_is_counted_when_it_was_enqueued():
    job(ago(hours=3), enqueued_at=ago(days=3), scheduled_at=ago(days=3))
    roll_up("default", NOW)
    assert ActivityRollup.objects.filter(queue=ALL).aggregate(Sum("enqueued")) == {"enqueued__sum": 1}


def test_a_job_that_finishes_meanwhile_is_counted_once():
    finishing = job(ago(hours=3))

    def finish(execute, sql, *rest):
        result = execute(sql, *rest)
        if Job._meta.db_table in sql and not finished:
            finished.append(sql)
            Job.objects.filter(pk=finishing.pk).delete()
            job(ago(hours=3), state="completed", waited=0, ran=10_700)
        return result

    finished = []
    with connection.execute_wrapper(finish):
        roll_up("default", NOW)
    assert finished
    assert ActivityRollup.objects.filter(queue=ALL).aggregate(Sum("enqueued")) == {"enqueued__sum": 1}


def test_a_quarter_is_counted_once():
    due = roll_up("default", NOW)
    job(ago(hours=5))
    job(due - COUNTED_AFTER - QUARTER - timedelta(seconds=1))
    roll_up("default", due)
    assert not ActivityRollup.objects.filter(enqueued__gt=0)


def test_while_there_is_nothing_to_count_a_look_takes_one_statement(django_assert_num_queries):
    roll_up("default", NOW)
    with django_assert_num_queries(1):
        roll_up("default", NOW)


@pytest.mark.slow
def test_a_host_whose_clock_is_behind_reads_no_later_quarters():
    live_a_week(seed="behind")
    plain = activity("default", DAY, ago(hours=3))
    roll_up("default", NOW)
    assert activity("default", DAY, ago(hours=3)) == plain


@pytest.mark.slow
def test_after_a_long_pause_old_quarters_are_left_out_and_their_rows_deleted():
    roll_up("default", NOW - 2 * KEPT)
    job(NOW - KEPT - timedelta(days=1))
    job(ago(days=1))
    roll_up("default", NOW)
    assert not ActivityRollup.objects.filter(start__lte=NOW - KEPT - QUARTER)
    assert sum(activity("default", WEEK, NOW).enqueued) == 1


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_of_workers_that_count_the_same_quarter_one_stores_its_rows():
    live_a_week(seed="race")
    plain = activity("default", WEEK, NOW)
    together([lambda number: roll_up("default", NOW - timedelta(hours=8 - number))] * 4, rounds=9)
    assert roll_up("default", NOW) > NOW
    assert activity("default", WEEK, NOW) == plain
    rows = list(ActivityRollup.objects.values_list("queue", "start"))
    assert len(rows) == len(set(rows))


@pytest.mark.django_db(transaction=True)
def test_a_worker_counts(handlers):
    job(timezone.now() - timedelta(hours=1), state="completed")
    job_of("email.send")(lambda: None).enqueue()
    Worker().run(drain=True)
    assert ActivityRollup.objects.filter(queue=ALL).aggregate(Sum("completed")) == {"completed__sum": 1}


@pytest.mark.django_db(transaction=True)
def test_each_worker_counts_at_a_moment_of_its_own(handlers, monkeypatch):
    counted, drawn = [], []
    monkeypatch.setattr(housekeeper, "roll_up", lambda using, now: counted.append(now) or now)  # due at once
    monkeypatch.setattr("random.uniform", lambda least, most: drawn.append((least, most)) or 10_000)
    job_of("email.send")(lambda: None).enqueue()
    assert Worker().run(drain=True).completed == 1
    assert (len(counted), drawn) == (1, [(0, housekeeper.APART_SECONDS)])


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("error", [OperationalError, ProgrammingError])
def test_a_worker_whose_count_the_database_refuses_is_well_and_says_so_once(error, handlers, monkeypatch, caplog):
    def refused(using, now):
        raise error("canceling statement due to statement timeout")

    monkeypatch.setattr(housekeeper, "roll_up", refused)
    job_of("email.send")(lambda: None).enqueue()
    worker = Worker()
    patience = Timer(100, worker.stop)
    patience.start()
    worker.run(drain=True)
    assert patience.is_alive()  # it has ended by itself
    patience.cancel()
    assert Job.objects.get().state == JobState.COMPLETED
    assert [record.message for record in caplog.records] == [
        "The jobs of the database 'default' could not be counted for the dashboard: "
        "canceling statement due to statement timeout"
    ]


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_lost_connection_is_an_outage_also_while_jobs_are_counted(handlers, monkeypatch):
    def lost(using, now):
        raise OperationalError("the connection is lost")

    monkeypatch.setattr(housekeeper, "roll_up", lost)
    monkeypatch.setattr(type(connections["default"]), "is_usable", lambda self: False)
    job_of("email.send")(lambda: None).enqueue()
    worker, asked = Worker(), []
    Timer(2, lambda: (asked.append("to stop"), worker.stop())).start()
    worker.run(drain=True)
    assert asked  # else it would go on


@pytest.mark.slow
def test_a_page_of_rollups_takes_two_statements_more(django_assert_max_num_queries):
    live_a_week(seed="statements")
    roll_up("default", NOW)
    with django_assert_max_num_queries(4):
        activity("default", WEEK, NOW)
