"""A full batch of jobs waits in the claimer for the next claim, which hands it over while the database works."""

import time
from collections import Counter

import pytest
from django.db import OperationalError, connection

from django_ojs_unique import job
from django_ojs_unique.db.rows import RowReader
from django_ojs_unique.models import Job, Queue
from django_ojs_unique.worker import Worker, claimer, pools
from django_ojs_unique.worker.poller import Poller
from tests.support.background import working
from tests.support.processes import PATIENCE, until

pytestmark = pytest.mark.django_db(transaction=True)
at_once = pytest.mark.skipif(connection.vendor != "postgresql", reason="elsewhere no statement claims a batch")

BATCH = 2


@pytest.fixture(autouse=True)
def small_batches(monkeypatch, handlers):
    monkeypatch.setattr(claimer, "LARGEST_CLAIM", BATCH)
    job("t")(nothing)


@pytest.fixture
def worker(monkeypatch):
    """Return a worker whose threads do not run; ``given`` has the status of the driver for each job they got."""
    worker, worker.given = Worker(concurrency=100), []
    monkeypatch.setattr(Poller, "interval", PATIENCE)  # so that no slow machine looks again for async jobs
    worker._clock.read()
    status = connection.vendor == "postgresql" and (lambda: connection.connection.info.pipeline_status.name)
    monkeypatch.setattr(worker._threads, "put", lambda runs: worker.given.extend([status and status()] * len(runs)))
    yield worker
    worker._claimer.hold_all()
    worker._held.take_back()
    worker._claimer.give_back()
    assert states() == {("available", 0): Job.objects.count()}


def nothing(**args):
    """Do nothing."""


def enqueue(count, **options):
    Job.objects.enqueue_many({"type": "t", "args": {"n": number}, **options} for number in range(count))


def states():
    return Counter(Job.objects.values_list("state", "attempt"))


@at_once
def test_a_full_batch_starts_while_the_database_claims_the_next(worker):
    enqueue(3 * BATCH)
    for number in range(3):
        assert worker._claimer.claim() is True
        assert (len(worker._held), worker.given) == (number * BATCH, ["ON"] * number * BATCH)
    worker._claimer.start_all()
    worker._claimer.start_all()
    assert worker.given == ["ON"] * 2 * BATCH + ["OFF"] * BATCH


@pytest.mark.parametrize(("count", "options"), [(BATCH - 1, {}), (BATCH, {"retry": {"max_attempts": 1}})])
def test_a_batch_that_is_not_full_or_has_a_last_attempt_starts_at_once(worker, count, options):
    enqueue(count, **options)
    assert worker._claimer.claim() is True
    assert len(worker.given) == count


@pytest.mark.skipif(connection.vendor == "postgresql", reason="one statement claims a batch")
def test_where_no_statement_claims_a_batch_each_starts_at_once(worker):
    enqueue(BATCH)
    assert worker._claimer.claim() is True
    assert len(worker.given) == BATCH


@at_once
def test_a_full_batch_starts_although_a_queue_has_got_a_limit(worker):
    enqueue(2 * BATCH)
    worker._claimer.claim()
    Queue.objects.limit("default", 2 * BATCH)
    started = []

    def watch(execute, sql, params, many, context):
        started.append((sql.partition(" ")[0], len(worker.given)))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(watch):
        assert worker._claimer.claim(ask_for_rules=True) is True
    assert ("UPDATE", BATCH) in started
    assert ("UPDATE", 0) not in started
    assert states() == {("active", 1): 2 * BATCH}


@at_once
def test_a_claim_that_fails_starts_the_batch_before_it(worker, monkeypatch):
    def fails(*args, **options):
        raise OperationalError

    enqueue(BATCH)
    worker._claimer.claim()
    monkeypatch.setattr(claimer, "claim", fails)
    with pytest.raises(OperationalError):
        worker._claimer.claim()
    assert len(worker.given) == BATCH


@at_once
def test_a_full_batch_starts_when_there_is_no_room_for_more(worker):
    enqueue(2 * BATCH)
    worker._threads.capacity = BATCH
    worker._claimer.claim()
    assert worker._claimer.claim() is False
    assert (len(worker.given), states()) == (BATCH, {("active", 1): BATCH, ("available", 0): BATCH})


def test_a_worker_runs_no_more_than_its_number_of_jobs(handlers):
    enqueue(4 * BATCH)
    assert Worker(concurrency=100, max_jobs=2 * BATCH + 1).run().completed == 2 * BATCH + 1
    assert states() == {("completed", 1): 2 * BATCH + 1, ("available", 0): 2 * BATCH - 1}


def after_a_full_batch(monkeypatch, act):
    """Call ``act`` once, when a worker has claimed a full batch and not yet handed it over."""
    done = []

    def acting(*args, **options):
        jobs = real(*args, **options)
        if len(jobs) == BATCH and not done:
            done.append(act())
        return jobs

    real = claimer.claim
    monkeypatch.setattr(claimer, "claim", acting)


def test_a_worker_that_stops_with_a_batch_in_hand_gives_it_back(monkeypatch):
    enqueue(2 * BATCH)
    worker = Worker(concurrency=100)
    after_a_full_batch(monkeypatch, worker.stop)
    worker.run()
    assert states() == {("available", 0): 2 * BATCH}


