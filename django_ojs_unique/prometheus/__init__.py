"""Metrics for Prometheus: a view and a collector of what the database says, and what a worker counts.

It needs the package prometheus-client, the extra ``prometheus``. Nothing is registered by an import.
"""

from django.core.exceptions import ImproperlyConfigured

try:
    import prometheus_client  # noqa: F401 - the modules below need it
except ImportError as error:
    raise ImproperlyConfigured(
        f"Metrics need prometheus-client: pip install 'django-ojs-unique[prometheus]' ({error})."
    ) from error

from .collector import JobsCollector
from .view import MetricsView

__all__ = ["JobsCollector", "MetricsView"]
