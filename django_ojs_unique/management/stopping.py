"""The signals that stop a worker."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from ..worker import Worker
from ..worker.supervisor import STOPPING


@contextmanager
def stopping_on_signals(worker: Worker, verbosity: int, supervised: bool) -> Iterator[None]:
    """Stop the worker at the first signal and the process at the second, while the block runs.

    One that is ``supervised`` goes on after a second: who signals all processes of a service reaches it twice, once
    through its supervisor, which uses SIGKILL to end it at once.

    A thread hears them: Python runs no handlers while the main thread waits for the database.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    # Under the supervisor, which alone hears Ctrl-C, it is ignored.
    heard = [name for name in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(name) is not signal.SIG_IGN]
    wakeup = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)  # first, or a signal in between were lost
    before = {name: signal.signal(name, lambda number, frame: None) for name in heard}
    threading.Thread(target=_hear, args=(read_end, heard, worker, verbosity, supervised), daemon=True).start()
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(write_end)


def _hear(read_end: int, signals: Sequence[int], worker: Worker, verbosity: int, supervised: bool) -> None:
    stopping = False
    while number := os.read(read_end, 1):
        if number[0] not in signals:
            continue
        if stopping:
            if supervised:
                continue
            os._exit(128 + number[0])
        stopping = True
        worker.stop()
        if verbosity:
            with suppress(OSError):  # nobody may read it any more
                os.write(2, STOPPING)
    os.close(read_end)
