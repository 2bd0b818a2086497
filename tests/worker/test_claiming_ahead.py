"""A full batch of jobs waits in the claimer for the next claim, which hands it over while the database works."""

from collections import Counter
from datetime import timedelta
from threading import Event

import pytest
from django.db import OperationalError, connection

from django_ojs_unique import job
from django_ojs_unique.db.fast.rows import RowReader
from django_ojs_unique.models import Job, Queue, WorkerProcess
from django_ojs_unique.worker import Worker, claimer, finalizer, housekeeper, poller, pools, promoter
from django_ojs_unique.worker import loop as loop_module
from django_ojs_unique.worker.claimed_runs import ClaimedRuns
from tests.support.background import working
from tests.support.claiming import Claiming
from tests.support.processes import PATIENCE, until

pytestmark = pytest.mark.django_db
commits = pytest.mark.django_db(transaction=True)
at_once = pytest.mark.skipif(connection.vendor != "postgresql", reason="elsewhere no statement claims a batch")

BATCH = 2


@pytest.fixture(autouse=True)
def small_batches(monkeypatch, handlers):
    monkeypatch.setattr(claimer, "LARGEST_CLAIM", BATCH)
    job("t")(nothing)


@pytest.fixture
def claiming(monkeypatch):
    """Return a claimer that polls rarely, so that no slow machine looks again for async jobs; it takes no job away."""
    monkeypatch.setattr(poller, "LISTENING_POLL", PATIENCE)
    claiming = Claiming()
    yield claiming
    claiming.requeue_all()
    assert states() == {("available", 0): Job.objects.count()}


def nothing(**args):
    """Do nothing."""


def enqueue(count, **options):
    Job.objects.enqueue_many({"type": "t", "args": {"n": number}, **options} for number in range(count))


def states():
    return Counter(Job.objects.values_list("state", "attempt"))


@at_once
@commits
def test_a_full_batch_starts_while_the_database_claims_the_next(claiming):
    enqueue(3 * BATCH)
    for number in range(3):
        assert claiming.claim() is True
        assert (len(claiming.runs), claiming.threads.given) == (number * BATCH, ["ON"] * number * BATCH)
    claiming.start_all()
    claiming.start_all()
    assert claiming.threads.given == ["ON"] * 2 * BATCH + ["OFF"] * BATCH


def test_a_batch_that_is_not_full_starts_at_once(claiming):
    enqueue(BATCH - 1)
    assert claiming.claim() is True
    assert len(claiming.threads.given) == BATCH - 1


@pytest.mark.skipif(connection.vendor == "postgresql", reason="one statement claims a batch")
def test_where_no_statement_claims_a_batch_each_starts_at_once(claiming):
    enqueue(BATCH)
    assert claiming.claim() is True
    assert len(claiming.threads.given) == BATCH


def updates(claiming, **options):
    """Claim while somebody watches the statements; return how many jobs had been given to the pool at each UPDATE."""
    counts = []

    def watch(execute, sql, params, many, context):
        if sql.split()[0] == "UPDATE":
            counts.append(len(claiming.threads.given))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(watch):
        assert claiming.claim(**options) is True
    return counts


@at_once
def test_a_full_batch_starts_although_a_queue_has_got_a_limit(claiming):
    enqueue(2 * BATCH)
    claiming.claim()
    Queue.objects.limit("default", 2 * BATCH)
    assert set(updates(claiming, ask_for_rules=True)) == {BATCH}
    assert states() == {("active", 1): 2 * BATCH}


@at_once
def test_where_somebody_watches_the_statements_a_full_batch_starts_before_the_next_claim(claiming):
    enqueue(2 * BATCH)
    claiming.claim()
    assert updates(claiming) == [BATCH]


@at_once
def test_a_claim_that_fails_starts_the_batch_before_it(claiming, monkeypatch):
    def fails(*args, **options):
        raise OperationalError

    enqueue(BATCH)
    claiming.claim()
    monkeypatch.setattr(claimer, "claim", fails)
    with pytest.raises(OperationalError):
        claiming.claim()
    assert len(claiming.threads.given) == BATCH


@at_once
def test_a_full_batch_starts_when_there_is_no_room_for_more(claiming):
    enqueue(2 * BATCH)
    claiming.threads.capacity = BATCH
    claiming.claim()
    assert claiming.claim() is False
    assert (len(claiming.threads.given), states()) == (BATCH, {("active", 1): BATCH, ("available", 0): BATCH})


@commits
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


@commits
def test_a_worker_that_stops_with_a_batch_in_hand_requeues_it(monkeypatch):
    enqueue(2 * BATCH)
    worker = Worker(concurrency=100)
    after_a_full_batch(monkeypatch, worker.stop)
    worker.run()
    assert states() == {("available", 0): 2 * BATCH}


@at_once
@commits
@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), KeyboardInterrupt()])
def test_jobs_of_a_claim_during_which_no_batch_could_start_are_requeued(monkeypatch, error):
    def put(self, runs):
        raise error

    enqueue(3 * BATCH)
    monkeypatch.setattr(pools.ThreadPool, "put", put)
    with pytest.raises(type(error)):
        Worker(concurrency=100).run()
    assert states() == {("available", 0): 3 * BATCH}


