"""A job that is cancelled or replaced while it runs: its handler hears of it, and its result is refused."""

import asyncio
from threading import Event
from types import SimpleNamespace
from uuid import uuid4

import pytest

from django_ojs_unique import job
from django_ojs_unique.models import Job, StoppedRun
from django_ojs_unique.worker import Worker, claimed_runs, pools
from django_ojs_unique.worker import loop as loop_module
from tests.support.background import working
from tests.support.processes import PATIENCE, until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr(loop_module, "WATCH_SECONDS", 0.02)


def cancel(row):
    row.cancel()


def replace(row):
    assert Job.objects.enqueue(
        row.type, row.args, unique={**row.unique, "on_conflict": "replace"}, queue="later"
    ).replaced


by_either_way = pytest.mark.parametrize("end", [cancel, replace])


@pytest.mark.slow
@by_either_way
def test_a_plain_handler_sees_it_at_once_and_its_result_is_refused(handlers, caplog, end):
    seen = []

    @job("t", takes_context=True)
    def handler(context):
        seen.append(context.cancelled)
        end(Job.objects.get(state="active"))
        seen.append(context.cancelled)
        return "late"

    row = Job.objects.enqueue("t", unique={}).job
    summary = Worker(queues=["default"]).run(drain=True)
    row.refresh_from_db()
    assert seen == [False, True]
    assert (summary.refused, summary.completed) == (1, 0)
    assert (row.state, row.result) == ("cancelled", None)
    assert "refused: it was cancelled or replaced" in caplog.text


@pytest.mark.slow
@by_either_way
def test_a_failure_after_it_is_refused_as_well(handlers, end):
    @job("t")
    def handler():
        end(Job.objects.get(state="active"))
        raise ValueError

    row = Job.objects.enqueue("t", unique={}).job
    assert Worker(queues=["default"]).run(drain=True).refused == 1
    row.refresh_from_db()
    assert (row.state, row.errors) == ("cancelled", [])


@pytest.mark.slow
@by_either_way
def test_an_async_handler_is_cancelled_where_it_awaits(handlers, end):
    began, heard = Event(), []

    @job("t", takes_context=True)
    async def handler(context):
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            heard.append(context.cancelled)
            raise

    row = Job.objects.enqueue("t", unique={}).job
    with working(queues=["default"]) as worker:
        assert began.wait(PATIENCE)
        end(row)
        until(lambda: worker.summary.refused, "the result was refused")
    row.refresh_from_db()
    assert (heard, row.state, row.errors) == ([True], "cancelled", [])


def test_an_async_handler_that_goes_on_has_its_result_refused(handlers):
    began = Event()

    @job("t", takes_context=True)
    async def handler(context):
        began.set()
        try:
            while not context.cancelled:
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            return "late"

    row = Job.objects.enqueue("t").job
    with working() as worker:
        assert began.wait(PATIENCE)
        row.cancel()
        until(lambda: worker.summary.refused, "the result was refused")
    row.refresh_from_db()
    assert (row.state, row.result) == ("cancelled", None)


def test_a_plain_handler_is_told_by_its_worker_without_a_query_too(handlers):
    """Once the worker has seen it, `cancelled` stays true without asking."""
    began, seen = Event(), []

    @job("t", takes_context=True)
    def handler(context):
        began.set()
        until(lambda: context.cancelled, "the handler heard of it")
        seen.append(context.cancelled)

    row = Job.objects.enqueue("t").job
    with working() as worker:
        assert began.wait(PATIENCE)
        row.cancel()
        until(lambda: worker.summary.refused, "the result was refused")
    assert seen == [True]


def test_a_lost_lease_counts_as_cancelled(handlers):
    seen = []

    @job("t", takes_context=True)
    def handler(context):
        Job._base_manager.update(lease_token=uuid4())
        seen.append(context.cancelled)

    Job.objects.enqueue("t")
    assert Worker().run(drain=True).refused == 1
    assert seen == [True]


def test_a_job_that_is_cancelled_before_it_starts_does_not_start_again(handlers):
    ran = []
    job("t")(lambda: ran.append(1))
    Job.objects.enqueue("t").job.cancel()
    assert Worker().run(drain=True).finalized == 0
    assert ran == []


def test_the_neighbours_of_a_cancelled_job_go_on(handlers):
    began, free = Event(), Event()

    @job("t")
    async def handler(n):
        if n == 0:
            began.set()
            await asyncio.Event().wait()
        while not free.is_set():
            await asyncio.sleep(0.001)
        return n

    rows = [Job.objects.enqueue("t", {"n": n}).job for n in range(3)]
    with working() as worker:
        assert began.wait(PATIENCE)
        rows[0].cancel()
        until(lambda: worker.summary.refused, "the result was refused")
        free.set()
        until(lambda: worker.summary.completed == 2, "the others completed")
    assert {row.args["n"]: row.result for row in Job.objects.all()} == {0: None, 1: 1, 2: 2}


# Claimed, and not begun


@pytest.fixture(params=["plain", "async"])
def ran(request, handlers, monkeypatch):
    """Let a worker claim all jobs at once and run them one by one; return what has run, and what ends the first."""
    monkeypatch.setattr(pools, "WORK_AHEAD_SECONDS", 1e6)
    monkeypatch.setattr(claimed_runs, "LONGEST_UNSTARTED", 1e6)
    ran, free = [], Event()

    def handler(n):
        ran.append(n)
        assert n or free.wait(PATIENCE)

    async def ahandler(n):
        ran.append(n)
        while not (n or free.is_set()):
            await asyncio.sleep(0.001)

    job("t")(handler if request.param == "plain" else ahandler)
    return SimpleNamespace(jobs=ran, end_first=free.set)


@by_either_way
@pytest.mark.parametrize("is_confirmed", [False, True])
def test_a_job_that_has_waited_in_its_worker_does_not_begin_any_more(ran, monkeypatch, end, is_confirmed):
    monkeypatch.setattr(pools, "LONGEST_UNSEEN", 0)
    _, second, _ = [Job.objects.enqueue("t", {"n": n}, unique={"keys": ["args"]}).job for n in range(3)]
    with working(queues=["default"], concurrency=1, async_concurrency=1) as worker:
        until(lambda: Job.objects.filter(state="active").count() == 3, "the worker has claimed them")
        if is_confirmed:  # as an extension of its lease may do
            Job._base_manager.filter(pk=second.pk).update(unconfirmed=None)
        end(second)
        ran.end_first()
        until(lambda: worker.summary.completed == 2, "the others have run")
    assert ran.jobs == [0, 2]
    assert not StoppedRun.objects.exists()


def test_a_job_that_was_just_claimed_is_not_asked_for(ran, monkeypatch):
    monkeypatch.setattr(pools, "LONGEST_UNSEEN", 1e6)
    _, second = [Job.objects.enqueue("t", {"n": n}).job for n in range(2)]
    with working(concurrency=1, async_concurrency=1) as worker:
        until(lambda: Job.objects.filter(state="active").count() == 2, "the worker has claimed them")
        second.cancel()
        ran.end_first()
        until(lambda: (worker.summary.completed, worker.summary.refused) == (1, 1), "both have run")
    assert ran.jobs == [0, 1]


def test_an_async_job_that_has_waited_for_a_look_at_the_connections_does_not_begin(handlers, monkeypatch):
    monkeypatch.setattr(pools, "LONGEST_UNSEEN", 1e6)
    ran = []

    @job("t")
    async def handler():
        ran.append(1)

    def look():
        Job.objects.get().cancel()
        monkeypatch.setattr(pools, "LONGEST_UNSEEN", 0)

    monkeypatch.setattr(pools, "_drop_dead_connections", look)
    Job.objects.enqueue("t")
    assert Worker().run(drain=True).finalized == 0
    assert (ran, Job.objects.get().state) == ([], "cancelled")
