import sys
from importlib import import_module
from typing import Any

from django.apps import AppConfig
from django.core.signals import setting_changed
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class OJSUniqueConfig(AppConfig):
    """Finds the handlers in each app's ``jobs.py``, or where a setting says, and Django's tasks in its ``tasks.py``.

    What a process needs later is imported later: each ``manage.py`` and each test run pays for a setup.
    """

    name = "django_ojs_unique"
    verbose_name = _("Unique jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks, conf, tasks
        from .reporting import text

        checks.register_all()
        text.escape_all()
        autodiscover_modules(*conf.settings.autodiscover_modules)
        tasks.discover()
        post_migrate.connect(_forget_capabilities)
        _obey_settings()
        setting_changed.connect(_obey_settings)


def _forget_capabilities(**kwargs: Any) -> None:
    from .db import capabilities

    capabilities.forget()


def _obey_settings(setting: str = "OJS_UNIQUE", **kwargs: Any) -> None:
    """Let modules obey the settings that switch them on or off; one that was never on is not imported."""
    if setting != "OJS_UNIQUE":
        return
    from .conf import settings

    for module, is_on in (
        ("handlers.carried", False),
        ("workflows.events", settings.events),
        ("execution.eager", settings.eager),
    ):
        if is_on or f"{__package__}.{module}" in sys.modules:
            import_module(f"{__package__}.{module}").obey_setting()
