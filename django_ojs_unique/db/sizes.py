"""Sizes: ask the database how many bytes rows take as JSON, so that rows which do not fit are never read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import reduce
from operator import add
from typing import Any

from django.db.models import F, Func, IntegerField, QuerySet
from django.db.models.functions import Coalesce

OF_A_JOB = ("args", "meta", "tags", "extra", "retry_options", "limits", "steps", "result", "errors")
"""The fields of a job that can be large."""
OF_THE_REST = 600
"""About how many bytes the other members of an object take."""
_STEP = 100


class _Bytes(Func):
    """The length of a JSON value as it is stored: about that of its text."""

    template = "OCTET_LENGTH(%(expressions)s)"
    output_field = IntegerField()

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="octet_length(%(expressions)s::text)", **context)

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="length(CAST(%(expressions)s AS BLOB))", **context)


def bytes_of(fields: Collection[str]) -> Any:
    """Return the expression for the bytes of some JSON fields of a row."""
    return reduce(add, (Coalesce(_Bytes(F(field)), 0) for field in fields))


def fitting(
    rows: QuerySet[Any], most: int, room: int, fields: Collection[str] = OF_A_JOB, *, least: int = 1
) -> tuple[int, int]:
    """Return how many of the first rows fit into ``room`` bytes, at most ``most``, and how many bytes are left.

    ``least`` as for `fit`.
    """

    def sizes() -> Iterator[int]:
        for start in range(0, most, _STEP):
            some = list(rows.values_list(bytes_of(fields), flat=True)[start : min(start + _STEP, most)])
            yield from some
            if len(some) < _STEP:
                break

    return fit(sizes(), room, least=least)


def fit(sizes: Iterable[int], room: int, *, least: int = 1) -> tuple[int, int]:
    """Return how many of the first rows, whose `bytes_of` come in, fit into ``room`` bytes, and how many are left.

    The first ``least`` rows always count as fitting: otherwise nobody would ever get a row that is too large.
    """
    count = 0
    for size in sizes:
        if size + OF_THE_REST > room and count >= least:
            return count, 0
        room -= size + OF_THE_REST
        count += 1
    return count, room
