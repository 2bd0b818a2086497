"""Walk along what blocks the jobs of a queue: one index look-up for each value, however many jobs have it."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import QuerySet

from ..db.dialect import Dialect
from ..db.dialects import dialect_of
from ..db.fast.cursors import Plan, execute
from ..db.index_scan import walk
from ..models import LimitPartition, Slot, StoppedRun
from ..ojs.blocking import AFTER_PARTITIONS, FAIR, ID, LIMITED, PARTITIONS, UNBLOCKED, through

QUEUES_AT_ONCE = 50
"""How many queues one statement names: SQLite takes 500 parts of a UNION at most."""
MOST_PARTITIONS = 1_000
"""How many partitions with free slots a look takes from a queue."""
MOST_WALKED = 5_000
"""How many partitions a look asks for free slots in a queue, in 0.1 to 0.2 s; the next claim goes on behind them."""

IS_RUNNING = (
    "(EXISTS (SELECT 1 FROM {jobs} AS job WHERE job.id = slot.job_id AND job.lease_token = slot.lease_token"
    " AND job.state = 'active' LIMIT 1 OFFSET 0)"
    f" OR EXISTS (SELECT 1 FROM {StoppedRun._meta.db_table} AS run WHERE run.job_id = slot.job_id"
    " AND run.lease_token = slot.lease_token AND run.lease_expires_at > %s LIMIT 1 OFFSET 0))"
)
"""Whether a slot's run goes on at a time. OFFSET keeps PostgreSQL from joining tables when its statistics are old."""


def running_rows(jobs: str, which: str) -> str:
    """Return the SQL that counts the runs of partitions whose rows are slots.

    Its parameters are those of the condition ``which``, the time, and those of ``which`` again.
    """
    return (
        "SELECT blocked_by, COUNT(*) AS number FROM"
        f" (SELECT blocked_by FROM {jobs} WHERE state = 'active' AND finished_at IS NULL AND {which} UNION ALL"
        f" SELECT blocked_by FROM {StoppedRun._meta.db_table} WHERE lease_expires_at > %s AND {which})"
        " AS running GROUP BY blocked_by"
    )


class Blocks(NamedTuple):
    """Which available jobs a queue has: unblocked ones, new ones with limits, those of partitions that take turns, and
    those that wait for slots of partitions."""

    unblocked: bool
    new: bool
    fair: bool
    partitions: bool


BLOCKED = f"> '{UNBLOCKED}'"
_KINDS = (f"= '{UNBLOCKED}'", f"= '{LIMITED}'", f"> '{FAIR}' AND blocked_by < '{PARTITIONS}'", f"> '{PARTITIONS}'")


def blocks_of(jobs: QuerySet[Any], queues: Collection[str]) -> dict[str, Blocks]:
    """Return those of the queues in which available jobs are blocked: one index look-up for each, and four if so."""
    any_block, *each = (any_available(jobs, f"blocked_by {kind}") for kind in (BLOCKED, *_KINDS))
    statement = f"SELECT {{}}, {', '.join(each)} WHERE {any_block}"
    found: dict[str, Blocks] = {}
    ordered, dialect = sorted(queues), dialect_of(jobs)
    for start in range(0, len(ordered), QUEUES_AT_ONCE):
        part = ordered[start : start + QUEUES_AT_ONCE]
        parameters = [queue for queue in part for _ in range(len(_KINDS) + 1)]
        _, rows = execute(dialect, " UNION ALL ".join(map(statement.format, range(len(part)))), parameters)
        found |= {part[number]: Blocks(*map(bool, kinds)) for number, *kinds in rows}
    return found


def any_available(jobs: QuerySet[Any], condition: str) -> str:
    """Return the SQL that tells whether a queue, its first parameter, has such an available job: one index look-up."""
    # Ordered, so that PostgreSQL does not read the table until it meets such a row.
    return (
        f"(SELECT blocked_by FROM {jobs.model._meta.db_table} WHERE state = 'available' AND finished_at IS NULL"
        f" AND queue = %s AND {condition} ORDER BY blocked_by, priority DESC, enqueued_at, id LIMIT 1) IS NOT NULL"
    )


