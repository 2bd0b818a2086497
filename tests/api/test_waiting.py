"""A fetch that waits for a job (long-polling)."""

import asyncio
import json
import socket
from contextlib import contextmanager
from datetime import timedelta
from threading import Event, Thread, enumerate
from unittest.mock import Mock

import pytest
from asgiref.testing import ApplicationCommunicator
from django.core.handlers.asgi import ASGIHandler
from django.db import connection, connections, transaction
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ojs_unique.api import waiting
from django_ojs_unique.execution.leases import Lease
from django_ojs_unique.maintenance import on_demand
from django_ojs_unique.maintenance.due import look
from django_ojs_unique.models import Job, Queue
from django_ojs_unique.worker import remote
from tests.support.processes import PATIENCE, until

from .conftest import THREADED

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.every_database]

FOREVER = 10.0**6
"""Seconds that no test waits for: who returns was woken."""
postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL can notify")


@pytest.fixture
def never_look(monkeypatch):
    """Let no fetch look again because some seconds have passed."""
    for name in ("SHORTEST_POLL", "LONGEST_POLL", "LISTENING_POLL"):
        monkeypatch.setattr(waiting, name, FOREVER)


class Waiting(Thread):
    """A fetch that waits in a thread; ``looked`` is set with its first look."""

    def __init__(self, *queues):
        super().__init__(daemon=True)
        self.queues, self.looked, self.looks, self.found = queues, Event(), 0, None

    def run(self):
        try:
            request = RequestFactory(**THREADED).get("/")
            self.found = self.look() or waiting.wait_for(self.look, Job.objects.all(), self.queues, FOREVER, request)
        finally:
            connections.close_all()

    def look(self):
        options = {"count": 1, "worker_id": None, "lease": Lease(timedelta(minutes=1))}
        try:
            return remote.fetch(Job.objects.all(), dict.fromkeys(self.queues), **options, now=timezone.now())
        finally:
            assert connection.get_autocommit()
            self.looks += 1
            self.looked.set()


@contextmanager
def fetching(*queues):
    """Let a fetch begin to wait beside the block; at the end of the block it has found a job."""
    thread = Waiting(*queues)
    thread.start()
    assert thread.looked.wait(PATIENCE)
    yield thread
    thread.join(PATIENCE)
    assert not thread.is_alive(), "Nothing woke the fetch."
    assert thread.found


def listens():
    return any(board.listener.listening for board in waiting._switchboards.values())


@pytest.mark.slow
def test_a_fetch_that_waits_returns_the_job_that_somebody_enqueues_meanwhile(ojs, monkeypatch):
    looked, look, jobs = Event(), remote.fetch, []

    def fetch(*args, **options):
        try:
            return look(*args, **options)
        finally:
            looked.set()

    monkeypatch.setattr(remote, "fetch", fetch)

    def enqueue():
        assert looked.wait(PATIENCE)
        jobs.append(Job.objects.enqueue("t").job)
        connections.close_all()

    other = Thread(target=enqueue)
    other.start()
    found = ojs.fetch(wait=20)
    other.join(PATIENCE)
    assert [job["id"] for job in found] == [str(job.pk) for job in jobs]
    assert not waiting._switchboards


@pytest.mark.parametrize("wait", [0, 0.0, None])
def test_a_fetch_that_does_not_wait_looks_once(ojs, monkeypatch, wait):
    monkeypatch.setattr(waiting, "_listening", None)
    assert ojs.fetch(wait=wait) == []


def test_a_fetch_that_would_wait_longer_than_any_clock_counts_waits_as_long_as_it_may(ojs, settings):
    settings.OJS_UNIQUE = {"API": {"MAX_WAIT": 0}}
    assert ojs.fetch(wait=10**400) == []


def test_a_fetch_that_finds_a_job_does_not_wait(ojs, monkeypatch):
    monkeypatch.setattr(waiting, "_listening", None)
    job = ojs.enqueue()
    assert [one["id"] for one in ojs.fetch(wait=20)] == [job["id"]]


