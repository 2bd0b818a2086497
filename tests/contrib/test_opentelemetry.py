"""Each enqueue, batch and attempt is a span, and a job carries the context of its enqueue."""

import asyncio
import subprocess
import sys
import textwrap
import threading
from contextlib import contextmanager

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.apps import AppConfig
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import DatabaseError, transaction
from django.test import override_settings
from django.utils import timezone
from opentelemetry.baggage import get_baggage, set_baggage
from opentelemetry.context import attach, detach
from opentelemetry.propagate import extract
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id, get_current_span

from django_ojs_unique import Cron, Discard, DuplicateJob, Skip, UniquePolicy, hooks, job
from django_ojs_unique.contrib.opentelemetry.spans import Spans
from django_ojs_unique.exceptions import InvalidRequest, JobIdTaken
from django_ojs_unique.maintenance import cron
from django_ojs_unique.models import CronJob, Job, SuppressedEnqueue
from django_ojs_unique.testing import run_jobs
from django_ojs_unique.worker.loop import Worker
from tests.support.retries import IN_AN_HOUR

pytestmark = pytest.mark.django_db

SECRET = "a secret of the caller"


class Traced:
    """What was exported, and the provider that made it."""

    def __init__(self):
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("tests")

    def spans(self, kind=None):
        return [span for span in self.exporter.get_finished_spans() if kind is None or span.kind is kind]

    def produced(self):
        """Return the only span of an enqueue."""
        (span,) = self.spans(SpanKind.PRODUCER)
        return span

    def consumed(self):
        """Return the only span of a run."""
        (span,) = self.spans(SpanKind.CONSUMER)
        return span


@contextmanager
def tracing_with(tracer):
    """Let another one trace while a block runs."""
    before = hooks.trace_with(tracer)
    try:
        yield
    finally:
        hooks.trace_with(before)


@pytest.fixture
def traced():
    traced = Traced()
    with tracing_with(Spans(traced.provider)):
        yield traced


def traceparent(span):
    context = span.get_span_context()
    return f"00-{format_trace_id(context.trace_id)}-{format_span_id(context.span_id)}-{context.trace_flags:02x}"


def ids(span):
    return span.context.trace_id, span.context.span_id


def parent_ids(span):
    return span.parent.trace_id, span.parent.span_id


# Enqueue


def test_an_enqueue_is_a_producer_span_named_after_its_queue(traced):
    result = Job.objects.enqueue("email.send", {"to": SECRET}, queue="emails")
    span = traced.produced()
    assert (span.name, span.status.status_code, span.events) == ("enqueue emails", StatusCode.UNSET, ())
    assert span.attributes == {
        "messaging.system": "ojs",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.destination.name": "emails",
        "messaging.message.id": str(result.job.pk),
        "ojs.job.type": "email.send",
        "ojs.enqueue.outcome": "created",
    }


def test_an_enqueue_is_a_child_of_what_surrounds_it(traced):
    with traced.tracer.start_as_current_span("request") as request:
        Job.objects.enqueue("t")
    assert parent_ids(traced.produced()) == (request.context.trace_id, request.context.span_id)


def test_a_job_carries_the_context_of_its_enqueue_beside_the_callers_meta(traced):
    result = Job.objects.enqueue("t", meta={"tenant": 1})
    assert Job.objects.get(pk=result.job.pk).meta == {"tenant": 1, "traceparent": traceparent(traced.produced())}


@pytest.mark.parametrize("meta", [{"traceparent": "the caller's"}, {"traceparent": None}, {"tracestate": "a=1"}])
def test_a_context_that_the_caller_put_there_stays_as_it_is(traced, meta):
    with tracestate("b=2"):
        assert Job.objects.enqueue("t", meta=meta).job.meta == meta


@contextmanager
def tracestate(state):
    """Surround a block with a remote parent that has a trace state."""
    token = attach(extract({"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": state}))
    yield
    detach(token)


def test_a_trace_state_goes_along(traced):
    with tracestate("vendor=7"):
        meta = Job.objects.enqueue("t").job.meta
    assert meta["tracestate"] == "vendor=7"
    assert meta["traceparent"].split("-")[1] == "a" * 32


def test_the_callers_object_is_not_written_to(traced):
    meta = {"tenant": 1}
    Job.objects.enqueue("t", meta=meta)
    Job.objects.enqueue_many([{"type": "t", "meta": meta}])
    assert meta == {"tenant": 1}


