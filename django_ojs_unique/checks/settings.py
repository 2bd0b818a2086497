"""Checks of the settings, and of what the HTTP API lets everyone do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.urls import NoReverseMatch, reverse

from .. import conf
from ..handlers.carried import contexts
from .setting_problems import lookalikes, problems

_WHERE = (
    "django_ojs_unique.conf.DEFAULTS has all settings with their defaults; API_DEFAULTS there, the members of 'API'."
)


def check_settings(**kwargs: Any) -> list[CheckMessage]:
    """E001: an entry of ``OJS_UNIQUE`` is wrong. E002: ``USE_TZ`` is off. W012: ``OJS_UNIQUE`` is misspelt."""
    messages: list[CheckMessage] = [Error(problem, hint=_WHERE, id="django_ojs_unique.E001") for problem in problems()]
    messages += (
        Warning(
            f"The setting {name} looks like OJS_UNIQUE, but nothing reads it.",
            hint="Rename it to OJS_UNIQUE. If it is a setting of your own, silence this check.",
            id="django_ojs_unique.W012",
        )
        for name in lookalikes()
    )
    if not settings.USE_TZ:
        messages.append(
            Error(
                "django_ojs_unique needs USE_TZ = True.",
                hint="Windows and schedules are moments; without time zones they repeat or vanish when clocks change."
                ' Pages still show the times of TIME_ZONE. See Django\'s "Time zones", "Migration guide".',
                id="django_ojs_unique.E002",
            )
        )
    return messages


def check_tenants(**kwargs: Any) -> list[CheckMessage]:
    """E003: tenants have schemas, and ``CONTEXT`` has no class for that. W014: the app is shared and in each schema."""
    messages: list[CheckMessage] = []
    for alias, options in settings.DATABASES.items():
        if "django_tenants.postgresql_backend" not in str(options.get("ENGINE")) or _knows_tenants():
            continue
        messages.append(
            Error(
                f"Database {alias!r} has a schema for each tenant, but jobs do not know their tenant: they would run in"
                " the wrong schema, and equal jobs of two tenants would be duplicates.",
                hint="Set OJS_UNIQUE = {'CONTEXT': 'django_ojs_unique.contrib.tenants.Tenant'}, or name your own class"
                " with unique = of_connections = True.",
                id="django_ojs_unique.E003",
            )
        )
    if all("django_ojs_unique" in getattr(settings, name, ()) for name in ("SHARED_APPS", "TENANT_APPS")):
        messages.append(
            Warning(
                "django_ojs_unique is in SHARED_APPS and in TENANT_APPS: jobs that a tenant enqueues are stored in its"
                " own schema, where the worker of the shared table does not look.",
                hint="Leave it out of one of them.",
                id="django_ojs_unique.W014",
            )
        )
    return messages


def _knows_tenants() -> bool:
    try:
        return any(one.unique and one.of_connections for one in contexts())
    except Exception:  # E001 tells why
        return True


def check_eager(**kwargs: Any) -> list[CheckMessage]:
    """W013: jobs run inside the requests that enqueue them, without ``DEBUG``."""
    if settings.DEBUG or not conf.settings.eager:
        return []
    return [
        Warning(
            "OJS_UNIQUE['EAGER'] is on, and DEBUG is off: jobs run inside the requests that enqueue them.",
            hint="EAGER is for tests and local work. Leave it out, and run `manage.py runworker`.",
            id="django_ojs_unique.W013",
        )
    ]


def check_api(**kwargs: Any) -> list[CheckMessage]:
    """W005: everyone who can reach the server can use the API."""
    if any(problems()) or not _serves_the_api() or not (groups := list(_groups_open_to_all())):
        return []
    return [
        Warning(
            f"The HTTP API is open to everyone for {', '.join(groups)}.",
            hint="Name permissions in OJS_UNIQUE['API']['PERMISSIONS'] that ask who calls, such as"
            " rest_framework.permissions.IsAuthenticated, or leave the group out"
            " for staff only. If a network or a proxy keeps others out, silence this check.",
            id="django_ojs_unique.W005",
        )
    ]


def _serves_the_api() -> bool:
    if not getattr(settings, "ROOT_URLCONF", None):
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
        classes = [conf.imported(one) for one in permissions.get(group, ())]
        if any(isinstance(one, type) and issubclass(one, AllowAny) for one in classes):
            yield group
