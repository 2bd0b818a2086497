"""The handlers that are measured."""

import asyncio
import os
import time

from django_ojs_unique import job

WAIT_SECONDS, LONG_WAIT_SECONDS = 0.02, 0.1
"""How long jobs wait, as if for another service."""


@job("noop")
def noop(i: int) -> None:
    """Do nothing."""


@job("async_noop")
async def async_noop(i: int) -> None:
    """Do nothing."""


@job("select")
def select(i: int) -> None:
    """Read one row by its primary key."""
    from django_ojs_unique.models import Queue

    Queue.objects.filter(pk="none").first()


@job("wait")
def wait(i: int) -> None:
    """Wait."""
    time.sleep(WAIT_SECONDS)


@job("async_wait")
async def async_wait(i: int) -> None:
    """Wait."""
    await asyncio.sleep(WAIT_SECONDS)


@job("async_long_wait")
async def async_long_wait(i: int) -> None:
    """Wait longer."""
    await asyncio.sleep(LONG_WAIT_SECONDS)


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
