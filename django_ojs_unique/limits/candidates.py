"""Candidates of a claim: jobs of which only what decides was read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeAlias
from uuid import UUID

from django.db.models import QuerySet

from ..db.dialects import dialect_of
from ..db.fast.cursors import Plan, execute
from ..db.fast.rows import RowReader, loaded
from ..ojs.blocking import fair_blocks_of
from ..ojs.limits import are_readable

FIELDS = ("id", "type", "queue", "priority", "enqueued_at", "revision", "fair_partition", "blocked_by", "limits")
ORDER = ("-priority", "enqueued_at", "id")
FIRST = "ORDER BY priority DESC, enqueued_at, id LIMIT %s"
BLOCKS_AT_ONCE = 50
"""How many blocks one statement names, where it has a part for each: SQLite takes 500 parts of a UNION at most."""
MOST_PARAMETERS = 30_000
"""How many parameters one statement has at most: SQLite takes 32,766."""
MOST_REMEMBERED = 10_000
"""Of how many different texts of limits the value is remembered: about 10 MB."""

Rank: TypeAlias = tuple[Any, ...]


class AvailableJobs:
    """The available jobs that may start now: those of some ``types``, or of any; with ``only``, that one."""

    def __init__(
        self, jobs: QuerySet[Any], now: datetime, types: Sequence[str] | None = None, only: UUID | None = None
    ) -> None:
        self.jobs = jobs
        self.now = now
        self.dialect = dialect_of(jobs)
        self.using = jobs.db
        connection, self.table = self.dialect.connection, jobs.model._meta.db_table
        # The expiry limits only the first start: a job that has started once may run again after it.
        where = [
            "state = 'available' AND finished_at IS NULL AND"
            " (expires_at IS NULL OR expires_at > %s OR started_at IS NOT NULL)"
        ]
        self._parameters: list[Any] = [connection.ops.adapt_datetimefield_value(now)]
        if types is not None:
            where.append(f"type IN ({', '.join(['%s'] * len(types))})" if types else "FALSE")
            self._parameters += types
        if only is not None:
            where.append("id = %s")
            self._parameters.append(jobs.model._meta.pk.get_db_prep_value(only, connection))
        self._where = " AND ".join(where)
        self._reader = RowReader(jobs.model, connection, FIELDS)
        self._start = f"SELECT {', '.join(map(str, self._reader.columns))} FROM {self.table} WHERE {self._where}"

    def of_any_type(self) -> AvailableJobs:
        """Return those of all types."""
        return AvailableJobs(self.jobs, self.now)

    @property
    def rows(self) -> QuerySet[Any]:
        """These jobs as a queryset."""
        return self.jobs.extra(where=[self._where], params=self._parameters)

    def first(self, queue: str, block: str, count: int) -> list[Candidate]:
        """Return the first jobs of a queue that one thing blocks, in their order."""
        statement = f"{self._start} AND queue = %s AND blocked_by = %s {FIRST}"
        return self._read(statement, [*self._parameters, queue, block, count])

    def first_of_each(self, queue: str, blocks: Sequence[str], count: int) -> dict[str, list[Candidate]]:
        """Return the first jobs of a queue for each of the ``blocks``, in their order: one index look-up for each."""
        found: dict[str, list[Candidate]] = defaultdict(list)
        for statement, parameters in self._of_each(queue, blocks, count) if blocks else ():
            for job in self._read(statement, parameters):
                found[job.blocked_by].append(job)
        return found

    def first_of_partitions(self, wanted: Sequence[tuple[str, str]]) -> list[Candidate]:
        """Return the first job of each queue that waits for a partition; in fair queues, of their first partition."""
        one = (
            f"SELECT * FROM ({self._start} AND queue = %s AND blocked_by >= %s AND blocked_by < %s"
            " ORDER BY blocked_by, priority DESC, enqueued_at, id LIMIT 1) AS head"
        )
        found: list[Candidate] = []
        for start in range(0, len(wanted), self._at_once):
            part = wanted[start : start + self._at_once]
            parameters = [
                value
                for queue, partition in part
                for value in (*self._parameters, queue, partition, fair_blocks_of(partition)[1])
            ]
            found += self._read(" UNION ALL ".join([one] * len(part)), parameters)
        return found

    @property
    def _at_once(self) -> int:
        """How many parts a statement may have."""
        return max(min(BLOCKS_AT_ONCE, MOST_PARAMETERS // (len(self._parameters) + 3)), 1)

    def _of_each(self, queue: str, blocks: Sequence[str], count: int) -> Iterator[tuple[str, list[Any]]]:
        if self.dialect.has_lateral:
            yield (
                "SELECT head.* FROM unnest(%s::text[]) AS wanted (name) CROSS JOIN LATERAL"
                f" ({self._start} AND queue = %s AND blocked_by = wanted.name {FIRST} OFFSET 0) AS head",
                [list(blocks), *self._parameters, queue, count],
            )
            return
        head = f"SELECT * FROM ({self._start} AND queue = %s AND blocked_by = %s {FIRST}) AS head"
        for start in range(0, len(blocks), self._at_once):
            part = blocks[start : start + self._at_once]
            parameters = [one for block in part for one in (*self._parameters, queue, block, count)]
            yield " UNION ALL ".join([head] * len(part)), parameters

    def _read(self, statement: str, parameters: Sequence[Any]) -> list[Candidate]:
        _, rows = execute(self.dialect, statement, parameters, plan=Plan.FRESH)
        return [Candidate(*row) for row in self._reader.convert(rows)]


@dataclass(slots=True)
class Candidate:
    """A job that a claim may take: the ``FIELDS`` of its row, in their order.

    ``blocked_by`` becomes what it is to be. ``limits_text`` is the JSON of its limits.
    """

    id: UUID
    type: str
    queue: str
    priority: int
    enqueued_at: datetime
    revision: int
    fair_partition: str | None
    blocked_by: str
    limits_text: str | None

    @property
    def limits(self) -> Sequence[Mapping[str, Any]]:
        """Its limits, as `Limit.of` returned them."""
        return _limits(self.limits_text) or ()


def rank(job: Any) -> Rank:
    """Return the place of a job in the order of `ORDER`. Only rows written manually have no ``enqueued_at``."""
    return -job.priority, job.enqueued_at is not None, job.enqueued_at or 0, job.id


def readable(jobs: Iterable[Candidate]) -> list[Candidate]:
    """Return the jobs whose limits were not written manually."""
    return [job for job in jobs if _limits(job.limits_text) is not None]


@lru_cache(MOST_REMEMBERED)
def _limits(text: str | None) -> Sequence[Mapping[str, Any]] | None:
    """Return what a text of limits says, and None if it was written manually. Callers share the value."""
    value = None if text is None else loaded(text)
    return (value or ()) if are_readable(value) else None
