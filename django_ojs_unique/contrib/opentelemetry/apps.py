from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured

from ... import hooks


class OpenTelemetryConfig(AppConfig):
    """Traces every enqueue and every run of this process."""

    name = "django_ojs_unique.contrib.opentelemetry"
    label = "django_ojs_unique_opentelemetry"
    verbose_name = "Unique jobs: OpenTelemetry"

    def ready(self) -> None:
        try:
            from .spans import Spans
        except ImportError as error:
            raise ImproperlyConfigured(
                f"{self.name!r} in INSTALLED_APPS needs the OpenTelemetry API:"
                f" pip install 'django-ojs-unique[opentelemetry]' ({error})."
            ) from error
        hooks.trace_also_with(Spans())
