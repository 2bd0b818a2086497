"""System checks; their ids are permanent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import connections

from . import conf


@register()
def check_settings(**kwargs: Any) -> list[CheckMessage]:
    """E001: an entry of ``OJS_UNIQUE`` is wrong. E002: ``USE_TZ`` is off."""
    messages: list[CheckMessage] = [Error(problem, id="django_ojs_unique.E001") for problem in conf.problems()]
    if not django_settings.USE_TZ:
        messages.append(
            Error(
                "django_ojs_unique needs USE_TZ = True.",
                hint="Windows and schedules are moments; without time zones they repeat or vanish when clocks change.",
                id="django_ojs_unique.E002",
            )
        )
    return messages


@register(Tags.database)
def check_databases(databases: Iterable[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """W001: SQLite without immediate transactions. W002: SQLite without WAL. W003: the promise is best-effort here."""
    from .capabilities import BEST_EFFORT, strength
    from .models import Job

    messages: list[CheckMessage] = []
    for alias in databases or ():
        connection = connections[alias]
        if connection.vendor == "sqlite":
            messages += _check_sqlite(alias, connection)
        if Job._meta.db_table in connection.introspection.table_names() and strength(Job, alias) == BEST_EFFORT:
            messages.append(
                Warning(
                    f"Uniqueness is best-effort on database {alias!r}: concurrent enqueues may both be admitted.",
                    hint="Migrate django_ojs_unique on PostgreSQL, SQLite or MariaDB, which keep the constraint.",
                    id="django_ojs_unique.W003",
                )
            )
    return messages


def _check_sqlite(alias: str, connection: Any) -> Iterable[CheckMessage]:
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
