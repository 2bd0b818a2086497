"""Walk along the gates of a queue: one index look-up for each gate, however many jobs wait there."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import QuerySet

from ..db.cursors import Plan, execute
from ..db.dialect import Dialect
from ..db.dialects import dialect_of
from ..models import LimitKey, Slot
from ..ojs.gates import AFTER_KEYS, ID, KEYS, LANES, LIMITED, OPEN, through

QUEUES_AT_ONCE = 50
"""How many queues one statement names: SQLite takes 500 parts of a UNION at most."""
MOST_KEYS = 1_000
"""How many gates of keys with free slots a look takes from a queue."""
MOST_WALKED = 5_000
"""How many gates a look asks for free slots in a queue, in 0.1 to 0.2 s; the next claim goes on behind them."""

IS_RUNNING = (
    "EXISTS (SELECT 1 FROM {jobs} AS job WHERE job.id = slot.job_id AND job.lease_token = slot.lease_token"
    " AND job.state = 'active' LIMIT 1 OFFSET 0)"
)
"""Whether a slot's run goes on. OFFSET keeps PostgreSQL from joining whole tables when its statistics are old."""


class Gates(NamedTuple):
    """Where available jobs of a queue stand: at open gates, new and with limits, in lanes, or waiting for slots."""

    open: bool
    new: bool
    lanes: bool
    keys: bool


_KINDS = (f"= '{OPEN}'", f"= '{LIMITED}'", f"> '{LANES}' AND gate < '{KEYS}'", f"> '{KEYS}'")


def gates_of(jobs: QuerySet[Any], queues: Collection[str]) -> dict[str, Gates]:
    """Return those of the queues in which available jobs wait at gates: one index look-up for each, and four if so."""
    # Ordered, so that PostgreSQL does not read the table until it meets such a row.
    seen = (
        f"(SELECT gate FROM {jobs.model._meta.db_table} WHERE state = 'available' AND finished_at IS NULL"
        " AND queue = %s AND gate {} ORDER BY gate, priority DESC, enqueued_at, id LIMIT 1) IS NOT NULL"
    )
    any_gate, *each = map(seen.format, (f"> '{OPEN}'", *_KINDS))
    statement = f"SELECT {{}}, {', '.join(each)} WHERE {any_gate}"
    found: dict[str, Gates] = {}
    ordered, dialect = sorted(queues), dialect_of(jobs)
    for start in range(0, len(ordered), QUEUES_AT_ONCE):
        part = ordered[start : start + QUEUES_AT_ONCE]
        parameters = [queue for queue in part for _ in range(len(_KINDS) + 1)]
        _, rows = execute(dialect, " UNION ALL ".join(map(statement.format, range(len(part)))), parameters)
        found |= {part[number]: Gates(*map(bool, kinds)) for number, *kinds in rows}
    return found


def gates_with_slots(dialect: Dialect, queue: str, now: datetime, after: str) -> tuple[list[str], str | None]:
    """Return the gates after another one at which jobs of a queue wait for a slot, and there is one.

    Also return the gate at which the walk ended, if it was not the last gate.
    """
    keys, jobs = LimitKey._meta.db_table, dialect.model._meta.db_table
    slots = (
        f"SELECT COALESCE(SUM(slot.weight), 0) FROM {Slot._meta.db_table} AS slot WHERE slot.key_id = known.id AND "
        + IS_RUNNING.format(jobs=jobs)
    )
    gates, parameters = _gates(dialect, queue, after, AFTER_KEYS, MOST_WALKED)
    statement = (
        f"{gates}, running AS (SELECT gate, COUNT(*) AS number FROM {jobs}"
        f" WHERE state = 'active' AND finished_at IS NULL AND gate > '{KEYS}' GROUP BY gate)"
        " SELECT MAX(gate), COUNT(gate) FROM waiting UNION ALL"
        f" SELECT waiting.gate, NULL FROM waiting LEFT JOIN running ON running.gate = SUBSTR(waiting.gate, 1, {ID})"
        f" WHERE waiting.gate IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {keys} AS known"
        f" WHERE known.id = SUBSTR(waiting.gate, 1, {ID}) AND CASE WHEN known.full_at IS NULL THEN known.opens_at > %s"
        f" ELSE known.full_at <= COALESCE(running.number, 0) + ({slots})"
        " AND COALESCE(known.opens_at > %s, TRUE) END LIMIT 1 OFFSET 0)"
    )
    moment = dialect.connection.ops.adapt_datetimefield_value(now)
    _, rows = execute(dialect, statement, [*parameters, moment, moment], plan=Plan.FRESH)
    ((end, walked),) = [(gate, number) for gate, number in rows if number is not None]
    found = sorted(gate for gate, number in rows if number is None)
    if len(found) >= MOST_KEYS:
        return found[:MOST_KEYS], found[MOST_KEYS - 1]
    return found, end if walked == MOST_WALKED else None


def lanes_in_a_circle(dialect: Dialect, queue: str, last: str, most: int) -> list[str]:
    """Return the next lanes of a fair queue: from the one after the ``last`` on, then from the first one on."""
    lanes = walk(dialect, queue, last, KEYS, most)
    if len(lanes) < most and last > LANES:
        lanes += walk(dialect, queue, LANES, through(last), most - len(lanes))
    return lanes


def walk(dialect: Dialect, queue: str, after: str, before: str, most: int = MOST_WALKED) -> list[str]:
    """Return the gates of a queue between two others."""
    gates, parameters = _gates(dialect, queue, after, before, most)
    _, rows = execute(dialect, f"{gates} SELECT gate FROM waiting WHERE gate IS NOT NULL", parameters, plan=Plan.FRESH)
    return [gate for (gate,) in rows]


def _gates(dialect: Dialect, queue: str, after: str, before: str, most: int) -> tuple[str, list[Any]]:
    """Return the start of a statement that names the gates of a queue, one index look-up for each; its parameters."""
    table = dialect.model._meta.db_table
    if not dialect.walks_indexes:  # without finished_at, which an available job has not, no row is read
        return (
            f"WITH waiting (gate) AS (SELECT DISTINCT gate FROM {table} WHERE state = 'available' AND queue = %s"
            " AND gate > %s AND gate < %s ORDER BY gate LIMIT %s)",
            [queue, after, before, most],
        )
    some = f"SELECT gate FROM {table} WHERE state = 'available' AND finished_at IS NULL AND queue = %s AND gate < %s"
    return (
        f"WITH RECURSIVE waiting (gate, number) AS (SELECT ({some} AND gate > %s ORDER BY gate LIMIT 1), 1 UNION ALL"
        f" SELECT ({some} AND gate > waiting.gate ORDER BY gate LIMIT 1), waiting.number + 1 FROM waiting"
        " WHERE waiting.gate IS NOT NULL AND waiting.number < %s)",
        [queue, before, after, queue, before, most],
    )
