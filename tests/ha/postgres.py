"""A PostgreSQL primary and its standby, without anybody who watches over them."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import psycopg

from tests.support.ports import HOST

from .servers import Servers, needed, reserved_ports, send, tree

BIN = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), default=Path("/nowhere"))
USER = "postgres"
PARAMETERS = {"wal_log_hints": "on", "max_wal_senders": "5", "wal_keep_size": "256MB"}
"""What a server needs to follow another one, and to be rewound to it."""


class Node:
    """One server, by its folder and port."""

    def __init__(self, place: Servers, name: str, port: int) -> None:
        self.place, self.name, self.port = place, name, port
        self.data = place.folder / name

    @property
    def address(self) -> str:
        return f"host={HOST} port={self.port} user={USER}"

    def ask(self, sql: str, database: str = "postgres") -> Any:
        """Run one statement; return the first value, if there is any."""
        with psycopg.connect(f"{self.address} dbname={database} connect_timeout=3", autocommit=True) as connection:
            cursor = connection.execute(sql)
            row = cursor.fetchone() if cursor.description else None
        return row and row[0]

    @property
    def postmaster(self) -> int:
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def kill(self) -> None:
        """kill -9, every process of the server."""
        self.place.kill(self.name)

    def freeze(self) -> None:
        """Stop every process of the server, until `thaw`."""
        for pid in tree(self.postmaster):
            send(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in tree(self.postmaster):
            send(pid, signal.SIGCONT)

    def initialise(self) -> None:
        self.place.run(f"{BIN}/initdb", "-D", str(self.data), "-U", USER, "-A", "trust", "-E", "UTF8")
        lines = [f"{name} = '{value}'" for name, value in PARAMETERS.items()]
        with (self.data / "postgresql.conf").open("a") as file:
            file.write("\n".join([f"unix_socket_directories = '{self.place.folder}'", *lines]) + "\n")

    def start(self) -> None:
        self.place.start(self.name, f"{BIN}/postgres", "-D", str(self.data), "-h", HOST, "-p", str(self.port))
        self.place.wait(lambda: self.ask("SELECT 1"), f"{self.name} answers")

    def copy(self, primary: Node) -> None:
        """Become a standby of a running server, by a copy of it."""
        source = f"{primary.address} application_name={self.name}"
        self.place.run(f"{BIN}/pg_basebackup", "-d", source, "-D", str(self.data), "-R", "-c", "fast")

    def rewind(self, primary: Node) -> None:
        """Become a standby of what was the own standby; what only this server had is thrown away."""
        primary.ask("CHECKPOINT")  # before PostgreSQL 16, pg_rewind learns only from it that there is a new timeline
        source = f"{primary.address} dbname=postgres application_name={self.name}"
        self.place.run(f"{BIN}/pg_rewind", "-D", str(self.data), f"--source-server={source}", "-R")

    def promote(self) -> None:
        self.place.run(f"{BIN}/pg_ctl", "promote", "-w", "-D", str(self.data))

    def confirm_by(self, standby: Node) -> None:
        """From here on answer no commit before the standby has it."""
        self.ask(f"ALTER SYSTEM SET synchronous_standby_names = '{standby.name}'")
        self.ask("SELECT pg_reload_conf()")
        self.place.wait(
            lambda: self.ask("SELECT sync_state FROM pg_stat_replication") == "sync", f"{standby.name} is synchronous"
        )


def pair(place: Servers) -> tuple[Node, Node]:
    """Start a primary and an asynchronous standby of it."""
    needed("setpriv", f"{BIN}/initdb", f"{BIN}/pg_basebackup", f"{BIN}/pg_rewind")
    ports = reserved_ports(place, 2)
    first, second = (Node(place, name, port) for name, port in zip(("node1", "node2"), ports, strict=True))
    place.say("start a primary and copy it to a standby")
    first.initialise()
    first.start()
    first.ask("CREATE DATABASE jobs")
    second.copy(first)
    second.start()
    place.wait(lambda: first.ask("SELECT state FROM pg_stat_replication") == "streaming", "the standby follows")
    return first, second


def database(*ports: int, **options: Any) -> dict[str, Any]:
    """Return an entry for DATABASES that finds the one of several servers that takes writes."""
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "jobs",
        "USER": USER,
        "HOST": ",".join([HOST] * len(ports)),
        "PORT": ",".join(map(str, ports)),
        "OPTIONS": {
            "target_session_attrs": "read-write",
            "connect_timeout": 3,
            "keepalives_idle": 10,
            "tcp_user_timeout": 5_000,
            **options,
        },
    }