def test_the_context_is_no_part_of_the_fingerprint(traced):
    policy = UniquePolicy(keys=["type", "meta"], meta_keys=["tenant"], on_conflict="ignore")
    first = Job.objects.enqueue("t", meta={"tenant": 1}, unique=policy)
    before = hooks.trace_with(hooks.Tracer())
    try:
        again = Job.objects.enqueue("t", meta={"tenant": 1}, unique=policy)
    finally:
        hooks.trace_with(before)
    assert (again.outcome, again.job.pk) == ("deduplicated", first.job.pk)


def test_a_policy_that_names_the_context_counts_what_the_caller_put_there(traced):
    policy = {"keys": ["type", "meta"], "meta_keys": ["traceparent"], "on_conflict": "ignore"}
    Job.objects.enqueue("t", meta={"traceparent": "x"}, unique=policy)
    assert Job.objects.enqueue("t", meta={"traceparent": "x"}, unique=policy).deduplicated


@override_settings(OJS_UNIQUE={"MAX_META_BYTES": 100})
def test_a_meta_that_leaves_no_room_is_stored_without_the_context(traced):
    full, some = {"note": "x" * 88}, {"note": "x"}
    assert Job.objects.enqueue("t", meta=full).job.meta == full
    assert Job.objects.enqueue("t", meta=some).job.meta.keys() == {"note", "traceparent"}
    batch = Job.objects.enqueue_many([{"type": "t", "meta": full}, {"type": "t", "meta": some}])
    assert [answer.job.meta.keys() for answer in batch] == [{"note"}, {"note", "traceparent"}]


def test_a_refused_request_has_no_span(traced):
    with pytest.raises(InvalidRequest):
        Job.objects.enqueue("t", priority=1_000)
    assert traced.spans() == []


# Duplicates


def test_the_span_of_an_ignored_enqueue_names_the_job_that_answered(traced):
    first = Job.objects.enqueue("t").job
    policy = UniquePolicy(on_conflict="ignore")
    first = Job.objects.enqueue("t", unique=policy).job
    traced.exporter.clear()
    Job.objects.enqueue("t", unique=policy)
    attributes = traced.produced().attributes
    assert attributes["ojs.enqueue.outcome"] == "deduplicated"
    assert attributes["ojs.enqueue.existing_job.id"] == str(first.pk)
    assert "messaging.message.id" not in attributes


def test_a_rejected_duplicate_is_an_answer_that_names_the_job(traced):
    first = Job.objects.enqueue("t", {"to": SECRET}, unique={}).job
    traced.exporter.clear()
    with pytest.raises(DuplicateJob):
        Job.objects.enqueue("t", {"to": SECRET}, unique={})
    span = traced.produced()
    assert span.attributes["ojs.enqueue.outcome"] == "rejected"
    assert span.attributes["ojs.enqueue.existing_job.id"] == str(first.pk)
    assert (span.status.status_code, span.events) == (StatusCode.UNSET, ())


def test_the_record_of_a_suppressed_enqueue_leads_to_its_trace(traced):
    Job.objects.enqueue("t", unique={"on_conflict": "ignore"})
    traced.exporter.clear()
    Job.objects.enqueue("t", unique={"on_conflict": "ignore"})
    assert SuppressedEnqueue.objects.get().meta == {"traceparent": traceparent(traced.produced())}


def test_the_span_of_a_replacement_names_both_jobs(traced):
    policy = UniquePolicy(on_conflict="replace")
    first = Job.objects.enqueue("t", unique=policy).job
    traced.exporter.clear()
    second = Job.objects.enqueue("t", unique=policy).job
    attributes = traced.produced().attributes
    assert attributes["ojs.enqueue.outcome"] == "replaced"
    assert attributes["messaging.message.id"] == str(second.pk)
    assert attributes["ojs.enqueue.existing_job.id"] == str(first.pk)


def test_a_job_that_was_rewritten_by_its_key_carries_the_context_of_the_last_enqueue(traced):
    first = Job.objects.enqueue("t", key="inbox").job
    traced.exporter.clear()
    Job.objects.enqueue("t", key="inbox")
    span = traced.produced()
    assert span.attributes["ojs.enqueue.outcome"] == "replaced"
    assert span.attributes["messaging.message.id"] == str(first.pk)
    assert Job.objects.get().meta == {"traceparent": traceparent(span)}


