"""Producers and workers that go on whatever happens to the database, and the judgement of what they leave."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing import get_context
from typing import Any
from uuid import UUID, uuid4, uuid5

from django.db import DatabaseError, InterfaceError, connection, connections

from django_ojs_unique.exceptions import JobIdTaken
from django_ojs_unique.models import Job
from tests.support.audit import ask, audit
from tests.support.commands import Command, Site
from tests.support.history import keep_history, moves
from tests.support.processes import Child, Parent, nursery
from tests.support.runs import audit_row, group, left

from .servers import Failed, Servers
from .verdict import Call, verdict

UNFINISHED = ["scheduled", "available", "pending", "active", "retryable"]
ONCE = {"keys": ["type", "args"], "states": [*UNFINISHED, "completed"], "on_conflict": "ignore"}
WHILE_IT_WAITS = {"keys": ["type", "args"], "states": UNFINISHED, "on_conflict": "ignore"}
"""The first looks and inserts in a transaction, the second decides by one statement where the database can."""
NOBODY = UUID(int=0)
TICK = 0.05
"""Seconds between two keys, which all producers enqueue at the same moment."""
LEASE = "10"
RECENT = 20


class Load:
    """Producers that enqueue the same keys at the same moments, and the workers of a site."""

    def __init__(self, servers: Servers, place: Site, start: Any) -> None:
        self._servers, self._place = servers, place
        self._stop = get_context("fork").Event()
        self._start = start
        self._began = time.time()
        self._producers: list[Child] = []
        self._workers: list[Command] = []
        self.struck_at: list[float] = []

    def add(self, port: str | None = None) -> None:
        """Start a producer and a worker; ``port`` is another way to the database than that of the settings."""
        self._producers.append(self._start(produce, len(self._producers), self._began, self._stop, port))
        detour = type("Detour", (), {"detour": {"PORT": port}})() if port else None
        self._workers.append(self._place.runworker("--lease", LEASE, "--concurrency", "2", outage=detour))

    def flows(self, seconds: float = 3.0) -> None:
        """Return once jobs have been completed for so long after now."""
        begin = time.time()
        recent = f"SELECT count(*) FROM history WHERE target = 'completed' AND at > {begin + seconds}"
        self._servers.wait(lambda: _ask(recent) >= RECENT, "jobs are completed")

    def struck(self, what: str) -> None:
        """Note that the database is struck now."""
        self._servers.say(what)
        self.struck_at.append(time.time())

    def end(self) -> list[Call]:
        """Stop the producers, let the workers finish; return every call."""
        self._servers.say("stop the producers; wait until all jobs have ended")
        self._stop.set()
        calls = [call for producer in self._producers for call in producer.result()]
        self._servers.wait(lambda: _reconnected() and left() == 0, "all jobs have ended")
        for worker in self._workers:
            if not worker.alive:
                raise Failed(f"A worker ended by itself:\n{worker.output}")
            if worker.stop() != 0:
                raise Failed(f"A worker failed:\n{worker.output}")
        return calls

    def judge(self, calls: Sequence[Call]) -> None:
        """Hold every answer, each row and each run against one another; raise Failed for what must not be."""
        stored = {UUID(number) for number in _column("SELECT number FROM witness")}
        keys = {
            pk: f"once {args['once']}" if "once" in args else "" for pk, args in Job.objects.values_list("pk", "args")
        }
        history, runs = moves(), group(self._place.events())
        found = verdict(calls, keys, runs.keys(), stored)
        answered = [call for call in calls if call.id is not None]
        again = [pk for pk, events in runs.items() if sum(event.event == "began" for event in events) > 1]
        failed = Counter(call.outcome for call in calls if call.id is None)
        print(f"\nenqueues answered {len(answered)}, failed {sum(failed.values())}: {dict(failed)}")
        print(f"jobs {len(keys)}: lost {len(found.lost)}, keys admitted twice {len(found.twice)}")
        enqueues = [call.at for call in answered]
        claims = [move.at for each in history.values() for move in each if move.target == "active"]
        for moment in self.struck_at:
            print(f"nothing enqueued for {_gap(enqueues, moment)}, nothing claimed for {_gap(claims, moment)}")
        if found.cluster or found.package:
            raise Failed("; ".join(filter(None, [found.package, found.cluster])))
        rows = {row.pk: row for row in audit()}
        for row in rows.values():
            audit_row(row, history[row.pk], runs.get(row.pk, []), Counter())
        print(f"finalized twice 0, run beside a live lease 0, run again after a lease ran out {len(again)}")


def produce(parent: Parent, number: int, began: float, stop: Any, port: str | None) -> list[Call]:
    """Enqueue by the clock until stopped, and ask again what was not answered."""
    if port:
        connection.settings_dict["PORT"] = port
    calls: list[Call] = []
    while not stop.is_set():
        time.sleep(TICK - (time.time() - began) % TICK)
        tick = int((time.time() - began) / TICK)
        own = uuid5(NOBODY, f"{number}-{tick}")
        calls += _until_answered(f"once {tick}", stop, type="quick", args={"once": tick}, unique=ONCE)
        calls += _until_answered(f"free {tick}", stop, type="quick", args={"free": tick}, unique=WHILE_IT_WAITS)
        calls += _until_answered(f"own {own}", stop, type="quick", args={"own": tick}, unique=None, id=own)
    return calls


def _until_answered(key: str, stop: Any, *, unique: Any, **options: Any) -> Iterator[Call]:
    while True:
        try:
            answer = ask(unique=unique, **options) if unique else Job.objects.enqueue(unique=None, **options)
            pk, outcome = getattr(answer, "id", None) or answer.job.pk, str(answer.outcome)
            yield Call(key, time.time(), outcome, pk, _witness())
            return
        except JobIdTaken:  # the commit of an earlier try was not answered, but it is there
            yield Call(key, time.time(), "was there", options["id"], _witness())
            return
        except (DatabaseError, InterfaceError) as error:
            yield Call(key, time.time(), f"{type(error).__name__}: {' '.join(str(error).split())[:60]}")
            _reconnected()
            if stop.is_set():
                return
            time.sleep(0.1)


@contextmanager
def load(servers: Servers) -> Iterator[Load]:
    """Yield the load on the database of the settings; nothing of it outlives the block."""
    keep_history()
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE witness (number varchar(36) PRIMARY KEY)")
    place = Site(servers.folder)
    try:
        with nursery() as start:
            yield Load(servers, place, start)
    finally:
        for command in place.commands:
            command.kill()


def _reconnected() -> bool:
    connections["default"].close()
    return True


def _witness() -> UUID | None:
    """Commit a plain row by the connection that has just enqueued; return its number, or None without an answer."""
    number = uuid4()
    try:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO witness VALUES (%s)", [str(number)])
    except (DatabaseError, InterfaceError):
        _reconnected()
        return None
    return number


def _ask(sql: str) -> Any:
    return _column(sql)[0]


def _column(sql: str) -> list[Any]:
    _reconnected()
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return [row[0] for row in cursor.fetchall()]


def _gap(moments: list[float], blow: float) -> str:
    """Return the longest pause that began within ten seconds of the blow."""
    moments = sorted(moments)
    pauses = [after - before for before, after in pairwise(moments) if after > blow and before < blow + 10]
    return f"{max(pauses):.1f} s"
