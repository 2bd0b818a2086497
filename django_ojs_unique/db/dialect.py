"""A dialect: what one kind of database can do, and the SQL for it.

Nothing here raises on a conflict or leaves a transaction broken, and no code parses error messages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Any, NamedTuple
from uuid import UUID

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Q, QuerySet

from ..ojs.states import INCOMPLETE, JobState, to_mask
from ..unique.policy import UniquePolicy, ended_states
from .constraints import of_fingerprint, unfinished_or_holding
from .fast.cursors import KeptCursor, execute
from .fast.rows import RowReader, UnreadRows
from .fields import StateSetField
from .inserts import Row, Table, in_groups, kept

FEW_ROWS = 20
"""Above this, discard a cached plan: one that was made on an empty table scans it for each row."""


class Front(NamedTuple):
    """From when on jobs wait in a queue with a priority, by their ``enqueued_at``."""

    queue: str
    priority: int
    since: datetime


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What a worker wants: up to ``limit`` jobs, at most ``rooms[queue]`` of each queue, of some ``types`` or of any.

    ``lease`` is the length of the lease of jobs that have none of their own; with ``is_forced``, of all jobs. With
    ``is_timed`` a lease ends no later than the time limit of the attempt; with ``is_unconfirmed`` the attempt does not
    count yet. ``fields`` are the fields to return.
    ``blocks``: claim these jobs, if they are still available in these ``revisions``, and no others, and store
    what they are blocked by. ``fronts``: where to begin, if not at the first job of each queue.
    """

    rooms: Mapping[str, int]
    types: Sequence[str] | None
    limit: int
    worker_id: str | None
    token: UUID
    lease: timedelta
    is_forced: bool
    is_timed: bool
    is_unconfirmed: bool
    now: datetime
    fields: tuple[str, ...]
    blocks: Mapping[UUID, str] | None = None
    revisions: Sequence[int] = ()
    fronts: Sequence[Front] = ()


class LookUp(NamedTuple):
    """Which duplicate an enqueue wants: a job of the fingerprint, created after a time, that the policy counts.

    The job has the fields in `inserts.LOOKED_AT`, or all fields with ``full_row``.
    """

    fingerprint: str
    policy: UniquePolicy
    created_after: datetime | None
    full_row: bool = False


