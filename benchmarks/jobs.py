"""The handlers that are measured."""

import os
import time

from django_ojs_unique import job


@job("noop")
def noop(i: int) -> None:
    """Do nothing."""


@job("wait")
def wait(i: int) -> None:
    """Wait for 20 ms, as a job that waits for another service."""
    time.sleep(0.02)


@job("stamp")
def stamp(i: int) -> None:
    """Store when it started, by the clock that all processes share."""
    os.write(_stamps(), f"{i} {time.monotonic_ns()}\n".encode())


def _stamps() -> int:
    global _file
    if _file is None:
        _file = os.open(os.environ["OJS_BENCHMARK_STAMPS"], os.O_WRONLY | os.O_APPEND)
    return _file


_file: int | None = None
