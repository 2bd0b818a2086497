"""Measure the package, on PostgreSQL unless the name says otherwise: ``python -m benchmarks [PART] [options]``.

What has a bare loop to compare with takes turns with it within one run, on the same table with the same indexes: the
figure to read is the ratio, absolute rates belong to the machine.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable

from tests.__main__ import postgres

from .project import on_postgres, on_sqlite

PREPARED = {"server_side_binding": True, "prepare_threshold": 2}


def enqueue(options: argparse.Namespace) -> None:
    """One client: a new unique job per call, and a duplicate per call, beside the bare driver."""
    with on_postgres("enqueue", **(PREPARED if options.prepared else {})) as dsn:
        from . import enqueue
        from .turns import Turns

        enqueue.report(dsn, Turns(options.seconds, options.rounds or 7), options.finished)


def row(options: argparse.Namespace) -> None:
    """What a job's row costs the server: one bare INSERT of it, beside one of a lean table."""
    with on_postgres("row") as dsn:
        from . import row

        row.report(dsn, options.rounds or 15)


def bulk(options: argparse.Namespace) -> None:
    """10,000 unique jobs by one enqueue_many, beside the bare driver's multi-row insert of the same rows."""
    with on_postgres("bulk") as dsn:
        from . import bulk

        bulk.report(dsn, options.rounds or 7)
        bulk.report_memory(options.jobs)


def inbox(options: argparse.Namespace) -> None:
    """100,000 requests by one INSERT ... SELECT, decided, beside enqueue_many; and the latency of one request."""
    with on_postgres("inbox"):
        from . import inbox, latency

        inbox.report(options.rounds or 3)
        latency.report(options.samples, from_sql=True)


def worker(options: argparse.Namespace) -> None:
    """Jobs that do nothing, read one row or wait, beside a bare loop; with --peers, other packages too."""
    with on_postgres("worker") as dsn:
        from . import worker

        worker.report(dsn, options.rounds or 5, options.finished)
    if options.peers:
        from . import peers

        peers.report(options.rounds or 5)


def attempts(options: argparse.Namespace) -> None:
    """No-op jobs on the second of three attempts, and with one attempt, in turns with first attempts."""
    with on_postgres("attempts"):
        from . import worker

        worker.report_attempts(options.rounds or 5)


def latency(options: argparse.Namespace) -> None:
    """An idle worker: from the commit of an enqueue to the start of the handler."""
    with on_postgres("latency"):
        from . import latency

        latency.report(options.samples)


def sqlite(options: argparse.Namespace) -> None:
    """No-op jobs through one worker on SQLite, beside a bare loop, and huey where it is installed."""
    with on_sqlite() as path:
        from . import worker

        worker.report_sqlite(path, options.rounds or 3)


def memory(options: argparse.Namespace) -> None:
    """The memory of one worker while it runs 100,000 jobs."""
    with on_postgres("memory"):
        from . import processes

        processes.report_memory()


def growth(options: argparse.Namespace) -> None:
    """The blocks that each operation reads as the table grows, and while an old transaction is open."""
    with on_postgres("growth") as dsn:
        from . import growth

        growth.report(dsn, [size for size in (10**4, 10**6, 10**7) if size <= options.finished])


def metrics(options: argparse.Namespace) -> None:
    """The blocks that a scrape of the metrics reads, with a million jobs in 2,000 queues."""
    with on_postgres("metrics"):
        from . import metrics

        metrics.report(options.finished)


def idle(options: argparse.Namespace) -> None:
    """What an idle worker costs: CPU time, and transactions on the server."""
    with on_postgres("idle"):
        from . import processes

        processes.report_idle()


def hosts(options: argparse.Namespace) -> None:
    """The same work by 1, 2 and 4 worker hosts, each in a network namespace, beside bare loops on as many."""
    from .bridge import on_bridge

    with on_bridge("hosts", 4) as (dsn, fleet):
        from . import hosts

        hosts.report(dsn, fleet, options.rounds or 3)


