"""What every test shares. The suite is written once and runs on the database that `tests.settings` chose."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sqlparse
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.db import connection, connections, transaction
from django.test import TransactionTestCase
from django.utils import timezone
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from django_ojs_unique.enqueue.resolved_options import forget_options
from django_ojs_unique.execution.claim import claim
from django_ojs_unique.execution.claim_limited import ClaimOptions
from django_ojs_unique.models import Job
from tests.costs import Costs
from tests.support.clocks import HostClock, host_clock
from tests.support.commands import Site, site
from tests.support.handlers import declared
from tests.support.processes import Child, nursery
from tests.tiers import EVERY, ONE_DATABASE

VENDORS = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "mysql": "MariaDB"}
LEASE = timedelta(seconds=30)

# No generated test may fail because the machine is busy, or only now and then. `--hypothesis-profile=random` draws new
# examples instead of the same ones in each run.
unhurried = hypothesis_settings(deadline=None, suppress_health_check=list(HealthCheck), database=None, print_blob=True)
hypothesis_settings.register_profile("random", unhurried)
hypothesis_settings.register_profile("suite", unhurried, derandomize=True)
hypothesis_settings.load_profile("suite")

logging.getLogger("django_ojs_unique.enqueue").setLevel(logging.ERROR)  # most tests do without handlers
# Django parses the SQL of a table for each look at its constraints on SQLite: a tenth of a second, always the same.
sqlparse.parse = cache(sqlparse.parse)
# A shell makes a background process ignore Ctrl-C. The processes that the tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    if file := os.environ.get("OJS_TEST_COSTS"):
        config.pluginmanager.register(Costs(file, VENDORS[connection.vendor]))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import what is the same on every database, but on SQLite."""
    if connection.vendor == "sqlite" or not _knows_no_database(collection_path, config):
        return None
    return collection_path.suffix == ".py" and f"mark.{EVERY}" not in collection_path.read_text()


def _knows_no_database(path: Path, config: pytest.Config) -> bool:
    return path.relative_to(config.rootpath).as_posix().startswith(ONE_DATABASE)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say in one line which databases this run is for."""
    databases = os.environ.get("OJS_TEST_DATABASES", VENDORS[connection.vendor]).split(",")
    line = f"databases: {', '.join(databases)}"
    if "MariaDB" not in databases and not os.environ.get("OJS_TEST_MARIADB_URL"):
        line += " (MariaDB left out: OJS_TEST_MARIADB_URL names no server)"
    terminalreporter.write_line(line)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is the same on every database, but on SQLite; there, skip torture that would have neighbours."""
    if connection.vendor == "sqlite" and "PYTEST_XDIST_WORKER" in os.environ:
        alone = pytest.mark.skip(reason="runs without neighbours: leave out -n, as in `python -m pytest -m torture`")
        for item in items:
            if item.get_closest_marker("torture"):
                item.add_marker(alone)
    if connection.vendor != "sqlite":
        same = [item for item in items if _knows_no_database(item.path, config) and not item.get_closest_marker(EVERY)]
        left_out = {*same}
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=same)


@pytest.fixture(autouse=True)
def _no_duplicates_met_yet() -> None:
    """Let no earlier test decide whether an enqueue looks before it inserts."""
    forget_options()


@pytest.fixture
def handlers() -> Iterator[Any]:
    """Declare handlers that vanish with the test."""
    with declared() as registry:
        yield registry


@pytest.fixture
def host() -> Iterator[HostClock]:
    """The clock of this process, for tests that set it off."""
    with host_clock() as host:
        yield host


@pytest.fixture
def start(transactional_db: None) -> Iterator[Callable[..., Child]]:
    """Start a process; none outlives the test."""
    with nursery() as starter:
        yield starter


@pytest.fixture
def take() -> Callable[..., list[Job]]:
    """Claim jobs as a worker would."""

    def take(
        limit: int = 10, *, queues: tuple[str, ...] = ("default",), types: tuple[str, ...] = ("t",), **changes: Any
    ):
        options = {"worker_id": "w1", "lease": LEASE, "now": timezone.now(), **changes}
        return claim(Job.objects.all(), queues=queues, types=types, limit=limit, **options)

    return take


@pytest.fixture
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let claims store the very time that they are told, though they take some."""
    monkeypatch.setattr(ClaimOptions, "time", lambda self: self.now)


@pytest.fixture
def newer_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any) -> str:
    """Let the code have a migration that is not applied; return what is said of it."""
    package = tmp_path / "migrations_of_newer_code"
    package.mkdir()
    for name in ("__init__", "0001_initial", "0002_of_the_next_release"):
        (package / f"{name}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    settings.MIGRATION_MODULES = {**settings.MIGRATION_MODULES, "django_ojs_unique": package.name}
    return (
        "The migration django_ojs_unique.0002_of_the_next_release is not applied to database 'default': run"
        " `manage.py migrate --database default`."
    )


@pytest.fixture
def place(tmp_path: Path, transactional_db: None) -> Iterator[Site]:
    """A folder and a database in which commands run beside the test."""
    with site(tmp_path) as place:
        yield place


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
