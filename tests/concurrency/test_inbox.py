"""Eight writers in plain SQL, with savepoints and rollbacks; three workers decide, frozen and killed by kill -9.

Each committed request is decided once, and in its order; one that was rolled back never. ``OJS_TORTURE_ROUNDS`` makes
it longer, ``OJS_TORTURE_SEED`` repeats the choices of a run.
"""

from __future__ import annotations

import json
import os
import random
import signal
from functools import partial
from multiprocessing.connection import wait
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from django_ojs_unique.maintenance import inbox
from django_ojs_unique.models import InboxRequest, Job, SuppressedEnqueue, WorkerProcess
from django_ojs_unique.worker import Worker, poller
from tests.support.audit import audit
from tests.support.processes import PATIENCE, Child, Parent, until, wait_until_alone

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.torture]

ROUNDS = int(os.environ.get("OJS_TORTURE_ROUNDS", "1"))
WRITERS, WORKERS, TRANSACTIONS, HARMS = 8, 3, 120 * ROUNDS, 16 * ROUNDS
BATCH = 9
"""How many requests a worker decides at once: so few that the workers are often in the midst of it together."""
ONCE = {"unique": {"keys": ["type", "args"], "on_conflict": "ignore"}}
LEDGER = "inbox_ledger"
"""What each writer has asked for, written in the same transaction as its requests."""


@pytest.fixture
def ledger():
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {LEDGER} (writer integer, number integer, kind varchar(9), name varchar(9))")
    yield
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {LEDGER}")


class Writer:
    """A program that knows the tables only."""

    def __init__(self, number: int, seed: str) -> None:
        self.writer, self.random, self.number = number, random.Random(seed), 0

    def write(self) -> None:
        with transaction.atomic():
            self.some()
            if self.random.random() < 0.4:
                with transaction.atomic():
                    self.some()
                    transaction.set_rollback(self.random.random() < 0.5)
            transaction.set_rollback(self.random.random() < 0.2)

    def some(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            self.number += 1
            kind = self.random.choice(["free", "once", "shared", "own", "own", "remove"])
            name = {"own": f"own-{self.writer}", "remove": f"own-{self.writer}"}.get(kind, f"s-{self.number % 3}")
            item = [[self.writer, self.number]]
            append = json.dumps({"key": name, "key_mode": "preserve_run_at"})
            match kind:
                case "free":
                    self.ask("enqueue", "free", item, "{}")
                case "once":
                    self.ask("enqueue", "once", [name], json.dumps(ONCE))
                case "shared" | "own":
                    self.ask("enqueue", kind, item, append)
                case "remove":
                    self.ask("remove", "own", [], json.dumps({"key": name}))
            self.execute(f"INSERT INTO {LEDGER} VALUES (%s, %s, %s, %s)", self.writer, self.number, kind, name)

    def ask(self, action: str, type: str, args: Any, options: str) -> None:
        names = "action, type, args, options"
        values = (action, type, json.dumps(args), options)
        self.execute(f"INSERT INTO {InboxRequest._meta.db_table} ({names}) VALUES (%s, %s, %s, %s)", *values)

    def execute(self, sql: str, *parameters: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(sql, parameters)


def write(parent: Parent, number: int, seed: str) -> int:
    connection.ensure_connection()
    writer, gave_up = Writer(number, seed), 0
    for _ in range(TRANSACTIONS):
        try:
            writer.write()
        except OperationalError:  # a deadlock, or on SQLite a writer that is frozen
            gave_up += 1
        parent.tell()
    return gave_up


def work(parent: Parent) -> None:
    """Work as a worker does whose queues have no jobs: it only decides."""
    inbox.decide = partial(inbox.decide, most=BATCH)
    poller.LONGEST_POLL = poller.LISTENING_POLL = 0.02
    Worker(queues=["nobody"]).run()


def test_each_committed_request_is_decided_once_and_in_its_order(start, ledger):
    seed = os.environ.get("OJS_TORTURE_SEED") or str(random.SystemRandom().randrange(10**9))
    print(f"OJS_TORTURE_SEED={seed}")
    dice = random.Random(seed)
    workers = [start(work) for _ in range(WORKERS)]
    until(lambda: WorkerProcess.objects.count() == WORKERS, "the workers are up")
    writers = [start(write, number, f"{seed}.{number}") for number in range(WRITERS)]
    total = WRITERS * TRANSACTIONS
    harms = sorted(dice.sample(range(total // 20, total * 19 // 20), HARMS), reverse=True)
    done, frozen, gave_up = 0, None, 0
    while writers:
        readable = wait([one.pipe for one in writers], 0.5 if frozen else PATIENCE)
        assert readable or frozen, "All writers fell silent."
        for one in [one for one in writers if one.pipe in readable]:
            kind, message = one.receive()
            done += 1
            if kind == "returned":
                writers.remove(one)
                gave_up += message
        if frozen is not None and (not readable or (harms and done >= harms[-1])):
            os.kill(frozen.process.pid, signal.SIGCONT)
            frozen = None
        if harms and done >= harms[-1]:
            harms.pop()
            frozen = harm(dice, workers, start)
    if frozen is not None:
        os.kill(frozen.process.pid, signal.SIGCONT)
    until(lambda: not InboxRequest.objects.exists(), "the workers have decided all")
    assert not any(one.pipe.poll() for one in workers), "A worker ended by itself."
    for one in workers:
        one.kill()
    wait_until_alone()
    judge()
    if connection.vendor == "postgresql":
        assert gave_up == 0


def harm(dice: random.Random, workers: list[Child], start: Any) -> Child | None:
    """Kill a worker and start another one; or freeze one, and return it."""
    place = dice.randrange(WORKERS)
    if dice.random() < 0.5:
        os.kill(workers[place].process.pid, signal.SIGSTOP)
        return workers[place]
    workers[place].kill()
    workers[place] = start(work)
    return None


def judge() -> None:
    """Compare what was committed with the jobs that are there."""
    audit()
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT writer, number, kind, name FROM {LEDGER} ORDER BY writer, number")
        asked = cursor.fetchall()
    assert {kind for _, _, kind, _ in asked} == {"free", "once", "shared", "own", "remove"}
    free = sorted(job.args for job in Job.objects.filter(type="free"))
    assert free == [[[writer, number]] for writer, number, kind, _ in asked if kind == "free"]
    once = [name for _, _, kind, name in asked if kind == "once"]
    assert sorted(job.args for job in Job.objects.filter(type="once")) == [[name] for name in sorted({*once})]
    assert SuppressedEnqueue.objects.filter(type="once", outcome="deduplicated").count() == len(once) - len({*once})
    for job in Job.objects.filter(type="shared"):
        mine = [[writer, number] for writer, number, kind, name in asked if (kind, name) == ("shared", job.key)]
        assert sorted(job.args) == mine, "an item was lost or doubled"
        for each in range(WRITERS):
            numbers = [number for writer, number in job.args if writer == each]
            assert numbers == sorted(numbers), "a request overtook an earlier one of its key"
    left: dict[str, list[Any]] = {}
    for writer, number, kind, name in asked:
        if kind == "own":
            left.setdefault(name, []).append([writer, number])
        elif kind == "remove":
            left.pop(name, None)
    assert {job.key: job.args for job in Job.objects.filter(type="own")} == left
