"""The supervisor: keep several worker processes alive."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector
from threading import Thread
from types import FrameType

from django.db import connections

from .children import end_at_once
from .stop_signals import SIGNALS, disregard, heeded

logger = logging.getLogger("django_ojs_unique.worker")

STOPPING = b"\nStopping: running jobs finish first. Once more to end at once.\n"
SHORT_LIFE = 5.0
LONGEST_PAUSE = 30.0
"""A child that died within `SHORT_LIFE` seconds is started again after a pause that doubles up to `LONGEST_PAUSE`."""


class Supervisor:
    """Forks ``count`` processes that each run ``work(number)``, and restarts those that die.

    ``work`` returns the exit code of its process. With ``once`` (draining), a child that exits with 0 is done. Without
    it, the child has run its ``--max-jobs``, and a new one replaces it.
    """

    def __init__(self, count: int, work: Callable[[int], int], *, once: bool = False) -> None:
        self._count = count
        self._work = work
        self._once = once
        self._children: dict[int, tuple[int, float]] = {}
        self._stopping = False
        self._forced = 0
        self._pauses: dict[int, float] = {}
        self._restarts: dict[int, float] = {}
        """By the number of a child: when to start it again, on the monotonic clock."""
        self._read_end, self._write_end = os.pipe()
        """Only this process has the write end open, so the children read an end of file when this process is gone."""
        self._heard, self._bell = os.pipe()
        """Each signal writes to `_bell`, so that `_wait` also ends for a signal that came just before it began."""
        os.set_blocking(self._heard, False)
        os.set_blocking(self._bell, False)

    def run(self) -> int:
        """Supervise until stopped or done; return the exit code: the highest of the children's last ones."""
        signal.set_wakeup_fd(self._bell, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for name in heeded():
            signal.signal(name, self._stop)
        code = 0
        for number in range(self._count):
            self._start(number)
        while self._children or self._restarts:
            pid, status = self._wait()
            if pid not in self._children:
                continue
            number, started = self._children.pop(pid)
            ended = os.waitstatus_to_exitcode(status)
            if self._stopping and ended == -signal.SIGTERM:
                continue  # it had not begun to work
            if self._stopping or (self._once and ended == 0):
                code = max(code, 128 - ended if ended < 0 else ended)
            else:
                self._plan_restart(number, pid, ended, time.monotonic() - started)
        return 128 + self._forced if self._forced else code

    def _wait(self) -> tuple[int, int]:
        """Restart the children that are due, then wait; return (pid, status) of a child that ended, or (0, 0)."""
        if self._stopping:
            self._restarts.clear()
        for number, moment in list(self._restarts.items()):
            if time.monotonic() >= moment:
                del self._restarts[number]
                self._start(number)
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            pid, status = 0, 0
        if pid or not (self._children or self._restarts):
            return pid, status
        pause = max(min(self._restarts.values()) - time.monotonic(), 0) if self._restarts else None
        with DefaultSelector() as selector:  # `select()` knows no files beyond the first 1,024
            selector.register(self._heard, EVENT_READ)
            if selector.select(pause):
                os.read(self._heard, 4096)
        return 0, 0

    def _plan_restart(self, number: int, pid: int, code: int, lived: float) -> None:
        if code:
            logger.error(
                "Worker process %d (pid %d) died with %d after %.0f s; starting another.", number, pid, code, lived
            )
        pause = min((self._pauses.get(number) or 0.5) * 2, LONGEST_PAUSE) if code and lived < SHORT_LIFE else 0.0
        self._pauses[number] = pause
        self._restarts[number] = time.monotonic() + pause

    def _start(self, number: int) -> None:
        for connection in connections.all(initialized_only=True):
            connection.close()
            if hasattr(connection, "close_pool"):  # its sockets must not be shared with a child
                connection.close_pool()
        # Block signals: none may reach a child that still has the parent's handlers, or is not yet in `_children`.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = self._live(number)
                sys.stdout.flush()
            finally:
                end_at_once(code)
        self._children[pid] = number, time.monotonic()
        if self._stopping:
            os.kill(pid, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def _live(self, number: int) -> int:
        """Run the child. It ignores Ctrl-C, which reaches all processes of a terminal: only the parent reacts."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if signal.SIGINT in heeded():
                signal.signal(signal.SIGINT, disregard)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            os.close(self._write_end)
            Thread(target=_follow, args=(self._read_end,), daemon=True).start()
            return self._work(number)
        except SystemExit as error:
            return error.code if isinstance(error.code, int) else 1
        except BaseException:
            logger.exception("Worker process %d failed.", number)
            return 1

    def _stop(self, number: int, frame: FrameType | None) -> None:
        again, self._stopping = self._stopping, True
        if again:
            self._forced = number
        for pid in self._children:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGKILL if again else signal.SIGTERM)
        if not again:
            with suppress(OSError):  # Ctrl-C may have ended the reader, too: `runworker 2>&1 | tee log`
                os.write(2, STOPPING)


def _follow(parent: int) -> None:
    """Stop this process when its parent is gone, for whatever reason."""
    os.read(parent, 1)
    os.kill(os.getpid(), signal.SIGTERM)
