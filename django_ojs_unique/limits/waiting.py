"""What waits at the gates of some queues: read before a claim's transaction, so it only says where to look."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from django.db import connections
from django.db.models import QuerySet

from ..db.dialects import dialect_of
from ..db.heads import first_of_each
from ..db.rows import read_fields
from ..models import LimitKey, Slot
from ..ojs.gates import AFTER_KEYS, ID, KEYS, LANES, LIMITED, OPEN
from ..ojs.limits import are_readable

ORDER = ("-priority", "enqueued_at", "id")
FIELDS = ("id", "queue", "priority", "enqueued_at", "revision", "limits", "lane", "gate")
LEAST_HEADS = 2
LEAST_NEW, MOST_NEW = 10, 2_000
"""How many new jobs a claim reads at least, and at most when those that it read before must all wait."""
MOST_KEYS = 1_000
"""How many keys with free slots a claim looks at."""
QUEUES_AT_ONCE = 50

IS_RUNNING = (
    "EXISTS (SELECT 1 FROM {jobs} AS job WHERE job.id = slot.job_id AND job.lease_token = slot.lease_token"
    " AND job.state = 'active' LIMIT 1 OFFSET 0)"
)
"""Whether a slot's run goes on. OFFSET keeps PostgreSQL from joining whole tables when its statistics are old."""


Rank: TypeAlias = tuple[Any, ...]
BEFORE_ALL: Rank = (float("-inf"),)


@dataclass(slots=True)
class Waiting:
    """The first jobs at the gates of some queues, as rows with the ``FIELDS``.

    ``lines``: the jobs by queue, in no order; ``lanes``: those of each lane, in the order of their turns. ``opened``:
    the keys that had slots, and the last job that was read of those that wait for them; None if all were read.
    ``is_cut``: not all jobs were read.
    """

    lines: dict[str, list[Any]] = field(default_factory=dict)
    lanes: dict[str, list[list[Any]]] = field(default_factory=dict)
    keys: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The keys of all these jobs: a limit with it, by its id."""
    rates: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The keys of all rates that count in so many seconds."""
    opened: dict[str, Rank | None] = field(default_factory=dict)
    is_cut: bool = False


@dataclass(slots=True)
class Turns:
    """Where the looks of this process at each queue ended.

    ``lanes``: the lane that had the last turn; ``skipped``: the last one of those in which a look has found no job;
    ``keys``: the key read last.
    """

    lanes: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)


class Gates(NamedTuple):
    """Where available jobs of a queue stand: at open gates, new and with limits, in lanes, or waiting for slots."""

    open: bool
    new: bool
    lanes: bool
    keys: bool


def gates_of(jobs: QuerySet[Any], queues: Collection[str]) -> dict[str, Gates]:
    """Return those of the queues in which available jobs wait at gates: one index look-up for each, four if so."""
    gated = [queue for queue, (waits,) in _seen(jobs, sorted(queues), [f"> '{OPEN}'"]).items() if waits]
    kinds = [f"= '{OPEN}'", f"= '{LIMITED}'", f"> '{LANES}' AND gate < '{KEYS}'", f"> '{KEYS}'"]
    return {queue: Gates(*seen) for queue, seen in _seen(jobs, gated, kinds).items()}


def _seen(jobs: QuerySet[Any], queues: Sequence[str], conditions: Sequence[str]) -> dict[str, list[bool]]:
    """Tell for each queue whether it has available jobs at a gate that meets each condition."""
    some = (  # ordered, so that PostgreSQL does not read the table until it meets such a row
        f"(SELECT gate FROM {jobs.model._meta.db_table} WHERE state = 'available' AND finished_at IS NULL"
        " AND queue = %s AND gate {} ORDER BY gate, priority DESC, enqueued_at, id LIMIT 1) IS NOT NULL"
    )
    columns = ", ".join(map(some.format, conditions))
    found: dict[str, list[bool]] = {}
    with connections[jobs.db].cursor() as cursor:
        for start in range(0, len(queues), QUEUES_AT_ONCE):
            part = queues[start : start + QUEUES_AT_ONCE]
            cursor.execute(
                " UNION ALL ".join(f"SELECT {columns}, {number}" for number in range(len(part))),
                [queue for queue in part for _ in conditions],
            )
            found |= {part[number]: list(map(bool, seen)) for *seen, number in cursor.fetchall()}
    return found


