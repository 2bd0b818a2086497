"""Checks of the settings."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

from .. import conf
from . import TAG
from .setting_problems import lookalikes, problems

_WHERE = (
    "django_ojs_unique.conf.DEFAULTS has all settings with their defaults; API_DEFAULTS there, the members of 'API'."
)


@register(TAG)
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
                hint="Windows and schedules are moments; without time zones they repeat or vanish when clocks change.",
                id="django_ojs_unique.E002",
            )
        )
    return messages


@register(deploy=True)
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
