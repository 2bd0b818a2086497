"""What the schema of a database lacks: the code may be newer than the migrations that were applied."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from django.apps import apps
from django.db import DatabaseError, connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

APP = "django_ojs_unique"
_UNKNOWN_NAMES = {"42703", "42P01", 1054, 1146}
"""PostgreSQL and MariaDB: there is no such column, or no such table."""


def find_lack(using: str) -> str:
    """Say which migration or table of the package a database lacks, and what to run; return "" if none."""
    connection = connections[using]
    tables = set(connection.introspection.table_names())
    if unapplied := _unapplied(using, tables):
        return f"The migration {APP}.{unapplied[0]} is not applied to database {using!r}: run `{_migrate(using)}`."
    for model in _models():
        if (table := model._meta.db_table) not in tables:
            return f"The table {table} does not exist in database {using!r}: run `{_migrate(using)}`."
    return ""


def find_cause(error: Exception, using: str) -> str:
    """Return what `find_lack` says, or which column is missing, if that explains an error; otherwise ""."""
    if not _names_something_unknown(error):
        return ""
    try:
        return find_lack(using) or _find_missing_column(using)
    except DatabaseError:  # as in a transaction that the failed statement broke
        return ""


def _models() -> Iterable[Any]:
    return apps.get_app_config(APP).get_models()


def _unapplied(using: str, tables: set[str]) -> list[str]:
    """Return the migrations that are not recorded, in order; none if the tables were made without migrations."""
    module, _ = MigrationLoader.migrations_module(APP)
    if module is None or MigrationRecorder.Migration._meta.db_table not in tables:
        return []
    recorded = MigrationRecorder(connections[using]).migration_qs.filter(app=APP)
    applied = set(recorded.values_list("name", flat=True))
    names = {name for _, name, is_package in iter_modules(import_module(module).__path__) if not is_package}
    return sorted(names - applied) if applied else []


def _migrate(using: str) -> str:
    """Return the command that migrates a database; with django-tenants, its active schema."""
    schema = getattr(connections[using], "schema_name", None)
    if schema is None:
        return f"manage.py migrate --database {using}"
    return f"manage.py migrate_schemas {'--shared' if schema == 'public' else f'--schema={schema}'}"


def _find_missing_column(using: str) -> str:
    connection = connections[using]
    for model in _models():
        table = model._meta.db_table
        with connection.cursor() as cursor:
            there = {column.name for column in connection.introspection.get_table_description(cursor, table)}
        if absent := {field.column for field in model._meta.local_concrete_fields} - there:
            return (
                f"The table {table} in database {using!r} has no column {min(absent)!r}, though all migrations are"
                " recorded: add what is missing with the statements of `manage.py sqlmigrate`."
            )
    return ""


def _names_something_unknown(error: Exception) -> bool:
    cause: Any = error.__cause__
    codes = {getattr(cause, "sqlstate", None), cause.args[0] if cause is not None and cause.args else None}
    return bool(codes & _UNKNOWN_NAMES) or getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR
