"""Checks of the installed apps: whether another app has a command with the name of one of ours."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Warning
from django.core.management import find_commands, load_command_class

OURS = "django_ojs_unique"
ALIASES = {"runworker": "ojs_worker"}


def check_commands(**kwargs: Any) -> list[CheckMessage]:
    """W010: another app has a command of the same name as one of ours."""
    offered = {
        config.name: set(find_commands(str(Path(config.path) / "management"))) for config in apps.get_app_configs()
    }
    messages: list[CheckMessage] = []
    for command in sorted(offered.get(OURS, ())):
        first, *others = (name for name, commands in offered.items() if command in commands)
        if not others or _extends_ours(first, command):
            continue
        alias = f" `manage.py {ALIASES[command]}` is always ours." if command in ALIASES else ""
        messages.append(
            Warning(
                f"{len(others) + 1} installed apps have a command {command!r}: {', '.join([first, *others])}."
                f" `manage.py {command}` is that of {first!r}, which INSTALLED_APPS lists first.",
                hint=f"List first the app whose command you mean, and silence this check.{alias}",
                id="django_ojs_unique.W010",
            )
        )
    return messages


def _extends_ours(app: str, command: str) -> bool:
    """Whether the app's command is a subclass of ours; False if it cannot be imported, so that the check goes on."""
    with suppress(Exception):
        return app != OURS and isinstance(load_command_class(app, command), type(load_command_class(OURS, command)))
    return False
