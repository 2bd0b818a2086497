"""A span for each enqueue, batch and attempt, in the words of OpenTelemetry's conventions for messaging.

Spans hold no arguments and no fingerprints. What goes wrong while tracing is logged, and is no failure of the job.
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

from ..conf import settings
from ..exceptions import DuplicateJob, OJSError
from ..ojs.canonical import plain
from ..outcomes import EnqueueResult, Outcome
from ..request import sized
from ..tracing import Tracer

logger = logging.getLogger("django_ojs_unique")

SYSTEM = "ojs"
FLUSH_MILLISECONDS = 2_000


@contextmanager
def _apart() -> Iterator[None]:
    """Keep what a propagator, a sampler or an exporter raises from the job."""
    try:
        yield
    except Exception:
        logger.exception("Tracing failed; the job does not.")


class Spans(Tracer):
    """Traces with a provider of OpenTelemetry, by default with the one that the process has configured, or will."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        from .. import __version__

        self._provider = provider
        self._tracer = get_tracer("django_ojs_unique", __version__, provider)

    @contextmanager
    def enqueue(self, job: Any) -> Iterator[Callable[[EnqueueResult], None]]:
        """Make a span of one enqueue, and let the job carry its context."""
        attributes = {**_sending(job.queue), "ojs.job.type": job.type}
        with self._span(f"enqueue {job.queue}", SpanKind.PRODUCER, attributes) as span:
            _hand_over([job])
            try:
                yield lambda result: _tell_answer(span, result)
            except DuplicateJob as duplicate:
                # An answer like the others, which the policy asked for; whether it is a failure, the caller knows.
                with _apart():
                    span.set_attribute("ojs.enqueue.outcome", str(Outcome.REJECTED))
                    span.set_attribute("ojs.enqueue.existing_job.id", str(duplicate.existing_job_id))
                raise
            except BaseException as error:
                _tell_error(span, error)
                raise

    @contextmanager
    def enqueue_many(self, entries: Sequence[Any]) -> Iterator[None]:
        """Make one span of a batch, whose context all its jobs carry."""
        jobs = [entry.incoming.job for entry in entries]
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
        """Make a span of one attempt, the child of the enqueue's."""
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
        """Export what the provider still keeps; that may take two seconds."""
        force_flush = getattr(self._provider or get_tracer_provider(), "force_flush", None)
        if force_flush is not None:  # the API alone has none
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
    """Write the current context into the ``meta`` of jobs, beside what is there; where it does not fit, leave it."""
    with _apart():
        carrier: dict[str, str] = {}
        inject(carrier)
        if not carrier:
            return
        carrier = plain(carrier, "meta")
        for job in jobs:
            if carrier.keys().isdisjoint(job.meta):  # half of the caller's and half of ours would be nobody's
                try:
                    job.meta = sized({**job.meta, **carrier}, "meta", settings.max_meta_bytes)
                except OJSError:
                    continue


def _carried(job: Any) -> Context:
    """Return the context that a job carries: none, if its ``meta`` holds no valid one."""
    with _apart():
        if isinstance(job.meta, dict):  # anybody may have written it
            texts = {name: value for name, value in job.meta.items() if isinstance(value, str)}
            return extract(texts, Context())
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
    """Say what kind of error it was; its text may quote arguments, and the caller has it anyway."""
    span.set_attribute("error.type", error.code if isinstance(error, OJSError) else type(error).__qualname__)
    span.set_status(StatusCode.ERROR)


@_apart()
def _tell_end(span: Span, finished: Any, error: BaseException | None) -> None:
    record = finished.error
    if record is None:
        span.set_attribute("ojs.run.outcome", "skipped" if finished.skipped else "completed")
    elif record["code"] == "cancelled":
        span.set_attribute("ojs.run.outcome", "cancelled")
    else:
        span.set_attribute("ojs.run.outcome", "failed")
        span.set_attribute("error.type", record["type"])
        span.set_status(StatusCode.ERROR, record["message"])
        if error is not None:
            span.record_exception(error)  # whose own words may raise
