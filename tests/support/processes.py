"""Run functions in real processes, all at once or step by step.

No sleeps: barriers, pipes and the database's own view of its locks.
"""

from __future__ import annotations

import fcntl
import os
import resource
import sqlite3
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection, connections, transaction
from django.db.models import QuerySet

PATIENCE = float(os.environ.get("OJS_TEST_PATIENCE", "300"))
"""Seconds after which a silent child fails the test."""

_fork = get_context("fork")


class Parent:
    """What a child knows of its parent."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe

    def tell(self, message: Any = None) -> None:
        self._pipe.send(("said", message))

    def hear(self) -> Any:
        if not self._pipe.poll(PATIENCE):
            raise TimeoutError("The parent fell silent.")
        return self._pipe.recv()


class Child:
    """A forked process that runs ``function(parent, *arguments)`` on connections of its own."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        connections.close_all()
        self.pipe, theirs = _fork.Pipe()
        self.process = _fork.Process(target=_live, args=(function, arguments, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def tell(self, message: Any = None) -> None:
        self.pipe.send(message)

    def hear(self) -> Any:
        """Return the next thing that the child says."""
        kind, message = self.receive()
        if kind != "said":
            pytest.fail(f"The child ended early: {message}")
        return message

    def result(self) -> Any:
        """Return what the function returned; fail the test with the child's traceback if it raised."""
        while True:
            kind, message = self.receive()
            if kind == "returned":
                self.process.join(PATIENCE)
                return message

    def kill(self) -> None:
        """kill -9."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join()

    def receive(self) -> tuple[str, Any]:
        """Return ``said`` or ``returned``, and what."""
        if not self.pipe.poll(PATIENCE):
            pytest.fail(f"A child said nothing for {PATIENCE:.0f} seconds.")
        try:
            kind, message = self.pipe.recv()
        except EOFError:
            pytest.fail(f"A child died with exit code {self.process.exitcode}.")
        if kind == "raised":
            pytest.fail(f"A child raised:\n{message}")
        return kind, message


def _live(function: Callable[..., Any], arguments: Sequence[Any], pipe: Any) -> None:
    try:
        answer = ("returned", function(Parent(pipe), *arguments))
    except BaseException:
        answer = ("raised", traceback.format_exc())
    connections.close_all()
    pipe.send(answer)
    pipe.close()


@contextmanager
def nursery() -> Iterator[Callable[..., Child]]:
    """Yield a function that starts a Child; none outlives the block."""
    children: list[Child] = []

    def start(function: Callable[..., Any], *arguments: Any) -> Child:
        children.append(Child(function, *arguments))
        return children[-1]

    try:
        yield start
    finally:
        for child in children:
            child.kill()
        connections.close_all()


@contextmanager
def many_files() -> Iterator[None]:
    """Have more files open in this process than `select()` can watch."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before, 2_000), most))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_024)]
    try:
        yield
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


def together(functions: Sequence[Callable[[int], Any]], *, rounds: int = 1) -> list[list[Any]]:
    """Run each function in a process of its own, all starting each round at one barrier.

    Each is called with the number of the round. Return the results by round, each in the order of ``functions``.
    """
    barrier = _fork.Barrier(len(functions))

    def run(parent: Parent, function: Callable[[int], Any]) -> list[Any]:
        results = []
        connection.ensure_connection()
        for number in range(rounds):
            barrier.wait(PATIENCE)
            try:
                results.append(function(number))
            except BaseException:
                barrier.abort()
                raise
        return results

    with nursery() as start:
        children = [start(run, function) for function in functions]
        by_child = [child.result() for child in children]
    return [list(results) for results in zip(*by_child, strict=True)]


def wait_until_blocked(count: int) -> None:
    """Return when ``count`` sessions of this database wait for a lock; SQLite has no such view, and one writer."""
    if connection.vendor == "sqlite":
        return
    _poll(_BLOCKED[connection.vendor], lambda number: number >= count, f"{count} sessions wait for a lock")


def wait_until_alone() -> None:
    """Return when no other session of this database is left, so that what killed clients had begun has ended."""
    if connection.vendor == "sqlite":
        return
    _poll(_OTHERS[connection.vendor], lambda number: number == 0, "the other sessions ended")


def is_locked(rows: QuerySet[Any]) -> bool:
    """Return whether an open transaction keeps others from writing one of these rows."""
    try:
        if connection.vendor == "sqlite":
            with closing(sqlite3.connect(connection.settings_dict["NAME"], timeout=0, isolation_level=None)) as rival:
                rival.execute("BEGIN IMMEDIATE")
        else:
            with transaction.atomic():
                list(rows.select_for_update(nowait=True).values_list("pk"))
    except (sqlite3.OperationalError, OperationalError):
        return True
    return False


def is_alive(pid: int) -> bool:
    """Whether a process runs that is no child of ours."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition: Callable[[], Any], what: str, *, said: Callable[[], str] = str) -> Any:
    """Return what the condition returns as soon as it is true; fail, with what was ``said``, when it never is."""
    deadline = time.monotonic() + PATIENCE
    while not (answer := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"It never came to pass that {what}. {said()}")
        time.sleep(0.005)
    return answer


def _poll(sql: str, enough: Callable[[int], bool], what: str) -> None:
    def is_enough() -> bool:
        with _undisturbed(), connection.cursor() as cursor:
            cursor.execute(sql)
            return enough(cursor.fetchone()[0])

    until(is_enough, what)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let no other process of pytest read what this one reads: InnoDB renews its view only after 0.1 seconds unread."""
    if connection.vendor != "mysql":
        yield
        return
    with open(Path(tempfile.gettempdir()) / f"ojs-tests-{os.getuid()}-poll.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        time.sleep(0.15)
        yield


_BLOCKED = {
    "postgresql": (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    ),
    "mysql": (
        "SELECT COUNT(*) FROM information_schema.processlist p LEFT JOIN information_schema.innodb_trx t"
        " ON t.trx_mysql_thread_id = p.id"
        " WHERE p.db = DATABASE() AND (t.trx_state = 'LOCK WAIT' OR p.state = 'User lock')"
    ),
}
_OTHERS = {
    "postgresql": (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND backend_type = 'client backend'"
    ),
    "mysql": "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()",
}