def test_a_fetch_gives_its_connection_back_to_the_pool_while_it_waits(ojs, monkeypatch):
    pooled = Mock(settings_dict={"OPTIONS": {"pool": True}}, in_atomic_block=False)
    pooled.close.side_effect = lambda: ojs.enqueue("after.it.was.given.back")
    monkeypatch.setattr(waiting, "connections", {"default": pooled})
    assert [job["type"] for job in ojs.fetch(wait=FOREVER)] == ["after.it.was.given.back"]


def test_a_wait_ends_without_a_job_after_the_longest_that_the_settings_allow(staff, settings):
    settings.OJS_UNIQUE = {"API": {"MAX_WAIT": 0.01}}
    client = Client(**THREADED)
    client.force_login(staff)
    body = {"queues": ["default"], "wait": FOREVER}
    answer = client.post("/ojs/v1/workers/fetch", body, content_type="application/json")
    assert (answer.status_code, answer.json()) == (200, {"jobs": []})


@pytest.mark.slow
def test_a_fetch_is_handed_what_becomes_due_while_it_waits(never_look):
    soon = timezone.now() + timedelta(seconds=0.5)
    job = Job.objects.enqueue("t", scheduled_at=soon).job
    with fetching("default") as thread:
        pass
    assert [one.pk for one in thread.found] == [job.pk]
    assert thread.found[0].started_at >= soon


def test_a_fetch_is_handed_what_became_due_just_after_its_last_look(never_look, monkeypatch):
    job = Job.objects.enqueue("t", delay=timedelta(hours=1)).job

    def due_by_now(jobs, now):
        Job._base_manager.filter(pk=job.pk, state="scheduled").update(run_at=now - timedelta(minutes=1))
        return look(jobs, now)

    monkeypatch.setattr(waiting.due, "look", due_by_now)
    with fetching("default") as thread:
        pass
    assert [one.pk for one in thread.found] == [job.pk]


@pytest.mark.slow
def test_a_fetch_sees_that_a_queue_was_resumed(monkeypatch):
    monkeypatch.setattr(waiting, "LISTENING_POLL", 0.01)
    Queue.objects.pause("default")
    Job.objects.enqueue("t")
    with fetching("default") as thread:
        until(lambda: thread.looks > 3, "it looked again")
        Queue.objects.resume("default")


def test_one_fetch_looks_for_all_and_wakes_those_whose_queue_has_a_job_or_all_for_maintenance(monkeypatch):
    monkeypatch.setattr(on_demand, "SCAN", timedelta(days=1))
    on_demand.fail_deleted_now_and_then("default", timezone.now())
    board, first, second = waiting._Switchboard("default"), Event(), Event()
    board.add(first, ["a"])
    board.add(second, ["b"])
    with CaptureQueriesContext(connection) as queries:
        left = [board.look(Job.objects.all(), FOREVER) for _ in range(2)]
    assert len(queries) == 1
    assert FOREVER - PATIENCE < min(left) <= max(left) <= FOREVER
    Job.objects.enqueue("t", queue="b")
    job = Job.objects.enqueue("t", queue="a", scheduled_at=timezone.now() + timedelta(hours=1)).job
    assert board.look(Job.objects.all(), FOREVER) > FOREVER - PATIENCE
    assert (first.is_set(), second.is_set()) == (False, False)
    board.look(Job.objects.all(), 0)
    assert (first.is_set(), second.is_set()) == (False, True)
    assert 0 < board.look(Job.objects.all(), FOREVER) <= 3600
    Job._base_manager.filter(pk=job.pk).update(run_at=timezone.now() - timedelta(hours=1))
    assert board.look(Job.objects.all(), 0) <= waiting.DUE_POLL
    assert first.is_set()


