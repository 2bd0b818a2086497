"""How strong the promise of uniqueness is on a database, read from its schema (OJS unique jobs, "Strength Levels")."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import cache
from typing import Any

from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model

from ..ojs.states import ALL, JobState, to_mask
from .dialects import dialect_on, kind_of

STRONG, BEST_EFFORT = "strong", "best-effort"
CONSTRAINT = "ojs_unique_key"
MISSING, ALTERED = "is missing", "is not the one that the model declares"

_MASKS = [to_mask(states) for state in JobState for states in ({state}, ALL - {state})]


def strength(model: type[Model], using: str) -> str:
    """Return ``strong`` if the constraint exists and this kind of database is tested, else ``best-effort``."""
    return STRONG if _keeps_promise(model, using) else BEST_EFFORT


def unique_jobs(model: type[Model], using: str) -> dict[str, str]:
    """Return the manifest's ``capabilities.unique_jobs`` for one database alias."""
    declared = strength(model, using)
    if declared == STRONG:
        return {"strength": declared, "mechanism": kind_of(connections[using]).mechanism}
    return {
        "strength": declared,
        "mechanism": "query, then insert; concurrent enqueues of one key may both be admitted",
    }


def flaws(model: type[Model], using: str) -> dict[str, str]:
    """Return which constraints of the model are `MISSING` or `ALTERED`; none on a database that cannot keep them."""
    connection = connections[using]
    if not _can_keep_promise(connection):
        return {}
    found = _constraints(model, connection)
    checks = connection.features.can_introspect_check_constraints
    names = [constraint.name for constraint in model._meta.constraints if checks or constraint.name == CONSTRAINT]
    missing = {name: MISSING for name in names if name not in found}
    if CONSTRAINT not in missing and not _is_enforced(model, connection, found):
        return {CONSTRAINT: ALTERED, **missing}
    return missing


def forget() -> None:
    """Clear the cache: the schema may have changed, so the next call reads it again."""
    _keeps_promise.cache_clear()


@cache
def _keeps_promise(model: type[Model], using: str) -> bool:
    connection = connections[using]
    return _can_keep_promise(connection) and _is_enforced(model, connection, _constraints(model, connection))


def _can_keep_promise(connection: BaseDatabaseWrapper) -> bool:
    is_mysql = not getattr(connection, "mysql_is_mariadb", True)
    return bool(kind_of(connection).mechanism) and not is_mysql


def _constraints(model: type[Model], connection: BaseDatabaseWrapper) -> Mapping[str, Any]:
    with connection.cursor() as cursor:
        return connection.introspection.get_constraints(cursor, model._meta.db_table)


def _is_enforced(model: type[Model], connection: BaseDatabaseWrapper, found: Mapping[str, Any]) -> bool:
    index = found.get(CONSTRAINT, {})
    if not index.get("unique") or index.get("columns") != [kind_of(connection).unique_column]:
        return False
    # If the database cannot compute the condition, that error must not break the caller's transaction.
    savepoint = transaction.atomic(using=connection.alias) if connection.in_atomic_block else nullcontext()
    try:
        with savepoint:
            return _holding(model, connection) == {
                (str(state), mask) for state in ALL for mask in _MASKS if mask & state.bit
            }
    except DatabaseError:
        if not connection.is_usable():
            raise
        return False


def _holding(model: type[Model], connection: BaseDatabaseWrapper) -> set[tuple[str, int]]:
    """Let the database compute its own condition; return the pairs (state, unique states) for which it is true."""
    condition = dialect_on(model, connection).condition_of(CONSTRAINT)
    states = " UNION ALL ".join(f"SELECT '{state}' AS state" for state in JobState)
    masks = " UNION ALL ".join(f"SELECT {mask} AS unique_states" for mask in _MASKS)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT state, unique_states FROM ({states}) AS a CROSS JOIN ({masks}) AS b"
            f" CROSS JOIN (SELECT 'f' AS fingerprint) AS c WHERE {condition}"
        )
        return set(cursor.fetchall())
