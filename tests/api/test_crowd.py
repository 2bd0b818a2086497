"""Fetches that wait, at a real server: they keep nobody out, and one whose client has gone takes no job."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from importlib.util import find_spec
from pathlib import Path
from select import select
from typing import Any

import httpx
import pytest

from tests.support.processes import PATIENCE, until

from .gunicorns import gunicorn, uvicorn

pytestmark = [
    pytest.mark.skipif(
        "OJS_TEST_DATABASE_URL" in os.environ, reason="has a database of its own, and needs to run but once"
    ),
    pytest.mark.slow,
]

SETTINGS = "tests.api.crowded_settings"
THREADS, ROOM, CLIENTS = 4, 2, 10
NEXT_REQUEST = b"GET /ojs/v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture
def threaded(tmp_path: Path) -> Iterator[str]:
    with gunicorn(f"sqlite:///{tmp_path}/db.sqlite3", threads=THREADS, settings=SETTINGS) as url:
        yield url


@pytest.fixture
def asynchronous(tmp_path: Path) -> Iterator[str]:
    if find_spec("uvicorn") is None:
        pytest.skip("needs uvicorn")
    with uvicorn(f"sqlite:///{tmp_path}/db.sqlite3", settings=SETTINGS) as url:
        yield url


@pytest.mark.parametrize("server", ["threaded", "asynchronous"])
def test_a_server_answers_while_more_workers_wait_than_it_has_threads(server, request):
    url = request.getfixturevalue(server)
    with ExitStack() as stack, httpx.Client(base_url=url, timeout=PATIENCE) as http:
        clients = [stack.enter_context(closing(begin_to_wait(url))) for _ in range(CLIENTS)]
        until(lambda: len(answered(clients)) == CLIENTS - ROOM, "those for whom there is no room were answered")
        sent_back = answered(clients)
        assert http.get("/ojs/v1/health").status_code == 200
        assert answered(clients) == sent_back
        for client in sent_back:
            head, body = answer_to(client)
            assert "retry-after: 2\r\n" in head.lower()
            assert body == {"jobs": []}
        waiting = [client for client in clients if client not in sent_back]
        jobs = {http.post("/ojs/v1/jobs", json={"type": "t", "args": []}).json()["job"]["id"] for _ in waiting}
        assert {answer_to(client)[1]["job"]["id"] for client in waiting} == jobs


def leave(client: socket.socket) -> None:
    client.close()


def leave_with_a_request_unread(client: socket.socket) -> None:
    client.sendall(NEXT_REQUEST)
    client.close()


def leave_by_a_reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.mark.parametrize("leave", [leave, leave_with_a_request_unread, leave_by_a_reset])
def test_a_client_that_has_gone_is_handed_no_job_and_leaves_its_place_to_others(threaded, leave):
    with httpx.Client(base_url=threaded, timeout=PATIENCE) as http:
        clients = take_all_places(threaded, http)
        for client in clients:
            leave(client)
        ids = [http.post("/ojs/v1/jobs", json={"type": "t", "args": []}).json()["job"]["id"] for _ in clients]
        until(lambda: not is_crowded(http), "their places were free")
        jobs = [http.get(f"/ojs/v1/jobs/{id}").json()["job"] for id in ids]
        assert [(job["state"], job["attempt"]) for job in jobs] == [("available", 0)] * ROOM


def test_a_client_that_has_sent_its_next_request_already_is_there(threaded):
    with closing(begin_to_wait(threaded)) as client, httpx.Client(base_url=threaded, timeout=PATIENCE) as http:
        client.sendall(NEXT_REQUEST)
        id = http.post("/ojs/v1/jobs", json={"type": "t", "args": []}).json()["job"]["id"]
        assert answer_to(client)[1]["job"]["id"] == id
        assert answer_to(client)[1]["status"] == "ok"


def begin_to_wait(url: str) -> socket.socket:
    """Send a fetch that waits as long as it may; do not read the answer."""
    client = socket.create_connection(("127.0.0.1", httpx.URL(url).port or 0), timeout=PATIENCE)
    body = json.dumps({"queues": ["default"], "wait": 10**6})
    head = f"Host: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    client.sendall(f"POST /ojs/v1/workers/fetch HTTP/1.1\r\n{head}\r\n{body}".encode())
    return client


def take_all_places(url: str, http: httpx.Client) -> list[socket.socket]:
    """Return clients that wait, and that take all places.

    `is_crowded` takes a place, too, for a moment. A client that was sent back because of it tries again.
    """
    clients = [begin_to_wait(url) for _ in range(ROOM)]

    def are_taken() -> bool:
        for client in answered(clients):
            client.close()
            clients[clients.index(client)] = begin_to_wait(url)
        return is_crowded(http)

    until(are_taken, "all places were taken")
    return clients


def answered(clients: Sequence[socket.socket]) -> list[socket.socket]:
    """Return those to whom there is something to read."""
    readable: list[socket.socket] = select(clients, [], [], 0)[0]
    return readable


def answer_to(client: socket.socket) -> tuple[str, Any]:
    """Read one answer: its head, and its body."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += client.recv(1)
    head = received.decode()
    length = next(int(line[15:]) for line in head.lower().splitlines() if line.startswith("content-length:"))
    body = b""
    while len(body) < length:
        body += client.recv(length - len(body))
    return head, json.loads(body)


def is_crowded(http: httpx.Client) -> bool:
    """Tell whether a fetch that wants to wait is sent back. It asks for a queue that has no jobs."""
    answer = http.post("/ojs/v1/workers/fetch", json={"queues": ["empty"], "wait": 0.01})
    assert answer.json() == {"jobs": []}
    return "Retry-After" in answer.headers
