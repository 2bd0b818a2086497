"""The INSERT that decides races, in each database's words.

Nothing here raises on a conflict or leaves a transaction broken, and no error message is ever read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from datetime import datetime
from functools import cache, partial
from itertools import islice
from operator import attrgetter
from typing import Any, TypeVar

from django.db import IntegrityError, models
from django.db.backends.base.base import BaseDatabaseWrapper

from .conf import settings
from .constraints import TURN_COUNT, TURNS
from .ojs.policy import UniquePolicy
from .ojs.states import INCOMPLETE, JobState
from .transactions import take_write_lock

MYSQL_DUPLICATE_ENTRY = 1062
CHANNEL = "django_ojs_unique"
"""On PostgreSQL: where an enqueue tells the workers the name of the queue in which a job became available."""

_JSON_ARRAY = "ARRAY(SELECT NULLIF(value, 'null') FROM jsonb_array_elements(%s::jsonb))"
_NOTIFY = f"pg_notify('{CHANNEL}', queue)"

ROWS_AT_ONCE = 1000
LARGEST_STATEMENT = 2**25
"""Characters: PostgreSQL takes up to a gigabyte, but holds each statement in memory several times."""

LOOKED_AT = ("id", "type", "queue", "state", "fingerprint", "created_at", "expires_at", "lease_expires_at")
"""The fields of a duplicate that the deciding statement reads, in the model's order."""

T = TypeVar("T")


