"""The signals that stop a worker, and how they keep out of the processes that its handlers start."""

from __future__ import annotations

import os
import signal
from threading import local
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def heeded() -> list[signal.Signals]:
    """Return the signals that stop this process. A shell script makes a background process ignore Ctrl-C."""
    return [name for name in SIGNALS if signal.getsignal(name) not in (signal.SIG_IGN, disregard)]


def wake(number: int, frame: FrameType | None) -> None:
    """Do nothing: what reads the wakeup file descriptor reacts to the signal."""


def disregard(number: int, frame: FrameType | None) -> None:
    """Do nothing at all. Programs that a handler starts would inherit SIG_IGN, but no function."""


_OURS = (wake, disregard)
_here = local()
"""``mask``: the signals that were blocked before this thread forked, or None if no signal is ours."""


def _before_fork() -> None:
    is_ours = any(signal.getsignal(name) in _OURS for name in SIGNALS)
    # A signal to a new child that still has our wakeup file descriptor would reach the worker.
    _here.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS) if is_ours else None


def _in_parent() -> None:
    if _here.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _here.mask)


def _in_child() -> None:
    """Let signals do to a child what they do to any Python program: `multiprocessing` ends its processes by SIGTERM."""
    if _here.mask is None:
        return
    signal.set_wakeup_fd(-1)
    for name in SIGNALS:
        if signal.getsignal(name) in _OURS:
            signal.signal(name, signal.default_int_handler if name == signal.SIGINT else signal.SIG_DFL)
    _in_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
