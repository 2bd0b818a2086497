"""What a concurrency and a rate limit mean beside other features: the second table of docs/unique-and-features.md."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_ojs_unique import Limit, chain, group, job
from django_ojs_unique.execution import claim_limited
from django_ojs_unique.execution.claim import claim
from django_ojs_unique.execution.leases import requeue
from django_ojs_unique.maintenance.prune import prune
from django_ojs_unique.maintenance.timers import expire
from django_ojs_unique.models import CronJob, Job, Queue
from django_ojs_unique.testing import run_jobs, tick, travel
from django_ojs_unique.worker import Worker
from tests.support.limits import LEASE, done, enqueue, fail, ids, lose, take

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

LIMITS = {"limit": Limit(key=["args.n"], running=1), "rate": Limit(key=["args.n"], per_minute=1)}
BOTH = ["default", "other"]


@pytest.fixture(params=LIMITS)
def kind(request: pytest.FixtureRequest) -> str:
    """Name a kind of limit that lets one job of each ``n`` start."""
    return request.param


@pytest.fixture
def limit(kind: str) -> Limit:
    return LIMITS[kind]


def after_it(kind: str, *runs: Any) -> Any:
    """End the runs, or let the time of the rate pass, so that the next job may start."""
    if kind == "limit":
        done(*runs)
    return nullcontext() if kind == "limit" else travel("PT61S")


def test_several_queues(kind, limit):
    """Together they start one job, and the older one first."""
    enqueue(1, limit)
    first = take()
    older, newer = enqueue(1, limit, queue="other"), enqueue(1, limit)
    assert take() == take(queues=["other"]) == []
    with after_it(kind, *first):
        assert take() == []
        second = take(queues=["other"])
        assert ids(second) == [older]
        with after_it(kind, *second):
            assert ids(take()) == [newer]


def test_a_paused_queue(kind, limit):
    enqueue(1, limit)
    first = take()
    paused, other = enqueue(1, limit, queue="other"), enqueue(1, limit)
    assert take(queues=BOTH) == []
    Queue.objects.pause("other")
    with after_it(kind, *first):
        second = take(queues=BOTH)
        assert ids(second) == [other]
        Queue.objects.resume("other")
        assert take(queues=BOTH) == []
        with after_it(kind, *second):
            assert ids(take(queues=BOTH)) == [paused]


def test_a_queue_with_a_limit_of_its_own(kind, limit):
    """Both hold, and what waits for the queue keeps no slot from another queue."""
    Queue.objects.limit("other", 1)
    enqueue(1, None, queue="other")
    (runs,) = take(queues=BOTH)
    waits, newer = enqueue(2, limit, queue="other"), enqueue(2, limit)
    second = take(queues=BOTH)
    assert ids(second) == [newer]
    done(runs)
    assert take(queues=BOTH) == []
    with after_it(kind, *second):
        assert ids(take(queues=BOTH)) == [waits]


def test_a_fair_queue(kind, limit, settings):
    """A partition whose jobs wait loses its turn."""
    claim_limited._turns.clear()
    settings.OJS_UNIQUE = {"FAIR_QUEUES": {"default": ["meta.tenant"]}}
    for tenant, n in (("a", 1), ("a", 1), ("b", 1), ("b", 2)):
        enqueue(n, limit, meta={"tenant": tenant})
    taken = take()
    assert sorted(run.args["n"] for run in taken) == [1, 2]
    with after_it(kind, *taken):
        again = take()
        with after_it(kind, *again):
            assert len(again) == len(take()) == 1
    claim_limited._turns.clear()


def test_plain_and_async_handlers(kind, limit, handlers):
    """The pools of a worker share the slots."""
    running, most = [], []

    def note() -> None:
        running.append(1)
        most.append(len(running))
        running.pop()

    @job("plain", limit=limit)
    def plain(n: int) -> None:
        note()

    @job("async", limit=limit)
    async def coroutine(n: int) -> None:
        note()

    for _ in range(3):
        plain.enqueue(1)
        coroutine.enqueue(1)
    Worker(concurrency=4).run(drain=True)
    assert most == [1] * (6 if kind == "limit" else 1)


@pytest.mark.parametrize("starts", [False, True])
def test_cancel(kind, limit, starts):
    """A job that never started leaves its slot to the next; one that runs counts on."""
    first = enqueue(1, limit)
    runs = take() if starts else []
    Job.objects.get(pk=first).cancel()
    second = enqueue(1, limit)
    assert len(runs) == starts
    assert ids(take()) == ([] if starts else [second])


def test_retry_by_hand(kind, limit):
    """It waits again, behind the others; a rate counts its new start, too."""
    first = enqueue(1, limit, retry={"max_attempts": 1})
    fail(*take())
    second = enqueue(1, limit)
    Job.objects.get(pk=first).retry()
    with travel("PT61S"):
        runs = take()
        assert ids(runs) == [second]
        with after_it(kind, *runs):
            assert ids(take()) == [first]
            enqueue(1, limit)
            assert take() == []


def test_expires_at(kind, limit):
    """A job that expires while it waits is discarded, and uses no slot."""
    enqueue(1, limit)
    first = take()
    stale = enqueue(1, limit, expires_at=timezone.now() + timedelta(seconds=30))
    fresh = enqueue(1, limit)
    assert take() == []
    done(*first)
    with travel("PT61S"):
        assert ids(take()) == [fresh]
        expire(Job.objects.all(), timezone.now())
    assert Job.objects.get(pk=stale).state == "discarded"


def test_priority(kind, limit):
    enqueue(1, limit)
    first = take()
    low, high = enqueue(1, limit), enqueue(1, limit, priority=5)
    assert take() == []
    with after_it(kind, *first):
        second = take()
        assert ids(second) == [high]
        with after_it(kind, *second):
            assert ids(take()) == [low]


def test_a_second_database(kind, limit):
    """Each database counts for itself."""
    enqueue(1, limit)
    Job.objects.using("other").enqueue("t", {"n": 1}, limit=limit)
    assert len(take()) == 1
    rules: Any = {"queues": ["default"], "types": None, "limit": 9, "worker_id": "w", "lease": LEASE}
    assert len(list(claim(Job.objects.using("other"), now=timezone.now(), **rules))) == 1


def test_a_drain(kind, limit, handlers):
    """It ends what waits for a slot, and leaves what waits for a rate."""
    job("t")(lambda n: None)
    for _ in range(3):
        enqueue(1, limit)
    summary = Worker().run(drain=True)
    assert summary.completed == (3 if kind == "limit" else 1)


def test_a_stopping_worker(kind, limit):
    """What it requeues frees its slot, but has used the rate."""
    first = enqueue(1, limit)
    requeue(Job.objects.all(), take())
    assert ids(take()) == ([first] if kind == "limit" else [])
    with travel("PT61S"):
        assert len(take()) == (kind == "rate")


def test_a_killed_worker(kind, limit):
    """The slot is free when the lease has ended; a rate counts the start all the same."""
    first = enqueue(1, limit)
    take()
    lose(first)
    assert ids(take()) == ([first] if kind == "limit" else [])
    with travel("PT61S"):
        assert len(take()) == (kind == "rate")


def test_pruning(kind, limit):
    """It forgets neither a run nor a start within the time of its rate, though the job's row is gone."""
    enqueue(1, limit)
    first = take()
    if kind == "rate":
        done(*first)
        Job.objects.all().delete()
    prune(Job.objects.all(), timezone.now() + timedelta(seconds=30))
    second = enqueue(1, limit)
    assert take() == []
    with after_it(kind, *first):
        prune(Job.objects.all(), timezone.now())
        assert ids(take()) == [second]


