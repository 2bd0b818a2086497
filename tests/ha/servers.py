"""Servers of this run's own: on loopback, on ports and in folders that nobody else uses; none outlives the run."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.ports import reserve

PATIENCE = 90.0
"""Seconds after which what does not come to pass fails the run."""


class Missing(Exception):
    """A program that a scenario needs is not installed."""


class Failed(Exception):
    """Something did not come to pass, or was not as it must be."""


class Servers:
    """Starts processes as an unprivileged user, in one temporary folder."""

    def __init__(self, folder: Path, user: str) -> None:
        self.folder, self.user = folder, user
        self._began = time.monotonic()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._at_the_end: list[Callable[[], object]] = []

    def say(self, step: str) -> None:
        """Print what happens, with the seconds since the start."""
        print(f"{time.monotonic() - self._began:6.1f} s  {step}", flush=True)

    def start(self, name: str, *words: str) -> int:
        """Start a server; what it prints goes into a log. Return its process id."""
        with self.log(name).open("ab") as output:
            self._running[name] = subprocess.Popen(
                self._as_user(words), cwd=self.folder, stdout=output, stderr=output, start_new_session=True
            )
        return self._running[name].pid

    def run(self, *words: str) -> str:
        """Run a command to its end and return what it prints."""
        done = subprocess.run(self._as_user(words), cwd=self.folder, capture_output=True, text=True)
        if done.returncode:
            raise Failed(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def kill(self, name: str) -> None:
        """kill -9, and its children with it."""
        process = self._running.pop(name)
        for pid in tree(process.pid):
            send(pid, signal.SIGKILL)
        process.wait()

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def ending(self, step: Callable[[], object]) -> None:
        """Call a step before the servers are ended."""
        self._at_the_end.append(step)

    def end(self) -> None:
        for step in reversed(self._at_the_end):
            with suppress(Exception):
                step()
        for name in list(self._running):
            self.kill(name)

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        """Return what the condition returns, as soon as it is true; what it raises counts as not yet."""
        deadline = time.monotonic() + PATIENCE
        last: object = None
        while time.monotonic() < deadline:
            try:
                if answer := condition():
                    return answer
            except Exception as error:
                last = error
            if dead := [name for name, process in self._running.items() if process.poll() is not None]:
                last = f"{', '.join(dead)} ended"
                break
            time.sleep(0.05)
        logs = "\n".join(f"--- {log.name}\n{log.read_text()[-2000:]}" for log in sorted(self.folder.glob("*.log")))
        raise Failed(f"It never came to pass that {what} ({last}).\n{logs}")

    def _as_user(self, words: tuple[str, ...]) -> list[str]:
        """Return the command, as another user if this one is root; the servers refuse to run as root."""
        if os.getuid() != 0:
            return list(words)
        ids = [f"--reuid={self.user}", f"--regid={self.user}", "--init-groups"]
        return ["setpriv", *ids, "--pdeathsig=KILL", *words]


@contextmanager
def servers(user: str) -> Iterator[Servers]:
    """Yield a place for servers; all of them end with the block, however it ends."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    folder = Path(tempfile.mkdtemp(prefix="ojs-ha-"))
    if os.getuid() == 0:
        owner = pwd.getpwnam(user)
        os.chown(folder, owner.pw_uid, owner.pw_gid)
    folder.chmod(0o755)
    place = Servers(folder, user)
    try:
        yield place
    finally:
        place.end()
        shutil.rmtree(folder, ignore_errors=True)


def needed(*programs: str) -> None:
    """Raise Missing unless each program, or file, is there."""
    if missing := [program for program in programs if not (shutil.which(program) or Path(program).exists())]:
        raise Missing(f"not installed here: {', '.join(missing)}")


def reserved_ports(place: Servers, count: int) -> list[int]:
    """Return ports that nobody else gets until the servers have ended, nor the one after each of them."""
    found: list[int] = []
    while len(found) < count:
        one = reserve()
        port = one.getsockname()[1]
        try:
            two = reserve(port + 1)
        except OSError:
            one.close()
        else:
            found.append(port)
            place.ending(one.close)
            place.ending(two.close)
    return found


def tree(pid: int) -> list[int]:
    """Return a process and all that descend from it, the ancestors first."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = stat.read_text().rpartition(")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(stat.parent.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def send(pid: int, number: int) -> None:
    """Send a signal; a process that has gone does not mind."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
