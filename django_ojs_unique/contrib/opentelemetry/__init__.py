"""Spans for OpenTelemetry; ``"django_ojs_unique.contrib.opentelemetry"`` in ``INSTALLED_APPS`` enables them."""
