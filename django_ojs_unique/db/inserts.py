"""The SQL of the statements that insert rows and look for duplicates, those of PostgreSQL's batches included."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, wraps
from itertools import islice
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from django.db import models

from ..ojs.encoder import encoder
from ..ojs.states import ALL, to_mask
from .constraints import FINISHED, HOLDS_UNIQUE_KEY, RELEASED
from .fast.rows import RowReader, SharedJSON
from .fields import BriefPayloadField, Sparse

CHANNEL = "django_ojs_unique"
"""On PostgreSQL: the channel on which an enqueue sends workers the name of the queue that has a new available job."""
INBOX = "(inbox)"
"""What is sent there instead of a queue's name when there is a request in the inbox."""

ROWS_AT_ONCE = 1000
LOOKED_AT = (
    "id", "type", "queue", "state", "fingerprint", "created_at", "scheduled_at", "started_at", "expires_at",
    "lease_expires_at", "workflow_only",
)  # fmt: skip
"""The fields of a duplicate that the deciding statement reads."""

_RETURNING = {False: "", True: f" RETURNING pg_notify('{CHANNEL}', queue)"}
TO_JSON = encoder()

_BARE = ("id", "fingerprint")
"""Fields whose values need no quotes in an array literal. The driver would check each value, which takes time."""

Row = Mapping[str, Any]
"""The values of a row's fields by their attribute names; a missing one has its default."""
Statement: TypeAlias = tuple[str, list[Any]]
"""SQL with ``%s``, and its parameters."""
T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., Any])


