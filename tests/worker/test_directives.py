"""What operators tell workers: `runworker` obeys it with its next heartbeat."""

import threading

import pytest

from django_ojs_unique import job
from django_ojs_unique.models import Job, WorkerProcess
from django_ojs_unique.worker import housekeeper
from tests.support.background import working
from tests.support.processes import PATIENCE, until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(housekeeper, "SCAN_SECONDS", 0.02)


@pytest.fixture
def busy(handlers):
    """A job that waits: the event that it began, and the one that lets it go on."""
    began, go_on = threading.Event(), threading.Event()

    @job("t")
    def handler():
        began.set()
        assert go_on.wait(PATIENCE)

    Job.objects.enqueue("t")
    return began, go_on


def tell(directive):
    """Tell the worker, which is up by then."""
    until(lambda: WorkerProcess.objects.update(directive=directive), "the worker was told")


def said(state):
    until(lambda: WorkerProcess.objects.filter(state=state).exists(), f"the worker said that it is {state}")


def heartbeats(count):
    for _ in range(count):
        before = WorkerProcess.objects.get().heartbeat_at
        until(lambda before=before: WorkerProcess.objects.get().heartbeat_at > before, "the heart beat")


@pytest.mark.slow
def test_a_quiet_worker_takes_no_jobs_until_it_is_resumed(handlers):
    job("t")(lambda: None)
    with working():
        tell("quiet")
        said("quiet")
        Job.objects.enqueue("t")
        heartbeats(3)
        assert Job.objects.get().state == "available"
        tell("")
        said("running")
        until(lambda: Job.objects.get().state == "completed", "the job ran")


def test_a_quiet_worker_finishes_what_it_runs(busy):
    began, go_on = busy
    with working():
        assert began.wait(PATIENCE)
        tell("quiet")
        said("quiet")
        go_on.set()
        until(lambda: Job.objects.get().state == "completed", "the job ran to its end")


def test_a_worker_that_is_told_to_end_lets_its_jobs_finish_and_stops(busy):
    began, go_on = busy
    with working() as worker:
        assert began.wait(PATIENCE)
        tell("terminate")
        said("stopping")
        Job.objects.enqueue("t")
        go_on.set()
        until(lambda: not WorkerProcess.objects.exists(), "it was gone")
        assert worker.summary.completed == 1
    assert sorted(Job.objects.values_list("state", flat=True)) == ["available", "completed"]
