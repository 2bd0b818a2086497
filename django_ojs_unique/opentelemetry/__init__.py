"""Spans for OpenTelemetry, switched on by ``"django_ojs_unique.opentelemetry"`` in ``INSTALLED_APPS``."""