def in_groups(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield lists of up to a thousand items, for one statement each."""
    iterator = iter(items)
    while group := list(islice(iterator, ROWS_AT_ONCE)):
        yield group


def kept(method: Method) -> Method:
    """Compute what a method returns once for each set of arguments, and keep it as long as the object lives."""
    name = method.__name__

    @wraps(method)
    def once(self: Any, *arguments: Any) -> Any:
        found: dict[Any, Any] = self.__dict__.setdefault("_kept", {})
        identity = name, *arguments
        if identity not in found:
            found[identity] = method(self, *arguments)
        return found[identity]

    return cast(Method, once)


def bare_array(values: Iterable[str | None]) -> str:
    """Return PostgreSQL's text of an array of values that need no quotes."""
    return f"{{{','.join([value or 'NULL' for value in values])}}}"


class Column(NamedTuple):
    """A column, and how its values are written."""

    name: str
    attname: str
    default: Any
    """The value of the column in a row that is inserted without it; NOT_PROVIDED if each INSERT must name it."""
    is_sparse: bool
    """Whether the default is stored as NULL."""
    placeholder: str
    adapt: Callable[[Any], Any]
    is_json: bool

    def is_written(self, row: Row) -> bool:
        """Whether the value of a row differs from the default."""
        return bool(row.get(self.attname, self.default) != self.default)

    def values(self, rows: Sequence[Row]) -> list[Any]:
        """Return the value of each row, and None for what is stored as NULL."""
        name = self.attname
        try:  # the usual case, without a call for each row
            values = [row[name] for row in rows]
        except KeyError:
            values = [row.get(name, self.default) for row in rows]
        return [None if value == self.default else value for value in values] if self.is_sparse else values

    def adapted(self, row: Row) -> Any:
        """Return the value of a row for the driver."""
        value = row.get(self.attname, self.default)
        return None if value is None or (self.is_sparse and value == self.default) else self.adapt(value)


class Table:
    """The SQL for one model's table, as its ``dialect`` (`db.dialect.Dialect`) writes it."""

    def __init__(self, dialect: Any) -> None:
        model = dialect.model
        self._quote = dialect.quote
        self._name = dialect.quote(model._meta.db_table)
        self._skip = dialect.skips_conflicts
        fields = [field for field in model._meta.concrete_fields if not isinstance(field, models.AutoField)]
        self._columns = [
            Column(
                name=field.column,
                attname=field.attname,
                default=field.get_default() if field.null or field.has_db_default() else models.NOT_PROVIDED,
                is_sparse=isinstance(field, Sparse),
                placeholder=dialect.placeholder(field),
                adapt=_adapter(dialect, field),
                is_json=isinstance(field, models.JSONField) and not isinstance(field, BriefPayloadField),
            )
            for field in fields
        ]
        self._by_attname = {column.attname: column for column in self._columns}
        self._placeholders = {column.name: column.placeholder for column in self._columns}
        self._readers = {
            True: RowReader(model, dialect.connection),
            False: RowReader(model, dialect.connection, LOOKED_AT),
        }

    def written(self, row: Row) -> tuple[tuple[str, ...], list[Any]]:
        """Return the columns of a row that differ from the database's defaults, and their values."""
        columns: list[str] = []
        values: list[Any] = []
        for attname, value in row.items():
            if attname in self._by_attname:
                name, _, default, _, _, adapt, _ = self._by_attname[attname]
                if value is not default and value != default:
                    columns.append(name)
                    values.append(value.text if type(value) is SharedJSON else adapt(value))
        return tuple(columns), values

    def insert_each(self, rows: Sequence[Row], *, unless_live: bool) -> tuple[str, list[list[Any]]]:
        """Return the statement that inserts one row, and the parameters for each row."""
        written = [column for column in self._columns if any(column.is_written(row) for row in rows)]
        values = [[column.adapted(row) for column in written] for row in rows]
        names = tuple(column.name for column in written)
        if not unless_live:
            return self.insert(names), values
        for row, parameters in zip(rows, values, strict=True):
            parameters += [row.get("fingerprint")] * 2
        return self.insert_if(names, self.none_live), values

    def insert_arrays(self, rows: Sequence[Row], *, unless_live: bool) -> Statement:
        """Return the statement that inserts the rows."""
        insert, parameters, fingerprint = self._insert_arrays(rows)
        where = f" WHERE {self._none_live(fingerprint)}" if unless_live and fingerprint else ""
        return f"{insert}{where}{self._skip}", parameters

    def insert_arrays_and_wake(self, rows: Sequence[Row], queues: Sequence[str]) -> Statement:
        """Return the statement that inserts the rows without an unfinished duplicate, and wakes workers of some queues.

        It returns one array: the ids of the inserted rows, or NULL if these are all.
        """
        insert, parameters, fingerprint = self._insert_arrays(rows)
        wheres = [self._none_live(fingerprint)] if fingerprint else []
        if queues:
            # PostgreSQL evaluates this once, and not for each row.
            wheres.append(f"(SELECT count(pg_notify('{CHANNEL}', queue)) FROM unnest(%s::text[]) AS woken (queue)) > 0")
            parameters.append(list(queues))
        where = f" WHERE {' AND '.join(wheres)}" if wheres else ""
        # Not the ids of all: the driver would spend a sixth of the time of a batch on reading them.
        return (
            f"WITH new AS ({insert}{where}{self._skip} RETURNING id)"
            " SELECT CASE WHEN count(*) < %s THEN coalesce(array_agg(id), '{}') END FROM new",
            [*parameters, len(rows)],
        )

    def _insert_arrays(self, rows: Sequence[Row]) -> tuple[str, list[Any], str]:
        """Return the INSERT from one array for each column that differs, its parameters, and the fingerprint's SQL.

        It has far fewer parameters than VALUES, and the same text for all batches of the same shape.
        """
        arrays: list[str] = []
        parameters: list[Any] = []
        selected: dict[str, str] = {}
        constants: list[Any] = []
        given: set[str] = set().union(*rows)
        for column in self._columns:
            if column.attname not in given:
                continue
            values = column.values(rows)
            first = values[0]
            if arrays and column.attname != "fingerprint" and _are_all_the_same(values):
                if first != (None if column.is_sparse else column.default):
                    selected[column.name] = column.placeholder
                    constants.append(column.adapt(first))
                continue
            name = f"c{len(arrays)}"
            if column.is_json:
                # One JSON document: a thousand small ones would take Python twice the time.
                arrays.append("jsonb_array_elements(%s::jsonb)")
                parameters.append(TO_JSON(values))
                selected[column.name] = f"NULLIF({name}, 'null')" if None in values else name
            else:
                arrays.append(f"unnest({column.placeholder}[])")
                adapted = [None if value is None else column.adapt(value) for value in values]
                if column.attname in _BARE:
                    parameters.append(bare_array(adapted))
                else:
                    parameters.append(adapted)
                selected[column.name] = name
        names = ", ".join(f"c{number}" for number in range(len(arrays)))
        return (
            f"{self._into(tuple(selected))} SELECT {', '.join(selected.values())}"
            f" FROM ROWS FROM ({', '.join(arrays)}) AS row ({names})",
            [*constants, *parameters],
            selected.get("fingerprint", ""),
        )

    @kept
    def insert(self, columns: tuple[str, ...], wake: bool = False) -> str:
        """Insert a row, or skip a conflict (not on MariaDB). ``wake``: PostgreSQL wakes the workers at the commit."""
        return f"{self._into(columns)} VALUES ({self._values(columns)}){self._skip}{_RETURNING[wake]}"

    @kept
    def insert_if(self, columns: tuple[str, ...], condition: str, wake: bool = False) -> str:
        """Insert if a condition is true; parameters: the row's values, then the condition's."""
        return f"{self._into(columns)} SELECT {self._values(columns)} WHERE {condition}{self._skip}{_RETURNING[wake]}"

    @cached_property
    def none_live(self) -> str:
        """The condition that no unfinished job has a fingerprint; parameters: the fingerprint, twice."""
        return self._none_live(self._placeholders["fingerprint"])

    def _none_live(self, fingerprint: str) -> str:
        # The constraint does not make the second one superfluous: while the statement waits for a rival, a job may lose
        # its unique key. Each of the two has its index. OFFSET 0 keeps PostgreSQL from making a join of them: with old
        # statistics, a join would read the whole table.
        found = f"SELECT 1 FROM {self._name} AS job WHERE job.fingerprint = {fingerprint}"
        wheres = (RELEASED, HOLDS_UNIQUE_KEY)
        return " AND ".join(f"NOT EXISTS ({found} AND {where} LIMIT 1 OFFSET 0)" for where in wheres)

    @kept
    def holder(self, full_row: bool) -> str:
        """Select the job that holds a fingerprint, and for itself only: then no other job of it is unfinished.

        Parameter: the fingerprint.
        """
        of_fingerprint = f"{self._select(full_row)} WHERE fingerprint = {self._placeholders['fingerprint']}"
        return f"{of_fingerprint} AND {HOLDS_UNIQUE_KEY} AND unique_states <> {to_mask(ALL)}"

    @kept
    def newest(self, states: tuple[str, ...], ended: tuple[str, ...], bounded: bool, full_row: bool) -> str:
        """Select the newest job of a fingerprint in some states, of which ``ended`` are final ones.

        Parameters: the fingerprint, twice and once for each final state, and the time after which the job was created,
        if ``bounded``.
        """
        of_fingerprint = f"{self._select(full_row)} WHERE fingerprint = {self._placeholders['fingerprint']} AND "
        newest_first = "ORDER BY created_at DESC, id DESC LIMIT 1"
        # Not OR: each part has its index, and old statistics cannot make it read the whole table.
        parts = [of_fingerprint + which for which in (HOLDS_UNIQUE_KEY, RELEASED)]
        for state in ended:
            parts.append(f"SELECT * FROM ({of_fingerprint}{FINISHED} AND state = '{state}' {newest_first}) AS {state}")
        where = f"state IN ({', '.join(map(repr, map(str, states)))})" + (" AND created_at > %s" if bounded else "")
        return f"SELECT * FROM ({' UNION ALL '.join(parts)}) AS found WHERE {where} {newest_first}"

    @kept
    def find_and_insert(self, query: str, columns: tuple[str, ...], begins: str, is_alone: bool) -> str:
        """Find a job; if its state is one of several and its expiry has not passed, insert a row about it.

        On PostgreSQL only. Parameters: those of the query, the values of the row, the states, now, and the time after
        which ``begins`` must be, if that is some SQL. A statement that is a transaction of its own (``is_alone``) does
        not wait for the disk: a crash of the server may lose the last rows.
        """
        after = f" AND {begins} > %s" if begins else ""
        unwaited = ", set_config('synchronous_commit', 'off', true)" if is_alone else ""
        return (
            f"WITH found AS ({query}), inserted AS ({self._into((*columns, 'existing_job_id', 'existing_state'))}"
            f" SELECT {self._values(columns)}, found.id, found.state FROM found"
            f" WHERE found.state = ANY(%s::text[]) AND coalesce(found.expires_at > %s, true){after})"
            f" SELECT found.*{unwaited} FROM found"
        )

    def read(self, row: Sequence[Any], full_row: bool) -> Any:
        """Build the model instance of a row that the query found."""
        return self._readers[full_row].read(row)

    def _select(self, full_row: bool) -> str:
        return f"SELECT {', '.join(map(self._quote, self._readers[full_row].columns))} FROM {self._name}"

    def _into(self, columns: tuple[str, ...]) -> str:
        return f"INSERT INTO {self._name} ({', '.join(map(self._quote, columns))})"

    def _values(self, columns: tuple[str, ...]) -> str:
        return ", ".join(self._placeholders[column] for column in columns)


def _adapter(dialect: Any, field: Any) -> Callable[[Any], Any]:
    adapt: Callable[[Any], Any] = dialect.adapter(field)
    return BriefPayloadField.brief(adapt) if isinstance(field, BriefPayloadField) else adapt


def _are_all_the_same(values: list[Any]) -> bool:
    first = values[0]
    if isinstance(first, (dict, list)) and first:  # {"a": 1} equals {"a": True}, but is not the same JSON
        return all(value is first for value in values)
    return values.count(first) == len(values)
