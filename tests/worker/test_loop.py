"""The loop, in processes and threads of its own, on real connections."""

import asyncio
import json
import os
import signal
import threading
from collections import Counter
from datetime import timedelta

import pytest
from django.contrib.auth.models import Group
from django.core.management import CommandError, call_command
from django.db import OperationalError, transaction
from django.utils import timezone

from django_ojs_unique import job
from django_ojs_unique.handlers.control import Discard, Retry, Skip
from django_ojs_unique.maintenance import timers
from django_ojs_unique.models import Job, WorkerProcess
from django_ojs_unique.testing import run_jobs
from django_ojs_unique.worker import Worker, claimer, finalizer, housekeeper, outages, pools, timetable
from django_ojs_unique.worker import loop as loop_module
from tests.support.background import working
from tests.support.processes import PATIENCE, until
from tests.support.retries import IN_AN_HOUR

pytestmark = pytest.mark.django_db(transaction=True)


def nothing(**args):
    """Do nothing."""


@pytest.mark.slow
def test_draining_runs_everything_that_is_due_and_leaves_the_rest(handlers):
    job("t")(nothing)
    for number in range(30):
        Job.objects.enqueue("t", {"n": number}, queue=f"q{number % 3}")
    Job.objects.enqueue("t", scheduled_at=timezone.now() + timezone.timedelta(hours=1))
    Job.objects.enqueue("elsewhere")
    assert Worker().run(drain=True).completed == 30
    states = Counter(Job.objects.values_list("state", flat=True))
    assert states == {"completed": 30, "scheduled": 1, "available": 1}


def test_a_worker_takes_jobs_from_its_queues_only(handlers):
    job("t")(nothing)
    for queue in ("a", "b"):
        Job.objects.enqueue("t", queue=queue)
    assert Worker(queues=["b"]).run(drain=True).completed == 1
    assert Job.objects.get(queue="a").state == "available"


@pytest.mark.slow
def test_jobs_that_jobs_enqueue_are_drained_too(handlers):
    @job("t")
    def chain(n):
        if n:
            Job.objects.enqueue("t", {"n": n - 1})

    Job.objects.enqueue("t", {"n": 5})
    assert Worker().run(drain=True).completed == 6


@pytest.mark.slow
def test_a_job_that_fails_and_then_succeeds_is_retried_and_completes(handlers):
    attempts = []

    @job("t", retry={"initial_interval": "PT0.001S", "jitter": False}, takes_context=True)
    def flaky(context):
        attempts.append(context.attempt)
        if context.attempt < 3:
            raise ValueError

    Job.objects.enqueue("t")
    workers = [Worker().run(drain=True) for _ in range(2)]
    while Job.objects.filter(state="retryable").exists():
        workers.append(Worker().run(drain=True))
    assert attempts == [1, 2, 3]
    assert Job.objects.get().state == "completed"
    assert len(Job.objects.get().errors) == 2


def test_one_key_enqueued_while_it_runs_runs_once_more_under_states_without_active(handlers):
    runs = []

    @job("t", unique={"states": ["available", "scheduled", "retryable", "pending"], "on_conflict": "ignore"})
    def handler(n):
        runs.append(n)
        if n == 0:
            for number in range(1, 4):
                Job.objects.enqueue("t", {"n": number})

    Job.objects.enqueue("t", {"n": 0})
    Worker(concurrency=1).run(drain=True)
    assert runs == [0, 1]


def failing(function, times):
    """Return the function as it is while the database fails so many times."""
    failures = iter([OperationalError("gone")] * times)

    def fail_first(*args, **kwargs):
        for error in failures:
            raise error
        return function(*args, **kwargs)

    return fail_first


def test_an_outage_is_survived_with_a_log_line(handlers, monkeypatch, caplog):
    job("t")(nothing)
    Job.objects.enqueue("t")
    monkeypatch.setattr(claimer, "claim", failing(claimer.claim, 2))
    monkeypatch.setattr(outages, "LONGEST_PAUSE", 0.001)
    assert Worker().run(drain=True).completed == 1
    assert caplog.text.count("failed; trying again") == caplog.text.count("answers again") == 1


