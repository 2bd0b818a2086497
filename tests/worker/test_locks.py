"""Nothing that a worker does for its jobs waits for a stranger who has locked something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import partial
from threading import current_thread
from typing import Any

import pytest
from django.db import connection

from django_ojs_unique import job as handler
from django_ojs_unique.db.session_limits import LONGEST_IDLE
from django_ojs_unique.models import Job, Queue, WorkerProcess
from django_ojs_unique.signals import job_completed, job_discarded
from tests.support.background import working
from tests.support.commands import Command, Site, enqueue
from tests.support.jobs import put, row
from tests.support.outage import Proxy
from tests.support.processes import Child, Parent, until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor == "sqlite", reason="whoever writes to SQLite has locked all of it"),
    pytest.mark.slow,
]

LEASE, EXTENSIONS, QUICK = timedelta(seconds=6), 1.5, 10  # so long that a busy machine lets no lease run out
TABLES = [f"django_ojs_unique_{name}" for name in ("suppressedenqueue", "workerprocess", "cronjob", "event", "queue")]


def hold(statement: str, parent: Parent) -> None:
    """Do something in a transaction, and leave it open until told."""
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(statement)
        parent.tell(cursor.rowcount)
        parent.hear()
        cursor.execute("ROLLBACK")


@contextmanager
def held(start: Callable[..., Child], statement: str) -> Iterator[None]:
    """Let a stranger hold the locks of a statement during the block."""
    stranger = start(partial(hold, statement))
    assert stranger.hear() != 0
    yield
    stranger.tell()
    stranger.result()


def busy_workers(place: Site, **environment: str) -> tuple[list[Job], list[Command]]:
    """Start a worker that has long jobs, and then an idle one that would take them when their leases ran out."""
    jobs = [enqueue() for _ in range(3)]
    options = ("--lease", str(LEASE.total_seconds()), "--concurrency", "4")
    environment["OJS_TEST_SCAN"] = "0.5"
    workers = [place.runworker(*options, **environment)]
    place.wait_for("began", 3)
    workers.append(place.runworker(*options, **environment))
    place.wait(lambda: WorkerProcess.objects.count() == 2, "both workers said hello")
    return jobs, workers


def assert_all_goes_on(place: Site, jobs: list[Job], **options: Any) -> None:
    """Return when the leases of the long jobs were extended well past their ends, and short jobs have run."""
    firsts = {job.pk: Job.objects.get(pk=job.pk).lease_expires_at for job in jobs}
    quick = [Job.objects.enqueue("quick", {"n": number}, **options).job for number in range(QUICK)]
    for job in quick:
        place.wait_for_state(job, state="completed", attempt=1)
    for job in jobs:
        place.wait_for_state(job, lease_expires_at__gt=firsts[job.pk] + EXTENSIONS * LEASE, attempt=1)


def assert_each_ran_once(place: Site, workers: list[Command]) -> None:
    place.open("gate")
    place.wait(lambda: not Job.objects.exclude(state="completed").exists(), "all jobs completed")
    assert len(place.events("began")) == len({event.job for event in place.events("began")}) == Job.objects.count()
    assert set(Job.objects.values_list("attempt", flat=True)) == {1}
    for worker in workers:
        assert worker.stop() == 0
        assert "died" not in worker.output


@pytest.mark.parametrize("which", ["busy", "all"])
def test_a_locked_row_of_a_worker_delays_no_job(place, start, which):
    jobs, workers = busy_workers(place)
    some = f" WHERE pid = {workers[0].pid}" if which == "busy" else ""
    with held(start, f"UPDATE django_ojs_unique_workerprocess SET hostname = 'x'{some}"):
        assert_all_goes_on(place, jobs)
    assert_each_ran_once(place, workers)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="elsewhere a locked table ends the transaction")
@pytest.mark.parametrize("table", TABLES[:4])
def test_a_locked_table_delays_no_job(place, start, table):
    jobs, workers = busy_workers(place)
    with held(start, f"LOCK TABLE {table}"):
        assert_all_goes_on(place, jobs)
    assert_each_ran_once(place, workers)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="elsewhere a locked table ends the transaction")
def test_the_table_of_queues_is_asked_before_each_claim_but_no_lease_waits_for_it(place, start):
    jobs, workers = busy_workers(place)
    firsts = {job.pk: Job.objects.get(pk=job.pk).lease_expires_at for job in jobs}
    with held(start, "LOCK TABLE django_ojs_unique_queue"):
        for job in jobs:
            place.wait_for_state(job, lease_expires_at__gt=firsts[job.pk] + EXTENSIONS * LEASE, attempt=1)
    assert_each_ran_once(place, workers)


def test_a_locked_row_of_a_queue_with_a_limit_delays_no_job_of_another_queue(place, start):
    Queue.objects.limit("limited", 5)
    left = Job.objects.enqueue("quick", {"n": "left"}, queue="limited").job
    with held(start, "UPDATE django_ojs_unique_queue SET window_count = window_count + 1"):
        jobs, workers = busy_workers(place)
        assert_all_goes_on(place, jobs)
        assert Job.objects.get(pk=left.pk).state == "available"
    place.wait_for_state(left, state="completed", attempt=1)
    assert_each_ran_once(place, workers)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="lock_timeout is PostgreSQL's")
def test_a_lock_timeout_of_the_project_delays_no_job(place, start):
    jobs, workers = busy_workers(place, PGOPTIONS="-c lock_timeout=50")
    with held(start, "LOCK TABLE django_ojs_unique_suppressedenqueue, django_ojs_unique_workerprocess"):
        assert_all_goes_on(place, jobs)
    assert_each_ran_once(place, workers)


def test_a_worker_ends_though_somebody_has_locked_its_row(place, start):
    worker = place.runworker()
    place.wait(WorkerProcess.objects.exists, "it said hello")
    with held(start, "UPDATE django_ojs_unique_workerprocess SET hostname = 'x'"):
        assert worker.stop() == 0


@pytest.fixture
def looking():
    """Return a receiver that notes how many seconds a transaction of its thread may be idle, and its notes."""
    seen: dict[str, int] = {}

    def look(*args, **kwargs):
        ask = "SHOW SESSION VARIABLES LIKE 'idle_transaction_timeout'"
        if connection.vendor == "postgresql":
            ask = "SELECT name, setting::int / 1000 FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'"
        with connection.cursor() as cursor:
            cursor.execute(ask)
            seen[current_thread().name] = int(cursor.fetchone()[1])

    for signal in (job_completed, job_discarded):
        signal.connect(look)
    yield look, seen
    for signal in (job_completed, job_discarded):
        signal.disconnect(look)


def test_no_transaction_of_a_worker_is_idle_for_long(looking, handlers):
    look, seen = looking
    handler("t")(lambda gate: None)
    dead = put(enqueue("t", retry={"max_attempts": 1}), "active")
    row(dead).update(lease_expires_at=dead.created_at)
    enqueue("t")
    with working(on_finalized=look):  # which the loop calls
        until(lambda: len(seen) == 3, "one was discarded and one completed")
    assert {"ojs-housekeeper", "ojs-finalize"} < {*seen}
    assert {*seen.values()} == {LONGEST_IDLE}


def test_a_worker_that_is_cut_off_within_a_transaction_does_not_keep_its_locks_for_ever(place):
    jobs = [enqueue() for _ in range(3)]
    with closing(Proxy()) as line:
        cut_off = place.rescuing_nobody("--lease", "1", outage=line)
        place.wait_for("began", 3)
        place.wait_until_confirmed()
        line.silence(b"FOR UPDATE SKIP LOCKED")  # the first statement of the transaction that extends leases
        place.wait(lambda: line.is_silent, "it extends its leases")
        other = place.runworker("--lease", "30")
        place.open("gate")
        for job in jobs:
            place.wait_for_state(job, state="completed", attempt=2)
        cut_off.kill()
    assert other.stop() == 0
