"""Eager mode: a job that is due runs in the process that enqueues it, when the enqueue commits."""

import asyncio
import inspect
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest
from asgiref.sync import async_to_sync
from django.db import DatabaseError, OperationalError, connections, transaction
from django.test import TestCase, TransactionTestCase, override_settings
from django.utils import timezone

from django_ojs_unique import DuplicateJob, Retry, RetryPolicy, UniquePolicy, batch, chain, job, presets
from django_ojs_unique.enqueue.request import Request
from django_ojs_unique.execution import eager
from django_ojs_unique.models import CronJob, Event, Job, Queue, Workflow
from django_ojs_unique.signals import (
    job_activated,
    job_cancelled,
    job_completed,
    job_discarded,
    job_enqueued,
    job_failed,
    job_started,
    job_suppressed,
)
from django_ojs_unique.testing import capture_jobs, run_jobs, tick, travel
from django_ojs_unique.worker import Worker
from tests.support.processes import PATIENCE

pytestmark = pytest.mark.django_db

ONCE_MORE = RetryPolicy(max_attempts=2, initial_interval="PT5M", jitter=False)
SIGNALS = {
    "enqueued": job_enqueued,
    "suppressed": job_suppressed,
    "cancelled": job_cancelled,
    "started": job_started,
    "completed": job_completed,
    "failed": job_failed,
    "discarded": job_discarded,
}


@pytest.fixture
def eager_mode(settings):
    settings.OJS_UNIQUE = {"EAGER": True}


@pytest.fixture
def commit(database, eager_mode, django_capture_on_commit_callbacks):
    """Make the block a transaction that commits; in a `TestCase`, Django's way is to call the callbacks."""

    @contextmanager
    def commit():
        if database == "TestCase":
            with django_capture_on_commit_callbacks(execute=True):
                yield
        else:
            with transaction.atomic():
                yield

    return commit


@pytest.fixture
def ran():
    return []


@pytest.fixture
def note(handlers, ran):
    @job("note", unique=UniquePolicy(keys=["type", "args"], on_conflict="ignore"))
    def note(name):
        ran.append(name)
        return {"noted": name}

    return note


@pytest.fixture
def broken(handlers, ran):
    @job("broken", retry=ONCE_MORE)
    def broken():
        ran.append("broken")
        raise ValueError("out of paper")

    return broken


@pytest.fixture
def said():
    """What the signals say, in their order: the name and the type of the job."""
    heard = []
    receivers = {}
    for name, signal in SIGNALS.items():
        receivers[name] = lambda job, name=name, **more: heard.append((name, job.type))
        signal.connect(receivers[name])
    yield heard
    for name, signal in SIGNALS.items():
        signal.disconnect(receivers[name])


# When it runs


def test_a_job_runs_when_its_transaction_commits_and_not_before(commit, note, ran):
    with commit():
        row = note.enqueue("x").job
        assert ran == []
    assert ran == ["x"]
    assert (row.state, row.result, row.attempt) == ("completed", {"noted": "x"}, 1)
    stored = Job.objects.get(pk=row.pk)
    assert (stored.state, stored.worker_id, stored.lease_token) == ("completed", "eager", None)


@pytest.mark.django_db(transaction=True)
def test_without_a_transaction_it_runs_at_once(eager_mode, note, ran):
    result = note.enqueue("x")
    assert (ran, result.job.state, result.created) == (["x"], "completed", True)


@pytest.mark.django_db(transaction=True)
def test_a_rollback_runs_nothing(eager_mode, note, ran):
    with suppress(ZeroDivisionError), transaction.atomic():
        note.enqueue("x")
        1 / 0  # noqa: B018
    assert (ran, Job.objects.count()) == ([], 0)


def test_a_savepoint_that_is_rolled_back_takes_its_jobs_along(commit, note, ran):
    with commit():
        note.enqueue("kept")
        with suppress(ZeroDivisionError), transaction.atomic():
            note.enqueue("undone")
            1 / 0  # noqa: B018
        with transaction.atomic():
            note.enqueue("released")
        assert ran == []
    assert ran == ["kept", "released"]


def test_a_testcase_that_does_not_capture_callbacks_leaves_its_jobs_to_run_jobs(eager_mode, note, ran):
    note.enqueue("x")
    assert ran == []
    assert [each.outcome for each in run_jobs()] == ["completed"]
    assert ran == ["x"]


