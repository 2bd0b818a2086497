"""What every test shares. The suite is written once and runs on the database that `tests.settings` chose."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection

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
