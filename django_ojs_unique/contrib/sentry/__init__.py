"""Errors, traces and cron monitors in Sentry: ``sentry_sdk.init(integrations=[OJSIntegration()])``."""

from .integration import OJSIntegration

__all__ = ["OJSIntegration"]
