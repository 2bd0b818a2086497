"""MariaDB: its unique indexes have no condition, its inserts skip no conflicts, and waiting inserts can deadlock."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from django.db import IntegrityError
from django.db.models import F, Func, Q, QuerySet
from django.db.models.lookups import Exact

from .constraints import KEY_LOCK_COUNT, KEY_LOCKS
from .dialect import Dialect
from .inserts import Row
from .transactions import is_callers

_DUPLICATE_ENTRY = 1062


class MySQL(Dialect):
    """MariaDB; also MySQL, on which the promise is not tested."""

    name = "mysql"
    mechanism = "unique index on a generated column: the fingerprint while the state is one of the row's unique states"
    unique_column = "ojs_unique_key"
    may_insert_first = False
    walks_indexes = False
    locks_past_ranges = True
    skips_conflicts = ""

    @property
    def reads_old(self) -> bool:  # type: ignore[override]
        return is_callers(self.connection) and self.connection.isolation_level != "read committed"  # type: ignore[attr-defined]

    @staticmethod
    def quote(name: str) -> str:
        return f"`{name}`"

    def insert_all(self, jobs: Sequence[Row], *, unless_live: bool = False) -> bool:
        try:
            return super().insert_all(jobs, unless_live=unless_live)
        except IntegrityError as error:
            return _is_conflict(error)

    def lock_keys(self, fingerprints: Collection[str]) -> None:
        """Lock keys until the transaction ends; each key stands for one of 1,024 rows.

        InnoDB gives a shared lock to each transaction that waits for an uncommitted row. When that row is rolled back,
        all of them try to insert, and deadlock. With locks on rows that always exist they wait in order instead; the
        constraint still decides.
        """
        if fingerprints:
            numbers = sorted({_key_lock(fingerprint) for fingerprint in fingerprints})
            places = ", ".join(["%s"] * len(numbers))
            with self.connection.cursor() as cursor:
                cursor.execute(
                    f"SELECT number FROM {KEY_LOCKS} WHERE number IN ({places}) ORDER BY number FOR UPDATE", numbers
                )

    def lock(self, rows: QuerySet[Any], *, by_key: bool) -> list[Any]:
        # The worker locks by the primary key. If this began with another index, InnoDB would deadlock with it.
        if by_key and not self.reads_old:
            rows = rows.model._default_manager.using(rows.db).filter(pk__in=list(rows.values_list("pk", flat=True)))
        return super().lock(rows, by_key=by_key)

    def exactly(self, field: str, text: str) -> Q:
        column: Any = self.model._meta.get_field(field)
        return Q(Exact(Func(F(field), function="BINARY"), column.get_prep_value(text)))

    def condition_of(self, constraint: str) -> str:
        with self.connection.cursor() as cursor:
            cursor.execute(
                "SELECT generation_expression FROM information_schema.columns"
                " WHERE table_schema = DATABASE() AND table_name = %s AND column_name = %s",
                [self.model._meta.db_table, constraint],
            )
            (sql,) = cursor.fetchone() or ("FALSE",)
        return f"({sql}) IS NOT NULL"

    def _inserts(self, statement: str, values: Sequence[Any]) -> bool:
        try:
            return super()._inserts(statement, values)
        except IntegrityError as error:  # on MariaDB a failed statement does not break the transaction
            return _is_conflict(error)


def _is_conflict(error: IntegrityError) -> bool:
    """Return False (nothing was inserted) for a conflict with a unique index; raise any other error."""
    if error.args[0] != _DUPLICATE_ENTRY:
        raise error
    return False


def _key_lock(fingerprint: str) -> int:
    try:
        return int(fingerprint, 16) % KEY_LOCK_COUNT
    except ValueError:  # no hash: the fingerprint was written manually
        return 0