@at_once
def test_where_somebody_watches_the_statements_a_full_batch_starts_before_the_next_claim(worker):
    enqueue(2 * BATCH)
    worker._claimer.claim()
    started = []

    def watch(execute, sql, params, many, context):
        started.append((sql.split()[0], len(worker.given)))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(watch):
        worker._claimer.claim()
    assert [count for word, count in started if word == "UPDATE"] == [BATCH]


@at_once
@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), KeyboardInterrupt()])
def test_jobs_of_a_claim_during_which_no_batch_could_start_are_given_back(monkeypatch, error):
    def put(runs):
        raise error

    enqueue(3 * BATCH)
    worker = Worker(concurrency=100)
    monkeypatch.setattr(worker._threads, "put", put)
    with pytest.raises(type(error)):
        worker.run()
    assert states() == {("available", 0): 3 * BATCH}


@at_once
def test_jobs_that_cannot_be_read_are_given_back(monkeypatch):
    def read(self, row):
        raise RuntimeError

    enqueue(3 * BATCH)
    worker = Worker(concurrency=100)
    monkeypatch.setattr(RowReader, "read", read)
    with pytest.raises(RuntimeError):
        worker.run()
    monkeypatch.undo()
    assert states() == {("available", 0): 3 * BATCH}


@pytest.mark.parametrize("due", ["timetable", "housekeeper", "leases"])
def test_a_full_batch_starts_before_a_task_that_may_take_long(worker, monkeypatch, due):
    enqueue(BATCH)
    worker._claimer.claim()
    given = []
    note = lambda: given.append(len(worker.given))  # noqa: E731
    monkeypatch.setattr(worker._housekeeper, "is_thread", False)
    monkeypatch.setattr(type(worker._housekeeper), "due", 0 if due == "housekeeper" else float("inf"))
    monkeypatch.setattr(worker._settler, "is_thread", False)
    worker._held.extend_at = 0 if due == "leases" else float("inf")
    if due != "timetable":
        worker._timetable.keep()
    for helper, task in ((worker._held, "extend"), (worker._timetable, "keep"), (worker._housekeeper, "keep_house")):
        monkeypatch.setattr(helper, task, note)
    worker._turn()
    assert set(given) == {BATCH}


def test_a_failure_before_the_next_claim_delays_no_batch(monkeypatch):
    ran, failures = [], []
    job("u")(lambda n: ran.append(n))

    def keep():
        if len(ran) < BATCH and len(failures) < 30:
            failures.append(OperationalError())
            raise failures[-1]
        return real()

    enqueue(BATCH, type="u")
    worker = Worker(concurrency=100)
    real = worker._timetable.keep
    after_a_full_batch(monkeypatch, lambda: monkeypatch.setattr(worker._timetable, "keep", keep))
    assert worker.run(drain=True).completed == BATCH
    assert len(failures) < 30


def test_a_worker_that_becomes_quiet_starts_the_batch_in_its_hand(monkeypatch):
    def become_quiet():
        worker._control.quiet = True
        for helper in (worker._timetable, worker._housekeeper):
            monkeypatch.setattr(type(helper), "due", time.monotonic() + PATIENCE)

    with working(concurrency=100) as worker:
        monkeypatch.setattr(worker._control, "obey", lambda directive: (False, False))
        after_a_full_batch(monkeypatch, become_quiet)
        enqueue(2 * BATCH)
        worker._wake()
        until(lambda: worker.summary.completed == BATCH, "the batch has run")
        monkeypatch.undo()
    assert states() == {("completed", 1): BATCH, ("available", 0): BATCH}


def test_a_worker_that_dies_with_a_batch_in_hand_gives_it_back(monkeypatch):
    def keep():
        raise RuntimeError

    enqueue(BATCH)
    worker = Worker(concurrency=100)
    after_a_full_batch(monkeypatch, lambda: monkeypatch.setattr(worker._timetable, "keep", keep))
    with pytest.raises(RuntimeError):
        worker.run()
    assert set(states()) <= {("available", 0), ("completed", 1)}


@pytest.mark.parametrize("capacity", [1, 50, 1000])
def test_a_pool_has_room_for_all_that_can_run_at_once_and_for_some_ahead(capacity):
    pool = pools.Pool(capacity, print)
    assert pool.room(10_000) == capacity + capacity // 20  # as if each job took a second
    assert pool.room(20) == min(capacity, 20)
    pool._mean_seconds = 1e-6
    assert pool.room(10_000) == capacity + pools.LARGEST_AHEAD
    pool.held = capacity + pools.LARGEST_AHEAD - 200
    assert pool.room(200) == 200
    pool.held += 1
    assert pool.room(200) == 0
    pool.careful = True
    pool.held = capacity - 1
    assert pool.room(200) == 1
    pool.held = capacity
    assert pool.room(200) == 0


def test_few_jobs_are_claimed_until_a_claim_has_found_as_many_as_it_asked_for(worker, monkeypatch):
    monkeypatch.setattr(claimer, "LARGEST_CLAIM", 3)
    monkeypatch.setattr(claimer, "SMALL_CLAIM", 1)
    enqueue(6)
    claimed = []
    for _ in range(4):
        worker._claimer.claim()
        claimed.append(Job.objects.filter(state="active").count())
    assert claimed == [1, 4, 6, 6]
    enqueue(6, queue="other")
    worker._poller.call()
    worker._claimer.claim()
    assert Job.objects.filter(state="active").count() == 7
