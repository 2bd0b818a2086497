"""Workers and producers: processes that are started again whenever they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Program:
    """A command line that is kept running; its children, if any, are in its process group."""

    def __init__(self, name: str, arguments: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.name = name
        self._command = [sys.executable, "-m", *arguments]
        self._log = folder / f"{name}.log"
        self._environment = environment
        self.start()

    @property
    def is_worker(self) -> bool:
        return self.name.startswith("worker")

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def start(self) -> None:
        self.has_orphans = False
        """Whether one of its processes was killed alone: nobody ends the children of that one."""
        self.asked_to_end: float | None = None
        """When, on the monotonic clock."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command, env=self._environment, cwd=ROOT, stdout=output, stderr=output, start_new_session=True
            )

    def pids(self) -> list[int]:
        """Return its process and the children of it."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        with suppress(OSError):
            return [self._process.pid, *map(int, children.read_text().split())]
        return [self._process.pid]

    def left(self) -> list[int]:
        """Return the worker processes of its group; programs that handlers have started do not count."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                state, _, group, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(group) == self._process.pid and state != "Z" and "runworker" in (folder / "cmdline").read_text():
                    found.append(int(folder.name))
        return found

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM to the first process only, as a service manager does."""
        self.asked_to_end = self.asked_to_end or time.monotonic()
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGTERM)

    def wait(self, seconds: float) -> int | None:
        """Return the exit code; kill it when it does not end in time, and return None."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self._process.wait()
            return None