def blocks_with_slots(dialect: Dialect, queue: str, now: datetime, after: str) -> tuple[list[str], str | None]:
    """Return the blocks ``after`` another one, of partitions with a slot for which jobs of a queue wait.

    Also return the block at which the walk ended, if it was not the last one.
    """
    partitions, jobs = LimitPartition._meta.db_table, dialect.model._meta.db_table
    slots = (
        f"SELECT COALESCE(SUM(slot.weight), 0) FROM {Slot._meta.db_table} AS slot"
        " WHERE slot.partition_id = known.id AND " + IS_RUNNING.format(jobs=jobs)
    )
    blocks, parameters = _blocks(dialect, queue, after, AFTER_PARTITIONS, MOST_WALKED)
    rows_of_all = running_rows(jobs, f"blocked_by > '{PARTITIONS}'")
    statement = (
        f"{blocks}, running AS ({rows_of_all})"
        " SELECT MAX(blocked_by), COUNT(blocked_by) FROM waiting UNION ALL"
        f" SELECT waiting.blocked_by, NULL FROM waiting LEFT JOIN running"
        f" ON running.blocked_by = SUBSTR(waiting.blocked_by, 1, {ID})"
        f" WHERE waiting.blocked_by IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {partitions} AS known"
        f" WHERE known.id = SUBSTR(waiting.blocked_by, 1, {ID})"
        " AND CASE WHEN known.full_at IS NULL THEN known.opens_at > %s"
        f" ELSE known.full_at <= COALESCE(running.number, 0) + ({slots})"
        " AND COALESCE(known.opens_at > %s, TRUE) END LIMIT 1 OFFSET 0)"
    )
    moment = dialect.connection.ops.adapt_datetimefield_value(now)
    _, rows = execute(dialect, statement, [*parameters, *[moment] * 4], plan=Plan.FRESH)
    ((end, walked),) = [(block, number) for block, number in rows if number is not None]
    found = sorted(block for block, number in rows if number is None)
    if len(found) >= MOST_PARTITIONS:
        return found[:MOST_PARTITIONS], found[MOST_PARTITIONS - 1]
    return found, end if walked == MOST_WALKED else None


def fair_partitions_in_a_circle(dialect: Dialect, queue: str, last: str, most: int) -> list[str]:
    """Return the next partitions of a fair queue: from the one after the ``last`` on, then from the first one on."""
    partitions = blocks_between(dialect, queue, last, PARTITIONS, most)
    if len(partitions) < most and last > FAIR:
        partitions += blocks_between(dialect, queue, FAIR, through(last), most - len(partitions))
    return partitions


def blocks_between(dialect: Dialect, queue: str, after: str, before: str, most: int = MOST_WALKED) -> list[str]:
    """Return the blocks of a queue between two others."""
    blocks, parameters = _blocks(dialect, queue, after, before, most)
    _, rows = execute(
        dialect, f"{blocks} SELECT blocked_by FROM waiting WHERE blocked_by IS NOT NULL", parameters, plan=Plan.FRESH
    )
    return [block for (block,) in rows]


def _blocks(dialect: Dialect, queue: str, after: str, before: str, most: int) -> tuple[str, list[Any]]:
    """Return the start of a statement that lists the blocks of a queue, one index look-up for each; its parameters."""
    table = dialect.model._meta.db_table
    if not dialect.walks_indexes:  # without finished_at, which an available job has not, no row is read
        return (
            f"WITH waiting (blocked_by) AS (SELECT DISTINCT blocked_by FROM {table} WHERE state = 'available'"
            " AND queue = %s AND blocked_by > %s AND blocked_by < %s ORDER BY blocked_by LIMIT %s)",
            [queue, after, before, most],
        )
    rows = f"{table} WHERE state = 'available' AND finished_at IS NULL AND queue = %s AND blocked_by < %s"
    return (
        f"WITH RECURSIVE {walk('waiting', 'blocked_by', rows, '%s', after=' AND blocked_by > %s')}",
        [queue, before, after, queue, before, most],
    )
