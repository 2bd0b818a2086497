"""Checks of the settings."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register

from . import TAG, see
from .setting_problems import problems


@register(TAG)
def check_settings(**kwargs: Any) -> list[CheckMessage]:
    """E001: an entry of ``OJS_UNIQUE`` is wrong. E002: ``USE_TZ`` is off."""
    messages: list[CheckMessage] = [
        Error(problem, hint=see("settings.md"), id="django_ojs_unique.E001") for problem in problems()
    ]
    if not settings.USE_TZ:
        messages.append(
            Error(
                "django_ojs_unique needs USE_TZ = True.",
                hint="Windows and schedules are moments; without time zones they repeat or vanish when clocks change."
                f" {see('settings.md')}",
                id="django_ojs_unique.E002",
            )
        )
    return messages
