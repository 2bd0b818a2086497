"""The promise: a conditional unique constraint that every supported database keeps."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage
from django.db import models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.backends.ddl_references import Statement
from django.db.models import F, Lookup, Q, TextField, Value
from django.db.models.functions import Cast, Coalesce
from django.db.models.lookups import Contains

from ..ojs.states import JobState

_BITS = " ".join(f"WHEN '{state}' THEN {state.bit}" for state in JobState)
_HOLDS_UNIQUE_KEY = "CASE WHEN ({unique_states} & CASE {state} " + _BITS + " ELSE 0 END) = 0 THEN 0 ELSE 1 END = 1"
HOLDS_UNIQUE_KEY = _HOLDS_UNIQUE_KEY.format(unique_states="unique_states", state="state")
"""The SQL of `holding_unique_key`."""


class HoldsUniqueKey(Lookup):
    """Whether a row's state is one of its unique states: one bit-and, which each write of a row evaluates.

    It is an equation, because PostgreSQL expects that an equation is true for few rows. With ``<> 0`` it expected all
    finished jobs of a fingerprint, and spent 200 ms on compiling (JIT) a statement that finds one row.

    It has no parameters, so that a database recognises the condition of the index. It is a look-up because Django
    compares any other expression with TRUE, in some versions and on some databases.
    """

    lookup_name = "holds_unique_key"
    prepare_rhs = False

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        unique_states, state = (compiler.compile(expression)[0] for expression in (self.lhs, self.rhs))
        return _HOLDS_UNIQUE_KEY.format(unique_states=unique_states, state=state), []


def holding_unique_key() -> Q:
    """Return the condition for rows that hold their unique key: their state is one of their unique states."""
    return Q(HoldsUniqueKey(F("unique_states"), F("state")))


_IS_FINISHED = "CASE WHEN {finished_at} IS NULL THEN 0 ELSE 1 END = {is_finished:d}"
FINISHED = _IS_FINISHED.format(finished_at="finished_at", is_finished=True)
RELEASED = "unique_states = 0 AND " + _IS_FINISHED.format(finished_at="finished_at", is_finished=False)
"""The SQL of `finished` and of `released`."""


class IsFinished(Lookup):
    """Whether a row is finished (or is not), in a form that no other index has.

    With plain ``finished_at IS NULL``, PostgreSQL can answer a look for a fingerprint by any index of unfinished jobs,
    and does so if its statistics are from an empty queue: then it reads all jobs that wait.
    """

    lookup_name = "is_finished"
    prepare_rhs = False

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        finished_at, _ = compiler.compile(self.lhs)
        return _IS_FINISHED.format(finished_at=finished_at, is_finished=self.rhs), []


def finished() -> Q:
    """Return the condition for finished jobs, by which those of a fingerprint and those of workflows are found."""
    return Q(IsFinished(F("finished_at"), True))


def released() -> Q:
    """Return the condition for unfinished jobs that have released their unique key."""
    return Q(IsFinished(F("finished_at"), False), unique_states=0)


def unfinished_or_holding(**condition: Any) -> Q:
    """Return a condition on the fingerprint for the unfinished jobs, and for the one that holds it.

    It uses two partial indexes. Each part repeats the whole condition: otherwise SQLite uses none of them.
    """
    return Q(holding_unique_key(), **condition) | Q(released(), **condition)


def of_fingerprint(**condition: Any) -> Q:
    """Return a condition on the fingerprint, for all jobs: it uses one more partial index, of the finished jobs."""
    return unfinished_or_holding(**condition) | Q(finished(), **condition)


LOOKS_FIRST = Q(
    Contains(Coalesce(Cast("unique", TextField()), Value(""), output_field=TextField()), '"on_retry"'),
    fingerprint__isnull=False,
)
"""The jobs that, after a run, wait again only if no other job counts as their duplicate: see `maintenance.superseded`.

A stored policy has ``on_retry`` only if it is "discard". The text is searched, because it may be no JSON
if somebody wrote it manually; it is never NULL, and so is the negation.
"""

KEY_LOCKS = "django_ojs_unique_keylock"
KEY_LOCK_COUNT = 1024
"""On MariaDB: the table whose rows enqueues lock, so that enqueues of one key take turns, and its number of rows."""


class PartiallyIndexed(models.Model):
    """A model with conditional indexes and constraints, on every supported database."""

    class Meta:
        abstract = True

    @classmethod
    def check(cls, **kwargs: Any) -> list[CheckMessage]:
        # Without partial indexes, Django warns that it would skip a constraint (W036), but ConditionalUniqueConstraint
        # creates it; and that it creates the other indexes without their conditions (W037), which is good enough.
        answered = {"models.W036", "models.W037"}
        return [message for message in super().check(**kwargs) if message.id not in answered]


class ConditionalUniqueConstraint(models.UniqueConstraint):
    """A conditional `UniqueConstraint` on one field that MySQL and MariaDB keep, too.

    They have no partial indexes. There, a generated column holds the field's value while the condition is true, and
    NULL otherwise. It has a plain unique index; both are named after the constraint. The table of key locks is created
    with it.
    """

    def create_sql(self, model: type[models.Model] | None, schema_editor: BaseDatabaseSchemaEditor | None) -> Any:
        if model is None or schema_editor is None or schema_editor.connection.features.supports_partial_indexes:
            return super().create_sql(model, schema_editor)
        # Django also calls this only to see whether there is anything to create: return a statement, execute none.
        column, *locks = self._mysql_statements(model, schema_editor)
        schema_editor.deferred_sql.extend(locks)
        return column

    def constraint_sql(self, model: type[models.Model] | None, schema_editor: BaseDatabaseSchemaEditor | None) -> Any:
        if model is None or schema_editor is None or schema_editor.connection.features.supports_partial_indexes:
            return super().constraint_sql(model, schema_editor)
        schema_editor.deferred_sql.extend(self._mysql_statements(model, schema_editor))
        return None

    def remove_sql(self, model: type[models.Model] | None, schema_editor: BaseDatabaseSchemaEditor | None) -> Any:
        if model is None or schema_editor is None or schema_editor.connection.features.supports_partial_indexes:
            return super().remove_sql(model, schema_editor)
        quote = schema_editor.quote_name
        name = quote(str(self.name))
        return f"ALTER TABLE {quote(model._meta.db_table)} DROP INDEX {name}, DROP COLUMN {name}"

    def _mysql_statements(self, model: type[models.Model], schema_editor: BaseDatabaseSchemaEditor) -> list[Statement]:
        field: Any = model._meta.get_field(self.fields[0])
        quote = schema_editor.quote_name
        condition = self._get_condition_sql(model, schema_editor)  # type: ignore[attr-defined]
        column = Statement(
            "ALTER TABLE %(table)s ADD COLUMN %(name)s %(type)s GENERATED ALWAYS AS "
            "(CASE WHEN %(condition)s THEN %(column)s END) STORED, ADD UNIQUE INDEX %(name)s (%(name)s)",
            table=quote(model._meta.db_table),
            name=quote(str(self.name)),
            type=field.db_type(schema_editor.connection),
            condition=condition,
            column=quote(field.column),
        )
        locks = Statement(
            "CREATE TABLE IF NOT EXISTS %(locks)s (number SMALLINT UNSIGNED PRIMARY KEY)", locks=KEY_LOCKS
        )
        numbers = ", ".join(f"({number})" for number in range(KEY_LOCK_COUNT))
        fill = Statement("INSERT IGNORE INTO %(locks)s (number) VALUES %(numbers)s", locks=KEY_LOCKS, numbers=numbers)
        return [column, locks, fill]