def look(
    ready: QuerySet[Any], gates: Mapping[str, Gates], count: int, now: datetime, turns: Turns, repeated: int
) -> Waiting:
    """Read the first jobs at the ``gates`` of some queues, enough to claim ``count`` of them.

    ``ready``: the jobs that may start. ``turns`` is updated. ``repeated``: how often this claim has looked before.
    """
    waiting = Waiting()
    most_new = min(max(count, LEAST_NEW) * 4**repeated, MOST_NEW)
    for queue, which in gates.items():
        rows = ready.filter(queue=queue)
        new = read_fields(rows.filter(gate=LIMITED).order_by(*ORDER)[:most_new], FIELDS) if which.new else []
        waiting.is_cut = waiting.is_cut or len(new) == most_new
        opened = _open_keys(ready, queue, now, turns) if which.keys else []
        most = max(-(-2 * count // max(len(opened), 1)), LEAST_HEADS)
        heads = first_of_each(rows, opened, most, ORDER, FIELDS)
        for gate in opened:
            key, line = gate[:ID], heads.get(gate, [])
            waiting.opened.setdefault(key, None)
            if len(line) == most:
                last = rank(line[-1])
                waiting.opened[key] = min(waiting.opened[key] or last, last)
                waiting.is_cut = True
        most_lanes = max(count, LEAST_NEW) * 4**repeated
        last_lane = turns.skipped.pop(queue, turns.lanes.get(queue, LANES))
        lanes = _lanes(ready, queue, most_lanes, last_lane) if which.lanes else []
        most = max(-(-count // max(len(lanes), 1)) + 1, LEAST_HEADS)
        first = [job for job in chain(*heads.values(), new) if are_readable(job.limits)]
        turn = [*chain.from_iterable(first_of_each(rows, lanes, most, ORDER, FIELDS).values())]
        if len(lanes) == most_lanes:
            waiting.is_cut = True
            if not turn:
                turns.skipped[queue] = lanes[-1]  # they have no job for this claim: the next look begins behind them
        waiting.lines[queue] = [job for job in first if not job.lane]
        laned = [*(job for job in turn if are_readable(job.limits)), *(job for job in first if job.lane)]
        waiting.lanes[queue] = _in_order(laned, turns.lanes.get(queue, LANES))
        for job in chain(waiting.lines[queue], *waiting.lanes[queue]):
            for limit in job.limits or ():
                waiting.keys[limit["id"]] = limit
                if "seconds" in limit:
                    waiting.rates[limit["seconds"]].add(limit["id"])
    return waiting


def first_in_line(ready: QuerySet[Any], queues: Iterable[str], key: str) -> Rank | None:
    """Return the place of the first job of the queues that waits for a slot of a key; None if none does."""
    first: list[Rank] = []
    for queue in queues:
        rows = ready.filter(queue=queue)
        first += map(rank, first_of_each(rows, [key], 1, ORDER, FIELDS).get(key, ()))
        if rows.filter(gate__gt=key + LANES, gate__lt=key + KEYS).exists():
            first.append(BEFORE_ALL)  # lanes have an order of their own
    return min(first, default=None)


def rank(job: Any) -> Rank:
    """Return the place of a job in the order of `ORDER`."""
    return -job.priority, job.enqueued_at, job.id


def _open_keys(ready: QuerySet[Any], queue: str, now: datetime, turns: Turns) -> list[str]:
    """Return the gates at which jobs of the queue wait for a slot, and there is one again."""
    connection = connections[ready.db]
    table = connection.ops.quote_name(LimitKey._meta.db_table)
    jobs = ready.model._meta.db_table
    slots = (
        f"SELECT COALESCE(SUM(slot.weight), 0) FROM {Slot._meta.db_table} AS slot WHERE slot.key_id = known.id AND "
        + IS_RUNNING.format(jobs=jobs)
    )
    rows = (
        f"SELECT gate, COUNT(*) AS number FROM {jobs}"
        f" WHERE state = 'active' AND finished_at IS NULL AND gate > '{KEYS}' GROUP BY gate"
    )
    gates, parameters = _gates(ready, queue, turns.keys.pop(queue, KEYS), AFTER_KEYS)
    with connection.cursor() as cursor:
        cursor.execute(
            f"{gates}, running AS ({rows}) SELECT waiting.gate FROM waiting LEFT JOIN running"
            f" ON running.gate = SUBSTR(waiting.gate, 1, {ID}) WHERE waiting.gate IS NOT NULL AND NOT EXISTS"
            f" (SELECT 1 FROM {table} AS known WHERE known.id = SUBSTR(waiting.gate, 1, {ID}) AND (known.opens_at > %s"
            f" OR COALESCE(running.number, 0) + ({slots}) >= known.full_at) LIMIT 1 OFFSET 0) LIMIT {MOST_KEYS}",
            [*parameters, connection.ops.adapt_datetimefield_value(now)],
        )
        found = [gate for (gate,) in cursor.fetchall()]
    if len(found) == MOST_KEYS:
        turns.keys[queue] = found[-1]
    return found


def _lanes(ready: QuerySet[Any], queue: str, count: int, last: str) -> list[str]:
    """Return the next lanes of a fair queue: from the one after the ``last`` on, then from the first one on."""
    lanes = _lanes_after(ready, queue, last, count)
    if len(lanes) < count and last > LANES:
        lanes += [lane for lane in _lanes_after(ready, queue, LANES, count - len(lanes)) if lane <= last]
    return lanes


def _lanes_after(ready: QuerySet[Any], queue: str, last: str, count: int) -> list[str]:
    gates, parameters = _gates(ready, queue, last, KEYS, count)
    with connections[ready.db].cursor() as cursor:
        cursor.execute(f"{gates} SELECT gate FROM waiting WHERE gate IS NOT NULL", parameters)
        return [gate for (gate,) in cursor.fetchall()]


def _in_order(jobs: Iterable[Any], last: str) -> list[list[Any]]:
    """Return the jobs of each lane in their order; the lane after the last turn comes first."""
    lanes: dict[str, list[Any]] = defaultdict(list)
    for job in sorted(jobs, key=rank):
        lanes[job.lane].append(job)
    return [lanes[lane] for lane in sorted(lanes, key=lambda lane: (lane <= last, lane))]


def _gates(ready: QuerySet[Any], queue: str, after: str, before: str, most: int = 2**31) -> tuple[str, list[Any]]:
    """Return the start of a statement that names the gates of a queue, one index look-up for each; its parameters."""
    table = ready.model._meta.db_table
    if not dialect_of(ready).walks_indexes:  # without finished_at, which an available job has not, no row is read
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
