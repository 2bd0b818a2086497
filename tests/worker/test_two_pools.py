"""Plain and async handlers have a pool each; a worker does not look again and again for a pool that has no jobs."""

import time
from queue import SimpleQueue
from threading import Event

import pytest
from django.db import connection

from django_ojs_unique import job
from django_ojs_unique.models import Job, Queue
from django_ojs_unique.worker import Worker, claimer
from django_ojs_unique.worker.poller import SHORTEST_POLL, Poller
from tests.support.background import working
from tests.support.processes import PATIENCE, until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="elsewhere no enqueue calls the workers"),
]


@pytest.fixture
def worker(monkeypatch, handlers):
    """Return a worker whose pools run nothing; ``worker.looks`` has the types for which it has looked for jobs."""

    def claim(*args, types, **options):
        worker.looks += {"plain", "coroutine"}.intersection(types)
        return real(*args, types=types, **options)

    real = claimer.claim
    monkeypatch.setattr(claimer, "claim", claim)
    job("plain")(lambda n: None)
    job("coroutine")(anothing)
    Job.objects.enqueue_many({"type": "plain", "args": {"n": number}} for number in range(10))
    worker, worker.looks = Worker(concurrency=100), []
    for pool in (worker._threads, worker._event_loop):
        monkeypatch.setattr(pool, "put", lambda runs: None)
    monkeypatch.setattr(Poller, "interval", PATIENCE)
    monkeypatch.setattr(claimer, "LARGEST_CLAIM", 2)
    worker._clock.read()
    yield worker
    worker._claimer.hold_all()
    worker._held.take_back()
    worker._claimer.give_back()


async def anothing(n):
    """Do nothing."""


def test_a_worker_looks_once_for_jobs_of_a_pool_that_has_none(worker):
    for _ in range(6):
        worker._claimer.claim()
    assert sorted(worker.looks) == ["coroutine"] + ["plain"] * 6
    assert Job.objects.filter(state="active").count() == 10


def test_it_looks_again_after_a_call(worker):
    worker._claimer.claim()
    worker._poller.call("default")
    worker._claimer.claim()
    assert worker.looks.count("coroutine") == 2


def test_it_looks_again_after_a_call_that_comes_while_it_asks_for_the_rules(worker, monkeypatch):
    def called_meanwhile(jobs, queues):
        worker._poller.call("default")
        return frozenset()

    worker._claimer.claim()
    monkeypatch.setattr(claimer, "RULES_SECONDS", 0)
    monkeypatch.setattr(claimer, "queues_with_rules", called_meanwhile)
    worker._claimer.claim()
    assert worker.looks.count("coroutine") == 2


def test_it_looks_again_if_the_time_of_the_call_is_not_known_yet(worker):
    """Two threads call at once, and the older time is stored last."""
    worker._claimer.claim()
    worker._poller.called.add("default")
    worker._claimer.claim()
    assert worker.looks.count("coroutine") == 2


def test_a_pool_that_has_jobs_again_is_not_taken_for_empty_when_the_polls_become_rarer(worker, monkeypatch):
    worker._claimer.claim()
    Job.objects.enqueue_many({"type": "coroutine", "args": {"n": number}} for number in range(4))
    with monkeypatch.context() as soon:
        soon.setattr(Poller, "interval", 0)
        worker._claimer.claim()
    worker._claimer.claim()
    assert not Job.objects.filter(type="coroutine", state="available").exists()


def test_it_looks_again_after_the_interval_of_its_polls(worker, monkeypatch):
    worker._claimer.claim()
    monkeypatch.setattr(Poller, "interval", 0)
    worker._claimer.claim()
    assert worker.looks.count("coroutine") == 2


def test_it_looks_again_after_it_has_given_jobs_back(worker):
    worker._claimer.claim()
    worker._claimer.hold_all()
    worker._held.take_back()
    worker._claimer.give_back()
    worker._claimer.claim()
    assert worker.looks.count("coroutine") == 2


