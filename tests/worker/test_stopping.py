"""How a worker stops: asked once, asked twice, killed, by itself, and while its database is away."""

import signal
from collections import Counter
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from django_ojs_unique.lifecycle import write
from django_ojs_unique.maintenance import timers
from django_ojs_unique.models import Job, WorkerProcess
from tests.support.commands import enqueue
from tests.support.outage import outage_at_hand

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

TERM, INT = signal.SIGTERM, signal.SIGINT


@pytest.fixture
def outage(transactional_db):
    with outage_at_hand() as outage:
        yield outage


def hears_the_signal(place, worker):
    place.wait(lambda: "Stopping:" in worker.output, "the worker heard the signal")


@pytest.mark.parametrize("number", [TERM, INT])
def test_an_idle_worker_stops_when_asked(place, number):
    job = enqueue("quick")
    worker = place.runworker()
    place.wait_for_state(job, state="completed")
    worker.signal(number)
    assert worker.wait() == 0
    assert "1 completed" in worker.output


@pytest.mark.parametrize("options", [(), ("--processes", "2")])
def test_a_worker_that_a_shell_started_in_the_background_does_not_heed_ctrl_c_and_says_so(place, options):
    before = signal.signal(INT, signal.SIG_IGN)
    try:
        worker = place.runworker(*options)
    finally:
        signal.signal(INT, before)
    place.wait(lambda: "SIGTERM stops it." in worker.output, "it says what stops it")
    worker.signal_group(INT)
    place.wait_for_state(enqueue("quick"), state="completed")
    assert "Stopping:" not in worker.output
    assert worker.stop() == 0


@pytest.mark.parametrize("number", [TERM, INT])
@pytest.mark.parametrize("type", ["hold", "hold.async"])
def test_the_first_signal_lets_running_jobs_finish_and_requeues_the_rest(place, number, type):
    jobs = [enqueue(type) for _ in range(4)]
    worker = place.runworker(
        "--concurrency", "1", "--async-concurrency", "1", OJS_TEST_WORK_AHEAD="100", OJS_TEST_LONGEST_UNSTARTED="100"
    )
    (running,) = place.wait_for("began")
    place.wait(lambda: Job.objects.filter(state="active").count() == 4, "the worker holds all")
    worker.signal(number)
    rest = [job for job in jobs if job.pk != running.job]
    for job in rest:
        assert place.wait_for_state(job, state="available").attempt == 0
    assert worker.alive
    place.open("gate")
    assert worker.wait() == 0
    assert len(place.events("began")) == 1
    assert set(Job.objects.values_list("state", "attempt")) == {("completed", 1), ("available", 0)}


@pytest.mark.parametrize("type", ["hold", "hold.async"])
def test_what_does_not_finish_in_time_is_requeued_and_its_attempt_does_not_count(place, type):
    job = enqueue(type)
    worker = place.runworker("--shutdown-timeout", "0.1")
    place.wait_for("began")
    assert worker.stop() == 0
    row = place.wait_for_state(job, state="available")
    assert (row.attempt, row.errors, row.lease_token) == (0, [], None)
    assert "1 requeued" in worker.output
    if type == "hold.async":
        assert len(place.events("CancelledError")) == 1


@pytest.mark.parametrize("number", [TERM, INT])
def test_the_second_signal_ends_at_once_and_the_job_returns_with_its_lease(place, number):
    worker = place.rescuing_nobody()
    job = enqueue("hold.shortly")
    place.wait_for("began")
    place.wait_until_confirmed()
    worker.signal(TERM)
    hears_the_signal(place, worker)
    worker.signal(number)
    assert worker.wait() == 128 + number
    assert place.wait_for_state(job, state="active").attempt == 1
    place.open("gate")
    place.runworker()
    assert place.wait_for_state(job, state="completed").attempt == 2


def test_a_worker_stops_by_itself_after_so_many_jobs(place):
    for _ in range(30):
        enqueue("quick")
    assert place.runworker("--max-jobs", "7").wait() == 0
    assert len(place.events("began")) == 7
    states = set(Job.objects.values_list("state", "attempt"))
    assert states == {("completed", 1), ("available", 0)}
    assert Job.objects.filter(state="completed").count() == 7