def workflows(options: argparse.Namespace) -> None:
    """A batch of 1,000 jobs that eight processes end at once, beside the same jobs outside of a workflow."""
    with on_postgres("workflows"):
        from . import workflows

        workflows.report(options.rounds or 5)


def limits(options: argparse.Namespace) -> None:
    """A thousand keys beside jobs without limits, and claims past blocked keys with few and with many jobs."""
    with on_postgres("limits"):
        from . import limits

        limits.report(options.rounds or 5)


def start(options: argparse.Namespace) -> None:
    """What the app adds to django.setup(): CPU time, modules and memory, beside a bare project."""
    from . import start

    start.report(options.rounds or 15)


def scan(options: argparse.Namespace) -> None:
    """The self-healing scan over many records."""
    with on_postgres("scan"):
        from . import scan

        scan.report(options.records)


def admin(options: argparse.Namespace) -> None:
    """The pages of the admin over a million jobs, beside a plain ModelAdmin of the same table."""
    with on_postgres("admin", settings="benchmarks.settings_admin"):
        from . import admin

        admin.report(options.rounds or 15, options.finished)


def api(options: argparse.Namespace) -> None:
    """An enqueue, and a fetch with its ack, over HTTP, beside a bare view of Django REST framework with one insert."""
    with on_postgres("api", settings="benchmarks.settings_api"):
        _api(options)


def api_sqlite(options: argparse.Namespace) -> None:
    """The same on SQLite."""
    with on_sqlite(settings="benchmarks.settings_api"):
        _api(options)


def _api(options: argparse.Namespace) -> None:
    from . import api
    from .turns import Turns

    api.report(Turns(options.seconds, options.rounds or 7))


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    part.__name__: part
    for part in (
        enqueue,
        row,
        bulk,
        inbox,
        worker,
        attempts,
        latency,
        sqlite,
        memory,
        growth,
        metrics,
        idle,
        hosts,
        admin,
        workflows,
        limits,
        start,
        scan,
        api,
        api_sqlite,
    )
}
LONG = {"hosts", "scan"}


def main() -> int:
    parts = "\n".join(f"  {name:<12}{part.__doc__}" for name, part in PARTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=f"parts:\n{parts}\n  all         All of them. Without a part: all but {', '.join(sorted(LONG))}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("part", nargs="?", choices=[*PARTS, "all"], metavar="PART", help="What to measure, see below.")
    parser.add_argument(
        "--rounds",
        type=int,
        help="pairs of turns (7 for enqueue, bulk, api; 5 for worker, attempts, workflows, limits; 3 for inbox, sqlite,"
        " hosts; else 15)",
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="enqueue, api: length of one turn (default 1)")
    parser.add_argument(
        "--prepared",
        action="store_true",
        help="enqueue: let Django's connection prepare statements, as the bare loop does",
    )
    parser.add_argument(
        "--finished",
        type=int,
        default=1_000_000,
        help="enqueue, worker: finished jobs in the table for the last part; admin, metrics: jobs; growth: the most"
        " finished jobs (default 1,000,000)",
    )
    parser.add_argument("--jobs", type=int, default=1_000_000, help="bulk: jobs of one iterator (default 1,000,000)")
    parser.add_argument("--peers", action="store_true", help="worker: measure other packages too, where installed")
    parser.add_argument("--samples", type=int, default=300, help="latency: enqueues (default 300)")
    parser.add_argument("--records", type=int, default=1_000_000, help="scan: records (default 1,000,000)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no worker and no database is left behind
    if options.part in PARTS:
        PARTS[options.part](options)
        return 0
    chosen = [name for name in PARTS if options.part == "all" or name not in LONG]
    return in_processes(chosen, sys.argv[2:] if options.part else sys.argv[1:])


def in_processes(parts: list[str], options: list[str]) -> int:
    """Run each part in a process of its own, as Django is set up once per process; all on one PostgreSQL server."""
    with postgres() as url:
        codes = []
        for part in parts:
            print(f"\n=== {part} ===", flush=True)
            command = [sys.executable, "-m", "benchmarks", part, *options]
            codes.append(subprocess.run(command, env={**os.environ, "OJS_TEST_POSTGRES_URL": url}).returncode)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
