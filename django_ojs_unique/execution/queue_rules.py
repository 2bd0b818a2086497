"""Queue rules: the pauses, limits and rates of whole queues; rates of jobs are in `limits.slots`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import F, QuerySet

from ..db.dialect import Dialect
from ..db.dialects import dialect_of
from ..db.fast.cursors import execute
from ..db.locking import unlocked
from ..limits.blocks import BLOCKED, Blocks, any_available, blocks_of
from ..models import Queue, StoppedRun
from ..ojs.blocking import UNBLOCKED
from ..ojs.states import JobState

WINDOW = timedelta(seconds=1)
"""The window in which a queue's ``max_per_second`` is counted; it begins with the first job that is handed out."""
SKEW = timedelta(minutes=1)
"""How far in the future a window may begin for a claim, which may have read its clock before it waited for a lock."""


class Rules(NamedTuple):
    """The queues that may give jobs now: all of them, those with a limit, and which of their jobs are blocked.

    ``closed``: any queues that give none now.
    """

    queues: list[str]
    limited: list[str]
    blocks: Mapping[str, Blocks]
    closed: frozenset[str] = frozenset()


class QueueState(NamedTuple):
    """Whether a queue is paused or limited, and whether it has available jobs that are blocked, and others."""

    is_restricted: bool
    has_blocked: bool
    has_unblocked: bool

    @property
    def has_rules(self) -> bool:
        """Whether a claim must look at the rules of the queue, or of its jobs."""
        return self.is_restricted or self.has_blocked


def columns_of_state(jobs: QuerySet[Any], queue: str, types: Sequence[str] | None) -> tuple[str, list[Any]]:
    """Return the SQL of the columns of a `QueueState`, and its parameters: three index look-ups.

    Unblocked jobs count if they have one of the ``types``; None means any.
    """
    condition, values = ("", []) if types is None else dialect_of(jobs).among(" AND type", types)
    restricted = "paused_at IS NOT NULL OR concurrency_limit IS NOT NULL OR max_per_second IS NOT NULL"
    columns = (
        f"(SELECT 1 FROM {Queue._meta.db_table} WHERE name = %s AND ({restricted})) IS NOT NULL",
        any_available(jobs, f"blocked_by {BLOCKED}"),
        any_available(jobs, f"blocked_by = '{UNBLOCKED}'{condition}"),
    )
    return ", ".join(columns), [queue, queue, queue, *values]


def rules_of(jobs: QuerySet[Any], queues: Collection[str], now: datetime) -> Rules:
    """Read the rules of some queues."""
    rules = _rules(dialect_of(jobs), now)
    closed = frozenset(name for name, is_closed, _ in rules if is_closed)
    limited = {name for name, _, is_limited in rules if is_limited}
    found = [name for name in dict.fromkeys(queues) if name not in closed]
    return Rules(found, [name for name in found if name in limited], blocks_of(jobs, found), closed)


def queues_with_rules(jobs: QuerySet[Any], queues: Collection[str]) -> frozenset[str]:
    """Return the names of all queues with a limit, and those of ``queues`` in which jobs are blocked."""
    rows = Queue.objects.using(jobs.db).exclude(concurrency_limit=None, max_per_second=None)
    return frozenset([*rows.values_list("name", flat=True), *blocks_of(jobs, queues)])


def lock_rows(jobs: QuerySet[Any], limited: Collection[str]) -> list[Queue]:
    """Lock the rows of limited queues until the transaction ends, except those that another transaction has locked."""
    if not limited:
        return []
    rows = Queue.objects.using(jobs.db)
    locked = list(unlocked(rows.filter(name__in=limited).order_by("name")))
    # Write the rows before the first query of the jobs: then a snapshot that is older than the last claim raises an
    # error, and under every isolation level the query sees the result of that claim.
    rows.filter(name__in=[row.name for row in locked]).update(window_count=F("window_count"))
    return locked


def rooms_left(jobs: QuerySet[Any], most: int, locked: Collection[Queue], now: datetime) -> dict[str, int]:
    """Return how many jobs, and ``most`` at most, the limits still allow for each of the ``locked`` queues."""
    found = {}
    for row in locked:
        left = [most]
        if row.concurrency_limit is not None:
            left.append(row.concurrency_limit - running(jobs, row.name, now))
        if row.max_per_second is not None:
            left.append(row.max_per_second - handed_out_lately(row, now))
        found[row.name] = min(left)
    return {name: room for name, room in found.items() if room > 0}


def running(jobs: QuerySet[Any], queue: str, now: datetime) -> int:
    """Count what runs for the limit of a queue."""
    active = jobs.filter(state=JobState.ACTIVE, queue=queue, finished_at=None, lease_expires_at__isnull=False)
    stopped = StoppedRun.objects.using(jobs.db).filter(queue=queue, lease_expires_at__gt=now)
    return active.order_by().values("pk").union(stopped.values("job_id"), all=True).count()


def handed_out_lately(row: Queue, now: datetime) -> int:
    """Return how many jobs of a queue have been handed out in its window of now."""
    return row.window_count if _in_window(row, now) else 0


def count_handed_out(using: str, handed_out: Mapping[str, int], now: datetime) -> None:
    """Add the jobs handed out to the windows of the limited queues, whose rows are locked."""
    for row in Queue.objects.using(using).filter(name__in=handed_out, max_per_second__isnull=False):
        if not _in_window(row, now):
            row.window_started_at, row.window_count = now, 0
        row.window_count += handed_out[row.name]
        row.save(using=using, update_fields=["window_started_at", "window_count"])


def _in_window(row: Queue, now: datetime) -> bool:
    return row.window_started_at is not None and -SKEW < now - row.window_started_at < WINDOW


def _rules(dialect: Dialect, now: datetime) -> list[tuple[str, bool, bool]]:
    """Return (name, gives nothing now, is limited) for each row of a queue. There are few."""
    adapt = dialect.connection.ops.adapt_datetimefield_value
    _, rows = execute(
        dialect,
        "SELECT name, paused_at IS NOT NULL"
        " OR (window_count >= max_per_second AND window_started_at > %s AND window_started_at < %s),"
        f" concurrency_limit IS NOT NULL OR max_per_second IS NOT NULL FROM {Queue._meta.db_table}",
        [adapt(now - WINDOW), adapt(now + SKEW)],
    )
    return rows