def test_a_finalize_that_fails_is_repeated_so_that_no_result_is_lost(handlers, monkeypatch):
    job("t")(nothing)
    for number in range(5):
        Job.objects.enqueue("t", {"n": number})
    monkeypatch.setattr(finalizer, "finalize", failing(finalizer.finalize, 1))
    monkeypatch.setattr(outages, "LONGEST_PAUSE", 0.001)
    assert Worker().run(drain=True).completed == 5


def _work_until_sigterm(parent):
    """Hold three jobs in one thread; the first waits until the signal has been handled."""
    pools.WORK_AHEAD_SECONDS = 100
    stopped, stop = threading.Event(), Worker.stop

    def stop_and_tell(self):
        stop(self)
        stopped.set()

    Worker.stop = stop_and_tell

    @job("t")
    def handler():
        parent.tell("began")
        assert stopped.wait(PATIENCE)

    call_command("runworker", concurrency=1)


@pytest.mark.slow
def test_sigterm_lets_the_running_job_finish_and_requeues_what_has_not_started(handlers, start):
    for _ in range(3):
        Job.objects.enqueue("t")
    worker = start(_work_until_sigterm)
    worker.hear()
    assert Job.objects.filter(state="active").count() == 3
    os.kill(worker.process.pid, signal.SIGTERM)
    worker.result()
    states = Counter(Job.objects.values_list("state", "attempt"))
    assert states == {("completed", 1): 1, ("available", 0): 2}


@pytest.mark.slow
def test_two_workers_share_a_queue_and_nothing_runs_twice(handlers, start, tmp_path):
    record = tmp_path / "runs"

    @job("t")
    def handler(n):
        descriptor = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{n}\n".encode())
        os.close(descriptor)

    for number in range(200):
        Job.objects.enqueue("t", {"n": number})
    workers = [start(_drain) for _ in range(3)]
    summaries = [worker.result() for worker in workers]
    assert sum(summaries) == 200
    assert Counter(record.read_text().split()) == Counter(map(str, range(200)))
    assert set(Job.objects.values_list("state", "attempt")) == {("completed", 1)}


def _drain(parent):
    return Worker().run(drain=True).completed


# What the worker does with what its handlers raise


def test_retry_replaces_the_delay_and_counts_the_attempt(handlers):
    @job("t", retry={"max_attempts": 2, "initial_interval": "PT1S"})
    def handler():
        raise Retry(after="PT1H", reason="the other side is busy")

    row = Job.objects.enqueue("t").job
    assert Worker().run(drain=True).retried == 1
    row.refresh_from_db()
    (error,) = row.errors
    assert (row.state, row.attempt, error["retry_delay_ms"]) == ("retryable", 1, 3_600_000)
    assert (error["message"], error["retryable"]) == ("the other side is busy", True)
    assert row.run_at > row.started_at + timedelta(minutes=59)
    row.retry()
    assert Worker().run(drain=True).discarded == 1
    row.refresh_from_db()
    assert (row.state, row.attempt, len(row.errors)) == ("discarded", 2, 2)


@pytest.mark.parametrize("after", [60, 60.0, timedelta(minutes=1), "PT1M"])
def test_a_delay_is_a_duration_a_timedelta_or_seconds(handlers, after):
    @job("t")
    def handler():
        raise Retry(after=after)

    Job.objects.enqueue("t")
    Worker().run(drain=True)
    assert Job.objects.get().errors[0]["retry_delay_ms"] == 60_000


def test_retry_without_a_delay_follows_the_policy(handlers):
    @job("t", retry={"initial_interval": "PT10S", "jitter": False})
    def handler():
        raise Retry

    Job.objects.enqueue("t")
    Worker().run(drain=True)
    assert Job.objects.get().errors[0]["retry_delay_ms"] == 10_000


