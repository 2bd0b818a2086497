"""What surrounds enqueues and attempts: transactions, the trace that a job carries, and check-ins of cron monitors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import sentry_sdk
from sentry_sdk.crons import capture_checkin
from sentry_sdk.scope import should_send_default_pii

from ...enqueue.carrier import carried, hand_over
from ...handlers.redaction import redacted_args
from ...handlers.registry import registry
from ...hooks import Tracer

ORIGIN = "auto.queue.django_ojs_unique"
_SCOPE = "_ojs_sentry_scope"


class Runs(Tracer):
    """``integration`` returns the `OJSIntegration` of the client in use, or None to do nothing."""

    def __init__(self, integration: Callable[[], Any]) -> None:
        self._integration = integration

    @contextmanager
    def enqueue(self, job: Any) -> Iterator[Callable[[Any], None]]:
        """Make a span for one enqueue, and write its trace into the job's ``meta``."""
        with self._publishing(job.queue, [job]):
            yield lambda result: None

    @contextmanager
    def enqueue_many(self, entries: Sequence[Any]) -> Iterator[None]:
        """Make one span for a batch, and write its trace into the ``meta`` of all its jobs."""
        jobs = [entry.new_job.job for entry in entries]
        queues = {job.queue for job in jobs}
        with self._publishing(queues.pop() if len(queues) == 1 else "several queues", jobs):
            yield

    @contextmanager
    def run(self, job: Any) -> Iterator[Callable[[Any, BaseException | None], None]]:
        """Run one attempt in a scope and a transaction of its own, which continues the trace of its enqueue."""
        integration = self._integration()
        if integration is None:
            yield lambda finished, error: None
            return
        with sentry_sdk.isolation_scope() as scope:
            _describe(scope, job)
            transaction = sentry_sdk.continue_trace(
                carried(job), op="queue.process", name=job.type, source="task", origin=ORIGIN
            )
            with sentry_sdk.start_transaction(transaction), _check_in(job, integration.monitor_cron) as checked:

                def report_end(finished: Any, error: BaseException | None) -> None:
                    failed = finished.error is not None
                    transaction.set_status("internal_error" if failed else "ok")
                    checked(failed)
                    if finished.exception is not None:
                        with suppress(AttributeError, TypeError):
                            setattr(finished.exception, _SCOPE, scope)

                yield report_end

    def flush(self) -> None:
        """Send what is waiting; this may take two seconds."""
        sentry_sdk.flush(timeout=2)

    @contextmanager
    def _publishing(self, queue: str, jobs: Sequence[Any]) -> Iterator[None]:
        if self._integration() is None:
            yield
            return
        with sentry_sdk.start_span(op="queue.publish", name=f"enqueue {queue}", origin=ORIGIN) as span:
            span.set_data("messaging.destination.name", queue)
            headers = {"sentry-trace": sentry_sdk.get_traceparent(), "baggage": sentry_sdk.get_baggage()}
            hand_over({name: value for name, value in headers.items() if value}, jobs)
            yield


def scope_of(exception: BaseException) -> Any:
    """Return the scope of the attempt that raised an exception; None if it was not run here."""
    return getattr(exception, _SCOPE, None)


def _describe(scope: Any, job: Any) -> None:
    scope.clear_breadcrumbs()
    scope.set_transaction_name(job.type, source="task")
    scope.set_tag("ojs.job.type", job.type)
    scope.set_tag("ojs.queue", job.queue)
    about = {"id": str(job.pk), "type": job.type, "queue": job.queue, "attempt": job.attempt}
    about["max_attempts"] = job.most_attempts
    collected = sentry_sdk.get_client().options.get("data_collection") or {}
    if collected.get("queues", should_send_default_pii()):
        about["args"] = redacted_args(job.type, job.args)
    scope.set_context("job", about)


@contextmanager
def _check_in(job: Any, monitors: bool) -> Iterator[Callable[[bool], None]]:
    """Check in at the beginning; yield the function that checks in at the end, with whether the attempt failed."""
    cron = _cron_of(job) if monitors else None
    if cron is None:
        yield lambda failed: None
        return
    schedule = {"type": "crontab", "value": cron.expression}
    config: Any = {"schedule": schedule, "timezone": str(cron.timezone or "UTC")}
    known = config if len(cron.expression.split()) == 5 else None
    slug = job.type.replace(".", "-")
    id = capture_checkin(slug, status="in_progress", monitor_config=known)

    def checked(failed: bool) -> None:
        capture_checkin(slug, id, "error" if failed else "ok", monitor_config=known)

    yield checked


def _cron_of(job: Any) -> Any:
    """Return the schedule that has enqueued a job, or None: the id of such a job is computed from its occurrence."""
    from ...maintenance.cron import job_id

    definition = registry.find(job.type)
    if definition is None or definition.cron is None:
        return None
    occurrence = datetime.fromtimestamp((job.pk.int >> 80) / 1000, UTC)
    return definition.cron if job_id(job.type, occurrence) == job.pk else None
