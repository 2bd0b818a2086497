"""`aenqueue` and its siblings do what the plain ones do, on the one thread of synchronous code."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import Group
from django.db import connections, transaction
from django.http import HttpRequest, JsonResponse
from django.test import AsyncClient, override_settings
from django.urls import path

from django_ojs_unique import DuplicateJob, InvalidPolicy, InvalidRequest
from django_ojs_unique.exceptions import JobIdTaken
from django_ojs_unique.handlers.declare import job as declare
from django_ojs_unique.models import Job
from tests.support.refusals import refused

EACH = {"keys": ["type", "args"]}


def alone(function: Any) -> Any:
    """Run a test's coroutine as a server would: on a loop, beside a thread for synchronous code."""

    async def whole() -> None:
        try:
            await function()
        finally:
            await sync_to_async(connections.close_all)()

    def test() -> None:
        asyncio.run(whole())

    return test


def within(function: Any) -> Any:
    """Run a test's coroutine on the test's own thread, and so in its transaction."""

    def test() -> None:
        async_to_sync(function)()

    return test


# Answers and errors, on the test's own thread and in its transaction


@pytest.mark.django_db
@within
async def test_the_answers_are_those_of_enqueue():
    first = await Job.objects.aenqueue("t", {"n": 1}, unique=EACH, queue="q", priority=3)
    again = await Job.objects.aenqueue("t", {"n": 1}, unique={**EACH, "on_conflict": "ignore"}, queue="q")
    newer = await Job.objects.aenqueue("t", {"n": 1}, unique={**EACH, "on_conflict": "replace"})
    assert (first.outcome, again.outcome, newer.outcome) == ("created", "deduplicated", "replaced")
    assert (again.job, newer.replaced) == (first.job, (first.job,))
    assert (first.job.queue, first.job.priority) == ("q", 3)
    assert await Job.objects.acount() == 2


@pytest.mark.django_db
@within
async def test_the_errors_are_those_of_enqueue():
    old = (await Job.objects.aenqueue("t", unique={})).job
    for error, options in (
        (DuplicateJob, {"unique": {}}),
        (InvalidRequest, {"args": 5}),
        (InvalidPolicy, {"unique": {"states": []}}),
        (JobIdTaken, {"id": old.pk}),
        (TypeError, {"uniqe": {}}),
    ):
        with pytest.raises(error):
            await Job.objects.aenqueue("t", **options)
    assert await Job.objects.acount() == 1


@pytest.mark.django_db
@within
async def test_many_are_enqueued_with_one_answer_for_each():
    seen: list[int] = []
    items = [{"type": "t", "args": {"n": number % 2}, "unique": EACH} for number in range(3)]
    result = await Job.objects.aenqueue_many(iter(items))
    assert [str(answer.outcome) for answer in result] == ["created", "created", "rejected"]
    result = await Job.objects.aenqueue_many(items, each=lambda answer: seen.append(answer.index))
    assert (seen, len(result), result.counts) == ([0, 1, 2], 0, {"rejected": 3})
    with refused(DuplicateJob, index=0):
        await Job.objects.aenqueue_many(items, mode="atomic")


@pytest.mark.django_db
@within
async def test_an_asynchronous_iterator_is_refused():
    async def source() -> AsyncIterator[dict[str, Any]]:
        yield {"type": "t"}

    with refused(InvalidRequest, "items"):
        await Job.objects.aenqueue_many(source())  # type: ignore[arg-type]
    assert len(await Job.objects.aenqueue_many([item async for item in source()])) == 1


@pytest.mark.django_db
@within
async def test_explain_tells_what_it_would_do_or_is_djangos_own():
    old = (await Job.objects.aenqueue("t", unique={})).job
    explanation = await Job.objects.aexplain("t", unique={})
    assert explanation.fingerprint == old.fingerprint
    assert explanation == await sync_to_async(Job.objects.explain)("t", unique={})
    assert isinstance(await Job.objects.filter(type="t").aexplain(), str)


@pytest.mark.django_db
@within
async def test_remove_returns_the_job_that_held_the_key():
    job = (await Job.objects.aenqueue("t", key="k")).job
    assert await Job.objects.aremove(key="k", type="u") is None
    assert (await Job.objects.aremove(key="k")).pk == job.pk
    assert await Job.objects.aremove(key="k") is None
    assert not await Job.objects.aexists()


@pytest.mark.django_db
def test_a_handler_is_enqueued_with_its_options(handlers):
    @declare("mail.send", queue="mail", unique={"keys": ["type", "args"], "on_conflict": "ignore"})
    def send(user: int, template: str = "welcome") -> None:
        """Send."""

    async def story() -> None:
        first = await send.aenqueue(5)
        again = await send.using(queue="mail").aenqueue(user=5)
        assert (first.job.type, first.job.queue, first.job.args) == ("mail.send", "mail", {"user": 5})
        assert again.deduplicated
        with refused(InvalidRequest, "args", names="'user'"):
            await send.aenqueue()

    async_to_sync(story)()


# Threads and transactions