def test_discard_gives_up_whatever_attempts_are_left(handlers):
    @job("t", retry={"max_attempts": 5})
    def handler():
        raise Discard("no such customer")

    Job.objects.enqueue("t")
    assert Worker().run(drain=True).discarded == 1
    row = Job.objects.get()
    assert (row.state, row.attempt, row.errors[0]["message"]) == ("discarded", 1, "no such customer")


def test_skip_completes_and_says_why(handlers):
    @job("t")
    def handler():
        raise Skip("sent already")

    Job.objects.enqueue("t")
    summary = Worker().run(drain=True)
    row = Job.objects.get()
    assert (summary.skipped, summary.completed) == (1, 0)
    assert (row.state, row.skipped, row.result, row.errors) == ("completed", "sent already", None, [])


def is_wanted(n):
    return n > 0


def test_skip_unless_looks_before_the_handler_runs(handlers):
    ran = []
    job("t", skip_unless=is_wanted)(lambda n, other=0: ran.append(n))
    for args in ({"n": 0}, {"n": 1, "other": 2}, [0], [2, 3]):
        Job.objects.enqueue("t", args)
    summary = Worker(concurrency=1).run(drain=True)
    assert (summary.skipped, summary.completed, ran) == (2, 2, [1, 2])
    assert set(Job.objects.values_list("skipped", flat=True)) == {"", "skip_unless is_wanted was false"}


def test_a_skip_unless_that_raises_is_a_failure_like_any_other(handlers):
    job("t", skip_unless=lambda: 1 / 0, retry=IN_AN_HOUR)(lambda: None)
    Job.objects.enqueue("t")
    assert Worker().run(drain=True).retried == 1


def test_an_exhausted_job_is_marked_where_its_policy_wants_dead_letters(handlers):
    for type, on_exhaustion in (("kept", "dead_letter"), ("gone", "discard")):
        job(type, retry={"max_attempts": 1, "on_exhaustion": on_exhaustion})(lambda: 1 / 0)
        Job.objects.enqueue(type)
    Worker().run(drain=True)
    assert dict(Job.objects.values_list("type", "dead_letter")) == {"kept": True, "gone": False}
    Job.objects.get(type="kept").retry()
    assert Job.objects.get(type="kept").dead_letter is False


# Being seen


@pytest.mark.slow
def test_a_worker_has_a_row_with_a_heartbeat_while_it_runs(handlers, monkeypatch):
    monkeypatch.setattr(housekeeper, "SCAN_SECONDS", 0.02)
    job("t")(nothing)
    Job.objects.enqueue("t")
    with working(queues=["default", "mail-*"], exclude=["mail-slow"], concurrency=3) as worker:
        until(lambda: WorkerProcess.objects.filter(finalized=1).exists(), "the worker said what it did")
        row = WorkerProcess.objects.get()
        until(lambda: WorkerProcess.objects.get().heartbeat_at > row.heartbeat_at, "the heart beat again")
    assert (row.id, row.pid, row.state, row.concurrency, row.claimed) == (worker.id, os.getpid(), "running", 3, 0)
    assert row.queues == ["default", "mail-*", "!mail-slow"]
    assert row.hostname in row.id
    assert not WorkerProcess.objects.exists()


def test_the_row_says_that_the_worker_is_stopping(handlers, monkeypatch):
    monkeypatch.setattr(housekeeper, "SCAN_SECONDS", 0.02)
    began, go_on = threading.Event(), threading.Event()

    @job("t")
    def handler():
        began.set()
        go_on.wait(PATIENCE)

    Job.objects.enqueue("t")
    with working() as worker:
        assert began.wait(PATIENCE)
        worker.stop()
        until(WorkerProcess.objects.filter(state="stopping").exists, "the row said so")
        go_on.set()


def test_the_health_file_is_written_while_all_is_well_and_removed_at_the_end(handlers, monkeypatch, tmp_path):
    monkeypatch.setattr(loop_module, "WATCH_SECONDS", 0.02)
    path = tmp_path / "health"
    with working(health_file=str(path)) as worker:
        until(path.exists, "the file was written")
        facts = json.loads(path.read_text())
        path.unlink()
        until(path.exists, "it was written again")
    assert facts == {"worker": worker.id, "pid": os.getpid(), "held": 0, "finalized": 0, "clock_ahead": 0}
    assert list(tmp_path.iterdir()) == []


