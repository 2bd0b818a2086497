"""The signals that stop a worker."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.util import _exit_function  # type: ignore[attr-defined]
from types import FrameType

from ..worker import Worker
from ..worker.children import children, end_at_once
from ..worker.stop_signals import heeded, wake
from ..worker.supervisor import STOPPING

LEAST_SECONDS = 1.0
"""How long the interpreter may take to end by itself."""


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """While the block runs, end the process with exit code 0 at the first signal, as no job has begun yet."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {name: signal.signal(name, _end) for name in heeded()}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


@contextmanager
def stopping_on_signals(worker: Worker, verbosity: int, supervised: bool) -> Iterator[None]:
    """While the block runs, stop the worker at the first signal, and end the process at the second.

    A ``supervised`` worker ignores the second signal: a signal to all processes of a service reaches it twice, once
    directly and once through its supervisor. To end it at once, the supervisor uses SIGKILL.

    A thread receives the signals, because Python runs no signal handlers while the main thread waits for the database.
    It reads them from a socket, because on Windows they are written to no pipe.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    read_end, write_end = socket.socketpair()
    write_end.setblocking(False)
    heard = heeded()  # without Ctrl-C under a supervisor, which handles it
    wakeup = signal.set_wakeup_fd(
        write_end.fileno(), warn_on_full_buffer=False
    )  # before the handlers, to lose no signal
    before = {name: signal.signal(name, wake) for name in heard}
    threading.Thread(target=_on_signals, args=(read_end, heard, worker, verbosity, supervised), daemon=True).start()
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
        signal.set_wakeup_fd(wakeup)
        write_end.close()


def end_within(seconds: float, code: int) -> None:
    """End the process with an exit code when so many seconds have passed, if the interpreter wants to end but cannot.

    It waits for all threads and processes of the project that are no daemons, and for those of each executor.
    """
    threading.Thread(target=_end_anyway, args=(max(seconds, LEAST_SECONDS), code), daemon=True).start()


def _end_anyway(seconds: float, code: int) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline or not _is_ending():
        time.sleep(0.1)
    threads = [thread for thread in threading.enumerate() if not thread.daemon and thread.is_alive()]
    names = [each.name for each in (*threads, *children(daemon=False)) if each is not threading.main_thread()]
    with suppress(OSError):
        os.write(2, f"Left behind, as they do not end: {', '.join(names)}.\n".encode(errors="replace"))
    flushing = threading.Thread(target=logging.shutdown, daemon=True)
    flushing.start()
    flushing.join(LEAST_SECONDS)  # a thread that was left behind may have locked a log
    end_at_once(code)


def _is_ending() -> bool:
    """Whether the interpreter waits: the first call of the main thread is no more the program's."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    waiting = {threading._shutdown.__code__, _exit_function.__code__}  # type: ignore[attr-defined]
    return frame is not None and frame.f_code in waiting


def _on_signals(
    read_end: socket.socket, signals: Sequence[int], worker: Worker, verbosity: int, supervised: bool
) -> None:
    stopping = False
    while number := read_end.recv(1):
        if number[0] not in signals:
            continue
        if stopping:
            if supervised:
                continue
            end_at_once(128 + number[0])
        stopping = True
        worker.stop()
        if verbosity:
            with suppress(OSError):  # stderr may be closed
                os.write(2, STOPPING)
    read_end.close()
