"""The resources of a worker process: memory under load, CPU time and transactions while idle."""

from __future__ import annotations

import time

import psutil
from django.db import connection

from . import drain
from .project import running

JOBS = (10_000, 50_000, 100_000)
IDLE_SECONDS = 20


def report_memory() -> None:
    """Print the resident memory after each number of jobs."""
    sizes = []
    with running() as process:
        for already, total in zip((0, *JOBS), JOBS, strict=False):
            drain.clear()
            drain.fill(total - already)
            drain.wait_until_below(1, process)
            sizes.append(_memory(process.pid))
            print(f"after {total:>7,} jobs: {sizes[-1]:.1f} MiB", flush=True)
    print(f"growth from {JOBS[0]:,} to {JOBS[-1]:,} jobs: {sizes[-1] - sizes[0]:+.1f} MiB  goal: flat")


def report_idle() -> None:
    """Print the CPU time and the transactions of a worker without jobs."""
    with running() as process:
        drain.fill(1)
        drain.wait_until_below(1, process)
        time.sleep(15)  # its sessions tell the server late what they have done
        cpu, transactions = _cpu(process.pid), _transactions()
        time.sleep(IDLE_SECONDS)
        cpu, transactions = _cpu(process.pid) - cpu, _transactions() - transactions - 1
    print(
        f"idle for {IDLE_SECONDS} s: {cpu:.2f} s of CPU time ({cpu / IDLE_SECONDS:.1%}),"
        f" {transactions / IDLE_SECONDS:.1f} transactions/s  goal 1.0"
    )


def _family(pid: int) -> list[psutil.Process]:
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def _memory(pid: int) -> float:
    return sum(process.memory_info().rss for process in _family(pid)) / 2**20


def _cpu(pid: int) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in _family(pid))


def _transactions() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()")
        return int(cursor.fetchone()[0])
