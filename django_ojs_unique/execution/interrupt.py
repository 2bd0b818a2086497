"""Raise TimeLimitExceeded in the thread that runs a handler."""

from __future__ import annotations

import ctypes
from threading import Lock, get_ident

from ..handlers.control import TimeLimitExceeded


class Interruptible:
    """A block that another thread may interrupt, once, and never after its end.

    The exception arrives between two steps of Python code, so a call that waits outside of Python (a query, a socket,
    `time.sleep`) is interrupted when it returns.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._thread: int | None = None
        self._sent = False

    def interrupt(self) -> None:
        """Raise in the thread that is inside the block, or at its entry if no thread is inside yet."""
        with self._lock:
            sent, self._sent = self._sent, True
            if not sent and self._thread is not None:
                _raise_in(self._thread, TimeLimitExceeded)

    def __enter__(self) -> None:
        with self._lock:
            if self._sent:
                raise TimeLimitExceeded
            self._thread = get_ident()

    def __exit__(self, *error: object) -> None:
        while True:
            try:
                with self._lock:
                    if self._sent and self._thread is not None:
                        _raise_in(self._thread, None)  # if it has not arrived by now, it must not arrive later
                    self._thread = None
                return
            except TimeLimitExceeded:  # it arrived here, after the end of the work
                continue


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), ctypes.py_object(error) if error is not None else None
    )
