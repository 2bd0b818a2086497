"""Checks of the databases: their options, and whether they guarantee uniqueness."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from django.core.checks import CheckMessage, Warning
from django.db import connections

from ..db.capabilities import BEST_EFFORT, MISSING, flaws, strength
from ..db.characters import lacks_characters
from ..db.clock import is_off, offset_text, seconds_ahead
from ..db.dialects import kind_of
from ..db.schema import find_lack
from ..models import Job

CONCURRENCY = 4
"""The threads of a worker for plain handlers, if it has no option."""
_OTHER_THREADS = 4
"""Threads with a connection: the loop, what finalizes, the upkeep, and the one for async handlers."""
_POOL_SIZE = 4
"""psycopg's default."""


def check_databases(databases: Iterable[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """W001: SQLite without immediate transactions. W002: SQLite without WAL. W003: uniqueness is best-effort here.

    W008: a constraint is missing, or differs from the one that the model declares. W015: local times are stored.
    W016: the clock of this host is wrong.
    W018: the connection pool is too small for a worker. W019: columns of MariaDB cannot store all characters.
    W020: a migration is not applied.
    """
    databases = list(databases or ())
    messages = [
        message
        for alias in databases
        if kind_of(connections[alias]).single_writer
        for message in _check_sqlite(alias, connections[alias])
    ]
    for alias in with_jobs(databases):
        if lack := find_lack(alias):
            hint = "Until then, no worker starts, and enqueues may fail."
            messages.append(Warning(lack, hint=hint, id="django_ojs_unique.W020"))
        messages += _check_time_zone(alias, connections[alias])
        messages += _check_clock(alias)
        messages += _check_characters(alias)
        if problem := pool_problem(alias, CONCURRENCY):
            hint = f"Leave 'pool' out of DATABASES[{alias!r}]['OPTIONS'] for workers, or set its max_size."
            messages.append(Warning(problem, hint=hint, id="django_ojs_unique.W018"))
        if strength(Job, alias) == BEST_EFFORT:
            messages.append(
                Warning(
                    f"Uniqueness is best-effort on database {alias!r}: concurrent enqueues may both be admitted.",
                    hint="Migrate django_ojs_unique on PostgreSQL, SQLite or MariaDB, which keep the constraint.",
                    id="django_ojs_unique.W003",
                )
            )
        messages += (
            Warning(
                f"Database {alias!r}: constraint {name!r} of table {Job._meta.db_table!r} {flaw}.",
                hint="Run `manage.py migrate`. If that changes nothing, somebody has changed the table manually: stop"
                f" the workers, run `manage.py jobs verify --fix --database {alias}`, then in `manage.py shell`:"
                + _made_anew(name, alias, flaw),
                id="django_ojs_unique.W008",
            )
            for name, flaw in flaws(Job, alias).items()
        )
    return messages


def _made_anew(name: str, alias: str, flaw: str) -> str:
    lines = [
        "from django.db import connections",
        "from django_ojs_unique.models import Job",
        f"constraint = next(each for each in Job._meta.constraints if each.name == {name!r})",
        f"with connections[{alias!r}].schema_editor() as editor:",
        *([] if flaw == MISSING else ["    editor.remove_constraint(Job, constraint)"]),
        "    editor.add_constraint(Job, constraint)",
    ]
    return "".join(f"\n\t\t{line}" for line in lines)


def with_jobs(databases: Iterable[str] | None) -> list[str]:
    """Return those of the databases that have the table of jobs."""
    table = Job._meta.db_table
    return [alias for alias in databases or () if table in connections[alias].introspection.table_names()]


def _check_time_zone(alias: str, connection: Any) -> Iterator[CheckMessage]:
    zone = connection.settings_dict["TIME_ZONE"]
    if zone not in (None, "UTC") and not connection.features.supports_timezones:
        yield Warning(
            f"Database {alias!r} stores the times of {zone}: in the hour that the clocks repeat they are ambiguous, and"
            " the dashboard counts jobs in wrong hours.",
            hint=f"Leave TIME_ZONE out of DATABASES[{alias!r}], and convert the times that it has stored to UTC. Pages"
            " still show the times of settings.TIME_ZONE.",
            id="django_ojs_unique.W015",
        )


def _check_clock(alias: str) -> Iterator[CheckMessage]:
    if is_off(ahead := seconds_ahead(alias)):
        yield Warning(
            f"{offset_text(ahead, alias)}.",
            hint="Jobs go by the database's clock. Let an NTP client set the clocks of both hosts: logs, and what your"
            " code compares with the times of jobs, go by the host's.",
            id="django_ojs_unique.W016",
        )


def pool_problem(alias: str, concurrency: int) -> str:
    """Say that the pool of psycopg has too few connections for a worker with so many threads; or return ""."""
    pool = connections[alias].settings_dict["OPTIONS"].get("pool")
    if not pool:
        return ""
    sizes = pool if isinstance(pool, dict) else {}
    most = sizes.get("max_size") or sizes.get("min_size", _POOL_SIZE)
    needed = concurrency + _OTHER_THREADS
    if most >= needed:
        return ""
    return (
        f"The connection pool of database {alias!r} has at most {most} connections, but a worker with {concurrency}"
        f" threads needs up to {needed} at once: jobs would wait for one, or fail."
    )


def _check_characters(alias: str) -> Iterator[CheckMessage]:
    if lacks_characters(Job, alias):
        yield Warning(
            f"Columns of {Job._meta.db_table!r} on database {alias!r} have the character set utf8mb3, which has no"
            " emoji: a job whose key has one cannot be stored, and notes of progress and reasons to be skipped lose"
            " theirs.",
            hint=f"Stop the workers, and run ALTER TABLE {Job._meta.db_table} CONVERT TO CHARACTER SET utf8mb4.",
            id="django_ojs_unique.W019",
        )


def _check_sqlite(alias: str, connection: Any) -> Iterator[CheckMessage]:
    if str(connection.settings_dict["OPTIONS"].get("transaction_mode", "")).upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        yield Warning(
            f"SQLite database {alias!r} begins its transactions without the write lock.",
            hint='Set "OPTIONS": {"transaction_mode": "IMMEDIATE"}, so that an enqueue after a read in one transaction'
            " waits for its turn instead of failing with 'database is locked'.",
            id="django_ojs_unique.W001",
        )
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA journal_mode")
        mode = cursor.fetchone()[0]
    if mode not in ("wal", "memory"):
        yield Warning(
            f"SQLite database {alias!r} uses journal mode {mode!r}.",
            hint='Set "OPTIONS": {"init_command": "PRAGMA journal_mode=WAL"}, so that readers and the writer do not'
            " wait for each other.",
            id="django_ojs_unique.W002",
        )
