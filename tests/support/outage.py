"""A way to the database that can be cut: a proxy in front of a server, the write lock of SQLite."""

from __future__ import annotations

import random
import select
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any

from django.db import connection


class Outage:
    """Cuts off those workers that take the ``detour``; they start connected."""

    detour: dict[str, Any]

    def begin(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        raise NotImplementedError


class WriteLock(Outage):
    """Holds SQLite's only write lock against connections that do not wait long for it."""

    def __init__(self) -> None:
        settings = connection.settings_dict
        self.detour = {"OPTIONS": {**settings["OPTIONS"], "timeout": 0.05}}
        self._rival = sqlite3.connect(settings["NAME"], isolation_level=None)

    def begin(self) -> None:
        self._rival.execute("BEGIN IMMEDIATE")

    def end(self) -> None:
        if self._rival.in_transaction:
            self._rival.execute("ROLLBACK")

    def close(self) -> None:
        self._rival.close()


class Proxy(Outage):
    """Passes bytes on to the server, or hangs up."""

    def __init__(self, address: str = "127.0.0.1", cuts: float = 0.0) -> None:
        """``cuts``: how probable it is that the line is cut after a message of a client was passed on."""
        self._cuts = cuts
        self._connect = _way_to_the_server()
        self._listener = socket.create_server((address, 0))
        self.detour = {"HOST": address, "PORT": str(self._listener.getsockname()[1])}
        self._peers: dict[socket.socket, socket.socket] = {}
        self._clients: set[socket.socket] = set()
        self._silence_at: bytes | None = None
        self.is_silent = False
        self._is_cut = self._is_closed = False
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    def begin(self) -> None:
        self._is_cut = True

    def end(self) -> None:
        self._is_cut = False

    def silence(self, word: bytes) -> None:
        """Pass on the next message of a client that contains the word, and nothing of anybody after it."""
        self._silence_at = word

    def close(self) -> None:
        self._is_closed = True
        self._thread.join()

    def _serve(self) -> None:
        while not self._is_closed:
            readable, _, _ = select.select([self._listener, *self._peers], [], [], 0.01)
            for client in readable:
                if client is self._listener:
                    self._accept()
                elif client in self._peers:
                    self._pass_on(client)
            if self._is_cut:
                self._hang_up(*self._peers)
        self._hang_up(*self._peers)
        self._listener.close()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        if self._is_cut:
            client.close()
            return
        server = self._connect()
        self._peers |= {client: server, server: client}
        self._clients.add(client)

    def _pass_on(self, end: socket.socket) -> None:
        data = b""
        with suppress(OSError):
            if data := end.recv(65536):
                if not self.is_silent:
                    self._peers[end].sendall(data)
                if end in self._clients and self._silence_at is not None and self._silence_at in data:
                    self.is_silent = True
        if not data or (end in self._clients and random.random() < self._cuts):
            self._hang_up(end)

    def _hang_up(self, *ends: socket.socket) -> None:
        for end in ends:
            if (other := self._peers.pop(end, None)) is not None:
                del self._peers[other]
                end.close()
                other.close()
                self._clients -= {end, other}


def _way_to_the_server() -> Callable[[], socket.socket]:
    host, port = connection.settings_dict["HOST"] or "127.0.0.1", connection.settings_dict["PORT"] or 3306
    if connection.vendor == "postgresql":
        connection.ensure_connection()
        host, port = connection.connection.info.host, connection.connection.info.port
    if not host.startswith("/"):
        return lambda: socket.create_connection((host, int(port)))

    def connect() -> socket.socket:
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server

    return connect


@contextmanager
def outage_at_hand() -> Iterator[Outage]:
    """Yield an Outage that has not begun."""
    outage = WriteLock() if connection.vendor == "sqlite" else Proxy()
    try:
        yield outage
    finally:
        outage.end()
        outage.close()


def breaks_the_connection(**kwargs: Any) -> None:
    """Kill the caller's own connection; on SQLite, which has none to kill, fail."""
    kill = {
        "postgresql": "SELECT pg_terminate_backend(pg_backend_pid())",
        "mysql": "KILL CONNECTION_ID()",
    }.get(connection.vendor, "SELECT nothing FROM nowhere")
    with connection.cursor() as cursor:
        cursor.execute(kill)
