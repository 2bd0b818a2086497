"""What every test shares. The suite is written once and runs on the database that `tests.settings` chose."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.db import connection, connections, transaction
from django.test import TransactionTestCase
from django.utils import timezone

from django_ojs_unique.enqueue.shape import forget_shapes
from django_ojs_unique.execution.claim import claim
from django_ojs_unique.models import Job
from tests.costs import Costs
from tests.support.commands import Site, site
from tests.support.handlers import declared
from tests.support.processes import Child, nursery

TOGETHER = (
    "tests/admin/test_speed.py",
    "tests/api/test_schemathesis.py",
    "tests/browser/",
    "tests/db/test_plans.py",
    "tests/management/test_jobs_speed.py",
)
"""What shares something that takes long to make: one process runs all of it, where there are several."""

VENDORS = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "mysql": "MariaDB"}
LEASE = timedelta(seconds=30)

logging.getLogger("django_ojs_unique.enqueue").setLevel(logging.ERROR)  # most tests do without handlers
# A shell makes a background process ignore Ctrl-C. The processes that the tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Measure costs; and coverage in a process of xdist and what it forks, as `coverage run` does in its process."""
    if file := os.environ.get("OJS_TEST_COSTS"):
        config.pluginmanager.register(Costs(file, VENDORS[connection.vendor]))
    if os.environ.get("OJS_TEST_COVERAGE") and hasattr(config, "workerinput"):
        import coverage

        with pytest.MonkeyPatch.context() as patch:  # for this process only, and not for those that it starts
            patch.setenv("COVERAGE_PROCESS_START", str(config.rootpath / "pyproject.toml"))
            measured = coverage.process_startup()
        config.add_cleanup(measured.save)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out the tests one by one, but for what stays together; by name, as xdist's groups fail with pytest 9.2."""
    from xdist.scheduler import LoadScopeScheduling

    class OneByOne(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((start for start in TOGETHER if nodeid.startswith(start)), nodeid)

    return OneByOne(config, log) if config.getoption("dist") == "load" else None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say in one line which databases this run is for."""
    databases = os.environ.get("OJS_TEST_DATABASES", VENDORS[connection.vendor]).split(",")
    line = f"databases: {', '.join(databases)}"
    if "MariaDB" not in databases and not os.environ.get("OJS_TEST_MARIADB_URL"):
        line += " (MariaDB left out: OJS_TEST_MARIADB_URL names no server)"
    terminalreporter.write_line(line)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts processes."""
    for item in items:
        if not {"start", "place"}.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.processes)


@pytest.fixture(autouse=True)
def _no_duplicates_met_yet() -> None:
    """Let no earlier test decide whether an enqueue looks before it inserts."""
    forget_shapes()


@pytest.fixture
def handlers() -> Iterator[Any]:
    """Declare handlers that vanish with the test."""
    with declared() as registry:
        yield registry


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
