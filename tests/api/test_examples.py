"""The examples are executed as their readers would, against a real server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from django_ojs_unique.models import Job, WorkerProcess
from tests.support.processes import PATIENCE, until

from .examples import EXAMPLES, load

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def client() -> Any:
    """The module of the client."""
    return load("client.py")


@pytest.mark.slow
def test_the_client_enqueues_and_the_worker_works(server):
    client = run("client.py")
    assert re.fullmatch(r"created: job (\S+) is available\ndeduplicated: job \1 is available\n", client.stdout)
    work_until("completed")
    job = Job.objects.get()
    assert (job.state, job.result, job.attempt) == ("completed", {"letters": 11}, 1)


@pytest.mark.slow
def test_a_failing_job_is_reported_by_the_worker(server):
    def fails(job: Any) -> None:
        worker.stopping.set()
        raise KeyError("text")

    Job.objects.enqueue("fails", [], queue="letters", retry={"max_attempts": 1})
    with talking_to(server) as http:
        worker = load("worker.py").Worker(http, ["letters"], {"fails": fails})
        worker.run()
    job = Job.objects.get()
    assert (job.state, job.errors[-1]["type"]) == ("discarded", "KeyError")


@pytest.mark.slow
def test_the_worker_does_what_an_operator_wants(server):
    module = load("worker.py")
    with talking_to(server) as http:
        worker = module.Worker(http, ["letters"], module.HANDLERS, lease=0.2)
        worker._beat()
        rows = WorkerProcess.objects.filter(pk=worker.id)
        assert rows.update(directive="quiet") == 1
        Job.objects.enqueue("letter.count", [{"text": "a"}], queue="letters")
        thread = threading.Thread(target=worker.run)
        thread.start()
        until(lambda: worker.state == "quiet", "the worker is quiet")
        since = rows.get().heartbeat_at
        until(lambda: rows.get().heartbeat_at > since, "the worker is heard of")
        rows.update(directive="terminate")
    assert Job.objects.get().state == "available"


@pytest.mark.slow
def test_the_worker_keeps_its_job_while_it_stops(server):
    module = load("worker.py")
    begun, finish = threading.Event(), threading.Event()

    def slow(job: Any) -> None:
        begun.set()
        assert finish.wait(PATIENCE)

    Job.objects.enqueue("slow", [], queue="letters")
    with talking_to(server) as http:
        worker = module.Worker(http, ["letters"], {"slow": slow}, lease=6)
        thread = threading.Thread(target=worker.run)
        thread.start()
        assert begun.wait(PATIENCE)
        worker.stopping.set()
        ends = Job.objects.get().lease_expires_at
        until(lambda: Job.objects.get().lease_expires_at > ends, "the lease is extended")
        finish.set()
    assert Job.objects.get().state == "completed"


def test_the_worker_fetches_nothing_once_its_heart_has_heard_of_its_end():
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path.rpartition("/")[2])
        return httpx.Response(200, json={"jobs": [], "state": "terminate"})

    with httpx.Client(base_url="http://server", transport=httpx.MockTransport(answer)) as http:
        worker = load("worker.py").Worker(http, ["letters"], {})
        worker.stopping = Mock(is_set=Mock(side_effect=[False, True]))  # as if it looked just before the heart set it
        worker.run()
    assert asked == ["heartbeat"]


def test_the_worker_comes_back_when_the_server_says():
    def answer(request: httpx.Request) -> httpx.Response:
        worker.stopping.set()
        return httpx.Response(200, json={"jobs": [], "state": "running"}, headers={"Retry-After": "2"})

    with httpx.Client(base_url="http://server", transport=httpx.MockTransport(answer)) as http:
        worker = load("worker.py").Worker(http, ["letters"], {})
        assert worker._call("fetch", wait=5)["jobs"] == []
    assert worker.pause == 2


@pytest.mark.slow
@pytest.mark.parametrize("unique", [None, "reject", "ignore", "replace"])
def test_a_lost_answer_does_not_queue_twice(server, client, monkeypatch, unique):
    monkeypatch.setattr(client, "PAUSES", (0, 0))
    options = {} if unique is None else {"options": {"unique": {"on_conflict": unique}}}
    with connect(client, Losing(answers=2)) as http:
        found, outcome = client.enqueue(http, {"type": "letter.count", "args": [], **options})
    assert outcome == "created"
    job = Job.objects.get()
    assert (str(job.pk), job.state) == (found["id"], "available")


@pytest.mark.slow
def test_a_rejected_duplicate_is_told_from_an_own_one(server, client):
    first = Job.objects.enqueue("letter.count", [], unique={}).job
    with client.connect(os.environ["OJS_URL"], os.environ["OJS_TOKEN"]) as http:
        job = {"type": "letter.count", "args": [], "options": {"unique": {}}}
        found, outcome = client.enqueue(http, job)
        assert (found["id"], outcome) == (str(first.pk), "rejected")
        job["options"]["unique"]["on_conflict"] = "ignore"
        assert client.enqueue(http, job)[1] == "deduplicated"
        with pytest.raises(ValueError, match="type"):
            client.enqueue(http, {"type": "No Type", "args": []})


@pytest.mark.slow
def test_the_client_waits_for_a_server_that_is_busy(server, client, monkeypatch):
    monkeypatch.setattr(client, "PAUSES", (0, 0))
    with connect(client, Losing(busy=2)) as http:
        assert client.enqueue(http, {"type": "letter.count", "args": []})[1] == "created"
    with connect(client, Losing(answers=3)) as http, pytest.raises(httpx.TransportError):
        client.enqueue(http, {"type": "letter.count", "args": []})


def test_the_ids_of_the_client_are_what_the_server_wants(client):
    pattern = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
    ids = [client.uuid7() for _ in range(1000)]
    assert all(pattern.fullmatch(id) for id in ids)
    assert len(set(ids)) == 1000


class Losing(httpx.HTTPTransport):
    """Loses some answers on their way, or says first that the server is busy."""

    def __init__(self, answers: int = 0, busy: int = 0) -> None:
        super().__init__()
        self.answers, self.busy = answers, busy

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self.busy:
            self.busy -= 1
            return httpx.Response(503, headers={"Retry-After": "0"}, json={})
        answer = super().handle_request(request)
        if self.answers:
            self.answers -= 1
            answer.close()
            raise httpx.ReadError("The connection was lost.")
        return answer


@contextmanager
def talking_to(server: str) -> Iterator[httpx.Client]:
    """Yield a client, and return when the threads have ended that were started in the block: a worker and its heart.

    Threads of earlier tests may stay, such as those in which asgiref runs synchronous code.
    """
    before = set(threading.enumerate())
    headers = {"Authorization": f"Token {os.environ['OJS_TOKEN']}"}
    with httpx.Client(base_url=server, headers=headers, timeout=PATIENCE) as http:
        yield http
        for thread in set(threading.enumerate()) - before:
            thread.join(PATIENCE)
            assert not thread.is_alive()


def connect(client: Any, transport: httpx.BaseTransport) -> httpx.Client:
    """Connect as the example does, over another transport."""
    http: httpx.Client = client.connect(os.environ["OJS_URL"], os.environ["OJS_TOKEN"])
    http._transport = transport
    return http


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def work_until(word: str) -> None:
    """Run the worker until it says something, and stop it."""
    command = [sys.executable, str(EXAMPLES / "worker.py"), "letters"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if word in line:
                process.send_signal(signal.SIGTERM)
        assert process.wait() == 0, said
    assert word in said[-1], said
