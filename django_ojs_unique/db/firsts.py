"""Firsts: one statement for the first values of several selections, which each connection compiles once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import chain
from typing import Any

from django.db.models import DateTimeField, Expression, QuerySet

from .dialect import Dialect
from .dialects import dialect_of
from .fast.cursors import Plan, execute
from .inserts import kept


class Moment(Expression):
    """Stands in a selection for the time that `firsts` is given."""

    output_field = DateTimeField()

    def as_sql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return "%s", [self]


def firsts(
    jobs: QuerySet[Any],
    selections: Callable[..., Sequence[QuerySet[Any]]],
    *of: Any,
    now: datetime,
    also: Sequence[tuple[str, Sequence[Any]]] = (),
) -> tuple[list[Any], int, list[Any]]:
    """Return the first value of each selection, or None if it is empty, and how many blocks that cost: one statement.

    ``selections`` makes them from all ``jobs`` and from what ``of`` has, once for each connection and each ``of``. Each
    is an ordered ``values_list`` of one field, as for `any_of`; they are on one database. The cost is 0 where the
    database does not tell it. ``also``: the SQL of further columns, and its parameters; their values come last.
    """
    dialect = dialect_of(jobs)
    sql, parameters, converters = _compiled(dialect, selections, *of)
    moment = dialect.connection.ops.adapt_datetimefield_value(now)
    given = [moment if isinstance(value, Moment) else value for value in parameters]
    statement = ", ".join([sql, *(columns for columns, _ in also)])
    given += chain.from_iterable(values for _, values in also)
    # Its plan is not kept: it must not depend on how full the table once was.
    _, ((before, *found),) = execute(dialect, statement, given, plan=Plan.ONCE)
    count = len(converters)
    values = [convert(value) for convert, value in zip(converters, found, strict=False)]
    return values, found[count] - before, found[count + 1 :]


@kept
def _compiled(
    dialect: Dialect, selections: Callable[..., Sequence[QuerySet[Any]]], *of: Any
) -> tuple[str, list[Any], list[Callable[[Any], Any]]]:
    """Return the statement, its parameters, and what converts each value that it returns."""
    jobs = dialect.model._default_manager.using(dialect.connection.alias)
    compilers = [rows[:1].query.get_compiler(rows.db) for rows in selections(jobs, *of)]
    parts, parameters = zip(*(compiler.as_sql() for compiler in compilers), strict=True)
    blocks = dialect.blocks_read()
    columns = [blocks, *(f"({sql})" for sql in parts), blocks]  # they are read in this order
    return f"SELECT {', '.join(columns)}", [*chain.from_iterable(parameters)], [*map(_converter, compilers)]


def _converter(compiler: Any) -> Callable[[Any], Any]:
    converters = compiler.get_converters([compiler.select[0][0]])

    def convert(value: Any) -> Any:
        ((converted,),) = compiler.apply_converters([[value]], converters)
        return converted

    return convert
