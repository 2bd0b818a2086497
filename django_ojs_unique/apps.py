from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules


class OJSUniqueConfig(AppConfig):
    """Finds the handlers in each app's ``jobs.py``."""

    name = "django_ojs_unique"
    verbose_name = "Unique jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import capabilities, checks  # noqa: F401 - registers the checks

        autodiscover_modules("jobs")
        post_migrate.connect(lambda **kwargs: capabilities.forget(), weak=False, dispatch_uid="ojs_capabilities")
