"""What limits leave behind: the slots of ended runs, stopped runs, and the rows of partitions that nobody uses."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db import connections, transaction
from django.db.models import QuerySet

from ..db.dialects import dialect_of
from ..db.locking import unlocked
from ..db.now import DatabaseNow
from ..db.transactions import starting_over
from ..models import LimitPartition, Slot, StoppedRun
from .blocks import IS_RUNNING

AT_ONCE = 1_000
UNUSED_FOR = timedelta(days=1)
"""How long the row of a partition is kept after its last claim; a later claim stores it again."""


def prune_limits(jobs: QuerySet[Any], now: datetime) -> None:
    """Delete all slots, and a batch of partitions, that are needed no more."""
    while delete_stale(jobs, now) == AT_ONCE:
        pass
    starting_over(jobs.db, partial(_delete_unused, jobs.db, now))
    stopped = StoppedRun.objects.using(jobs.db)
    # By their ids: MariaDB would wait for those that a cancellation has not committed.
    if over := list(stopped.exclude(lease_expires_at__gt=DatabaseNow()).values_list("pk", flat=True)[:AT_ONCE]):
        starting_over(jobs.db, stopped.filter(pk__in=over).delete)


def delete_stale(jobs: QuerySet[Any], now: datetime, partitions: Collection[str] | None = None) -> int:
    """Delete a batch of slots of ended runs that no rate counts any more, of ``partitions`` or all; return how many."""
    is_running = IS_RUNNING.format(jobs=jobs.model._meta.db_table)
    connection = connections[jobs.db]
    moment = connection.ops.adapt_datetimefield_value(now)
    which, parameters = "TRUE", list[Any]()
    if partitions is not None:
        which, parameters = dialect_of(jobs).among("partition_id", list(partitions))
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT slot.id FROM {Slot._meta.db_table} AS slot WHERE kept_until <= %s AND {which}"
            f" AND NOT {is_running} ORDER BY kept_until LIMIT {AT_ONCE}",
            [moment, *parameters, moment],
        )
        ids = [id for (id,) in cursor.fetchall()]
    if ids:
        starting_over(jobs.db, Slot.objects.using(jobs.db).filter(pk__in=ids).delete)
    return len(ids)


def _delete_unused(using: str, now: datetime) -> None:
    with transaction.atomic(using=using):
        rows = LimitPartition.objects.using(using)
        unused = rows.filter(used_at__lt=now - UNUSED_FOR).order_by("used_at")
        if unused.exists():
            rows.filter(pk__in=list(unlocked(unused).values_list("pk", flat=True)[:AT_ONCE])).delete()