def test_no_span_tells_arguments_or_fingerprints(traced, handlers):
    job("t", unique={"keys": ["type", "args"]})(lambda to: None)
    Job.objects.enqueue("t", {"to": SECRET}, meta={"note": SECRET})
    with pytest.raises(DuplicateJob) as duplicate:
        Job.objects.enqueue("t", {"to": SECRET})
    with override_settings(OJS_UNIQUE={"REPLACE_MIXED_ARGS": False}):
        Job.objects.enqueue("k", [SECRET], key="inbox")
        with pytest.raises(InvalidRequest):
            Job.objects.enqueue("k", {"to": SECRET}, key="inbox")
    run_jobs(types="t")
    told = "".join(span.to_json() for span in traced.spans())
    assert len(traced.spans()) == 5
    assert SECRET not in told
    assert duplicate.value.fingerprint not in told


def test_an_enqueue_that_fails_says_so_by_the_code_of_its_error(traced):
    first = Job.objects.enqueue("t").job
    traced.exporter.clear()
    with pytest.raises(JobIdTaken):
        Job.objects.enqueue("t", id=first.pk)
    span = traced.produced()
    assert (span.status.status_code, span.attributes["error.type"]) == (StatusCode.ERROR, JobIdTaken.code)


def test_an_enqueue_that_the_database_refuses_says_so(traced, monkeypatch):
    def fail(*args, **options):
        raise DatabaseError("disk full")

    monkeypatch.setattr("django_ojs_unique.enqueue.submit.at_once", fail)
    monkeypatch.setattr("django_ojs_unique.enqueue.bulk.decide_at_once", fail)
    for enqueue in (lambda: Job.objects.enqueue("t"), lambda: Job.objects.enqueue_many([{"type": "t"}])):
        traced.exporter.clear()
        with pytest.raises(DatabaseError):
            enqueue()
        assert traced.produced().attributes["error.type"] == "DatabaseError"


# Batches


def test_a_batch_is_one_span_that_counts_what_became_of_its_items(traced):
    policy = {"on_conflict": "ignore"}
    with traced.tracer.start_as_current_span("request") as request:
        batch = Job.objects.enqueue_many(
            [{"type": "t", "queue": "q", "unique": policy}] * 3 + [{"type": "t", "queue": "q"}, {"type": ""}]
        )
    span = traced.produced()
    assert span.name == "enqueue q"
    assert parent_ids(span) == (request.context.trace_id, request.context.span_id)
    assert span.attributes == {
        "messaging.system": "ojs",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.destination.name": "q",
        "messaging.batch.message_count": 4,
        "ojs.job.type": "t",
        "ojs.batch.created": 2,
        "ojs.batch.deduplicated": 2,
    }
    assert {answer.job.meta["traceparent"] for answer in batch[:4]} == {traceparent(span)}


def test_a_batch_over_several_queues_and_types_names_none(traced):
    Job.objects.enqueue_many([{"type": "a", "queue": "p"}, {"type": "b", "queue": "q"}])
    span = traced.produced()
    assert span.name == "enqueue"
    assert {"messaging.destination.name", "ojs.job.type"}.isdisjoint(span.attributes)


def test_a_batch_of_invalid_items_has_no_span(traced):
    Job.objects.enqueue_many([{"type": ""}])
    assert traced.spans() == []


def test_a_batch_that_is_refused_as_a_whole_says_so(traced):
    with pytest.raises(DuplicateJob):
        Job.objects.enqueue_many([{"type": "t", "unique": {}}] * 2, mode="atomic")
    span = traced.produced()
    assert (span.status.status_code, span.attributes["error.type"]) == (StatusCode.ERROR, "duplicate")


# Run


def test_a_run_is_a_consumer_span_below_its_enqueue(traced, handlers):
    job("t")(lambda: None)
    with traced.tracer.start_as_current_span("request"):
        enqueued = Job.objects.enqueue("t", queue="q").job
    run_jobs()
    span = traced.consumed()
    assert parent_ids(span) == ids(traced.produced())
    assert (span.name, span.status.status_code, span.links) == ("process q", StatusCode.UNSET, ())
    assert span.attributes == {
        "messaging.system": "ojs",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "q",
        "messaging.message.id": str(enqueued.pk),
        "messaging.client.id": "test",
        "ojs.job.type": "t",
        "ojs.job.attempt": 1,
        "ojs.run.outcome": "completed",
    }


