"""How strong the promise is on a database, computed from what is really there (OJS unique jobs, "Strength Levels")."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from django.db import connections
from django.db.models import Model

STRONG, BEST_EFFORT = "strong", "best-effort"
CONSTRAINT = "ojs_unique_guard"

_MECHANISMS = {
    "postgresql": "partial unique index on fingerprint while the row's state is guarded; ON CONFLICT DO NOTHING",
    "sqlite": "partial unique index on fingerprint while the row's state is guarded; one writer at a time",
    "mysql": "unique index on a generated column that holds the fingerprint while the row's state is guarded",
}


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


def forget() -> None:
    """Look again at the next question: the schema may have changed."""
    _keeps_promise.cache_clear()


@cache
def _keeps_promise(model: type[Model], using: str) -> bool:
    connection = connections[using]
    if connection.vendor not in _MECHANISMS or (connection.vendor == "mysql" and not connection.mysql_is_mariadb):  # type: ignore[attr-defined]
        return False
    with connection.cursor() as cursor:
        constraints = connection.introspection.get_constraints(cursor, model._meta.db_table)
    found: Mapping[str, Any] = constraints.get(CONSTRAINT, {})
    column = CONSTRAINT if connection.vendor == "mysql" else "fingerprint"
    return bool(found.get("unique")) and found.get("columns") == [column]