def test_http_workers(kind, limit, admin_client, settings):
    """A fetch hands out what a worker here would claim."""
    enqueue(1, limit), enqueue(1, limit)

    def fetch() -> Any:
        body = {"queues": ["default"], "count": 9}
        return admin_client.post("/ojs/v1/workers/fetch", body, content_type="application/json").json()["jobs"]

    (first,) = fetch()
    assert fetch() == []
    with after_it(kind, *Job.objects.filter(pk=first["id"])):
        assert len(fetch()) == 1


def test_run_jobs(kind, limit, handlers):
    job("t")(lambda n: None)
    enqueue(1, limit), enqueue(1, limit)
    assert len(run_jobs()) == (2 if kind == "limit" else 1)
    with travel("PT61S"):
        assert len(run_jobs()) == (0 if kind == "limit" else 1)


def test_eager_mode(kind, limit, handlers, settings):
    settings.OJS_UNIQUE = {"EAGER": True}
    job("t")(lambda n: None)
    enqueue(1, limit), enqueue(1, limit)
    assert Job.objects.filter(state="available").count() == (kind == "rate")


def test_a_chain_and_a_group(kind, limit, handlers):
    """Members wait as other jobs do; the workflow waits with them."""
    job("t")(lambda n: None)
    step: Any = {"type": "t", "args": {"n": 1}, "limit": limit}
    workflow = chain(step, group([step, step])).enqueue()
    starts = [len(run_jobs())]
    for minutes in (1, 2):
        with travel(f"PT{minutes * 61}S"):
            starts.append(len(run_jobs()))
    workflow.refresh_from_db()
    assert starts == ([3, 0, 0] if kind == "limit" else [1, 1, 1])
    assert workflow.state == "completed"


def test_a_workflow_that_is_cancelled(kind, limit):
    """Its members that wait let the next ones pass."""
    enqueue(1, limit)
    first = take()
    step: Any = {"type": "t", "args": {"n": 1}, "limit": limit}
    workflow = group([step, step]).enqueue()
    other = enqueue(1, limit)
    assert take() == []
    workflow.cancel()
    with after_it(kind, *first):
        assert ids(take()) == [other]


@pytest.mark.parametrize("overlap", ["skip", "allow", "cancel_previous", "enqueue"])
def test_a_periodic_entry(kind, limit, overlap):
    """A job that waits for its slot is unfinished, so the overlap policy decides about the next occurrence."""
    tick()
    enqueue(1, limit)
    assert len(take()) == 1
    CronJob.objects.define("p", "@every PT10S", "t", {"n": 1}, limit=limit, overlap_policy=overlap)
    with travel("PT11S"):
        (waits,) = tick()
        assert take() == []
        with travel("PT10S"):
            assert len(tick()) == (overlap in ("allow", "cancel_previous"))
            assert take() == []
    waits.refresh_from_db()
    assert waits.state == ("cancelled" if overlap == "cancel_previous" else "available")
