"""System checks; their ids are permanent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import DatabaseError, connections
from django.db.models import BooleanField, ExpressionWrapper, Q
from django.urls import NoReverseMatch, reverse
from django.utils.module_loading import import_string

from . import conf
from .ojs.states import TIMED, JobState

MOST_LOOKED_AT = 10_000
"""Of the available jobs, and of the scheduled and retryable ones: `manage.py migrate` must not take long."""


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


@register(Tags.security)
def check_api(**kwargs: Any) -> list[CheckMessage]:
    """E003: a job can direct the workers, in production. W005: whoever reaches the server can use the API."""
    if any(conf.problems()):
        return []
    messages: list[CheckMessage] = []
    if conf.settings.api["TEST_DIRECTIVES"] and not django_settings.DEBUG:
        messages.append(
            Error(
                "OJS_UNIQUE['API']['TEST_DIRECTIVES'] is on while DEBUG is off. It has no effect.",
                hint="It is a hook for conformance suites: whoever may enqueue could stop the workers. Leave it out.",
                id="django_ojs_unique.E003",
            )
        )
    if _serves_the_api() and (groups := list(_groups_open_to_all())):
        messages.append(
            Warning(
                f"The HTTP API is open to everyone for {', '.join(groups)}.",
                hint="Name permissions in OJS_UNIQUE['API']['PERMISSIONS'] that ask who calls, or leave the group out"
                " for staff only. If a network or a proxy keeps others out, silence this check.",
                id="django_ojs_unique.W005",
            )
        )
    return messages


@register(Tags.database)
def check_databases(databases: Iterable[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """W001: SQLite without immediate transactions. W002: SQLite without WAL. W003: the promise is best-effort here.

    W004: jobs wait on a unique queue that were enqueued before it was one.
    """
    from .capabilities import BEST_EFFORT, strength
    from .models import Job

    messages: list[CheckMessage] = []
    for alias in databases or ():
        connection = connections[alias]
        if connection.vendor == "sqlite":
            messages += _check_sqlite(alias, connection)
        if Job._meta.db_table not in connection.introspection.table_names():
            continue
        with suppress(DatabaseError):  # the table of an earlier version, before its migration
            messages += _check_unique_queues(alias, Job.objects.using(alias))
        if strength(Job, alias) == BEST_EFFORT:
            messages.append(
                Warning(
                    f"Uniqueness is best-effort on database {alias!r}: concurrent enqueues may both be admitted.",
                    hint="Migrate django_ojs_unique on PostgreSQL, SQLite or MariaDB, which keep the constraint.",
                    id="django_ojs_unique.W003",
                )
            )
    return messages


def _serves_the_api() -> bool:
    if not getattr(django_settings, "ROOT_URLCONF", None):
        return False
    try:
        reverse("ojs:jobs")
    except NoReverseMatch:
        return False
    return True


def _groups_open_to_all() -> Iterator[str]:
    from rest_framework.permissions import AllowAny

    permissions = conf.settings.api["PERMISSIONS"]
    for group in ("producers", "workers", "operators"):
        classes = [import_string(one) if isinstance(one, str) else one for one in permissions.get(group, ())]
        if any(isinstance(one, type) and issubclass(one, AllowAny) for one in classes):
            yield group


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


def _check_unique_queues(alias: str, jobs: Any) -> Iterable[CheckMessage]:
    rule = conf.settings.unique_queues
    if not rule or any(conf.problems()):
        return
    on_them = jobs if rule is True else jobs.filter(queue__in=sorted(rule))
    no_rule = ExpressionWrapper(
        Q(fingerprint__isnull=True, unique__isnull=True, key__isnull=True), output_field=BooleanField()
    )
    found, more = 0, False
    for waiting in (
        on_them.filter(state=JobState.AVAILABLE, slimmed=False),  # which on MariaDB begins an index
        on_them.filter(state__in=sorted(TIMED), run_at__isnull=False),
    ):
        looked_at = list(waiting.annotate(no_rule=no_rule).values_list("no_rule", flat=True)[:MOST_LOOKED_AT])
        found += sum(map(bool, looked_at))
        more = more or len(looked_at) == MOST_LOOKED_AT
    if found:
        yield Warning(
            f"{'At least ' if more else ''}{found:,} job(s) wait on unique queues in database {alias!r} that were"
            " enqueued before OJS_UNIQUE['UNIQUE_QUEUES'] named them, so that identical ones may wait there.",
            hint=f"Run `manage.py jobs verify --database {alias}` to see them, and with --fix to mend that; or drain"
            " the queues.",
            id="django_ojs_unique.W004",
        )