@pytest.mark.slow
def test_each_attempt_is_a_span_with_its_number_and_its_exception(traced, handlers):
    @job("t", retry={"max_attempts": 2, "initial_interval": "PT0.001S"})
    def fails():
        raise ValueError("no luck")

    fails.enqueue()
    for _ in range(2):
        Job._base_manager.update(run_at=timezone.now())
        run_jobs(raise_errors=False)
    spans = traced.spans(SpanKind.CONSUMER)
    assert [span.attributes["ojs.job.attempt"] for span in spans] == [1, 2]
    assert {parent_ids(span) for span in spans} == {ids(traced.produced())}
    for span in spans:
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "no luck")
        assert (span.attributes["ojs.run.outcome"], span.attributes["error.type"]) == ("failed", "ValueError")
        (event,) = span.events
        assert event.attributes["exception.type"] == "ValueError"


def test_a_skipped_run_is_no_error_and_a_discarded_one_is(traced, handlers):
    @job("t.skip")
    def skip():
        raise Skip("nothing to do")

    @job("t.discard")
    def discard():
        raise Discard("hopeless")

    skip.enqueue()
    discard.enqueue()
    run_jobs(raise_errors=False)
    first, second = traced.spans(SpanKind.CONSUMER)
    assert (first.attributes["ojs.run.outcome"], first.status.status_code) == ("skipped", StatusCode.UNSET)
    assert (second.attributes["ojs.run.outcome"], second.status.status_code) == ("failed", StatusCode.ERROR)


