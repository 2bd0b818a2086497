"""The same work by 1, 2 and 4 worker hosts on one PostgreSQL, beside bare loops on the same number of hosts.

A host is a network namespace: it reaches the database over TCP only. All hosts and the database share the cores of this
machine.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from subprocess import Popen

from django.db import connection, transaction

from django_ojs_unique.db.inserts import CHANNEL
from django_ojs_unique.models import Job
from tests.support.hosts import Host

from . import drain
from .project import RUNWORKER, running

COUNTS = (1, 2, 4)
NOOPS, WAITS = 20_000, 2_000


@dataclass(frozen=True)
class Turn:
    """The result of one number of hosts."""

    rate: float
    transactions: float
    """Per job, on the server."""
    connections: int
    """The most connections of one host."""
    shares: Sequence[int]
    """Jobs that each host completed."""


def report(dsn: str, fleet: Sequence[Host], rounds: int) -> None:
    """Print the rates by number of hosts, the transactions of each job, and the connections of each host."""
    bare = [sys.executable, "-m", "benchmarks.bare_worker", dsn]
    _turn(fleet, RUNWORKER, "noop", NOOPS)  # a new server is slow at first
    _compare(fleet, rounds, "noop", NOOPS, {"bare": bare, "ours": RUNWORKER})
    _compare(fleet, rounds, "wait", WAITS, {"ours": RUNWORKER})


def _compare(fleet: Sequence[Host], rounds: int, type: str, jobs: int, commands: dict[str, Sequence[str]]) -> None:
    turns: dict[tuple[str, int], list[Turn]] = {(name, count): [] for name in commands for count in COUNTS}
    for _ in range(rounds):
        for (name, count), done in turns.items():
            done.append(_turn(fleet[:count], commands[name], type, jobs))
    for name in commands:
        one = [turn.rate for turn in turns[name, 1]]
        for count in COUNTS:
            done = turns[name, count]
            ratios = sorted(turn.rate / alone for turn, alone in zip(done, one, strict=True))
            spread = [share / jobs for turn in done for share in turn.shares]
            print(
                f"{type} x {jobs:,}  {name}  {count} host(s) {statistics.median(t.rate for t in done):>7,.0f}/s"
                f"  ratio to one {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
                f"  {statistics.median(t.transactions for t in done):.3f} transactions per job"
                f"  {max(t.connections for t in done)} connections per host"
                + (f"  shares {min(spread):.0%}-{max(spread):.0%}" if spread else ""),
                flush=True,
            )


def _turn(fleet: Sequence[Host], command: Sequence[str], type: str, jobs: int) -> Turn:
    drain.clear()
    drain.tidy()
    with ExitStack() as stack:
        processes = [stack.enter_context(running(host.command(*command))) for host in fleet]
        _wait_until_ready(fleet, processes, listening=command is RUNWORKER)
        before = _transactions()
        with transaction.atomic():  # all jobs at once, for workers that wait
            drain.fill(jobs, type)
            with connection.cursor() as cursor:
                cursor.execute("ANALYZE django_ojs_unique_job")
                cursor.execute(f"SELECT pg_notify('{CHANNEL}', 'default')")
        begin, looks, connections = time.perf_counter(), 0, 0
        while drain.unfinished():
            looks += 1
            connections = max([connections, *_sessions(fleet).values()])
            _give_up_if(time.perf_counter() - begin > drain.PATIENCE or any(p.poll() is not None for p in processes))
            time.sleep(0.02)
        seconds = time.perf_counter() - begin
    spent = _transactions() - before - 3 * looks
    return Turn(jobs / seconds, spent / jobs, connections, _audit(jobs))


def _audit(jobs: int) -> list[int]:
    """Check that every job ran once and completed; return how many each host completed, if the rows name the worker."""
    assert Job.objects.filter(state="completed", attempt=1).count() == jobs == Job.objects.count(), "lost, or run twice"
    hosts_of = Counter(id.split(":")[0] for id in Job.objects.values_list("worker_id", flat=True) if id)
    return list(hosts_of.values())


def _wait_until_ready(fleet: Sequence[Host], processes: Sequence[Popen[bytes]], *, listening: bool) -> None:
    begin = time.perf_counter()
    while len(_sessions(fleet, "LISTEN%" if listening else "%")) < len(fleet):
        _give_up_if(time.perf_counter() - begin > 60 or any(process.poll() is not None for process in processes))
        time.sleep(0.05)


def _give_up_if(hopeless: bool) -> None:
    if hopeless:
        raise RuntimeError("A worker ended, or does not get on.")


def _sessions(fleet: Sequence[Host], query: str = "%") -> dict[str, int]:
    """Count the sessions of each host, by its address."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT host(client_addr), count(*) FROM pg_stat_activity"
            " WHERE host(client_addr) = ANY(%s) AND query LIKE %s GROUP BY 1",
            [[host.address for host in fleet], query],
        )
        return dict(cursor.fetchall())


def _transactions() -> int:
    """Count the committed and rolled back transactions, after the server has updated its statistics."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()")
        return int(cursor.fetchone()[0])
