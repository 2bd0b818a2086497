"""`async def` handlers: many at once in one event loop."""

import asyncio
import contextvars
import functools
import threading
from contextlib import suppress

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection

from django_ojs_unique import job
from django_ojs_unique.db import sessions
from django_ojs_unique.models import Job
from django_ojs_unique.testing import run_jobs
from django_ojs_unique.worker import Worker, pools

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.slow
def test_many_async_handlers_run_at_once_in_one_thread(handlers):
    running, threads = [], set()

    @job("t")
    async def handler():
        running.append(None)
        threads.add(threading.get_ident())
        while len(running) < 50:  # all of them have to be there for any to end
            await asyncio.sleep(0.001)

    for _ in range(50):
        Job.objects.enqueue("t")
    assert Worker(async_concurrency=50).run(drain=True).completed == 50
    assert len(threads) == 1


def test_no_more_async_handlers_run_at_once_than_allowed(handlers, monkeypatch):
    monkeypatch.setattr(pools, "WORK_AHEAD_SECONDS", 100)
    running, most = 0, 0

    @job("t")
    async def handler():
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(100_000):  # until the others have come
            if most == 3:
                break
            await asyncio.sleep(0)
        running -= 1

    for _ in range(20):
        Job.objects.enqueue("t")
    assert Worker(async_concurrency=3).run(drain=True).completed == 20
    assert most == 3


def test_plain_and_async_handlers_run_side_by_side(handlers):
    met = threading.Barrier(2)

    @job("plain")
    def plain():
        met.wait()

    @job("async")
    async def asynchronous():
        await asyncio.to_thread(met.wait)

    Job.objects.enqueue("plain")
    Job.objects.enqueue("async")
    assert Worker().run(drain=True).completed == 2


def test_the_async_methods_of_the_orm_work(handlers):
    @job("t")
    async def handler(n):
        if n:
            await Group.objects.acreate(name="stored")
        return await Group.objects.filter(name="stored").acount()

    Job.objects.enqueue("t", {"n": 1})
    assert Worker().run(drain=True).completed == 1
    assert Job.objects.get(type="t").result == 1


def test_a_query_that_would_block_the_event_loop_fails_and_says_so(handlers):
    @job("t", retry={"max_attempts": 1})
    async def handler():
        return Job.objects.count()

    Job.objects.enqueue("t")
    assert Worker().run(drain=True).discarded == 1
    error = Job.objects.get().errors[0]
    assert error["type"].endswith(SynchronousOnlyOperation.__qualname__)
    assert "async" in error["message"]


@pytest.mark.slow
def test_the_connection_that_a_handler_broke_is_replaced_for_the_next(handlers):
    @job("breaks", retry={"max_attempts": 1})
    async def breaks():
        def step():
            connection.ensure_connection()
            connection.connection.close()
            Job.objects.count()

        await sync_to_async(step)()

    @job("works")
    async def works():
        return await Job.objects.acount()

    Job.objects.enqueue("breaks")
    assert Worker().run(drain=True).discarded == 1
    Job.objects.enqueue("works")
    Worker().run(drain=True)
    assert Job.objects.get(type="works").result == 2


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
def test_context_variables_do_not_leak_from_one_job_to_the_next(handlers, monkeypatch, is_async):
    monkeypatch.setattr(pools, "WORK_AHEAD_SECONDS", 100)  # the next starts where the last one ends
    variable = contextvars.ContextVar("variable", default="clean")
    seen = []

    def plain():
        seen.append(variable.get())
        variable.set("dirty")

    async def asynchronous():
        plain()

    job("t")(asynchronous if is_async else plain)
    for _ in range(5):
        Job.objects.enqueue("t")
    Worker(concurrency=1, async_concurrency=1).run(drain=True)
    assert seen == ["clean"] * 5


def test_an_async_handler_may_take_the_context(handlers):
    @job("t", takes_context=True)
    async def handler(context, n):
        return [n, context.attempt, str(context.job_id), context.cancelled]

    row = Job.objects.enqueue("t", {"n": 7}).job
    Worker().run(drain=True)
    row.refresh_from_db()
    assert row.result == [7, 1, str(row.pk), False]


async def wanted_async(n):
    await asyncio.sleep(0)
    return n > 0


