"""Processes that handlers start: signals do to them what they would do without a worker."""

import signal

import pytest

from django_ojs_unique.models import Job

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
