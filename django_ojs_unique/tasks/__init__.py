"""The backend for Django's tasks (`django.tasks`): ``{"BACKEND": "django_ojs_unique.tasks.OJSBackend"}``.

Its names are imported on first access: other packages discover this module in every project, and Django before 6.0
needs the package ``django-tasks`` for them.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.utils.module_loading import autodiscover_modules, import_string

if TYPE_CHECKING:
    from .backend import OJSBackend
    from .declare import OJSTask, task

__all__ = ["OJSBackend", "OJSTask", "discover", "task"]

_HOMES = {"OJSBackend": "backend", "OJSTask": "declare", "task": "declare"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def discover() -> None:
    """Import the ``tasks`` module of each installed app if a backend in ``TASKS`` runs its tasks as jobs.

    So every process knows the same tasks. A task in another module is known only where that module is imported. Django
    itself reports mistakes in ``TASKS``. Raises ImproperlyConfigured on Django 5 without ``django-tasks``.
    """
    for params in getattr(settings, "TASKS", {}).values():
        with suppress(ImportError, KeyError, TypeError, AttributeError):
            if params["BACKEND"].startswith("django.tasks."):
                continue  # Django's own
            if getattr(import_string(params["BACKEND"]), "runs_as_jobs", False):
                break
    else:
        return
    autodiscover_modules("tasks")