def test_it_is_off_by_default(database, note, ran, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        note.enqueue("x")
    assert ran == []
    assert eager._available not in [receiver() for _, receiver, *_ in job_enqueued.receivers]


@pytest.mark.django_db(transaction=True)
def test_the_setting_can_be_overridden_for_a_block(note, ran):
    with override_settings(OJS_UNIQUE={"EAGER": True}):
        note.enqueue("in it")
    note.enqueue("after it")
    assert ran == ["in it"]


@override_settings(OJS_UNIQUE={"EAGER": True})
class InATestCase(TestCase):
    def test_the_callbacks_that_django_captures_run_the_jobs(self):
        with self.captureOnCommitCallbacks(execute=True) as callbacks:
            row = Job.objects.enqueue("tests.add", {"a": 1}).job
        assert (len(callbacks), row.state, row.result) == (1, "completed", 1)


@override_settings(OJS_UNIQUE={"EAGER": True})
class InATransactionTestCase(TransactionTestCase):
    def test_the_commit_runs_the_jobs(self):
        with transaction.atomic():
            row = Job.objects.enqueue("tests.add", {"a": 1}).job
            assert row.state == "available"
        assert (row.state, row.result) == ("completed", 1)


# What runs


def test_a_job_that_is_due_later_waits(commit, note, ran, caplog):
    caplog.set_level(logging.INFO, "django_ojs_unique.worker")
    with commit():
        note.using(delay="PT1H").enqueue("x")
        Job.objects.enqueue_request(Request(type="note", args={"name": "y"}, pending=True))
    assert (ran, caplog.messages) == ([], [])
    with travel("PT1H"):
        run_jobs()
    assert ran == ["x"]


def test_a_duplicate_does_not_run_twice(commit, note, ran):
    with commit():
        first, second = note.enqueue("x"), note.enqueue("x")
    assert (second.job, second.deduplicated, ran) == (first.job, True, ["x"])


@pytest.mark.django_db(transaction=True)
def test_a_job_that_runs_or_has_finished_still_counts_as_a_duplicate(eager_mode, handlers, ran):
    @job("t", unique=UniquePolicy(states=presets.ALL))
    def handler():
        with pytest.raises(DuplicateJob):
            handler.enqueue()
        ran.append("once")

    handler.enqueue()
    with pytest.raises(DuplicateJob) as refusal:
        handler.enqueue()
    assert (ran, refusal.value.existing_job_state) == (["once"], "completed")


def test_a_replaced_job_does_not_run(commit, handlers, ran):
    @job("t", unique=UniquePolicy(keys=["type"], on_conflict="replace"))
    def handler(name):
        ran.append(name)

    with commit():
        handler.enqueue("old")
        handler.enqueue("new")
    assert ran == ["new"]


def test_a_job_that_is_rewritten_by_its_key_runs_as_the_last_enqueue_says(commit, note, ran):
    keyed = note.using(key="k", unique=None)
    with commit():
        keyed.using(delay="PT1H").enqueue("later")
    with commit():
        keyed.enqueue("now")
    assert (ran, Job.objects.count()) == (["now"], 1)


def test_a_retried_and_an_activated_job_run(commit, note, ran):
    with commit():
        waiting = Job.objects.enqueue_request(Request(type="note", args={"name": "activated"}, pending=True)).job
    Job._base_manager.filter(pk=note.using(delay="PT1H").enqueue("retried").job.pk).update(
        state="discarded", enqueued_at=timezone.now(), finished_at=timezone.now(), run_at=None, scheduled_at=None
    )
    with commit():
        waiting.activate()
        Job.objects.get(state="discarded").retry()
    assert ran == ["activated", "retried"]


@pytest.mark.parametrize("was", ["pending", "discarded"])
def test_the_object_that_is_retried_is_the_one_that_signals_have_and_that_has_run(commit, note, was):
    waiting = Job.objects.enqueue_request(Request(type="note", args={"name": "a"}, pending=True)).job
    if was == "discarded":
        Job._base_manager.filter(pk=waiting.pk).update(
            state=was, enqueued_at=timezone.now(), finished_at=timezone.now()
        )
    activated = []

    def receive(job, **more):
        activated.append(job)

    job_activated.connect(receive, weak=False)
    try:
        with commit():
            waiting.retry()
            assert waiting.state == "available"
    finally:
        job_activated.disconnect(receive)
    assert [job is waiting for job in activated] == [True]
    assert waiting.state == "completed"


@pytest.mark.parametrize("mode", ["partial", "atomic"])
def test_a_batch_runs_when_it_is_stored(commit, note, ran, mode):
    with commit():
        results = Job.objects.enqueue_many([note.item(name) for name in "abca"], mode=mode)
        assert ran == []
    assert ran == ["a", "b", "c"]
    assert [each.job.state for each in results] == ["completed"] * 4


@pytest.mark.django_db(transaction=True)
def test_a_batch_without_a_transaction_is_stored_whole_before_it_runs(eager_mode, handlers):
    @job("t")
    def handler(n):
        return Job.objects.count()

    results = Job.objects.enqueue_many([handler.item(n) for n in range(3)])
    assert [each.job.result for each in results] == [3, 3, 3]


def test_an_enqueue_on_commit_runs(commit, note, ran):
    with commit():
        note.enqueue_on_commit("x")
        assert (ran, Job.objects.count()) == ([], 0)
    assert ran == ["x"]


def test_a_type_without_a_handler_waits_and_one_line_says_so(commit, handlers, caplog):
    with commit():
        row = Job.objects.enqueue("of.another.program").job
    assert row.state == "available"
    (line,) = [each.message for each in caplog.records if each.name == "django_ojs_unique.worker"]
    assert line == f"Job {row.pk} (of.another.program) waits: its type has no handler here."


@pytest.mark.parametrize("is_paused", [True, False])
def test_a_queue_that_gives_nothing_keeps_its_jobs(commit, note, ran, caplog, take, is_paused):
    caplog.set_level(logging.INFO, "django_ojs_unique.worker")
    if is_paused:
        Queue.objects.pause("default")
    else:
        Job.objects.enqueue("of.another.program")
        take(types=("of.another.program",))
        Queue.objects.limit("default", 1)
    with commit():
        row = note.enqueue("x").job
    assert (ran, row.state) == ([], "available")
    assert "its queue may be paused, or at its limit" in caplog.text


def test_other_jobs_that_wait_are_left_alone(commit, note, ran, settings):
    settings.OJS_UNIQUE = {}
    note.using(priority=9).enqueue("old")
    settings.OJS_UNIQUE = {"EAGER": True}
    with commit():
        note.enqueue("new")
    assert ran == ["new"]


def test_an_expired_job_does_not_run(commit, note, ran):
    with commit():
        note.using(expires_at=timezone.now()).enqueue("x")
    assert ran == []


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_another_database_runs_its_own_jobs(eager_mode, note, ran):
    with transaction.atomic(using="other"):
        Job.objects.using("other").enqueue("note", {"name": "there"})
        note.enqueue("here")
        assert ran == ["here"]
    assert ran == ["here", "there"]


# What handlers enqueue


def test_what_a_handler_enqueues_runs_after_it(commit, handlers, ran):
    @job("outer")
    def outer():
        inner.enqueue("first")
        with transaction.atomic():
            inner.enqueue("second")
        ran.append("outer")

    @job("inner")
    def inner(name, deeper=True):
        if deeper:
            inner.enqueue(f"{name}, deeper", deeper=False)
        ran.append(name)

    with commit():
        outer.enqueue()
    assert ran == ["outer", "first", "second", "first, deeper", "second, deeper"]


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_long_chain_needs_no_deep_stack(eager_mode, handlers, ran):
    @job("t")
    def handler(left):
        ran.append(len(inspect.stack()))
        if left:
            handler.enqueue(left - 1)

    handler.enqueue(20)
    assert len(ran) == 21
    assert len(set(ran[1:])) == 1


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_chain_without_end_is_left_waiting(eager_mode, handlers, ran, monkeypatch, caplog):
    @job("t")
    def handler():
        ran.append("t")
        handler.enqueue()

    monkeypatch.setattr(eager, "MOST_GENERATIONS", 5)
    handler.enqueue()
    left = Job.objects.get(state="available")
    assert len(ran) == 5
    assert f"After a chain of 5, the next one waits: {left.pk} (t)." in caplog.text
    handler.enqueue()
    assert len(ran) == 10


def test_a_job_of_run_jobs_runs_what_it_enqueues(database, eager_mode, note, ran, settings):
    @job("outer")
    def outer():
        with transaction.atomic():
            note.enqueue("x")

    settings.OJS_UNIQUE = {}
    outer.enqueue()
    settings.OJS_UNIQUE = {"EAGER": True}
    assert [each.job.type for each in run_jobs()] == ["outer"]
    assert ran == ["x"]


# Failures


@pytest.mark.slow
def test_a_failure_is_kept_for_a_retry_that_waits(commit, broken, ran, caplog):
    with commit():
        row = broken.enqueue().job
    assert (ran, row.state, row.errors[-1]["message"]) == (["broken"], "retryable", "out of paper")
    assert f"Job {row.pk} (broken) failed: out of paper" in caplog.text
    with commit():
        broken.enqueue()
    assert ran == ["broken"] * 2
    with travel("PT5M"):
        assert [each.outcome for each in run_jobs(raise_errors=False)] == ["discarded"] * 2


def test_the_jobs_after_a_failed_one_run(commit, broken, note, ran):
    with commit():
        broken.enqueue()
        note.enqueue("x")
    assert ran == ["broken", "x"]


def test_a_failure_can_propagate_to_the_commit(commit, broken, settings):
    settings.OJS_UNIQUE = {"EAGER": "propagate"}
    with pytest.raises(ValueError, match="out of paper") as raised, commit():
        broken.enqueue()
    assert raised.traceback[-1].name == "broken"
    assert Job.objects.get().state == "retryable"


@pytest.mark.django_db(transaction=True)
def test_a_failure_can_propagate_to_the_enqueue_and_its_job_is_not_enqueued_again(broken, note, ran, settings):
    settings.OJS_UNIQUE = {"EAGER": "propagate"}
    for enqueue in (broken.enqueue, lambda: Job.objects.enqueue_many([broken.item()])):
        with pytest.raises(ValueError, match="out of paper"):
            enqueue()
    note.enqueue("x")
    assert (Job.objects.count(), ran) == (3, ["broken", "broken", "x"])


@pytest.mark.django_db(transaction=True)
def test_a_deadlock_that_propagates_does_not_repeat_the_enqueue_that_is_committed(handlers, ran, settings):
    settings.OJS_UNIQUE = {"EAGER": "propagate"}

    class Deadlock(Exception):
        sqlstate = "40P01"

    @job("t")
    def handler():
        ran.append("t")
        raise OperationalError from Deadlock()

    with pytest.raises(OperationalError):
        handler.enqueue()
    assert (Job.objects.count(), ran) == (1, ["t"])


@pytest.mark.django_db(transaction=True)
def test_the_workflow_of_a_failure_that_propagates_goes_on(handlers, note, ran, settings):
    settings.OJS_UNIQUE = {"EAGER": "propagate"}

    @job("t", retry=RetryPolicy(max_attempts=1))
    def handler():
        raise ValueError("out of paper")

    with pytest.raises(ValueError, match="out of paper"):
        chain(handler.item(), note.item("x")).enqueue()
    with pytest.raises(ValueError, match="out of paper"):
        batch([handler.item()], on_failure=note.item("called")).enqueue()
    assert [workflow.state for workflow in Workflow.objects.order_by("pk")] == ["failed", "running"]
    assert Job.objects.get(type="note").state == "available"  # as the jobs after it do
    assert ran == []


def test_what_a_handler_decides_never_propagates(commit, handlers, settings):
    settings.OJS_UNIQUE = {"EAGER": "propagate"}

    @job("t")
    def handler():
        raise Retry(after="PT1H")

    with commit():
        row = handler.enqueue().job
    assert row.state == "retryable"


def test_what_ends_the_process_always_propagates(commit, handlers):
    @job("t", retry=ONCE_MORE)
    def handler():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), commit():
        handler.enqueue()
    assert Job.objects.get().state == "retryable"