class Dialect:
    """One model's table on one connection, with the SQL of its kind of database.

    This base class is for what all databases share. It also serves unknown databases, but promises no uniqueness there.
    """

    name = "other"
    mechanism = ""
    """How the database keeps the promise of uniqueness; empty where that is not tested."""
    unique_column = "fingerprint"
    """The column of the unique index that keeps the promise."""
    single_writer = False
    """Whether only one transaction at a time can write."""
    is_server = True
    """Whether a server must answer before a connection can be made."""
    can_notify = False
    """Whether an enqueue can wake idle workers."""
    lets_rivals_in = False
    """Whether another enqueue can come between a query and an insert although `lock_keys` was called."""
    may_insert_first = True
    """Whether an enqueue may insert before it looks for other jobs."""
    repeats_reads = False
    """Whether a transaction reads what was committed before its first statement, and not what was since."""
    reads_old = False
    """Whether the caller's snapshot may hide rows that matter, and only a query with locks reads these."""
    walks_indexes = True
    """Whether a recursive query finds each next value of an index by one search."""
    locks_past_ranges = False
    """Whether a change of a range of ids locks the row after it, too, and waits for whoever has that."""
    has_lateral = False
    """Whether a subquery can refer to the table before it."""
    claims_at_once = False
    """Whether `claim` and `complete` are implemented: a batch in one statement."""
    finds_fronts = False
    """Whether `cost_of_firsts` and `fronts` are implemented: dead rows can make a claim dear."""
    keeps_unicode_in_json = False
    """Whether stored JSON has non-ASCII characters as they are, not as escapes."""
    skips_conflicts = " ON CONFLICT DO NOTHING"

    def __init__(self, model: type[models.Model], connection: BaseDatabaseWrapper) -> None:
        self.model = model
        self.connection = connection

    @cached_property
    def table(self) -> Table:
        """The statements for the model's table."""
        self.connection.ensure_connection()  # MariaDB is asked for its version, on a second connection if none is open
        return Table(self)

    @staticmethod
    def select_texts(texts: Sequence[str]) -> tuple[str, list[Any]]:
        """Return SQL that selects some texts, which are one or more, and its parameters."""
        return " UNION ALL ".join(["SELECT %s"] * len(texts)), list(texts)

    @staticmethod
    def quote(name: str) -> str:
        """Return a name as an identifier."""
        return f'"{name}"'

    def insert(self, job: Row) -> bool:
        """Insert a job; return False when a held unique key or the same id prevents it."""
        columns, values = self.table.written(job)
        return self._inserts(self.table.insert(columns, self._wakes_workers(job)), values)

    def decides_at_once(self, policy: UniquePolicy) -> bool:
        """Whether `insert_unless_duplicate` is exact for a policy, beside any concurrent enqueues."""
        return False

    def insert_unless_duplicate(self, job: Row, policy: UniquePolicy, created_after: datetime | None) -> bool:
        """Insert a job; return False, and insert nothing, when a stored job may be its duplicate.

        It also returns False when the id is taken, or when a job holds the unique key that the policy does not count.
        """
        columns, values = self.table.written(job)
        condition, parameters = self.table.none_live, [job["fingerprint"]] * 2
        if not INCOMPLETE.issuperset(policy.states):
            query, parameters = self._duplicate(LookUp(job["fingerprint"], policy, created_after))
            condition = f"NOT EXISTS ({query})"
        statement = self.table.insert_if(columns, condition, self._wakes_workers(job))
        return self._inserts(statement, [*values, *parameters])

    def find_duplicate(self, wanted: LookUp) -> Any | None:
        """Return the newest job that the policy may count; the caller must judge it.

        None if there is no such job, or if several jobs are unfinished, so that locks must decide.
        """
        return self._read(*self._duplicate(wanted), wanted.full_row)

    def records_at_once(self, policy: UniquePolicy) -> bool:
        """Whether `find_and_record` is implemented, and exact for a policy."""
        return False

    def find_and_record(self, wanted: LookUp, records: Dialect, record: Row) -> Any | None:
        """Do `find_duplicate`; if the policy counts the job, also insert a ``record`` with its id and state.

        It inserts none about a job whose ``expires_at`` has passed: the caller must see whether the job has started.
        ``records`` is the dialect for the table of the record.
        """
        raise NotImplementedError

    def get(self, key: Any, fields: tuple[str, ...]) -> Any | None:
        """Return the row with a primary key, or None. Other fields than these are read on access."""
        reader, statement = self._get(fields)
        _, rows = execute(self, statement, [self.adapter(self.model._meta.pk)(key)])
        return reader.read(rows[0]) if rows else None

    @kept
    def _get(self, fields: tuple[str, ...]) -> tuple[RowReader, str]:
        reader, key = RowReader(self.model, self.connection, fields), self.model._meta.pk
        table, column, *columns = map(self.quote, map(str, (self.model._meta.db_table, key.column, *reader.columns)))
        return reader, f"SELECT {', '.join(columns)} FROM {table} WHERE {column} = {self.placeholder(key)}"

    def _read(self, query: str, parameters: Sequence[Any], full_row: bool) -> Any | None:
        _, rows = execute(self, query, parameters)
        return self.table.read(rows[0], full_row) if rows else None

    def _duplicate(self, wanted: LookUp) -> tuple[str, list[Any]]:
        states, after = wanted.policy.states, wanted.created_after
        if INCOMPLETE.issuperset(states):
            return self.table.holder(wanted.full_row), [wanted.fingerprint]
        ended = ended_states([wanted.policy])
        parameters: list[Any] = [wanted.fingerprint] * (2 + len(ended))
        if after is not None:
            parameters.append(self.connection.ops.adapt_datetimefield_value(after))
        return self.table.newest(tuple(states), tuple(ended), after is not None, wanted.full_row), parameters

    def insert_all(self, jobs: Sequence[Row], *, unless_live: bool = False) -> bool:
        """Insert many jobs, and wake the workers of those that are available.

        Return False when a held unique key or a used id prevents one; others may be inserted then. With
        ``unless_live``, an unfinished job that does not hold its unique key prevents them, too.
        """
        inserted = self.insert_rows(jobs, unless_live=unless_live) == len(jobs)
        if inserted:
            self.wake({job["queue"] for job in jobs if job["state"] == JobState.AVAILABLE})
        return inserted

    def inserts_alone(self) -> bool:
        """Whether `insert_new` is implemented, and its statement would be a transaction of its own."""
        return False

    def insert_new(self, jobs: Sequence[Row], overlap: Callable[[], Any] | None = None) -> Collection[UUID] | None:
        """Insert the jobs that have no unfinished duplicate, wake the workers, and return the ids of the new jobs.

        This is one statement; if it would be too large, nothing is inserted, and None is returned.
        """
        raise NotImplementedError

    def insert_rows(self, rows: Sequence[Row], *, unless_live: bool = False) -> int:
        """Insert rows without the transaction and the signals of `Model.save`; return how many were inserted.

        One statement per thousand. Rows with a conflict are left out, or raise where the database cannot skip them.
        """
        return sum(self._insert_some(some, unless_live=unless_live) for some in in_groups(rows))

    def take_write_lock(self) -> None:
        """Become the only writer for the rest of the transaction, where a database has one writer at a time."""

    def read_anew(self) -> None:
        """Read what is committed by now with each statement; call it first in a transaction. Not in the caller's."""

    def lock_keys(self, fingerprints: Collection[str]) -> None:
        """Make other enqueues of these keys wait until the transaction ends, where the constraint cannot do that."""
        self.take_write_lock()

    def find(self, rows: Any, fingerprints: Sequence[str], ended: Sequence[str]) -> Any:
        """Select the rows that have one of the fingerprints and are unfinished, or hold it.

        Of those that ended in one of some states, only the newest one of each must be among the result.
        """
        which = of_fingerprint if ended else unfinished_or_holding
        return rows.filter(which(fingerprint__in=fingerprints))

    def lock(self, rows: QuerySet[Any], *, by_key: bool) -> list[Any]:
        """Lock rows and return them, in an order that all enqueues share.

        With ``by_key``, where that avoids deadlocks, find them without locks first, then lock them by primary key only.
        """
        return list(rows.order_by("pk").select_for_update())

    def wake(self, queues: Collection[str]) -> None:
        """Wake the idle workers of some queues when the transaction commits, where the database can."""

    def claim(self, wanted: ClaimRequest, overlap: Callable[[], Any] | None = None) -> UnreadRows:
        """Claim jobs of queues that are neither paused nor limited.

        Return their rows unordered, with the fields that are wanted. ``overlap`` is called as in
        `cursors.execute`.
        """
        raise NotImplementedError

    def blocks_read(self) -> str:
        """Return the SQL that tells how many blocks of the table this session has read, as far as the database does."""
        return "0"

    def cost_of_firsts(self, queues: Collection[str], types: Collection[str] | None) -> tuple[int, datetime]:
        """Look for the first available job of each queue; return how many blocks were read, and when it began.

        ``types`` None means any type.
        """
        raise NotImplementedError

    def fronts(self, queues: Collection[str], types: Collection[str] | None) -> list[Front]:
        """Return where the available jobs of each queue and priority begin, which nothing blocks."""
        raise NotImplementedError

    def complete(self, runs: Sequence[Any]) -> set[UUID]:
        """Complete the jobs of the runs that are still held, and skip locked rows; return the ids of these jobs."""
        raise NotImplementedError

    @staticmethod
    def among(column: str, values: Sequence[str]) -> tuple[str, list[Any]]:
        """Return the condition that a column has one of the values, which need no quotes, and its parameters."""
        return f"{column} IN ({', '.join(['%s'] * len(values))})", list(values)

    def exactly(self, field: str, text: str) -> Q:
        """Return the condition for an exact match, where the database ignores case, accents and trailing spaces."""
        return Q()

    def beginning(self, field: str, text: str) -> Q:
        """Return the condition that a field begins with a text, in the same case on every database."""
        return Q(**{f"{field}__startswith": text})

    def containing(self, field: str, text: str) -> Q:
        """Return the condition that a field contains a text, in the same case on every database."""
        return Q(**{f"{field}__contains": text})

    def condition_of(self, constraint: str) -> str:
        """Return the SQL of the condition of a constraint, as the database has it."""
        raise NotImplementedError

    def new_cursor(self) -> KeptCursor | None:
        """Return a cursor of the driver that `cursors.execute` may keep, or None to use Django's own."""
        return None

    def placeholder(self, field: Any) -> str:
        """Return the placeholder of a field's value in a statement."""
        return "%s"

    def adapter(self, field: Any) -> Callable[[Any], Any]:
        """Return the function that adapts the field's values, other than None, to the driver."""
        match field:
            case StateSetField():
                return to_mask
            case models.CharField():
                return str
            case models.IntegerField() | models.BooleanField():
                return as_it_is
        return partial(field.get_db_prep_save, connection=self.connection)

    def _inserts(self, statement: str, values: Sequence[Any]) -> bool:
        count, _ = execute(self, statement, values)
        return bool(count)

    def _wakes_workers(self, job: Row) -> bool:
        return False

    def _insert_some(self, rows: Sequence[Row], *, unless_live: bool) -> int:
        if len(rows) == 1 and not unless_live:
            columns, values = self.table.written(rows[0])
            return execute(self, self.table.insert(columns), values)[0]
        with self.connection.cursor() as cursor:
            cursor.executemany(*self.table.insert_each(rows, unless_live=unless_live))
            return int(cursor.rowcount)


def as_it_is(value: Any) -> Any:
    """Return the value unchanged: the driver accepts it."""
    return value
