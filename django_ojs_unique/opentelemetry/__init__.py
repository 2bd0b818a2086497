"""Spans for OpenTelemetry; ``"django_ojs_unique.opentelemetry"`` in ``INSTALLED_APPS`` enables them."""