def test_an_exception_without_words_is_recorded_as_far_as_it_goes(traced, handlers):
    class Unprintable(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    @job("t", retry={"max_attempts": 1})
    def fails():
        raise Unprintable

    fails.enqueue()
    run_jobs(raise_errors=False)
    assert Job.objects.get().state == "discarded"
    assert traced.consumed().attributes["error.type"].endswith("Unprintable")


def test_what_a_handler_enqueues_is_below_its_run(traced, handlers):
    job("t.inner")(lambda: None)
    outer = job("t.outer")(lambda: Job.objects.enqueue("t.inner"))
    outer.enqueue()
    run_jobs()
    first_enqueue, outer_run, second_enqueue, inner_run = sorted(traced.spans(), key=lambda span: span.start_time)
    assert parent_ids(outer_run) == ids(first_enqueue)
    assert parent_ids(second_enqueue) == ids(outer_run)
    assert parent_ids(inner_run) == ids(second_enqueue)


def test_a_handler_sees_the_baggage_of_its_enqueue(traced, handlers):
    seen = []
    handler = job("t")(lambda: seen.append(get_baggage("tenant")))
    token = attach(set_baggage("tenant", "t1"))
    try:
        handler.enqueue()
    finally:
        detach(token)
    run_jobs()
    assert seen == ["t1"]
    assert get_baggage("tenant") is None


@pytest.mark.parametrize(
    "meta",
    [{}, {"traceparent": "rubbish"}, {"traceparent": 7, "baggage": 3}, {"traceparent": ["x"]}, {"baggage": None}, []],
)
def test_a_job_without_a_valid_context_begins_a_trace_of_its_own(traced, handlers, meta):
    job("t")(lambda: None)
    Job.objects.enqueue("t")
    Job.objects.update(meta=meta)
    run_jobs()
    assert traced.consumed().parent is None


def test_a_member_that_is_no_text_does_not_hide_the_trace(traced, handlers):
    job("t")(lambda: None)
    Job.objects.enqueue("t")
    Job._base_manager.update(meta={"baggage": 3, **Job.objects.get().meta})
    run_jobs()
    assert parent_ids(traced.consumed()) == ids(traced.produced())


@pytest.mark.parametrize("meta", [{}, []])
def test_whatever_surrounds_the_worker_is_no_parent(traced, handlers, meta):
    job("t")(lambda: None)
    Job.objects.enqueue("t")
    Job.objects.update(meta=meta)
    with traced.tracer.start_as_current_span("tests"):
        run_jobs()
    assert traced.consumed().parent is None


def test_the_logs_of_a_failed_run_belong_to_its_span(traced, handlers, caplog):
    seen = []

    @job("t", retry=IN_AN_HOUR)
    def fails():
        raise ValueError("no luck")

    caplog.handler.addFilter(lambda record: seen.append(get_current_span().get_span_context().span_id) or True)
    fails.enqueue()
    run_jobs(raise_errors=False)
    assert traced.consumed().context.span_id in seen


def test_a_periodic_job_belongs_to_the_trace_of_its_occurrence(traced, handlers):
    job("t", cron=Cron("* * * * *"))(lambda: None)
    now = timezone.now()
    cron.sync("default", now)
    CronJob.objects.update(next_run_at=now)
    cron.tick("default", now + timezone.timedelta(minutes=1))
    run_jobs()
    assert traced.produced().parent is None
    assert parent_ids(traced.consumed()) == ids(traced.produced())


def test_an_http_enqueue_is_a_child_of_the_span_of_its_request(traced, client, admin_user):
    client.force_login(admin_user)
    with traced.tracer.start_as_current_span("POST /ojs/v1/jobs") as request:  # as an instrumentation of Django does
        response = client.post("/ojs/v1/jobs", {"type": "t", "args": []}, content_type="application/json")
    assert response.status_code == 201
    assert parent_ids(traced.produced()) == (request.context.trace_id, request.context.span_id)
    assert Job.objects.get().meta == {"traceparent": traceparent(traced.produced())}


@pytest.mark.skipif(not hasattr(django_settings, "TASKS"), reason="Django has no tasks here")
def test_a_task_is_traced_like_any_job(traced, handlers):
    from tests.app.tasks import add

    add.enqueue(1)
    assert Job.objects.get().meta == {"traceparent": traceparent(traced.produced())}


# Threads and event loops


@pytest.mark.django_db(transaction=True)
def test_plain_and_async_handlers_run_in_their_spans(traced, handlers):
    seen = {}

    @job("t.plain")
    def plain():
        seen["plain"] = get_current_span().get_span_context().span_id
        Job.objects.enqueue("t.follows", meta={"from": "plain"})

    @job("t.async")
    async def coroutine():
        await asyncio.sleep(0)
        seen["async"] = get_current_span().get_span_context().span_id
        await Job.objects.aenqueue("t.follows", meta={"from": "async"})

    @job("t.follows")
    def follows():
        pass

    plain.enqueue()
    async_to_sync(coroutine.aenqueue)()
    assert Worker(concurrency=1).run(drain=True).completed == 4
    runs = {span.context.span_id: span for span in traced.spans(SpanKind.CONSUMER)}
    assert runs[seen["plain"]].attributes["ojs.job.type"] == "t.plain"
    assert runs[seen["async"]].attributes["ojs.job.type"] == "t.async"
    below = {span.parent.span_id for span in traced.spans(SpanKind.PRODUCER) if span.parent is not None}
    assert below == set(seen.values())


@pytest.mark.django_db(transaction=True)
@pytest.mark.interrupts
def test_an_attempt_that_takes_too_long_is_an_error_in_threads_and_event_loops(traced, handlers):
    @job("t.plain", timeout=0.05, retry={"max_attempts": 1})
    def plain():
        while True:
            threading.Event().wait(0.001)

    @job("t.async", timeout=0.05, retry={"max_attempts": 1})
    async def coroutine():
        await asyncio.sleep(60)

    plain.enqueue()
    coroutine.enqueue()
    assert Worker(concurrency=1).run(drain=True).discarded == 2
    spans = traced.spans(SpanKind.CONSUMER)
    assert [(span.attributes["error.type"], span.status.status_code) for span in spans] == [
        ("timeout", StatusCode.ERROR)
    ] * 2


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_cancelled_run_is_no_error(traced, handlers):
    @job("t", takes_context=True)
    async def handler(context):
        await sync_to_async(context.job.cancel)()
        await asyncio.sleep(60)

    handler.enqueue()
    assert Worker(concurrency=1).run(drain=True).refused == 1
    span = traced.consumed()
    assert (span.attributes["ojs.run.outcome"], span.status.status_code) == ("cancelled", StatusCode.UNSET)


# Trouble and switches


class Breaks(SpanProcessor):
    def __init__(self, at):
        self.at = at

    def on_start(self, span, parent_context=None):
        if self.at == "start":
            raise RuntimeError("the tracer breaks")

    def on_end(self, span):
        if self.at == "end":
            raise RuntimeError("the tracer breaks")


@pytest.mark.parametrize("at", ["start", "end"])
def test_a_tracer_that_breaks_breaks_no_job(traced, handlers, caplog, at):
    traced.provider.add_span_processor(Breaks(at))
    job("t")(lambda: None)
    Job.objects.enqueue("t")
    Job.objects.enqueue_many([{"type": "t"}])
    assert [ran.job.state for ran in run_jobs()] == ["completed"] * 2
    assert not get_current_span().get_span_context().is_valid
    assert "Tracing failed" in caplog.text


def test_a_propagator_that_breaks_breaks_no_enqueue(traced, monkeypatch):
    def breaks(*args):
        raise RuntimeError("the propagator breaks")

    monkeypatch.setattr("django_ojs_unique.contrib.opentelemetry.spans.inject", breaks)
    assert Job.objects.enqueue("t", meta={"a": 1}).job.meta == {"a": 1}


def test_a_span_that_breaks_breaks_neither_an_enqueue_nor_a_run(traced, handlers, monkeypatch):
    def breaks(*args, **kwargs):
        raise RuntimeError("the span breaks")

    @job("broken.trace", unique=UniquePolicy(keys=["type"]))
    def run():
        pass

    monkeypatch.setattr("opentelemetry.sdk.trace.Span.set_attribute", breaks)
    monkeypatch.setattr("opentelemetry.sdk.trace.Span.set_status", breaks)
    run.enqueue()
    with pytest.raises(DuplicateJob):
        run.enqueue()
    Job.objects.enqueue_many([run.item()])
    (ran,) = run_jobs(types=[run])
    assert ran.job.state == "completed"


def test_a_trace_that_is_not_sampled_is_carried_on_as_such(handlers):
    provider = TracerProvider(sampler=NeverSampled(), shutdown_on_exit=False)
    with tracing_with(Spans(provider)):
        meta = Job.objects.enqueue("t").job.meta
    is_sampled = int(meta["traceparent"].rpartition("-")[2], 16) & 1
    assert not is_sampled


class NeverSampled(Sampler):
    def should_sample(self, *args, **kwargs):
        return SamplingResult(Decision.DROP)

    def get_description(self):
        return "never"


def test_without_a_configured_provider_nothing_is_carried(monkeypatch):
    with tracing_with(Spans()):
        assert Job.objects.enqueue("t").job.meta == {}
        hooks.tracer().flush()


def test_a_rolled_back_enqueue_has_had_its_span(traced):
    with transaction.atomic():
        Job.objects.enqueue("t")
        transaction.set_rollback(True)
    assert traced.produced().attributes["ojs.enqueue.outcome"] == "created"


@pytest.mark.django_db(transaction=True)
def test_a_worker_process_flushes_what_is_in_memory(traced, monkeypatch, handlers):
    flushed = []
    monkeypatch.setattr(Worker, "run", lambda self, drain: self.summary)
    monkeypatch.setattr(traced.provider, "force_flush", flushed.append)
    job("t")(lambda: None)
    call_command("runworker", drain=True, verbosity=0)
    assert len(flushed) == 1


def test_the_app_switches_it_on():
    config = AppConfig.create("django_ojs_unique.contrib.opentelemetry")
    with tracing_with(hooks.tracer()):
        config.ready()
        assert isinstance(hooks.tracer(), Spans)


def test_the_app_says_what_to_install(monkeypatch):
    config = AppConfig.create("django_ojs_unique.contrib.opentelemetry")
    monkeypatch.delitem(sys.modules, "django_ojs_unique.contrib.opentelemetry.spans", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.context", None)
    with pytest.raises(ImproperlyConfigured, match=r"django-ojs-unique\[opentelemetry\]"):
        config.ready()


@pytest.mark.slow
def test_without_the_extras_nothing_of_them_is_imported():
    """In a process of its own, where neither package can be imported."""
    script = """
        import sys
        sys.modules["opentelemetry"] = sys.modules["prometheus_client"] = None
        import django
        from django.conf import settings
        settings.configure(
            INSTALLED_APPS=["django_ojs_unique"], USE_TZ=True,
            DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        )
        django.setup()
        from django.core.management import call_command
        from django_ojs_unique import job
        from django_ojs_unique.models import Job
        from django_ojs_unique.testing import run_jobs
        job("t")(lambda: None)
        call_command("migrate", verbosity=0)
        Job.objects.enqueue("t")
        Job.objects.enqueue_many([{"type": "t"}])
        assert [ran.job.meta for ran in run_jobs()] == [{}, {}]
        try:
            call_command("runworker", metrics_port=9100)
        except Exception as error:
            print(error)
        """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "pip install 'django-ojs-unique[prometheus]'" in ran.stdout
