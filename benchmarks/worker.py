"""Jobs of several kinds through one worker process, in turns with a bare loop on the same table."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec

from . import drain, enqueue, turns
from .jobs import LONG_WAIT_SECONDS, WAIT_SECONDS
from .project import RUNWORKER

PYTHON = [sys.executable, "-m"]
JOBS = 20_000


def report(dsn: str, rounds: int, finished: int) -> None:
    """Print the rates for several kinds of jobs, and for one kind beside ``finished`` jobs."""
    bare = [*PYTHON, "benchmarks.bare_worker", dsn]
    empty = _compare(bare, rounds, "no-op jobs", "0.80")
    _compare(bare, rounds, "no-op jobs, 2 processes", "1.20", "--processes", "2")
    _compare(bare, rounds, "async no-op jobs", "0.80", type="async_noop")
    _compare(bare, rounds, "jobs with one SELECT", "0.80", type="select", count=JOBS // 2)
    _compare(
        bare, rounds, "jobs with one SELECT, 2 processes", "1.20", "--processes", "2", type="select", count=JOBS // 2
    )
    _share("wait", 50, WAIT_SECONDS, "--concurrency")
    _share("async_wait", 50, WAIT_SECONDS, "--async-concurrency")
    _share("async_long_wait", 1000, LONG_WAIT_SECONDS, "--async-concurrency")
    drain.clear()
    enqueue.fill(finished)
    full = _compare(bare, rounds, f"no-op jobs, {finished:,} finished ones", "0.80", prepare=lambda: None)
    print(f"our best with {finished:,} finished ones: {full / empty:.2f} of the best with none  goal 0.90")


def report_attempts(rounds: int) -> None:
    """Print the rates of jobs whose attempts must not be lost, in turns with first attempts."""
    for name, columns in (("second of three attempts", {"attempt": 1}), ("only one attempt", {"max_attempts": 1})):
        pairs = []
        for _ in range(rounds):
            pair = []
            for changes in ({}, columns):
                drain.clear()
                pair.append(drain.rate(JOBS, **changes))
            pairs.append(pair)
        turns.report(f"{name}; bare: first attempts", pairs, "0.80")


def report_sqlite(path: str, rounds: int) -> None:
    """Print the rates on SQLite, and that of huey if it is installed."""
    _compare([*PYTHON, "benchmarks.bare_sqlite", path], rounds, "no-op jobs on SQLite", "-")
    if find_spec("huey") is None:
        print("huey: skipped, it is not installed")
        return
    command = [*PYTHON, "benchmarks.huey_rate", str(JOBS // 4)]
    rates = [float(subprocess.check_output(command)) for _ in range(rounds)]
    print(f"huey, one thread: {statistics.median(rates):,.0f}/s ({min(rates):,.0f}-{max(rates):,.0f})")


def _compare(
    bare: list[str],
    rounds: int,
    name: str,
    goal: str,
    *options: str,
    type: str = "noop",
    count: int = JOBS,
    prepare: Callable[[], None] = drain.clear,
) -> float:
    """Print both rates and the median ratio of ours to the bare loop, pair by pair; return our best rate."""
    pairs = []
    for _ in range(rounds):
        pair = []
        for command, kind in ((bare, type.removeprefix("async_")), ([*RUNWORKER, *options], type)):
            prepare()
            pair.append(drain.rate(count, command, kind))
        pairs.append(pair)
        print("  bare {:>7,.0f}/s  ours {:>7,.0f}/s".format(*pair), flush=True)
    turns.report(name, pairs, goal)
    return max(ours for _, ours in pairs)


def _share(type: str, at_once: int, seconds: float, option: str) -> None:
    """Print the rate for jobs that only wait, as a share of what so many at once allow."""
    drain.clear()
    allowed = at_once / seconds
    rate = drain.rate(int(allowed * 4), [*RUNWORKER, option, str(at_once)], type)
    print(f"{type}, {at_once} at once: {rate:,.0f}/s, {rate / allowed:.2f} of what that allows  goal 0.90", flush=True)