@at_once
@commits
def test_jobs_that_cannot_be_read_are_requeued(monkeypatch):
    def read(self, row):
        raise RuntimeError

    enqueue(3 * BATCH)
    worker = Worker(concurrency=100)
    monkeypatch.setattr(RowReader, "read", read)
    with pytest.raises(RuntimeError):
        worker.run()
    monkeypatch.undo()
    assert states() == {("available", 0): 3 * BATCH}


def do_tasks_once(monkeypatch):
    """Let no task become due a second time."""
    for module, names in (
        (loop_module, ["WATCH_SECONDS"]),
        (poller, ["LONGEST_POLL"]),
        (housekeeper, ["CRON_SECONDS", "SCAN_SECONDS"]),
    ):
        for name in names:
            monkeypatch.setattr(module, name, PATIENCE * 10)


@pytest.mark.slow
@commits
@pytest.mark.parametrize(
    ("owner", "task", "seconds"),
    [
        (promoter, "look", (poller, "LONGEST_POLL")),
        (ClaimedRuns, "extend", None),
    ],
)
def test_a_full_batch_starts_before_a_task_that_may_take_long(monkeypatch, owner, task, seconds):
    def noting(word, function):
        return lambda *args: (done.append(word), function(*args))[1]

    def claimed():
        done.append("claim")
        if seconds:
            monkeypatch.setattr(*seconds, PATIENCE)

    do_tasks_once(monkeypatch)
    done = []
    if seconds:
        monkeypatch.setattr(*seconds, 0)  # so that it is due again in the next turn
    does = getattr(owner, task) if seconds else lambda held: None  # which leaves it due
    monkeypatch.setattr(owner, task, noting("task", does))
    monkeypatch.setattr(pools.ThreadPool, "put", noting("start", pools.ThreadPool.put))
    after_a_full_batch(monkeypatch, claimed)
    enqueue(2 * BATCH)
    assert Worker(concurrency=100, lease=timedelta(hours=1)).run(drain=True).completed == 2 * BATCH
    assert done[done.index("claim") :][:3] == ["claim", "start", "task"]


@commits
def test_a_failure_before_the_next_claim_delays_no_batch(monkeypatch):
    began, real = Event(), ClaimedRuns.requeue
    job("u")(lambda n: began.set())

    def requeue(self):
        for failure in failures:
            raise failure
        assert began.wait(PATIENCE)
        return real(self)

    do_tasks_once(monkeypatch)  # for a task that is due would start the batch, too
    failures = iter([OperationalError()])
    after_a_full_batch(monkeypatch, lambda: monkeypatch.setattr(ClaimedRuns, "requeue", requeue))
    enqueue(BATCH, type="u")
    assert Worker(concurrency=100, lease=timedelta(hours=1)).run(drain=True).completed == BATCH


@at_once
@commits
def test_a_worker_that_becomes_quiet_starts_the_batch_in_its_hand(monkeypatch):
    def become_quiet():
        rows = WorkerProcess.objects.all()
        until(lambda: rows.update(directive="quiet"), "the worker was told")
        until(rows.filter(state="quiet").exists, "the worker became quiet")

    do_tasks_once(monkeypatch)
    monkeypatch.setattr(housekeeper, "SCAN_SECONDS", 0.02)
    after_a_full_batch(monkeypatch, become_quiet)
    enqueue(2 * BATCH)
    with working(concurrency=100, lease=timedelta(hours=1)) as worker:
        until(lambda: worker.summary.completed == BATCH, "the batch has run")
    assert states() == {("completed", 1): BATCH, ("available", 0): BATCH}


@commits
def test_a_worker_that_dies_with_a_batch_in_hand_requeues_it(monkeypatch):
    enqueue(BATCH)
    after_a_full_batch(monkeypatch, lambda: monkeypatch.setattr(finalizer.Finalizer, "is_alive", False))
    with pytest.raises(RuntimeError):
        Worker(concurrency=100).run()
    assert set(states()) <= {("available", 0), ("completed", 1)}


@pytest.mark.parametrize("capacity", [1, 50, 1000])
def test_a_pool_has_room_for_all_that_can_run_at_once_and_for_some_ahead(capacity, monkeypatch):
    pool = pools.Pool(capacity, print, print)
    assert pool.room(10_000) == capacity + capacity // 20  # as if each job took a second
    assert pool.room(20) == min(capacity, 20)
    monkeypatch.setattr(pools, "WORK_AHEAD_SECONDS", 1e6)
    assert pool.room(10_000) == capacity + pools.LARGEST_AHEAD
    pool.runs = capacity + pools.LARGEST_AHEAD - 200
    assert pool.room(200) == 200
    pool.runs += 1
    assert pool.room(200) == 0


def test_few_jobs_are_claimed_until_a_claim_has_found_as_many_as_it_asked_for(claiming, monkeypatch):
    monkeypatch.setattr(claimer, "LARGEST_CLAIM", 3)
    monkeypatch.setattr(claimer, "SMALL_CLAIM", 1)
    enqueue(6)
    claimed = []
    for _ in range(4):
        claiming.claim()
        claimed.append(Job.objects.filter(state="active").count())
    assert claimed == [1, 4, 6, 6]
    enqueue(6, queue="other")
    claiming.poller.call()
    claiming.claim()
    assert Job.objects.filter(state="active").count() == 7