class Admission:
    """Inserts jobs into one model's table on one connection."""

    def __init__(self, model: type[models.Model], connection: BaseDatabaseWrapper) -> None:
        self._model = model
        self._connection = connection
        self._vendor = connection.vendor
        self._table = _table(model, connection.vendor)
        options = connection.settings_dict["OPTIONS"]
        self._prepares = options.get("server_side_binding") and options.get("prepare_threshold") is not None

    @property
    def can_be_overtaken(self) -> bool:
        """Whether a rival can come between a look and an insert although `take_turns` was called: on PostgreSQL."""
        return self._vendor == "postgresql"

    def insert(self, job: Any) -> bool:
        """Insert; return False when a guarding row or the same id is in the way."""
        with self._connection.cursor() as cursor:
            return self._insert(cursor, job)

    def insert_unless_duplicate(
        self, job: Any, policy: UniquePolicy, created_after: datetime | None, *, whole: bool = False
    ) -> tuple[bool, Any | None]:
        """Insert unless the policy counts a row of the same fingerprint that was created after ``created_after``.

        Return whether the job was inserted, and the newest such row if one was seen: its fields in `LOOKED_AT`, the
        others deferred unless it is read ``whole``. (False, None) means that the key must be settled under locks: a
        race was lost, a guard is stale, the id is taken, or one statement cannot be exact here.
        """
        look = self._table.look(len(policy.states), created_after is not None, whole)
        wanted = [job.fingerprint, *policy.states]
        if created_after is not None:
            wanted.append(self._connection.ops.adapt_datetimefield_value(created_after))
        # Between a look and an insert a rival may come, run and finish. Its guard is gone then, which matters to a
        # policy that counts finished jobs. SQLite has no such gap; InnoDB deadlocks over waiting inserts.
        may_insert = self._vendor == "postgresql" and INCOMPLETE.issuperset(policy.states)
        with self._connection.cursor() as cursor:
            if self._vendor == "sqlite":
                # An INSERT takes the write lock before it reads, so it cannot deadlock on an upgrade.
                columns, values = self._table.row(job, self._connection)
                cursor.execute(self._table.insert_if_none(columns, look), [*values, *wanted])
                if cursor.rowcount:
                    return True, None
            elif may_insert and self._prepares:
                columns, values = self._table.row(job, self._connection)
                cursor.execute(self._table.look_and_insert(columns, look, self._wakes_workers(job)), [*wanted, *values])
                inserted, *row = cursor.fetchone()
                return inserted, self._table.read(row, whole, self._connection) if row[0] else None
            # Two plain statements cost less than one clever one that is planned anew each time.
            cursor.execute(look, wanted)
            if (row := cursor.fetchone()) is not None:
                return False, self._table.read(row, whole, self._connection)
            return may_insert and self._insert(cursor, job), None

    @property
    def may_insert_first(self) -> bool:
        """Whether an insert may come before the look: InnoDB deadlocks over waiting inserts."""
        return self._vendor != "mysql"

    def take_write_lock(self) -> None:
        """Become the only writer for the rest of the transaction, where a database has one writer at a time."""
        take_write_lock(self._connection, self._model)

    def take_turns(self, fingerprints: Collection[str]) -> None:
        """Lock the turns of keys (of 1,024) until the transaction ends, where the constraint itself would deadlock.

        InnoDB gives a shared lock to everyone who waits for an uncommitted row. When that row is rolled back, they all
        want to insert, and deadlock. Rows that are always there queue them in order instead; the constraint decides.
        """
        self.take_write_lock()
        if self._vendor == "mysql" and fingerprints:
            turns = sorted({_turn(fingerprint) for fingerprint in fingerprints})
            with self._connection.cursor() as cursor:
                cursor.execute(
                    f"SELECT turn FROM {TURNS} WHERE turn IN ({', '.join(['%s'] * len(turns))})"
                    " ORDER BY turn FOR UPDATE",
                    turns,
                )

    def find(self, rows: Any, fingerprints: Sequence[str]) -> Any:
        """Read those of the rows that have one of the fingerprints."""
        if self._vendor != "postgresql":
            return rows.filter(fingerprint__in=fingerprints)
        # One look into the index for each: while the statistics of a table are old, PostgreSQL would read all of it.
        sql, parameters = rows.extra(where=["fingerprint = wanted.name"]).query.sql_with_params()
        return rows.model._default_manager.using(rows.db).raw(
            f"SELECT found.* FROM unnest(%s::text[]) AS wanted (name) CROSS JOIN LATERAL ({sql} OFFSET 0) AS found",
            [list(fingerprints), *parameters],
        )

    def lock(self, rows: models.QuerySet[Any], *, by_key: bool) -> list[Any]:
        """Read rows under locks, in an order that all enqueues share.

        ``by_key`` finds them without locks first and locks them by the primary key only. InnoDB would deadlock with the
        worker, which locks by the primary key, if both began with different indexes.
        """
        if by_key and self._vendor == "mysql":
            rows = rows.model._default_manager.using(rows.db).filter(pk__in=list(rows.values_list("pk", flat=True)))
        return list(rows.order_by("pk").select_for_update())

    def insert_all(self, jobs: Sequence[Any], meanwhile: Callable[[], object] | None = None) -> bool:
        """Insert many; return False when a guarding row or an id is in the way of one: some may be inserted then.

        ``meanwhile`` may be called while the database works; it must not use the connection.
        """
        try:
            inserted = insert_rows(jobs, self._connection, meanwhile)
        except IntegrityError as error:
            if self._vendor == "mysql" and error.args[0] == MYSQL_DUPLICATE_ENTRY:
                return False
            raise
        self.wake({job.queue for job in jobs if job.state == JobState.AVAILABLE})
        return inserted == len(jobs)

    def wake(self, queues: Collection[str]) -> None:
        """Wake the idle workers of some queues when the transaction commits, on PostgreSQL."""
        if queues and self._vendor == "postgresql" and settings.notify:
            with self._connection.cursor() as cursor:
                cursor.execute("SELECT pg_notify(%s, q) FROM unnest(%s::text[]) AS q", [CHANNEL, sorted(queues)])

    def _insert(self, cursor: Any, job: Any) -> bool:
        columns, values = self._table.row(job, self._connection)
        try:
            cursor.execute(self._table.insert(columns, self._wakes_workers(job)), values)
        except IntegrityError as error:
            # Only where nothing skips conflicts; there, a failed statement does not end the transaction.
            if self._vendor == "mysql" and error.args[0] == MYSQL_DUPLICATE_ENTRY:
                return False
            raise
        return bool(cursor.rowcount)

    def _wakes_workers(self, job: Any) -> bool:
        return self._vendor == "postgresql" and job.state == JobState.AVAILABLE and settings.notify