def test_it_may_give_jobs_back_while_it_leaves_a_pool_out(worker):
    worker._claimer.claim()
    worker._claimer.hold_all()
    worker._threads.capacity = worker._threads.held
    Job.objects.filter(state="available").update(max_attempts=1)
    worker._threads._mean_seconds = 1e-6
    assert worker._claimer.claim() is True
    assert worker.summary.released == 2


def test_it_looks_each_time_while_a_queue_has_a_limit_or_it_drains(worker):
    worker._claimer.claim(ask_for_rules=True)
    worker._claimer.claim(ask_for_rules=True)
    Queue.objects.create(name="slow", concurrency_limit=1)
    worker._claimer._with_rules = frozenset(), float("-inf")
    worker._claimer.claim()
    worker._claimer.claim()
    assert worker.looks.count("coroutine") == 4


def test_it_looks_for_both_when_neither_had_enough(worker):
    """Not every job is announced: another worker promotes one, or somebody resumes a queue."""
    for _ in range(6):
        worker._claimer.claim()
    worker._claimer.claim()
    assert (worker.looks.count("coroutine"), worker.looks.count("plain")) == (2, 7)


def test_it_does_not_take_a_queue_for_empty_in_which_it_has_not_looked(worker):
    for _ in range(5):
        worker._claimer.claim()
    Job.objects.enqueue("plain", {"n": -1}, queue="other")
    Job.objects.enqueue_many({"type": "coroutine", "args": {"n": number}, "queue": "other"} for number in range(3))
    worker._poller.call("other")
    worker._claimer.claim()  # for plain jobs still in the queues of the last poll
    assert Job.objects.filter(type="coroutine", state="active").count() == 2
    assert Job.objects.filter(type="plain", state="available").exists()
    worker._claimer.claim()
    assert not Job.objects.filter(type="plain", state="available").exists()


def test_a_look_for_one_pool_does_not_postpone_the_look_for_the_other(worker):
    worker._claimer.claim()
    since = worker._claimer._empty[worker._event_loop]
    worker._claimer.claim()
    assert worker._poller.looked_at == since


def test_a_look_for_one_pool_does_not_narrow_the_next_look_for_both_to_the_queue_of_a_call(worker):
    worker._claimer.claim()
    worker._claimer.claim()
    worker._poller.woken = False
    worker._poller.exhausted()
    worker._poller.end(time.monotonic(), found=False, full=False, partial=True)
    Job.objects.enqueue("coroutine", {"n": 1}, queue="other")
    worker._poller.call("default")
    worker._claimer.claim()
    assert not Job.objects.filter(queue="other", state="available").exists()


def test_a_job_for_a_pool_that_had_none_starts_at_once_beside_a_long_one(handlers):
    ran = []
    job("long")(lambda: until(lambda: ran, "the other job runs"))
    job("coroutine")(append_to(ran))
    with working() as worker:
        Job.objects.enqueue("long")
        until(lambda: worker._held and not worker._poller.woken, "the worker has looked for jobs of both pools")
        Job.objects.enqueue("coroutine")
        until(lambda: worker.summary.completed == 2, "both jobs have run")


def append_to(ran):
    async def handler():
        ran.append(time.monotonic())

    return handler


def test_the_end_of_a_job_of_a_limited_queue_makes_room_for_the_next_at_once(handlers, monkeypatch):
    monkeypatch.setattr(Poller, "interval", PATIENCE * 10)
    began, go = SimpleQueue(), Event()

    @job("t")
    def handler(n):
        began.put(n)
        assert go.wait(PATIENCE)

    Queue.objects.limit("default", 1)
    Job.objects.enqueue_many({"type": "t", "args": {"n": number}} for number in range(2))
    with working() as worker:
        began.get(timeout=PATIENCE)
        until(lambda: worker._poller._poll > SHORTEST_POLL and worker._poller.due > 0, "it has found no more")
        go.set()
        began.get(timeout=PATIENCE)
