"""Errors, traces and cron monitors in Sentry: ``sentry_sdk.init(integrations=[OJSIntegration()])``.

Settings import it, so that it imports no models.
"""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured

try:
    import sentry_sdk
except ImportError as error:
    raise ImproperlyConfigured(
        f"Errors in Sentry need sentry-sdk: pip install 'django-ojs-unique[sentry]' ({error})."
    ) from error

from sentry_sdk.integrations import Integration
from sentry_sdk.scope import add_global_event_processor, use_isolation_scope

from ...handlers.control import Discard
from ...handlers.redaction import masked, names_of_any
from ...hooks import trace_also_with
from ...signals import job_discarded
from .runs import Runs, scope_of

__all__ = ["OJSIntegration"]


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
        job_discarded.connect(_report, dispatch_uid="django_ojs_unique.contrib.sentry")
        add_global_event_processor(_without_the_log)
        add_global_event_processor(_without_redacted_variables)


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
    if record is None or not record.name.startswith(_LOGGERS) or _current() is None:
        return event
    exception = (record.exc_info or (None, None, None))[1]
    return event if exception is None or scope_of(exception) is None else None


def _without_redacted_variables(event: Any, hint: Any) -> Any:
    """Mask redacted names among the local variables of an event's frames; drop those of frames that pass on args."""
    names = names_of_any()
    if not names or _current() is None:
        return event
    stacks = [event, *_values(event, "exception"), *_values(event, "threads")]
    for frame in (frame for each in stacks for frame in (each.get("stacktrace") or {}).get("frames") or ()):
        if str(frame.get("module")).partition(".")[0] in _PASSING_ON:
            frame.pop("vars", None)
        elif "vars" in frame:
            frame["vars"] = masked(frame["vars"], names)
    return event


def _values(event: Any, member: str) -> list[Any]:
    found = event.get(member) or {}
    return list(found.get("values") or () if isinstance(found, dict) else found)


_LOGGERS = ("django_ojs_unique", "django.tasks", "django_tasks")
"""Django logs the failure of a task, too."""
_PASSING_ON = ("django_ojs_unique", "asgiref", "concurrent")
"""The packages between a claim and a handler: in an array of args, the values have no names."""
