"""Processes that handlers start: signals do to them what they would do without a worker."""

import os
import signal
from contextlib import suppress

import pytest

from django_ojs_unique.models import Job
from tests.support.commands import enqueue
from tests.support.processes import is_alive

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

WAYS = [[], ["--processes", "2"], ["--drain"]]


@pytest.mark.parametrize("options", WAYS, ids=" ".join)
@pytest.mark.parametrize(
    ("type", "number"),
    [
        ("fork", signal.SIGTERM),
        ("fork.async", signal.SIGTERM),
        ("start", signal.SIGINT),
        ("start.async", signal.SIGINT),
    ],
)
def test_a_signal_ends_the_child_of_a_handler_and_not_the_worker(place, options, type, number):
    jobs = [Job.objects.enqueue(type).job for _ in range(5)]
    worker = place.runworker(*options)
    assert len(place.wait_for(f"exit code {-number}", 5)) == 5
    for job in jobs:
        place.wait_for_state(job, state="completed")
    assert "Stopping:" not in worker.output
    assert (worker.wait() if options == ["--drain"] else worker.stop()) == 0


def test_a_program_of_a_worker_in_the_background_of_a_shell_ignores_ctrl_c_like_the_worker(place):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        place.runworker("--processes", "2")
    finally:
        signal.signal(signal.SIGINT, before)
    Job.objects.enqueue("start")
    place.wait_for("exit code 0")


@pytest.fixture
def pids(place):
    """Return the ids of the processes that handlers left behind; end those that are left in the end."""

    def pids():
        return [int(event.event.removeprefix("pid ")) for event in place.events() if event.event.startswith("pid ")]

    yield pids
    for pid in pids():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("options", [[], ["--processes", "2"]], ids=" ".join)
@pytest.mark.parametrize("other", ["quick", "leave.thread", "leave.handler"])
def test_a_daemon_of_a_handler_ends_with_its_worker_whatever_else_does_not_end(place, pids, options, other):
    Job.objects.enqueue("leave.process", {"daemon": True})
    Job.objects.enqueue(other)
    worker = place.runworker("--shutdown-timeout", "0.5", *options)
    place.wait(lambda: pids() and Job.objects.filter(state="available").count() == 0, "both have begun")
    (pid,) = pids()
    assert worker.stop() == 0
    place.wait(lambda: not is_alive(pid), "the daemon has ended")


@pytest.mark.parametrize("options", WAYS, ids=" ".join)
def test_a_worker_ends_though_a_handler_left_a_process_behind_that_is_no_daemon(place, pids, options):
    job = Job.objects.enqueue("leave.process", {"daemon": False}).job
    worker = place.runworker("--shutdown-timeout", "0.5", *options)
    place.wait_for_state(job, state="completed")
    assert (worker.wait() if options == ["--drain"] else worker.stop()) == 0
    (pid,) = pids()
    assert is_alive(pid)
    assert ("Left behind, as they do not end: ForkProcess-1." in worker.output) == ("--processes" not in options)


def test_a_daemon_of_a_handler_ends_with_a_worker_that_hears_a_second_signal(place, pids):
    job = Job.objects.enqueue("leave.process", {"daemon": True}).job
    worker = place.runworker()
    place.wait_for_state(job, state="completed")
    enqueue()
    place.wait_for("began")
    for _ in range(2):
        worker.signal(signal.SIGTERM)
        place.wait(lambda: "Stopping:" in worker.output, "the worker heard the signal")
    assert worker.wait() == 128 + signal.SIGTERM
    (pid,) = pids()
    place.wait(lambda: not is_alive(pid), "the daemon has ended")


THREADS = ["leave.thread", "leave.executor", "leave.to_thread"]


@pytest.mark.parametrize("options", [["--drain"], ["--max-jobs", "1"], [], ["--processes", "2"]], ids=" ".join)
@pytest.mark.parametrize("type", THREADS)
def test_a_worker_ends_though_a_handler_left_a_thread_behind(place, type, options):
    job = Job.objects.enqueue(type).job
    worker = place.runworker("--shutdown-timeout", "0.5", *options)
    place.wait_for_state(job, state="completed")
    asks = options in ([], ["--processes", "2"])
    assert (worker.stop() if asks else worker.wait()) == 0
    assert ("Left behind" in worker.output) == ("--processes" not in options)


@pytest.mark.parametrize("type", THREADS)
def test_a_thread_that_a_handler_left_behind_may_end_within_the_shutdown_timeout(place, type):
    Job.objects.enqueue(type)
    worker = place.runworker("--drain", "--shutdown-timeout", "1000")
    place.wait(lambda: "1 completed" in worker.output, "the drain is over")
    place.open("threads")
    assert worker.wait() == 0
    assert len(place.events("finished")) == 1
    assert "Left behind" not in worker.output
