"""A Django project on a new database, and worker processes that use the same database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dj_database_url
import django

from tests.__main__ import postgres

RUNWORKER = [sys.executable, "-m", "django", "runworker", "--verbosity", "0"]


@contextmanager
def new_database(name: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Create a PostgreSQL database; yield its entry of ``DATABASES`` and its connection string."""
    import psycopg

    with postgres() as url:
        base = dj_database_url.parse(url)
        keys = {"host": "HOST", "port": "PORT", "user": "USER", "password": "PASSWORD"}
        where = {key: base[setting] for key, setting in keys.items() if base[setting]}
        database = f"ojs_benchmark_{name}"
        with psycopg.connect(psycopg.conninfo.make_conninfo(dbname=base["NAME"], **where), autocommit=True) as admin:
            admin.execute(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")
            admin.execute(f"CREATE DATABASE {database}")
            try:
                yield {**base, "NAME": database}, psycopg.conninfo.make_conninfo(dbname=database, **where)
            finally:
                admin.execute(f"DROP DATABASE {database} WITH (FORCE)")


@contextmanager
def on_postgres(name: str, settings: str = "benchmarks.settings", **options: Any) -> Iterator[str]:
    """Set Django up on a new PostgreSQL database, with ``options`` of the driver; yield its connection string."""
    with new_database(name) as (database, dsn), _project({**database, "OPTIONS": options}, settings):
        yield dsn


@contextmanager
def on_sqlite(settings: str = "benchmarks.settings") -> Iterator[str]:
    """Set Django up on a new SQLite file, with the options that the documentation recommends; yield its path."""
    options = {"transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL", "timeout": 30}
    with tempfile.TemporaryDirectory() as folder:
        name = str(Path(folder) / "db.sqlite3")
        with _project({"ENGINE": "django.db.backends.sqlite3", "NAME": name, "OPTIONS": options}, settings):
            yield name


@contextmanager
def _project(database: dict[str, Any], settings: str = "benchmarks.settings") -> Iterator[None]:
    os.environ["OJS_BENCHMARK_DATABASE"] = json.dumps(database)
    os.environ["DJANGO_SETTINGS_MODULE"] = settings
    django.setup()
    from django.core.management import call_command
    from django.db import connection

    connection.settings_dict["CONN_MAX_AGE"] = None
    call_command("migrate", verbosity=0)
    try:
        yield
    finally:
        connection.close()


@contextmanager
def running(command: Sequence[str] = RUNWORKER, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process with the project's settings; stop it at the end."""
    process = subprocess.Popen(command, env={**os.environ, **environment})
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
