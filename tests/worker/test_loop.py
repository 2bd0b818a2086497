"""The loop, in processes and threads of its own, on real connections."""

import os
import signal
import threading
from collections import Counter

import pytest
from django.core.management import call_command
from django.utils import timezone

from django_ojs_unique import job
from django_ojs_unique.models import Job
from django_ojs_unique.worker import Worker
from django_ojs_unique.worker import loop as loop_module

pytestmark = pytest.mark.django_db(transaction=True)


def nothing(**args):
    """Do nothing."""


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


def test_jobs_that_jobs_enqueue_are_drained_too(handlers):
    @job("t")
    def chain(n):
        if n:
            Job.objects.enqueue("t", {"n": n - 1})

    Job.objects.enqueue("t", {"n": 5})
    assert Worker().run(drain=True).completed == 6


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
    Worker().run(drain=True)
    assert runs == [0, 1]


def test_an_outage_is_survived_with_a_log_line(handlers, monkeypatch, caplog):
    from django.db import OperationalError

    job("t")(nothing)
    Job.objects.enqueue("t")
    real, failures = loop_module.claim, iter([OperationalError("gone"), OperationalError("gone")])

    def failing(*args, **kwargs):
        for error in failures:
            raise error
        return real(*args, **kwargs)

    monkeypatch.setattr(loop_module, "claim", failing)
    monkeypatch.setattr(loop_module, "LONGEST_OUTAGE_PAUSE", 0.001)
    assert Worker().run(drain=True).completed == 1
    assert caplog.text.count("trying again") == 2


def test_a_settle_that_fails_is_repeated_so_that_no_result_is_lost(handlers, monkeypatch):
    from django.db import OperationalError

    job("t")(nothing)
    for number in range(5):
        Job.objects.enqueue("t", {"n": number})
    real, failures = loop_module.settle, iter([OperationalError("gone")])

    def failing(*args, **kwargs):
        for error in failures:
            raise error
        return real(*args, **kwargs)

    monkeypatch.setattr(loop_module, "settle", failing)
    monkeypatch.setattr(loop_module, "LONGEST_OUTAGE_PAUSE", 0.001)
    assert Worker().run(drain=True).completed == 5


def _work_until_sigterm(parent):
    """Hold three jobs in one thread; the first waits until the signal has been handled."""
    loop_module.WORK_AHEAD_SECONDS = 100
    stopped, stop = threading.Event(), Worker.stop

    def stop_and_tell(self):
        stop(self)
        stopped.set()

    Worker.stop = stop_and_tell

    @job("t")
    def handler():
        parent.tell("began")
        assert stopped.wait(60)

    call_command("runworker", concurrency=1)


def test_sigterm_lets_the_running_job_finish_and_gives_back_what_has_not_started(handlers, start):
    for _ in range(3):
        Job.objects.enqueue("t")
    worker = start(_work_until_sigterm)
    worker.hear()
    assert Job.objects.filter(state="active").count() == 3
    os.kill(worker.process.pid, signal.SIGTERM)
    worker.result()
    states = Counter(Job.objects.values_list("state", "attempt"))
    assert states == {("completed", 1): 1, ("available", 0): 2}


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