def test_a_job_that_cannot_be_claimed_does_not_fail_its_enqueue(commit, note, ran, monkeypatch, caplog):
    def fail(*args, **options):
        raise DatabaseError("no connection")

    monkeypatch.setattr("django_ojs_unique.execution.eager.claim", fail)
    with commit():
        row = note.enqueue("x").job
    assert (ran, row.state) == ([], "available")
    assert f"Eager mode failed to run job {row.pk} (note)." in caplog.text


def test_a_handler_may_delete_its_job(commit, handlers):
    @job("t", takes_context=True)
    def handler(context):
        Job.objects.filter(pk=context.job_id).delete()

    with commit():
        row = handler.enqueue().job
    assert (row.type, Job.objects.exists()) == ("t", False)


# As with a worker


@pytest.mark.slow
@pytest.mark.parametrize("events", [False, True])
@pytest.mark.django_db(transaction=True)
def test_the_signals_come_in_the_order_of_a_workers_run(handlers, broken, said, settings, events):
    @job("t", unique=UniquePolicy(on_conflict="replace"))
    def handler():
        broken.enqueue()
        broken.using(retry=RetryPolicy(max_attempts=1)).enqueue()

    handler.using(delay="PT1H").enqueue()
    handler.enqueue()
    Worker(concurrency=1).run(drain=True)
    by_a_worker = list(said)
    assert ("discarded", "broken") in by_a_worker
    said.clear()
    settings.OJS_UNIQUE = {"EAGER": True, "EVENTS": events}
    handler.using(delay="PT1H").enqueue()
    handler.enqueue()
    assert said == by_a_worker
    if events:
        kinds = [event.type for event in Event.objects.order_by("pk")]
        assert kinds.index("job.enqueued") < kinds.index("job.started") < kinds.index("job.completed")


