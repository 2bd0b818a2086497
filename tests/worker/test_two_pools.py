"""Plain and async handlers have a pool each; a worker does not look again and again for a pool that has no jobs."""

from threading import Event

import pytest
from django.db import connection

from django_ojs_unique import job
from django_ojs_unique.models import Job, Queue
from django_ojs_unique.worker import claimer, poller
from tests.support.background import working
from tests.support.claiming import Claiming
from tests.support.processes import PATIENCE, until

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(connection.vendor != "postgresql", reason="elsewhere no enqueue calls the workers"),
]


@pytest.fixture
def looks(monkeypatch):
    """Collect each look for jobs: of which of our types, and how many it found."""

    def claim(*args, types, also, **options):
        jobs = real(*args, types=types, also=also, **options)
        if jobs.is_limited:
            types = [*types, *(type for share in also for type in share.types)]
        looks.extend((type, len(jobs)) for type in types if type in ("plain", "coroutine", "limited"))
        return jobs

    looks, real = [], claimer.claim
    monkeypatch.setattr(claimer, "claim", claim)
    return looks


@pytest.fixture
def claiming(monkeypatch, handlers):
    """Return a claimer that takes two jobs at a time; ten plain ones wait for it."""
    monkeypatch.setattr(poller, "LISTENING_POLL", PATIENCE)
    monkeypatch.setattr(claimer, "LARGEST_CLAIM", 2)
    job("plain")(lambda n: None)
    job("coroutine")(anothing)
    enqueue("plain", 10)
    return Claiming()


async def anothing(n):
    """Do nothing."""


def enqueue(type, count, **options):
    Job.objects.enqueue_many({"type": type, "args": {"n": number}, **options} for number in range(count))


def count(looks, type):
    return sum(looked_for == type for looked_for, _ in looks)


def test_a_worker_looks_once_for_jobs_of_a_pool_that_has_none(claiming, looks):
    for _ in range(6):
        claiming.claim()
    assert looks == [("plain", 2), ("coroutine", 0), *[("plain", 2)] * 4, ("plain", 0)]


def test_it_looks_again_after_a_call(claiming, looks):
    claiming.claim()
    claiming.poller.call("default")
    claiming.claim()
    assert count(looks, "coroutine") == 2


def test_it_looks_again_after_a_call_that_comes_while_it_asks_for_the_rules(claiming, looks, monkeypatch):
    def called_meanwhile(jobs, queues):
        claiming.poller.call("default")
        return frozenset()

    claiming.claim()
    monkeypatch.setattr(claimer, "RULES_SECONDS", -1)
    monkeypatch.setattr(claimer, "queues_with_rules", called_meanwhile)
    claiming.claim()
    assert count(looks, "coroutine") == 2


def test_it_looks_again_if_the_time_of_the_call_is_not_known_yet(claiming, looks):
    """Two threads call at once, and the older time is stored last."""
    claiming.claim()
    before = claiming.poller.called_at
    claiming.poller.call("default")
    claiming.poller.called_at = before
    claiming.claim()
    assert count(looks, "coroutine") == 2


def test_a_pool_that_has_jobs_again_is_not_taken_for_empty_when_the_polls_become_rarer(claiming, monkeypatch):
    claiming.claim()
    enqueue("coroutine", 4)
    with monkeypatch.context() as soon:
        soon.setattr(poller, "LISTENING_POLL", 0)
        claiming.claim()
    claiming.claim()
    assert not Job.objects.filter(type="coroutine", state="available").exists()


def test_it_looks_again_after_the_interval_of_its_polls(claiming, looks, monkeypatch):
    claiming.claim()
    monkeypatch.setattr(poller, "LISTENING_POLL", 0)
    claiming.claim()
    assert count(looks, "coroutine") == 2


def test_it_looks_again_after_it_has_requeued_jobs(claiming, looks):
    claiming.claim()
    claiming.requeue_all()
    claiming.claim()
    assert count(looks, "coroutine") == 2


def test_it_looks_each_time_while_a_queue_has_a_limit_or_it_drains(claiming, looks, monkeypatch):
    claiming.claim(ask_for_rules=True)
    claiming.claim(ask_for_rules=True)
    Queue.objects.create(name="slow", concurrency_limit=1)
    monkeypatch.setattr(claimer, "RULES_SECONDS", -1)
    claiming.claim()
    claiming.claim()
    assert count(looks, "coroutine") == 4


def test_it_looks_for_both_when_neither_had_enough(claiming, looks):
    """Not every job is announced: another worker promotes one, or somebody resumes a queue."""
    for _ in range(7):
        claiming.claim()
    assert (count(looks, "coroutine"), count(looks, "plain")) == (2, 7)


def test_it_does_not_take_a_queue_for_empty_in_which_it_has_not_looked(claiming):
    for _ in range(5):
        claiming.claim()
    enqueue("plain", 1, queue="other")
    enqueue("coroutine", 3, queue="other")
    claiming.poller.call("other")
    claiming.claim()  # for plain jobs still in the queues of the last poll
    assert Job.objects.filter(type="coroutine", state="active").count() == 2
    assert Job.objects.filter(type="plain", state="available").exists()
    claiming.claim()
    assert not Job.objects.filter(type="plain", state="available").exists()


def test_a_look_for_one_pool_does_not_postpone_the_look_for_the_other(claiming):
    claiming.claim()
    since = claiming.poller.queried_at
    claiming.claim()
    assert claiming.poller.looked_at == since < claiming.poller.queried_at


def test_a_look_for_one_pool_does_not_narrow_the_next_look_for_both_to_the_queue_of_a_call(claiming):
    for _ in range(6):
        claiming.claim()
    enqueue("coroutine", 1, queue="other")
    enqueue("plain", 2)
    claiming.poller.call("default")
    claiming.claim()
    assert not Job.objects.filter(queue="other", state="available").exists()


@pytest.mark.django_db(transaction=True)
def test_a_job_for_a_pool_that_had_none_starts_at_once_beside_a_long_one(handlers, looks):
    other_ran = Event()
    job("plain")(lambda: other_ran.wait(PATIENCE))

    @job("coroutine")
    async def coroutine():
        other_ran.set()

    Job.objects.enqueue("plain")
    with working() as worker:
        until(lambda: looks[:2] == [("plain", 1), ("coroutine", 0)], "the worker has looked for jobs of both pools")
        Job.objects.enqueue("coroutine")
        until(lambda: worker.summary.completed == 2, "both jobs have run")


@pytest.mark.django_db(transaction=True)
def test_the_end_of_a_job_of_a_limited_queue_makes_room_for_the_next_at_once(handlers, looks, monkeypatch, settings):
    settings.OJS_UNIQUE = {"NOTIFY": False}
    for name in ("SHORTEST_POLL", "LONGEST_POLL"):
        monkeypatch.setattr(poller, name, PATIENCE * 10)
    go = Event()
    job("limited")(lambda n: go.wait(PATIENCE))
    Queue.objects.limit("default", 1)
    enqueue("limited", 2)
    with working() as worker:
        until(lambda: ("limited", 0) in looks, "it has found no more")
        go.set()
        until(lambda: worker.summary.completed == 2, "both jobs have run")
