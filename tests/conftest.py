"""What every test shares. The suite is written once and runs on the database that `tests.settings` chose."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.db import connection, connections, transaction
from django.test import TransactionTestCase

from django_ojs_unique.registry import registry
from tests.processes import Child, nursery


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say in one line which databases ran, this run's last."""
    ran = [name for name in os.environ.get("OJS_TEST_ALREADY_RAN", "").split(", ") if name]
    line = f"databases: {', '.join([*ran, _database()])}"
    if "MariaDB" not in [*ran, _database()] and not os.environ.get("OJS_TEST_MARIADB_URL"):
        line += " (MariaDB left out: OJS_TEST_MARIADB_URL names no server)"
    terminalreporter.write_line(line)


def _database() -> str:
    return {"sqlite": "SQLite", "postgresql": "PostgreSQL", "mysql": "MariaDB"}[connection.vendor]


@pytest.fixture
def handlers() -> Iterator[Any]:
    """Declare handlers that vanish with the test."""
    before = dict(registry._definitions)
    yield registry
    registry._definitions = before


@pytest.fixture
def start(transactional_db: None) -> Iterator[Callable[..., Child]]:
    """Start a process; none outlives the test."""
    with nursery() as starter:
        yield starter


def _empty_the_tables(test_case: TransactionTestCase) -> None:
    """Empty the tables, but for those that every `flush` would fill again; with DELETE, as most hold a few rows.

    Django truncates on PostgreSQL, which makes new files for each table and index: 0.2 seconds for every test.
    """
    kept = {ContentType._meta.db_table, Permission._meta.db_table}
    for alias in test_case._databases_names(include_mirrors=False):  # type: ignore[attr-defined]
        database = connections[alias]
        tables = database.introspection.django_table_names(only_existing=True, include_views=False)
        with database.constraint_checks_disabled(), transaction.atomic(using=alias), database.cursor() as cursor:
            grown = _grown_tables(database, cursor)
            for table in set(tables) - kept:
                name = database.ops.quote_name(table)
                cursor.execute(f"TRUNCATE {name} CASCADE" if table in grown else f"DELETE FROM {name}")


def _grown_tables(database: Any, cursor: Any) -> set[str]:
    """Return the tables whose dead rows would slow down all tests to come, as nothing vacuums them in time."""
    if database.vendor != "postgresql":
        return set()
    cursor.execute("SELECT relname FROM pg_stat_user_tables WHERE pg_relation_size(relid) > 1000000")
    return {name for (name,) in cursor.fetchall()}


TransactionTestCase._fixture_teardown = _empty_the_tables  # type: ignore[attr-defined]