def wanted_plain(n):
    return Job.objects.count() and n > 0  # with queries, which an event loop would refuse


@pytest.mark.parametrize("wanted", [wanted_async, wanted_plain])
def test_skip_unless_of_an_async_handler_may_be_plain_or_async(handlers, wanted):
    ran = []

    @job("t", skip_unless=wanted)
    async def handler(n):
        ran.append(n)

    for n in (0, 1):
        Job.objects.enqueue("t", {"n": n})
    summary = Worker().run(drain=True)
    assert (summary.completed, summary.skipped, ran) == (1, 1, [1])


def test_no_async_handler_begins_before_the_connections_of_the_loop_are_watched(handlers, monkeypatch):
    order, begun, really_watch = [], threading.Event(), sessions.watch

    def watch(kind=sessions.Session):
        really_watch(kind)
        if kind is sessions.SharedSession:
            begun.wait(0.05)  # time enough for a handler that does not wait for this
            order.append("watched")

    monkeypatch.setattr(sessions, "watch", watch)

    @job("t")
    async def handler():
        order.append("began")
        begun.set()

    Job.objects.enqueue("t")
    assert Worker(async_concurrency=1).run(drain=True).completed == 1
    assert order == ["watched", "began"]


async def exits(error):
    await asyncio.sleep(0)
    raise error


async def awaits_a_task(error):
    await asyncio.create_task(exits(error))


async def gathers(error):
    await asyncio.gather(asyncio.sleep(0), exits(error))


async def calls_back(error):
    def end():
        raise error

    asyncio.get_running_loop().call_soon(end)
    await asyncio.sleep(0.01)


@pytest.fixture(params=["drain", "run_jobs", "eager"])
def run(handlers, request, settings):
    """Run the job that is enqueued in the block, in one of the ways there are."""

    def run(**options):
        settings.OJS_UNIQUE = {"EAGER": request.param == "eager"}
        row = Job.objects.enqueue("t", **options).job
        {"drain": lambda: Worker().run(drain=True), "run_jobs": run_jobs, "eager": int}[request.param]()
        row.refresh_from_db()
        return row

    return run


@pytest.mark.parametrize("handler", [exits, awaits_a_task, gathers])
def test_an_exit_in_a_task_fails_the_attempt_as_that_of_a_plain_handler_does(run, handler):
    job("t", retry={"max_attempts": 1})(functools.partial(handler, SystemExit()))
    with suppress(SystemExit):  # run_jobs() raises what handlers raise
        run()
    assert Job.objects.get().errors[0]["type"] == "SystemExit"


@pytest.mark.parametrize("error", [SystemExit(), KeyboardInterrupt()])
@pytest.mark.parametrize("handler", [awaits_a_task, calls_back])
def test_an_exit_in_a_task_ends_neither_the_loop_nor_the_other_jobs(handlers, error, handler, caplog):
    job("t", retry={"max_attempts": 1})(functools.partial(handler, error))
    job("after")(functools.partial(asyncio.sleep, 0.02))
    Job.objects.enqueue("t", priority=1)
    for _ in range(5):
        Job.objects.enqueue("after")
    assert Worker(async_concurrency=2).run(drain=True).finalized == 6
    assert Job.objects.filter(type="after", state="completed").count() == 5
    assert "A task tried to end the event loop." in caplog.text


@pytest.mark.parametrize(
    ("pool", "method", "does"),
    [
        (pools.ThreadPool, "_run", "runs plain handlers"),
        (pools.EventLoopPool, "_work", "runs async handlers"),
    ],
)
def test_a_worker_whose_thread_dies_ends_and_says_which(handlers, monkeypatch, caplog, pool, method, does):
    def dies(*args):
        raise ZeroDivisionError("on demand")

    monkeypatch.setattr(pool, method, dies)
    job("plain")(lambda: None)
    job("async")(functools.partial(asyncio.sleep, 0))
    Job.objects.enqueue("plain" if pool is pools.ThreadPool else "async")
    with pytest.raises(RuntimeError, match=f"{does} died"):
        Worker().run()
    assert "on demand" in caplog.text
    assert set(Job.objects.values_list("state", "attempt")) == {("available", 0)}
