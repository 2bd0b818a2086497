"""System checks, one module for each subject. Their ids never change.

A hint says all that there is to do: an installed package has no pages to refer to. `jobs verify`, which looks into the
rows, is in `operations.integrity`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from django.core.checks import CheckMessage, Tags, register

TAG = "ojs_unique"
"""The tag of the checks that need neither the URLs nor a database: all that `jobs` and `prunejobs` wait for."""

_CHECKS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("settings", "check_api", (Tags.security,)),
    ("commands", "check_commands", (TAG,)),
    ("database", "check_databases", (Tags.database,)),
    ("handlers", "check_policies", (TAG,)),
    ("handlers", "check_conversions", (TAG,)),
    ("handlers", "check_other_databases", (Tags.database,)),
    ("handlers", "check_owners", (TAG,)),
    ("modules", "check_modules", (TAG,)),
    ("queues", "check_queue_rules", (Tags.database,)),
    ("settings", "check_settings", (TAG,)),
    ("settings", "check_tenants", (TAG,)),
)
_OF_DEPLOYMENTS = (("handlers", "check_retention"), ("handlers", "check_retries"), ("settings", "check_eager"))


def register_all() -> None:
    """Register the checks. The module of each is imported when it runs, so that `django.setup()` does not.

    A second call changes nothing: Django makes its apps ready again when tests override ``INSTALLED_APPS``.
    """
    for module, name, tags in _CHECKS:
        register(_imported_late(module, name), *tags)
    for module, name in _OF_DEPLOYMENTS:
        register(_imported_late(module, name), deploy=True)


@cache
def _imported_late(module: str, name: str) -> Callable[..., list[CheckMessage]]:
    def check(**kwargs: Any) -> list[CheckMessage]:
        messages: list[CheckMessage] = getattr(import_module(f"{__name__}.{module}"), name)(**kwargs)
        return messages

    check.__name__ = name
    return check