@postgresql
def test_an_enqueue_in_its_queue_wakes_the_fetch_and_one_in_another_does_not(never_look):
    with fetching("a") as first, fetching("b") as second:
        until(listens, "it listened")
        until(lambda: min(first.looks, second.looks) >= 2, "both looked when that began")
        looks = first.looks
        with transaction.atomic():
            Job.objects.enqueue("t", queue="b")
        second.join(PATIENCE)
        assert [job.queue for job in second.found] == ["b"]
        assert first.looks == looks
        Job.objects.enqueue("t", queue="a")
    assert [job.queue for job in first.found] == ["a"]


@postgresql
def test_the_fetches_that_wait_share_one_connection_and_leave_none_behind(never_look):
    def others(condition):
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                f" AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND {condition}"
            )
            return cursor.fetchone()[0]

    with fetching("a") as first, fetching("a") as second:
        until(listens, "it listened")
        until(lambda: min(first.looks, second.looks) >= 2, "both looked when that began")
        until(lambda: others("state = 'active'") == 0, "both waited")
        assert others("query LIKE 'LISTEN %'") == 1
        assert others("state LIKE 'idle in transaction%'") == 0
        for _ in range(2):
            Job.objects.enqueue("t", queue="a")
    assert not [thread for thread in enumerate() if thread.name == "ojs-listen"]
    until(lambda: others("true") == 0, "the connections were closed")


@postgresql
def test_a_lost_listening_connection_is_made_good(never_look, caplog):
    with fetching("a") as thread:
        until(listens, "it listened")
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND query LIKE 'LISTEN %'"
            )
        until(lambda: "Lost the connection" in caplog.text, "that was noticed")
        until(lambda: not listens() or thread.looks > 2, "nobody listened")
        until(listens, "it listened again")
        Job.objects.enqueue("t", queue="a")


# Clients that have gone


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1"], ids=["silent", "with something unread"])
def test_a_closed_connection_is_seen_and_an_open_one_is_left_as_it_is(sent):
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    with ours, theirs:
        request = RequestFactory().get("/", **{"gunicorn.socket": ours})
        theirs.sendall(sent)
        assert not waiting.has_gone(request)
        theirs.close()
        assert waiting.has_gone(request)
        assert ours.recv(100) == sent


def test_a_server_that_does_not_show_the_connection_is_believed():
    assert not waiting.has_gone(RequestFactory().get("/"))


def test_under_asgi_a_client_that_goes_ends_its_fetch(monkeypatch, settings):
    everybody = {"workers": ["rest_framework.permissions.AllowAny"]}
    api = {"MAX_WAIT": FOREVER, "AUTHENTICATION": [], "PERMISSIONS": everybody}
    settings.OJS_UNIQUE = {"API": api, "NOTIFY": False}
    monkeypatch.setattr(waiting, "SHORTEST_POLL", FOREVER)
    monkeypatch.setattr(waiting, "LONGEST_POLL", FOREVER)
    rest = waiting._rest_in_loop

    async def go_while_it_rests():
        resting = asyncio.Event()

        async def rest_seen(*options):
            resting.set()
            await rest(*options)

        monkeypatch.setattr(waiting, "_rest_in_loop", rest_seen)
        server = ApplicationCommunicator(ASGIHandler(), SCOPE)
        await server.send_input(
            {"type": "http.request", "body": json.dumps({"queues": ["q"], "wait": FOREVER}).encode()}
        )
        running = asyncio.create_task(server.wait(PATIENCE))
        async with asyncio.timeout(PATIENCE):
            await resting.wait()
        assert waiting._switchboards
        await server.send_input({"type": "http.disconnect"})
        await running
        return server.output_queue.empty()

    assert asyncio.run(go_while_it_rests())
    assert not waiting._switchboards


SCOPE = {
    "type": "http",
    "http_version": "1.1",
    "method": "POST",
    "path": "/ojs/v1/workers/fetch",
    "query_string": b"",
    "headers": [(b"host", b"testserver"), (b"content-type", b"application/json")],
}