def insert_rows(
    rows: Sequence[models.Model], connection: BaseDatabaseWrapper, meanwhile: Callable[[], object] | None = None
) -> int:
    """Insert rows of one model, without the transaction and the signals of `Model.save`; return how many went in.

    One statement per thousand. Rows with a conflict are left out on PostgreSQL and SQLite, and an error elsewhere.
    """
    return sum(_insert_some(some, connection, meanwhile) for some in in_groups(rows))


def _insert_some(
    rows: Sequence[models.Model], connection: BaseDatabaseWrapper, meanwhile: Callable[[], object] | None
) -> int:
    table = _table(type(rows[0]), connection.vendor)
    with connection.cursor() as cursor:
        if len(rows) == 1:
            columns, values = table.row(rows[0], connection)
            cursor.execute(table.insert(columns, wake=False), values)
        elif connection.vendor == "postgresql":
            statement, parameters = table.insert_arrays(rows, connection)
            if sum(len(text) for text in parameters if isinstance(text, str)) > LARGEST_STATEMENT and len(rows) > 3:
                half = len(rows) // 2
                return sum(_insert_some(part, connection, None) for part in (rows[:half], rows[half:]))
            insert = partial(cursor.execute, statement, parameters)
            _beside(insert, meanwhile) if meanwhile else insert()
        else:
            cursor.executemany(*table.insert_each(rows, connection))
        return int(cursor.rowcount)


