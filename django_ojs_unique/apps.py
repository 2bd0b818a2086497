from django.apps import AppConfig
from django.core.signals import setting_changed
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class OJSUniqueConfig(AppConfig):
    """Finds the handlers in each app's ``jobs.py``, and Django's tasks in its ``tasks.py``."""

    name = "django_ojs_unique"
    verbose_name = _("Unique jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import tasks
        from .checks import api, commands, database, handlers, queues, settings  # noqa: F401 - they register themselves
        from .db import capabilities
        from .execution import eager
        from .handlers import carried
        from .lifecycle import events
        from .reporting import logs
        from .workflows import events as _  # noqa: F401 - it registers its receivers

        logs.escape_all()
        autodiscover_modules("jobs")
        tasks.discover()
        post_migrate.connect(lambda **kwargs: capabilities.forget(), weak=False, dispatch_uid="ojs_capabilities")
        for obeying in (carried, events, eager):
            obeying.obey_setting()
            setting_changed.connect(obeying.obey_setting)