@pytest.mark.parametrize("type", ["hold", "hold.async"])
def test_killed_workers_cost_no_attempt_that_did_not_begin(place, type):
    """Whatever they held, and how often they die; and a last attempt that began does not begin again."""
    greedy = {"OJS_TEST_WORK_AHEAD": "100", "OJS_TEST_LONGEST_UNSTARTED": "100"}
    options = ("--concurrency", "2", "--async-concurrency", "2", "--lease", "4")
    jobs = [enqueue(type, retry={"max_attempts": most}).pk for _ in range(4) for most in (1, 2, 3)]
    before = dict.fromkeys(jobs, 0) | dict.fromkeys(jobs[2::3], 1)
    write(Job.objects.filter(pk__in=jobs[2::3]), attempt=1)
    for killed in (1, 2):
        worker = place.rescuing_nobody(*options, **greedy)
        place.wait_for("began", 2 * killed)
        place.wait(lambda: not Job.objects.filter(state="available").exists(), "the worker holds all jobs")
        worker.kill()
        write(Job.objects.filter(state="active"), lease_expires_at=timezone.now() - timedelta(hours=1))
        timers.rescue(Job.objects.all(), timezone.now())
        assert not Job.objects.filter(state="active").exists()
    place.open("gate")
    place.runworker()
    place.wait(lambda: not Job.objects.exclude(finished_at__isnull=False).exists(), "all have ended")
    begun = Counter(event.job for event in place.events("began"))
    for row in Job.objects.all():
        runs = begun[row.pk]
        assert runs >= 1
        assert row.attempt - before[row.pk] <= runs
        assert row.state == "completed" or (runs == row.max_attempts - before[row.pk])
        assert row.max_attempts > 1 or runs == 1
    assert any(len(row.errors) == 2 and begun[row.pk] == 1 for row in Job.objects.all())


@pytest.mark.every_database
def test_a_worker_without_its_table_exits_with_1(place):
    table = Job._meta.db_table
    with connection.schema_editor() as editor:
        editor.alter_db_table(Job, table, f"{table}_away")
    try:
        assert place.runworker().wait() == 1
    finally:
        with connection.schema_editor() as editor:
            editor.alter_db_table(Job, f"{table}_away", table)


@pytest.mark.every_database
def test_a_worker_stops_when_asked_during_an_outage_and_its_job_returns_with_its_lease(place, outage):
    worker = place.rescuing_nobody("--shutdown-timeout", "0.5", outage=outage)
    job = enqueue("hold.shortly")
    place.wait_for("began")
    place.wait_until_confirmed()
    outage.begin()
    place.wait(lambda: "failed; trying again" in worker.output, "the worker notices")
    place.open("gate")
    place.wait_for("ended")
    assert worker.stop() == 0
    outage.end()
    place.runworker()
    assert place.wait_for_state(job, state="completed").attempt == 2


@pytest.mark.every_database
def test_a_result_from_an_outage_is_written_after_it(place, outage):
    job = enqueue()
    worker = place.runworker(outage=outage)
    place.wait_for("began")
    outage.begin()
    place.wait(lambda: "failed; trying again" in worker.output, "the worker notices")
    place.open("gate")
    place.wait_for("ended")
    worker.signal(TERM)
    hears_the_signal(place, worker)
    outage.end()
    assert worker.wait() == 0
    assert place.wait_for_state(job, state="completed").attempt == 1


@pytest.mark.every_database
def test_an_idle_worker_survives_an_outage_and_takes_the_next_job(place, outage):
    place.wait_for_state(enqueue("quick"), state="available")
    worker = place.runworker(outage=outage)
    place.wait_for("ended")
    outage.begin()
    place.wait(lambda: "failed; trying again" in worker.output, "the worker notices")
    outage.end()
    place.wait_for_state(enqueue("quick"), state="completed")
    assert worker.stop() == 0


def test_a_second_signal_is_heard_while_the_worker_waits_for_a_lock_of_its_database(place):
    """The main thread waits outside of Python then, where no handler runs."""
    if connection.vendor != "sqlite":
        pytest.skip("elsewhere the worker passes over what is locked")
    worker = place.runworker()
    place.wait(lambda: WorkerProcess.objects.exists(), "the worker is up")
    with outage_at_hand() as outage:
        outage.begin()
        worker.signal(TERM)
        hears_the_signal(place, worker)
        worker.signal(TERM)
        assert worker.wait() == 128 + TERM


def test_ctrl_c_under_the_reloader_lets_running_jobs_finish(place):
    """A terminal sends it to the reloader and to the worker that the reloader started."""
    job = enqueue()
    worker = place.runworker("--reload")
    place.wait_for("began")
    worker.signal_group(INT)
    hears_the_signal(place, worker)
    place.open("gate")
    assert place.wait_for_state(job, state="completed").attempt == 1
    assert worker.wait() == 0
