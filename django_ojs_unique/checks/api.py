"""Checks of the HTTP API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Warning
from django.urls import NoReverseMatch, reverse

from .. import conf
from .setting_problems import problems


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
