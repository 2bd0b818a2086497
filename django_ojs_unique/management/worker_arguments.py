"""The arguments of ``runworker``."""

from __future__ import annotations

from functools import partial

from django.core.management.base import CommandParser

from ..checks.database import CONCURRENCY
from ..worker.loop import ASYNC_CONCURRENCY, LEASE, SHUTDOWN_SECONDS
from .arguments import add_database, seconds, seconds_or_zero, whole_number
from .metrics import add_metrics

MOST_THREADS = 1_000
SHORTEST_LEASE = 0.1
WAIT_SECONDS = 60.0
"""How long a worker waits at its start for a database server that does not answer."""


def add_worker_arguments(parser: CommandParser) -> None:
    """Add all of them."""
    parser.add_argument(
        "--queue",
        action="append",
        metavar="NAME",
        help="Take jobs from this queue, or from all that match a pattern such as 'mail-*' (quote it); may be"
        " repeated. All queues by default.",
    )
    parser.add_argument(
        "--exclude-queue",
        action="append",
        default=[],
        metavar="NAME",
        help="Leave this queue, or all that match a pattern, to others; may be repeated.",
    )
    parser.add_argument(
        "--concurrency",
        type=partial(whole_number, most=MOST_THREADS),
        default=CONCURRENCY,
        metavar="N",
        help=f"Plain handlers that run at once, each in a thread (default {CONCURRENCY}).",
    )
    parser.add_argument(
        "--async-concurrency",
        type=whole_number,
        default=ASYNC_CONCURRENCY,
        metavar="N",
        help=f"Async handlers that run at once, all in one event loop (default {ASYNC_CONCURRENCY}).",
    )
    parser.add_argument(
        "--processes",
        type=whole_number,
        default=1,
        metavar="N",
        help="Worker processes, each with this concurrency; one that dies is started again (default 1).",
    )
    parser.add_argument(
        "--lease",
        type=partial(seconds, least=SHORTEST_LEASE),
        default=LEASE.total_seconds(),
        metavar="SECONDS",
        help="How long this worker may be silent before its jobs go to others (default"
        f" {LEASE.total_seconds():.0f}). A job's own lease goes first.",
    )
    parser.add_argument(
        "--shutdown-timeout",
        type=seconds,
        default=SHUTDOWN_SECONDS,
        metavar="SECONDS",
        help=f"How long running jobs may take to finish after the first signal (default {SHUTDOWN_SECONDS:.0f});"
        " then they are requeued.",
    )
    parser.add_argument(
        "--wait-for-database",
        type=seconds_or_zero,
        metavar="SECONDS",
        help="How long to wait at the start for a database server that does not answer"
        f" (default {WAIT_SECONDS:.0f}; with --drain 0).",
    )
    parser.add_argument(
        "--max-jobs",
        type=whole_number,
        metavar="N",
        help="Stop after N jobs (with --processes: start afresh), against memory that leaks in handlers.",
    )
    parser.add_argument("--drain", action="store_true", help="Stop when no job is due.")
    parser.add_argument(
        "--reload",
        action="store_true",
        help="Start again when the code changes: for development, with one process and without --drain.",
    )
    parser.add_argument(
        "--health-file",
        metavar="PATH",
        help="A file that is written every second while all is well, for probes. With --processes: PATH.0, PATH.1"
        " and so on.",
    )
    add_metrics(parser)
    add_database(parser)