@pytest.mark.django_db(transaction=True)
def test_the_signals_of_an_enqueue_are_all_sent_before_the_job_runs(eager_mode, note, ran):
    with capture_jobs() as jobs:  # its receiver was connected after that of eager mode

        @job("t")
        def handler():
            ran.append([each.type for each in jobs])

        handler.enqueue()
    assert ran == [["t"]]


def test_async_handlers_run(commit, handlers, ran):
    @job("t")
    async def handler(name):
        await asyncio.sleep(0)
        await note.aenqueue("from it")
        return await Job.objects.acount()

    @job("note")
    def note(name):
        ran.append(name)

    with commit():
        row = handler.enqueue("x").job
    assert (row.result, ran) == (2, ["from it"])


def test_an_async_handler_that_takes_too_long_is_timed_out(commit, handlers):
    @job("t", timeout=0.01)
    async def handler():
        await asyncio.Event().wait()

    with commit():
        row = handler.enqueue().job
    assert (row.state, row.errors[-1]["code"]) == ("retryable", "timeout")


@pytest.mark.django_db(transaction=True)
def test_what_async_code_enqueues_runs(eager_mode, handlers, ran):
    @job("plain")
    def plain():
        ran.append("plain")
        return threading.get_ident()

    @job("async")
    async def handler():
        await plain.aenqueue()
        ran.append("async")

    async def view():
        return [await plain.aenqueue(), *await asyncio.gather(handler.aenqueue(), handler.aenqueue())]

    results = async_to_sync(view)()
    assert [each.job.state for each in results] == ["completed"] * 3
    assert ran == ["plain", "async", "plain", "async", "plain"]


