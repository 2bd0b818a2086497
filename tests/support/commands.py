"""``runworker`` as operators start it: in a process of its own, on the test database, with handlers of the tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module, reload
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.db import connection

from django_ojs_unique.models import Job, WorkerProcess
from tests.support.handlers import declared
from tests.support.hosts import Host
from tests.support.outage import Outage
from tests.support.processes import PATIENCE, is_locked, until, wait_until_alone

SETTINGS = "tests.support.project.settings"
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Event:
    """What a handler wrote down."""

    event: str
    job: UUID
    attempt: int
    pid: int
    at: float


class Command:
    """One ``runworker``."""

    def __init__(
        self, options: tuple[str, ...], environment: dict[str, str], log: Path, host: Host | None = None
    ) -> None:
        self._log = log
        command = [sys.executable, "-m", "django", "runworker", *options]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                host.command(*command) if host else command,
                env=environment,
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._process.pid

    @property
    def output(self) -> str:
        return self._log.read_text()

    @property
    def is_ready(self) -> bool:
        """Whether it works by now, and knows what to do on a signal."""
        return "stops it." in self.output

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def freeze(self) -> None:
        """Stop all its threads until SIGCONT, while it holds no lock on a job: others would wait for that lock."""

        def holds_no_lock() -> bool:
            self.signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self.pid, os.WSTOPPED)  # the signal alone leaves them a few more milliseconds
            if is_locked(Job.objects.all()):
                self.signal(signal.SIGCONT)
                return False
            return True

        until(holds_no_lock, "the worker is stopped while no job is locked", said=lambda: self.output)

    def signal_group(self, number: int) -> None:
        """Signal it and all its children, as a terminal does."""
        os.killpg(self.pid, number)

    def wait(self) -> int:
        """Return the exit code, in the way of a shell."""
        try:
            code = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            pytest.fail(f"The worker does not end. It said:\n{self.output}")
        return code if code >= 0 else 128 - code

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """kill -9, and the children with it."""
        with suppress(ProcessLookupError):
            self.signal_group(signal.SIGKILL)
        self._process.wait()


class Site:
    """A folder in which handlers write and gates open, and the workers that run there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commands: list[Command] = []

    def environment(self, outage: Outage | None = None) -> dict[str, str]:
        """Return the variables that tell a worker where to work."""
        database = {**connection.settings_dict, **(outage.detour if outage else {})}
        return {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": SETTINGS,
            "OJS_TEST_WORKER_DATABASE": json.dumps(database, default=str),
            "OJS_TEST_FOLDER": str(self.folder),
            "PYTHONUNBUFFERED": "1",
        }

    def runworker(
        self, *options: str, outage: Outage | None = None, host: Host | None = None, **environment: str
    ) -> Command:
        variables = {**self.environment(outage), **environment}
        log = self.folder / f"worker-{len(self.commands)}.log"
        self.commands.append(Command(options, variables, log, host))
        return self.commands[-1]

    def rescuing_nobody(self, *options: str, **more: Any) -> Command:
        """Start a worker that takes back no job: on a slow machine it could take back its own before it extends it."""
        command = self.runworker(*options, **more, OJS_TEST_RESCUES="nobody")
        # Its row is written after its first look for leases that have run out.
        self.wait(WorkerProcess.objects.filter(pid=command.pid).exists, "the worker is up")
        return command

    def wait_until_confirmed(self) -> None:
        """Wait until the attempts of all running jobs count: their leases have been extended."""
        self.wait(lambda: not Job.objects.filter(unconfirmed=True).exists(), "all leases were extended")

    def open(self, gate: str) -> None:
        """Let handlers that wait at the gate go on."""
        (self.folder / gate).touch()

    def events(self, name: str | None = None, job: Any = None) -> list[Event]:
        """Return what handlers wrote, in order: all of it, or what is called ``name``, or about one job."""
        file = self.folder / "runs"
        lines = file.read_text().splitlines() if file.exists() else []
        events = [Event(**{**fields, "job": UUID(fields["job"])}) for fields in map(json.loads, lines)]
        return [event for event in events if name in (None, event.event) and job in (None, event.job)]

    def wait(self, enough: Callable[[], Any], what: str) -> Any:
        """Return what ``enough`` returns, as soon as it is true."""

        def said() -> str:
            outputs = "\n".join(f"--- {command.pid}\n{command.output[-3000:]}" for command in self.commands)
            return f"{list(Job.objects.values()[:5])}\n{outputs}"

        return until(enough, what, said=said)

    def wait_for(self, name: str, count: int = 1, job: Any = None) -> list[Event]:
        """Return the events of a name once there are so many."""
        return self.wait(lambda: len(events := self.events(name, job)) >= count and events, f"{count} handlers {name}")

    def wait_for_state(self, job: Any, **values: Any) -> Job:
        """Return the job once its row has these values."""
        rows = Job.objects.filter(pk=job.pk, **values)
        return self.wait(rows.first, f"job {job.pk} has {values}")


def enqueue(type: str = "hold", gate: str = "gate", **options: Any) -> Job:
    """Enqueue a job that waits at a gate."""
    return Job.objects.enqueue(type, {"gate": gate}, **options).job


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    """Yield a Site; none of its workers, and none of the handlers' declarations, outlives the block."""
    place = Site(folder)
    try:
        with declared():
            reload(import_module("tests.support.project.jobs"))  # an enqueue takes its defaults from the handler
            yield place
    finally:
        for command in place.commands:
            command.kill()
        wait_until_alone()
