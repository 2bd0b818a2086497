"""Output streams: a service goes on, and ends with its own exit code, if nobody reads its output any more."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

NAMES = ("stdout", "stderr")


def open_missing() -> None:
    """Open /dev/null for streams that are closed at the start, before a connection gets their file descriptors."""
    for name in NAMES:
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - it lasts as long as the process


@contextmanager
def escaping() -> Iterator[None]:
    """During the block, write characters that the encoding of stdout lacks as escapes, as Python does on stderr."""
    stream: Any = sys.stdout
    if getattr(stream, "errors", None) != "strict" or not hasattr(stream, "reconfigure"):
        yield
        return
    stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        stream.reconfigure(errors="strict")


def forget_lost() -> None:
    """Flush the streams; send one that nobody reads to /dev/null: a failing flush at exit would set exit code 120."""
    for name in NAMES:
        stream = getattr(sys, name)
        try:
            stream.flush()
        except ValueError:  # closed manually
            continue
        except OSError:
            with suppress(OSError, ValueError):
                void = os.open(os.devnull, os.O_WRONLY)
                os.dup2(void, stream.fileno())
                os.close(void)
