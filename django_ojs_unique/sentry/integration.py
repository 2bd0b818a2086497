"""The integration for Sentry's SDK. It is imported by settings, so that it imports no models."""

from __future__ import annotations

from typing import Any

import sentry_sdk
from sentry_sdk.integrations import Integration
from sentry_sdk.scope import add_global_event_processor, use_isolation_scope

from ..handlers.control import Discard
from ..instrumentation import trace_also_with
from ..signals import job_discarded
from .runs import Runs, scope_of


class OJSIntegration(Integration):
    """Reports the errors of discarded jobs as if they were captured in the handler, and traces enqueues and attempts.

    An event has the job's type as its transaction, and the breadcrumbs and tags of its last attempt. An attempt after
    which the job is retried is no event. The arguments are sent only if the SDK's ``data_collection`` has ``queues``;
    in an older SDK, with ``send_default_pii=True``.

    ``monitor_cron``: each attempt of a job that ``@job(cron=...)`` has enqueued is a check-in of the cron monitor of
    this name.
    """

    identifier = "django_ojs_unique"

    def __init__(self, monitor_cron: bool = False) -> None:
        self.monitor_cron = monitor_cron

    @staticmethod
    def setup_once() -> None:
        """Called once by the SDK."""
        trace_also_with(Runs(_current))
        job_discarded.connect(_report, dispatch_uid="django_ojs_unique.sentry")
        add_global_event_processor(_without_the_log)


def _current() -> OJSIntegration | None:
    """Return the integration of the client in use, or None."""
    return sentry_sdk.get_client().get_integration(OJSIntegration)


def _report(job: Any, exception: BaseException | None, **kwargs: Any) -> None:
    """Send the last error of a job, with the scope of its attempt."""
    if _current() is None or exception is None or isinstance(exception, Discard):
        return
    scope = scope_of(exception)
    if scope is None:  # the attempt was not run here
        sentry_sdk.capture_exception(exception)
        return
    with use_isolation_scope(scope):
        sentry_sdk.capture_exception(exception)


def _without_the_log(event: Any, hint: Any) -> Any:
    """Drop the event of a log record about an exception that `_report` sends."""
    record = hint.get("log_record")
    if record is None or not record.name.startswith("django_ojs_unique") or _current() is None:
        return event
    exception = (record.exc_info or (None, None, None))[1]
    return event if exception is None or scope_of(exception) is None else None
