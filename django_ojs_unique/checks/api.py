"""Checks of the HTTP API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.urls import NoReverseMatch, reverse

from .. import conf
from . import see


@register(Tags.security)
def check_api(**kwargs: Any) -> list[CheckMessage]:
    """E003: a job can direct the workers, in production. W005: whoever reaches the server can use the API."""
    if any(conf.problems()):
        return []
    messages: list[CheckMessage] = []
    if conf.settings.api["TEST_DIRECTIVES"] and not settings.DEBUG:
        messages.append(
            Error(
                "OJS_UNIQUE['API']['TEST_DIRECTIVES'] is on while DEBUG is off. It has no effect.",
                hint="It is a hook for conformance suites: whoever may enqueue could stop the workers. Leave it out."
                f" {see('security.md#test-hooks')}",
                id="django_ojs_unique.E003",
            )
        )
    if _serves_the_api() and (groups := list(_groups_open_to_all())):
        messages.append(
            Warning(
                f"The HTTP API is open to everyone for {', '.join(groups)}.",
                hint="Name permissions in OJS_UNIQUE['API']['PERMISSIONS'] that ask who calls, or leave the group out"
                " for staff only. If a network or a proxy keeps others out, silence this check."
                f" {see('security.md#groups')}",
                id="django_ojs_unique.W005",
            )
        )
    return messages


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