@pytest.mark.django_db(transaction=True)
def test_threads_do_not_wait_for_each_others_jobs(eager_mode, handlers):
    meet = threading.Barrier(2, timeout=PATIENCE)

    @job("t")
    def handler():
        meet.wait()

    def enqueue(_):
        try:
            return handler.enqueue().job.state
        finally:
            connections.close_all()

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(enqueue, range(2))) == ["completed"] * 2


@pytest.mark.django_db(transaction=True)
def test_a_worker_in_eager_mode_runs_what_its_handlers_enqueue_once(note, settings, ran):
    @job("outer")
    def outer():
        note.enqueue("x")
        ran.append("outer")

    outer.enqueue()
    settings.OJS_UNIQUE = {"EAGER": True}
    Worker().run(drain=True)
    # In the thread of the handler, unless the worker itself claims the new job first.
    assert sorted(ran) == ["outer", "x"]
    assert set(Job.objects.values_list("state", "attempt")) == {("completed", 1)}


# Who enqueues


@pytest.mark.django_db(transaction=True)
def test_the_http_api_answers_with_the_job_as_it_has_run(eager_mode, note, admin_client):
    body = {"type": "note", "args": [{"name": "x"}]}
    answer = admin_client.post("/ojs/v1/jobs", body, content_type="application/openjobspec+json")
    assert (answer.status_code, answer.json()["job"]["state"]) == (201, "completed")


def test_a_periodic_job_runs_when_it_is_enqueued(commit, handlers, ran):
    @job("hourly", cron="0 * * * *")
    def hourly():
        ran.append("hourly")

    tick()
    with travel("PT1H"), commit():
        tick()
    assert ran == ["hourly"]
    assert CronJob.objects.get(name="hourly").last_job_id == Job.objects.get().pk
