"""Metrics for Prometheus: a view and a collector of gauges from the database, and the counters of a worker.

It needs the package prometheus-client (extra ``prometheus``). Importing it registers nothing.
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
