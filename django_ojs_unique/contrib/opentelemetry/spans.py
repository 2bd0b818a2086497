"""A span for each enqueue, batch and attempt, named by OpenTelemetry's semantic conventions for messaging.

Spans hold no arguments and no fingerprints. An error of the tracing is logged, and does not make the job fail.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry.context import Context, attach, detach
from opentelemetry.propagate import extract, inject
from opentelemetry.trace import (
    INVALID_SPAN,
    Span,
    SpanKind,
    StatusCode,
    TracerProvider,
    get_tracer,
    get_tracer_provider,
    set_span_in_context,
)

from ...enqueue.carrier import carried, hand_over
from ...enqueue.results import EnqueueResult, Outcome
from ...exceptions import DuplicateJob, OJSError
from ...hooks import Tracer

logger = logging.getLogger("django_ojs_unique")

SYSTEM = "ojs"
FLUSH_MILLISECONDS = 2_000


@contextmanager
def _apart() -> Iterator[None]:
    """Log an error of a propagator, a sampler or an exporter, so that it does not reach the job."""
    try:
        yield
    except Exception:
        logger.exception("Tracing failed; the job does not.")


class Spans(Tracer):
    """Traces with a provider of OpenTelemetry; by default the process's global one, also if it is configured later."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        from ... import __version__

        self._provider = provider
        self._tracer = get_tracer("django_ojs_unique", __version__, provider)

    @contextmanager
    def enqueue(self, job: Any) -> Iterator[Callable[[EnqueueResult], None]]:
        """Make a span for one enqueue, and write its context into the job's ``meta``."""
        attributes = {**_sending(job.queue), "ojs.job.type": job.type}
        with self._span(f"enqueue {job.queue}", SpanKind.PRODUCER, attributes) as span:
            _hand_over([job])
            try:
                yield lambda result: _tell_answer(span, result)
            except DuplicateJob as duplicate:
                # The policy asked for this outcome, so the span has no error; the caller knows whether it is one.
                with _apart():
                    span.set_attribute("ojs.enqueue.outcome", str(Outcome.REJECTED))
                    span.set_attribute("ojs.enqueue.existing_job.id", str(duplicate.existing_job_id))
                raise
            except BaseException as error:
                _tell_error(span, error)
                raise

    @contextmanager
    def enqueue_many(self, entries: Sequence[Any]) -> Iterator[None]:
        """Make one span for a batch, and write its context into the ``meta`` of all its jobs."""
        jobs = [entry.new_job.job for entry in entries]
        queues, types = {job.queue for job in jobs}, {job.type for job in jobs}
        queue = queues.pop() if len(queues) == 1 else None
        attributes = {**_sending(queue), "messaging.batch.message_count": len(jobs)}
        if len(types) == 1:
            attributes["ojs.job.type"] = types.pop()
        name = "enqueue" if queue is None else f"enqueue {queue}"
        with self._span(name, SpanKind.PRODUCER, attributes) as span:
            _hand_over(jobs)
            try:
                yield
            except BaseException as error:
                _tell_error(span, error)
                raise
            with _apart():
                for outcome, count in Counter(entry.outcome for entry in entries).items():
                    span.set_attribute(f"ojs.batch.{outcome}", count)

    @contextmanager
    def run(self, job: Any) -> Iterator[Callable[[Any, BaseException | None], None]]:
        """Make a span for one attempt, as a child of the enqueue's span."""
        attributes: dict[str, str | int] = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": job.queue,
            "messaging.message.id": str(job.pk),
            "ojs.job.type": job.type,
            "ojs.job.attempt": job.attempt,
        }
        if job.worker_id:
            attributes["messaging.client.id"] = job.worker_id
        with self._span(f"process {job.queue}", SpanKind.CONSUMER, attributes, _carried(job)) as span:
            yield lambda finished, error: _tell_end(span, finished, error)

    def flush(self) -> None:
        """Export the spans that the provider still holds; this may take two seconds."""
        force_flush = getattr(self._provider or get_tracer_provider(), "force_flush", None)
        if force_flush is not None:  # without the SDK there is none
            with _apart():
                force_flush(FLUSH_MILLISECONDS)

    @contextmanager
    def _span(
        self, name: str, kind: SpanKind, attributes: Mapping[str, str | int], context: Context | None = None
    ) -> Iterator[Span]:
        span: Span = INVALID_SPAN
        token = None
        with _apart():
            span = self._tracer.start_span(name, context, kind, attributes)
            token = attach(set_span_in_context(span, context))
        try:
            yield span
        finally:
            with _apart():
                if token is not None:
                    detach(token)
                span.end()


def _sending(queue: str | None) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
    }
    if queue is not None:
        attributes["messaging.destination.name"] = queue
    return attributes


def _hand_over(jobs: Sequence[Any]) -> None:
    """Add the current context to each job's ``meta``, unless it has one already or would become too large."""
    with _apart():
        carrier: dict[str, str] = {}
        inject(carrier)
        hand_over(carrier, jobs)


def _carried(job: Any) -> Context:
    """Return the context in a job's ``meta``; an empty one if it has no valid one."""
    with _apart():
        return extract(carried(job), Context())
    return Context()


@_apart()
def _tell_answer(span: Span, result: EnqueueResult) -> None:
    span.set_attribute("ojs.enqueue.outcome", str(result.outcome))
    if not result.deduplicated:
        span.set_attribute("messaging.message.id", str(result.job.pk))
    if result.outcome is not Outcome.CREATED:
        existing = result.replaced[0] if result.replaced else result.job
        span.set_attribute("ojs.enqueue.existing_job.id", str(existing.pk))


@_apart()
def _tell_error(span: Span, error: BaseException) -> None:
    """Set the type of the error only: its text may quote arguments, and the caller gets it anyway."""
    span.set_attribute("error.type", error.code if isinstance(error, OJSError) else type(error).__qualname__)
    span.set_status(StatusCode.ERROR)


@_apart()
def _tell_end(span: Span, finished: Any, error: BaseException | None) -> None:
    record = finished.error
    if record is None:
        outcome = "requeued" if finished.is_requeued else "skipped" if finished.skipped else "completed"
        span.set_attribute("ojs.run.outcome", outcome)
    elif record["code"] == "cancelled":
        span.set_attribute("ojs.run.outcome", "cancelled")
    else:
        span.set_attribute("ojs.run.outcome", "failed")
        span.set_attribute("error.type", record["type"])
        span.set_status(StatusCode.ERROR, record["message"])
        if error is not None:
            span.record_exception(error)  # the error's own text may raise