@pytest.mark.django_db(transaction=True)
@alone
async def test_it_runs_on_the_thread_of_the_other_synchronous_work():
    threads = []

    def each(answer: Any) -> None:
        threads.append(threading.get_ident())

    theirs = await sync_to_async(threading.get_ident)()
    await Job.objects.aenqueue_many([{"type": "t"}] * 3, each=each)
    assert set(threads) == {theirs}
    assert theirs != threading.get_ident()


@pytest.mark.django_db(transaction=True)
@alone
async def test_a_transaction_in_a_synchronous_function_holds_what_it_enqueues():
    def signup(name: str, fail: bool) -> None:
        with transaction.atomic():
            Group.objects.create(name=name)
            Job.objects.enqueue("welcome", {"name": name}, unique=EACH)
            if fail:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await sync_to_async(signup)("a", fail=True)
    assert not await Job.objects.aexists()
    await sync_to_async(signup)("a", fail=False)
    assert await Job.objects.acount() == await Group.objects.acount() == 1


@pytest.mark.django_db(transaction=True)
def test_asynchronous_code_within_a_synchronous_transaction_is_part_of_it():
    async def story() -> None:
        await Job.objects.aenqueue("t", unique={})

    with transaction.atomic():
        async_to_sync(story)()
        assert Job.objects.count() == 1
        transaction.set_rollback(True)
    assert not Job.objects.exists()


@pytest.mark.django_db(transaction=True)
@alone
async def test_of_many_at_once_with_one_key_one_is_created():
    ignore = {"on_conflict": "ignore"}
    results = await asyncio.gather(*(Job.objects.aenqueue("t", unique=ignore) for _ in range(30)))
    assert Counter(result.outcome for result in results) == {"created": 1, "deduplicated": 29}
    assert len({result.job.pk for result in results}) == 1
    refused = await asyncio.gather(*(Job.objects.aenqueue("t", unique={}) for _ in range(5)), return_exceptions=True)
    assert {type(error) for error in refused} == {DuplicateJob}
    batches = await asyncio.gather(
        *(
            Job.objects.aenqueue_many([{"type": f"u{number}", "unique": ignore} for number in range(10)])
            for _ in range(5)
        )
    )
    assert sum((batch.counts for batch in batches), Counter()) == {"created": 10, "deduplicated": 40}


# Cancellation


@pytest.mark.django_db(transaction=True)
@alone
async def test_a_task_that_is_cancelled_while_it_waits_for_the_thread_enqueues_nothing():
    busy, free = threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    blocker = asyncio.create_task(sync_to_async(lambda: (busy.set(), free.wait()))())
    await loop.run_in_executor(None, busy.wait)
    task = asyncio.create_task(Job.objects.aenqueue("t"))
    await asyncio.sleep(0)  # let it join the line
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    free.set()
    await blocker
    assert not await Job.objects.aexists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("mode", ["partial", "atomic"])
def test_a_task_that_is_cancelled_while_its_enqueue_runs_leaves_it_whole(mode):
    begun, goes_on = threading.Event(), threading.Event()

    def source() -> Iterator[dict[str, Any]]:
        yield {"type": "t"}
        begun.set()
        goes_on.wait()
        yield {"type": "t"}

    @alone
    async def story() -> None:
        task = asyncio.create_task(Job.objects.aenqueue_many(source(), mode=mode))
        await asyncio.get_running_loop().run_in_executor(None, begun.wait)
        task.cancel()
        await asyncio.sleep(0)
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await Job.objects.acount() == 2  # the thread had to finish first

    story()


# A request


async def signup(request: HttpRequest) -> JsonResponse:
    """Enqueue two jobs side by side; answer 409 for a duplicate."""
    name = request.GET["name"]
    try:
        await asyncio.gather(
            Job.objects.aenqueue("welcome", {"name": name}, unique=EACH),
            Job.objects.aenqueue("audit", {"name": name}),
        )
    except DuplicateJob as error:
        return JsonResponse(error.details, status=409)
    result = await Job.objects.aenqueue_many({"type": "tour", "args": {"day": day}} for day in range(3))
    return JsonResponse({"counts": result.counts, "ids": [str(answer.job.pk) for answer in result]}, status=201)


urlpatterns = [path("signup", signup)]


@pytest.mark.django_db(transaction=True)
@override_settings(ROOT_URLCONF=__name__)
@alone
async def test_an_asynchronous_view_enqueues():
    client = AsyncClient()
    response = await client.get("/signup", {"name": "ada"})
    assert (response.status_code, response.json()["counts"]) == (201, {"created": 3})
    assert await Job.objects.acount() == 5
    response = await client.get("/signup", {"name": "ada"})
    assert (response.status_code, response.json()["existing_job_state"]) == (409, "available")


@pytest.mark.django_db(transaction=True)
@override_settings(ROOT_URLCONF=__name__)
@alone
async def test_of_many_requests_at_once_one_is_admitted():
    client = AsyncClient()
    responses = await asyncio.gather(*(client.get("/signup", {"name": "ada"}) for _ in range(10)))
    assert Counter(response.status_code for response in responses) == {201: 1, 409: 9}
    assert await Job.objects.filter(type="welcome").acount() == 1