def test_the_health_file_is_not_written_during_an_outage(handlers, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(loop_module, "WATCH_SECONDS", 0.001)
    monkeypatch.setattr(housekeeper, "SCAN_SECONDS", 0.001)
    monkeypatch.setattr(timetable, "RETRY_SECONDS", 0.001)
    monkeypatch.setattr(outages, "LONGEST_PAUSE", 0.001)
    path, outage, turns = tmp_path / "health", threading.Event(), threading.Semaphore(0)
    real = housekeeper.prune

    def failing(*args):
        if outage.is_set():
            turns.release()
            raise OperationalError("gone")
        return real(*args)

    monkeypatch.setattr(housekeeper, "prune", failing)
    with working(health_file=str(path)):
        until(path.exists, "the file was written")
        outage.set()
        for _ in range(2):
            assert turns.acquire(timeout=PATIENCE)
        path.unlink()
        for _ in range(5):
            assert turns.acquire(timeout=PATIENCE)
        assert not path.exists()
        outage.clear()
        until(path.exists, "it was written again")
    assert "trying again: gone" in caplog.text


def test_a_worker_stops_by_itself_after_its_number_of_jobs(handlers):
    job("t")(nothing)
    for _ in range(10):
        Job.objects.enqueue("t")
    worker = Worker(max_jobs=4, concurrency=2)
    assert worker.run().finalized == 4
    states = Counter(Job.objects.values_list("state", "attempt"))
    assert states == {("completed", 1): 4, ("available", 0): 6}


def lose_nothing(run, error):
    """Check that something refuses to run inside a transaction, which then goes on."""
    Job.objects.enqueue("t")
    with transaction.atomic():
        group = Group.objects.create(name="kept")
        with pytest.raises(error, match=r"run_jobs\(\)"):
            run()
        assert Job.objects.get().state == "available"
    assert Group.objects.get() == group


@pytest.mark.parametrize("drain", [True, False])
def test_a_worker_refuses_to_run_inside_a_transaction(handlers, drain):
    job("t")(lambda: None)
    lose_nothing(lambda: Worker().run(drain=drain), RuntimeError)


@pytest.mark.parametrize("options", [{}, {"drain": True}, {"processes": 2}, {"drain": True, "processes": 2}])
def test_the_command_refuses_to_run_inside_a_transaction(handlers, options):
    job("t")(lambda: None)
    lose_nothing(lambda: call_command("runworker", **options), CommandError)


def test_a_worker_refuses_to_run_without_autocommit(handlers):
    transaction.set_autocommit(False)
    try:
        with pytest.raises(RuntimeError, match=r"run_jobs\(\)"):
            Worker().run(drain=True)
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


def test_run_jobs_runs_inside_a_transaction(handlers):
    job("t")(lambda: None)
    with transaction.atomic():
        Job.objects.enqueue("t")
        assert len(run_jobs()) == 1


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize("timeout", [PATIENCE, 0], ids=["at a checkpoint", "too late"])
def test_a_job_that_its_stopping_worker_requeues_expires_no_more(handlers, kind, timeout):
    worker, ended = Worker(shutdown_timeout=timeout), threading.Event()

    def plain(context):
        worker.stop()
        if not timeout:
            ended.wait(PATIENCE)
        context.checkpoint()

    async def asynchronous(context):
        worker.stop()
        if not timeout:
            await asyncio.Event().wait()
        context.checkpoint()

    job("t", takes_context=True)(plain if kind == "plain" else asynchronous)
    Job.objects.enqueue("t", expires_at=timezone.now() + timedelta(hours=1))
    assert worker.run().requeued == 1
    ended.set()
    timers.expire(Job.objects.all(), timezone.now() + timedelta(hours=2))
    assert set(Job.objects.values_list("state", "attempt")) == {("available", 0)}