def in_groups(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield items by the thousand, as many as one statement takes."""
    iterator = iter(items)
    while group := list(islice(iterator, ROWS_AT_ONCE)):
        yield group


def _beside(wait: Callable[[], object], work: Callable[[], object]) -> None:
    """Do some work while another thread waits for the database; work that fails must be done again later."""
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(copy_context().run, wait)  # what traces statements looks for its span there
        with suppress(Exception):  # its failure is its own: it must not undo what is being stored
            work()
        waiting.result()


def _are_all_the_same(values: list[Any]) -> bool:
    first = values[0]
    if isinstance(first, (dict, list)) and first:  # {"a": 1} equals {"a": True}, but is not the same JSON
        return all(value is first for value in values)
    return values.count(first) == len(values)


class _Table:
    """The SQL of one model on one kind of database."""

    def __init__(self, model: type[models.Model], vendor: str) -> None:
        self._quote = "`{}`".format if vendor == "mysql" else '"{}"'.format
        self._name = self._quote(model._meta.db_table)
        self._skip = "" if vendor == "mysql" else " ON CONFLICT DO NOTHING"
        self._model = model
        fields = model._meta.concrete_fields
        self._written: list[tuple[Any, str, Any]] = [
            (field, field.attname, field.get_default() if field.has_db_default() else None)
            for field in fields
            if not isinstance(field, models.AutoField)
        ]
        columns = [field.get_col(model._meta.db_table) for field in fields]
        self._looked_at = {
            True: columns,
            False: [column for column in columns if column.target.attname in LOOKED_AT],
        }

    def row(self, row: Any, connection: BaseDatabaseWrapper) -> tuple[tuple[str, ...], list[Any]]:
        """Return the columns that differ from the database's defaults, and their values."""
        columns: list[str] = []
        values: list[Any] = []
        for field, attname, default in self._written:
            value = getattr(row, attname)
            if value != default:
                columns.append(field.column)
                values.append(field.get_db_prep_save(value, connection))
        return tuple(columns), values

    def insert_each(self, rows: Sequence[Any], connection: BaseDatabaseWrapper) -> tuple[str, list[list[Any]]]:
        """Return the statement that inserts one row, and the parameters of each."""
        written = [column for column in self._written if any(getattr(row, column[1]) != column[2] for row in rows)]
        columns = tuple(field.column for field, _, _ in written)
        values = [
            [field.get_db_prep_save(getattr(row, attname), connection) for field, attname, _ in written] for row in rows
        ]
        return self.insert(columns, wake=False), values

    def insert_arrays(self, rows: Sequence[Any], connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:
        """Return the statement that inserts the rows from an array for each column that differs, and its parameters.

        Far fewer parameters than by VALUES, and one text for all batches of the same shape.
        """
        arrays: list[tuple[str, str]] = []
        constants: list[tuple[str, str]] = []
        parameters: list[Any] = []
        parameter: Any
        values_of_constants: list[Any] = []
        for field, attname, default in self._written:
            values = list(map(attrgetter(attname), rows))
            first = values[0]
            if arrays and _are_all_the_same(values):
                if first != default:
                    constants.append((field.column, f"%s::{field.db_type(connection)}"))
                    values_of_constants.append(field.get_db_prep_save(first, connection))
                continue
            if isinstance(field, models.JSONField):
                # One document: a thousand little ones cost twice the time on this side.
                place, parameter = _JSON_ARRAY, json.dumps(values)
            else:
                place = f"%s::{field.db_type(connection)}[]"
                parameter = [field.get_db_prep_save(value, connection) for value in values]
            arrays.append((field.column, place))
            parameters.append(parameter)
        columns = tuple(column for column, _ in [*arrays, *constants])
        names = [f"c{number}" for number in range(len(arrays))]
        return (
            f"{self._into(columns)} SELECT {', '.join([*names, *(place for _, place in constants)])}"
            f" FROM unnest({', '.join(place for _, place in arrays)}) AS row ({', '.join(names)}){self._skip}",
            [*values_of_constants, *parameters],
        )

    @cache  # noqa: B019 - there are a handful of tables and shapes
    def insert(self, columns: tuple[str, ...], wake: bool) -> str:
        """Insert, or (but on MariaDB) do nothing; on PostgreSQL it may wake the workers of the queue at the commit."""
        returning = f" RETURNING {_NOTIFY}" if wake else ""
        return f"{self._into(columns)} VALUES ({self._places(columns)}){self._skip}{returning}"

    @cache  # noqa: B019
    def look(self, states: int, bounded: bool, whole: bool) -> str:
        """Select the newest row of a fingerprint in some states; parameters: fingerprint, states, created after."""
        columns = ", ".join(self._quote(column.target.column) for column in self._looked_at[whole])
        after = " AND created_at > %s" if bounded else ""
        return (
            f"SELECT {columns} FROM {self._name} WHERE fingerprint = %s"
            f" AND state IN ({', '.join(['%s'] * states)}){after} ORDER BY created_at DESC, id DESC LIMIT 1"
        )

    @cache  # noqa: B019
    def insert_if_none(self, columns: tuple[str, ...], look: str) -> str:
        """Insert unless the look finds a row; parameters: the row's values, then the look's."""
        return f"{self._into(columns)} SELECT {self._places(columns)} WHERE NOT EXISTS ({look}){self._skip}"

    @cache  # noqa: B019
    def look_and_insert(self, columns: tuple[str, ...], look: str, wake: bool) -> str:
        """Do both; select whether the row went in, then what the look found. Parameters: the look's, then the row's."""
        return (
            f"WITH duplicate AS ({look}), admitted AS ({self._into(columns)} SELECT {self._places(columns)}"
            f" WHERE NOT EXISTS (SELECT 1 FROM duplicate){self._skip} RETURNING {_NOTIFY if wake else 1})"
            " SELECT EXISTS (SELECT 1 FROM admitted), duplicate.* FROM (SELECT 1) AS one LEFT JOIN duplicate ON TRUE"
        )

    def read(self, row: Sequence[Any], whole: bool, connection: BaseDatabaseWrapper) -> Any:
        """Build the model instance of a row that the look found."""
        values = list(row)
        columns = self._looked_at[whole]
        for index, column in enumerate(columns):
            for convert in (
                *connection.ops.get_db_converters(column),
                *column.output_field.get_db_converters(connection),
            ):
                values[index] = convert(values[index], column, connection)
        return self._model.from_db(connection.alias, [column.target.attname for column in columns], values)

    def _into(self, columns: tuple[str, ...]) -> str:
        return f"INSERT INTO {self._name} ({', '.join(map(self._quote, columns))})"

    def _places(self, columns: tuple[str, ...]) -> str:
        return ", ".join(["%s"] * len(columns))


@cache
def _table(model: type[models.Model], vendor: str) -> _Table:
    return _Table(model, vendor)


def _turn(fingerprint: str) -> int:
    try:
        return int(fingerprint, 16) % TURN_COUNT
    except ValueError:  # no hash: it was written by hand
        return 0
