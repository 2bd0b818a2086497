"""No-op jobs through one worker process with default settings, in turns with a bare loop on the same table."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable

from . import drain, enqueue, turns
from .project import RUNWORKER

JOBS = 20_000


def report(dsn: str, rounds: int, finished: int) -> None:
    """Print the rates on an empty table, and on one with ``finished`` jobs."""
    empty = _compare(dsn, rounds, "no-op jobs", drain.clear)
    enqueue.fill(finished)
    full = _compare(dsn, rounds, f"no-op jobs, {finished:,} finished ones")
    print(f"our best with {finished:,} finished ones: {full / empty:.2f} of the best with none  goal 0.80")


def report_rate(rounds: int) -> None:
    """Print our rate only."""
    rates = [drain.rate(JOBS) for _ in range(rounds)]
    print(f"no-op jobs: {statistics.median(rates):,.0f}/s ({min(rates):,.0f}-{max(rates):,.0f})  goal 4,000")


def _compare(dsn: str, rounds: int, name: str, prepare: Callable[[], None] = lambda: None) -> float:
    """Print both rates and the median ratio of ours to the bare loop, pair by pair; return our best rate."""
    pairs = []
    for _ in range(rounds):
        pair = []
        for command in ([sys.executable, "-m", "benchmarks.bare_worker", dsn], RUNWORKER):
            prepare()
            pair.append(drain.rate(JOBS, command))
        pairs.append(pair)
        print("  bare {:>7,.0f}/s  ours {:>7,.0f}/s".format(*pair), flush=True)
    turns.report(name, pairs, "0.60")
    return max(ours for _, ours in pairs)
