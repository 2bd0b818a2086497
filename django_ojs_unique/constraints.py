"""The promise: a conditional unique constraint that every supported database keeps."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage
from django.db import models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.backends.ddl_references import Statement
from django.db.models import F, Q
from django.db.models.lookups import Exact

from .ojs.states import JobState


def guarding() -> Q:
    """The rows whose state is one in which they guard their fingerprint."""
    condition = Q()
    for state in JobState:
        condition |= Q(Exact(F("guarded_states").bitand(state.bit), state.bit), state=str(state))
    return condition


TURNS = "django_ojs_unique_turn"
TURN_COUNT = 1024
"""On MariaDB: the table of rows that an enqueue locks to wait its turn, and how many keys can be told apart."""


class PartiallyIndexed(models.Model):
    """A row with indexes and constraints under conditions, on every supported database."""

    class Meta:
        abstract = True

    @classmethod
    def check(cls, **kwargs: Any) -> list[CheckMessage]:
        # Where there are no partial indexes, Django warns that it would skip a constraint (W036), which
        # ConditionalUniqueConstraint creates there, and that it makes the other indexes full ones (W037), which serves.
        answered = {"models.W036", "models.W037"}
        return [message for message in super().check(**kwargs) if message.id not in answered]


class ConditionalUniqueConstraint(models.UniqueConstraint):
    """A conditional `UniqueConstraint` on one field that MySQL and MariaDB keep, too.

    They have no partial index. There, a generated column holds the field's value while the condition is true and NULL
    otherwise, and carries a plain unique index; both are named after the constraint. Beside it goes the table of turns.
    """

    def create_sql(self, model: type[models.Model] | None, schema_editor: BaseDatabaseSchemaEditor | None) -> Any:
        if model is None or schema_editor is None or schema_editor.connection.features.supports_partial_indexes:
            return super().create_sql(model, schema_editor)
        # Django also asks only whether there is anything to create; so this returns a statement and executes none.
        column, *turns = self._mysql_statements(model, schema_editor)
        schema_editor.deferred_sql.extend(turns)
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
        turns = Statement("CREATE TABLE IF NOT EXISTS %(turns)s (turn SMALLINT UNSIGNED PRIMARY KEY)", turns=TURNS)
        numbers = ", ".join(f"({turn})" for turn in range(TURN_COUNT))
        fill = Statement("INSERT IGNORE INTO %(turns)s (turn) VALUES %(numbers)s", turns=TURNS, numbers=numbers)
        return [column, turns, fill]
