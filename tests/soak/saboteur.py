"""The saboteur: takes one fault after the other at random, and notes what each may excuse."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from django.db import DatabaseError, InterfaceError, connection

from django_ojs_unique.models import CronJob, Event, Job, Queue, SuppressedEnqueue, WorkerProcess

from . import NARROW
from .history import JOBS, stored
from .logs import write
from .programs import Program
from .servers import Server

PAUSE = 4.0
"""Seconds between two faults, on average."""
FOR_EVER = 1e12
UNTIL_IT_WORKS = 1.0
"""Seconds that a fault excuses after its end: connections are made anew, stopped processes get their turn."""
FAILED = (DatabaseError, InterfaceError)
CUT = {
    "postgresql": (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
        "SELECT pg_terminate_backend({})",
    ),
    "mysql": (
        "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()",
        "KILL {}",
    ),
}


@dataclass
class Fault:
    """What may let leases run out: those of the workers, jobs and types that match these patterns of SQL's LIKE."""

    began: float
    ended: float
    worker: str = "%"
    job: str = "%"
    type: str = "%"


class Saboteur:
    """Disturbs the programs and their database."""

    def __init__(
        self,
        dice: random.Random,
        programs: list[Program],
        server: Server,
        lease: float,
        *,
        spares_database: bool = False,
    ) -> None:
        self.dice, self.programs, self.server, self.lease = dice, programs, server, lease
        self.faults: list[Fault] = []
        self.done: Counter[str] = Counter()
        self._endings: list[tuple[float, Callable[[], None]]] = []
        self._next = time.time() + PAUSE
        self._busy: set[Any] = set()
        self._asked_to_end: set[int] = set()
        self._actions: dict[Callable[[], str], int] = {self.kill: 4, self.stop: 4, self.terminate: 3}
        if spares_database:
            return
        self._actions[self.lock_row] = 2
        if connection.vendor == "sqlite":
            self._actions[self.lock_database] = 2
        else:
            self._actions |= {self.lock_auxiliary: 8, self.cut: 4}
        if server.can_restart:
            self._actions[self.restart] = 2

    def turn(self) -> str:
        """End what is over, perhaps begin something; say what, or nothing."""
        self._end_what_is_over(time.time())
        if time.time() < self._next:
            return ""
        self._next = time.time() + self.dice.expovariate(1 / PAUSE)
        action = self.dice.choices(list(self._actions), list(self._actions.values()))[0]
        try:
            said = action()
        except FAILED:
            connection.close()
            return ""
        if said:
            self.done[said.partition(":")[0]] += 1
            write("faults", said=said)
        return said

    def stop_all(self) -> None:
        """End all faults."""
        self._end_what_is_over(FOR_EVER)

    # Processes

    def kill(self) -> str:
        program = self._program()
        if program is None:
            return ""
        pids = program.pids()
        if len(pids) > 1 and self.dice.random() < 0.5:
            pids, program.has_orphans = [self.dice.choice(pids[1:])], True
            with suppress(ProcessLookupError):
                os.kill(pids[0], signal.SIGKILL)
        else:
            program.signal(signal.SIGKILL)
        # A transaction ends with its client, while a worker's leases have to run out.
        self._blame(program, pids, FOR_EVER if program.is_worker else time.time() + UNTIL_IT_WORKS)
        return f"killed: {program.name}"

    def stop(self) -> str:
        """Stop a program, and let it go on when the leases that it held have run out."""
        program = self._program()
        if program is None:
            return ""
        pids, seconds = program.pids(), self.lease * self.dice.uniform(1.2, 2.5)
        program.signal(signal.SIGSTOP)
        faults = self._blame(program, pids, FOR_EVER)
        self._busy.add(program)

        def go_on() -> None:
            program.signal(signal.SIGCONT)
            self._busy.discard(program)
            for fault in faults:
                fault.ended = time.time() + UNTIL_IT_WORKS

        self._endings.append((time.time() + seconds, go_on))
        return f"stopped: {program.name} for {seconds:.1f} s"

    def terminate(self) -> str:
        program = self._program(workers=True)
        if program is None:
            return ""
        pids = program.pids()
        if pids[0] in self._asked_to_end:  # the second signal ends it at once, and its leases have to run out
            self._blame(program, pids, FOR_EVER)
        self._asked_to_end.add(pids[0])
        program.terminate()
        return f"asked to end: {program.name}"

    def _program(self, workers: bool = False) -> Program | None:
        able = [each for each in self.programs if each.alive and each not in self._busy]
        able = [each for each in able if each.is_worker or not workers]
        return self.dice.choice(able) if able else None

    def _blame(self, program: Program, pids: list[int], ended: float) -> list[Fault]:
        if connection.vendor == "sqlite":  # whoever it is may hold the only write lock
            faults = [Fault(time.time(), ended)]
        elif program.is_worker:
            faults = [Fault(time.time(), ended, worker=f"%:{pid}:%") for pid in pids]
        else:  # its transaction may hold the rows of jobs that it is about to replace
            faults = [Fault(time.time(), ended, type="unique.%")]
        self.faults += faults
        return faults

    # The database

    def lock_auxiliary(self) -> str:
        """Lock what is no job for several leases' time; that excuses nothing."""
        seconds = self.lease * self.dice.uniform(1.5, 2.5)
        rows: list[Any] = [WorkerProcess, WorkerProcess, WorkerProcess, Queue, CronJob]
        tables: list[Any] = [SuppressedEnqueue, SuppressedEnqueue, Event] if connection.vendor == "postgresql" else []
        model = self.dice.choice([*rows, *tables])
        name = model._meta.db_table
        if model in tables:
            self._hold(f"LOCK TABLE {name}", seconds)
            return f"locked table: {name} for {seconds:.1f} s"
        key = model._meta.pk.column
        keys = [NARROW] if model is Queue else list(model.objects.order_by("pk").values_list("pk", flat=True))
        if not keys:
            return ""
        self._hold(f"UPDATE {name} SET {key} = {key} WHERE {key} = '{self.dice.choice(keys)}'", seconds)
        return f"locked row: of {name} for {seconds:.1f} s"

    def lock_row(self) -> str:
        """Lock a job that runs, for longer than its lease."""
        job = Job.objects.filter(state="active").order_by("?").first()
        if job is None or connection.vendor == "sqlite":
            return ""
        seconds = self.lease * self.dice.uniform(1.2, 2)
        fault = Fault(time.time(), FOR_EVER, job=str(stored(job.pk)))
        self.faults.append(fault)
        self._hold(f"UPDATE {JOBS} SET progress_note = progress_note WHERE id = '{stored(job.pk)}'", seconds, fault)
        return f"locked job: {job.pk} for {seconds:.1f} s"

    def lock_database(self) -> str:
        """Hold SQLite's only write lock: no lease can be extended then."""
        seconds = self.lease * self.dice.uniform(0.5, 1.5)
        fault = Fault(time.time(), FOR_EVER)
        self.faults.append(fault)
        self._hold("SELECT 1", seconds, fault)
        return f"locked database: for {seconds:.1f} s"

    def _hold(self, statement: str, seconds: float, fault: Fault | None = None) -> None:
        rival = connection.copy()
        try:
            rival.set_autocommit(False)
            with rival.cursor() as cursor:  # which lets errors of the driver be Django's
                if connection.vendor == "sqlite":
                    cursor.execute("BEGIN IMMEDIATE")
                if connection.vendor == "postgresql":
                    cursor.execute("SET LOCAL lock_timeout = '5s'")
                cursor.execute(statement)
        except FAILED:
            rival.close()
            if fault is not None:
                fault.ended = time.time() + UNTIL_IT_WORKS
            raise

        def detach() -> None:
            with suppress(*FAILED):
                rival.rollback()
            with suppress(*FAILED):
                rival.close()
            if fault is not None:
                fault.ended = time.time() + UNTIL_IT_WORKS

        self._endings.append((time.time() + seconds, detach))

    def cut(self) -> str:
        """End a few connections, whoever has them."""
        which, end = CUT[connection.vendor]
        with connection.cursor() as cursor:
            cursor.execute(which)
            sessions = [session for (session,) in cursor.fetchall()]
            for session in self.dice.sample(sessions, min(len(sessions), self.dice.randrange(1, 4))):
                cursor.execute(end.format(session))
        return "cut: some connections"

    def restart(self) -> str:
        how = self.dice.choice(["fast", "immediate", "killed"])
        fault = Fault(time.time(), FOR_EVER)
        self.faults.append(fault)
        connection.close()
        self.server.restart(how)
        fault.ended = time.time() + UNTIL_IT_WORKS
        return f"server restarted: {how}"

    def _end_what_is_over(self, now: float) -> None:
        over = [ending for moment, ending in self._endings if moment <= now]
        self._endings = [(moment, ending) for moment, ending in self._endings if moment > now]
        for ending in over:
            ending()


def rows(faults: list[Fault]) -> Iterator[dict[str, Any]]:
    """Yield the faults as the judge's table has them."""
    yield from (vars(fault) for fault in faults)
