"""The blocks that each operation reads on PostgreSQL as the table grows, and while an old transaction is open."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import psycopg

from tests.support import growth

WAITING = 1_000
WORKED_OFF = 100_000
"""As many jobs as four minutes bring at 400 a second."""


def report(dsn: str, sizes: Sequence[int]) -> None:
    """Print a table: a line for each operation, a column for each number of finished jobs."""
    logging.getLogger("django_ojs_unique").setLevel(logging.ERROR)
    columns: dict[str, dict[str, int]] = {}
    growth.fill_waiting(1, WAITING)
    finished = 0
    for size in sizes:
        growth.fill_finished(finished + 1, size)
        finished = size
        growth.raw(f"VACUUM ANALYZE {growth.TABLE}")
        columns[f"{size:,}"] = growth.measure()
    with psycopg.connect(dsn) as old:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT 1")
        growth.work_off(WORKED_OFF)
        columns["old transaction"] = growth.measure()
    width = max(map(len, growth.OPERATIONS))
    print(f"{WAITING:,} jobs wait. Finished jobs; then {WORKED_OFF:,} were worked off beside an open transaction:")
    print(" " * width + "".join(f"{name:>17}" for name in columns))
    for operation in growth.OPERATIONS:
        print(f"{operation:<{width}}" + "".join(f"{read[operation]:>17,}" for read in columns.values()), flush=True)
