"""How strong the promise is on a database, computed from what is really there (OJS unique jobs, "Strength Levels")."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import nullcontext
from functools import cache
from typing import Any

from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model

from .ojs.states import ALL, JobState, to_mask

STRONG, BEST_EFFORT = "strong", "best-effort"
CONSTRAINT = "ojs_unique_guard"
MISSING, ALTERED = "is missing", "is not the one that the model declares"

_MECHANISMS = {
    "postgresql": "partial unique index on fingerprint while the row's state is guarded; ON CONFLICT DO NOTHING",
    "sqlite": "partial unique index on fingerprint while the row's state is guarded; one writer at a time",
    "mysql": "unique index on a generated column that holds the fingerprint while the row's state is guarded",
}

_CONDITIONS = {
    "postgresql": "SELECT pg_get_expr(indpred, indrelid) FROM pg_index"
    " WHERE indexrelid = to_regclass(%(name)s) AND indisvalid",
    "sqlite": "SELECT sql FROM sqlite_master WHERE type = 'index' AND name = %(name)s",
    "mysql": "SELECT generation_expression FROM information_schema.columns"
    " WHERE table_schema = DATABASE() AND table_name = %(table)s AND column_name = %(name)s",
}
"""What tells the condition of the constraint, as the database itself writes it."""

_MASKS = [to_mask(states) for state in JobState for states in ({state}, ALL - {state})]


def strength(model: type[Model], using: str) -> str:
    """Return ``strong`` where the constraint exists on a database that is tested to keep it, else ``best-effort``."""
    return STRONG if _keeps_promise(model, using) else BEST_EFFORT


def unique_jobs(model: type[Model], using: str) -> dict[str, str]:
    """Return the manifest's ``capabilities.unique_jobs`` for one database alias."""
    declared = strength(model, using)
    if declared == STRONG:
        return {"strength": declared, "mechanism": _MECHANISMS[connections[using].vendor]}
    return {
        "strength": declared,
        "mechanism": "query, then insert; concurrent enqueues of one key may both be admitted",
    }


def flaws(model: type[Model], using: str) -> dict[str, str]:
    """Say which of the model's constraints are `MISSING` or `ALTERED` on a database that can keep them."""
    connection = connections[using]
    if not _can_keep_promise(connection):
        return {}
    found = _constraints(model, connection)
    checks = connection.features.can_introspect_check_constraints
    names = [constraint.name for constraint in model._meta.constraints if checks or constraint.name == CONSTRAINT]
    missing = {name: MISSING for name in names if name not in found}
    if CONSTRAINT not in missing and not _is_guarded(model, connection, found):
        return {CONSTRAINT: ALTERED, **missing}
    return missing


def forget() -> None:
    """Look again at the next question: the schema may have changed."""
    _keeps_promise.cache_clear()


@cache
def _keeps_promise(model: type[Model], using: str) -> bool:
    connection = connections[using]
    return _can_keep_promise(connection) and _is_guarded(model, connection, _constraints(model, connection))


def _can_keep_promise(connection: BaseDatabaseWrapper) -> bool:
    is_mysql = connection.vendor == "mysql" and not connection.mysql_is_mariadb  # type: ignore[attr-defined]
    return connection.vendor in _MECHANISMS and not is_mysql


def _constraints(model: type[Model], connection: BaseDatabaseWrapper) -> Mapping[str, Any]:
    with connection.cursor() as cursor:
        return connection.introspection.get_constraints(cursor, model._meta.db_table)


def _is_guarded(model: type[Model], connection: BaseDatabaseWrapper, found: Mapping[str, Any]) -> bool:
    guard = found.get(CONSTRAINT, {})
    column = CONSTRAINT if connection.vendor == "mysql" else "fingerprint"
    if not guard.get("unique") or guard.get("columns") != [column]:
        return False
    # A condition that cannot be computed must not end the caller's transaction.
    savepoint = transaction.atomic(using=connection.alias) if connection.in_atomic_block else nullcontext()
    try:
        with savepoint:
            return _guarding(model, connection) == {
                (str(state), mask) for state in ALL for mask in _MASKS if mask & state.bit
            }
    except DatabaseError:
        if not connection.is_usable():
            raise
        return False


def _guarding(model: type[Model], connection: BaseDatabaseWrapper) -> set[tuple[str, int]]:
    """Have the database compute its own condition: return the pairs of state and set of states that it guards."""
    condition = _condition(model, connection)
    states = " UNION ALL ".join(f"SELECT '{state}' AS state" for state in JobState)
    masks = " UNION ALL ".join(f"SELECT {mask} AS guarded_states" for mask in _MASKS)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT state, guarded_states FROM ({states}) AS a CROSS JOIN ({masks}) AS b"
            f" CROSS JOIN (SELECT 'f' AS fingerprint) AS c WHERE {condition}"
        )
        return set(cursor.fetchall())


def _condition(model: type[Model], connection: BaseDatabaseWrapper) -> str:
    with connection.cursor() as cursor:
        cursor.execute(_CONDITIONS[connection.vendor], {"table": model._meta.db_table, "name": CONSTRAINT})
        (sql,) = cursor.fetchone() or ("FALSE",)
    if connection.vendor == "mysql":
        return f"({sql}) IS NOT NULL"
    if connection.vendor == "sqlite":
        where = re.search(r"\sWHERE\s(.*)", sql, re.IGNORECASE | re.DOTALL)
        return where[1] if where else "TRUE"
    return str(sql or "TRUE")
