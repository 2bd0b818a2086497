"""The signals about a run: once per outcome, after the commit, and harmless."""

import logging
import sys
from collections import Counter

import pytest
from django.db import DatabaseError, OperationalError, connection, transaction
from django.utils import timezone

from django_ojs_unique import Discard, job, lifecycle
from django_ojs_unique.execution.run_result import RunResult
from django_ojs_unique.maintenance.timers import rescue
from django_ojs_unique.models import Job
from django_ojs_unique.signals import job_completed, job_discarded, job_failed, job_started
from django_ojs_unique.worker import Worker
from django_ojs_unique.worker.finalizer import Finalizer
from tests.support.jobs import HOUR
from tests.support.outage import breaks_the_connection
from tests.support.retries import IN_AN_HOUR

pytestmark = pytest.mark.django_db(transaction=True)

SIGNALS = {"started": job_started, "completed": job_completed, "failed": job_failed, "discarded": job_discarded}


@pytest.fixture
def receive():
    """Connect receivers that vanish with the test."""
    connected = []

    def receive(signal, receiver):
        signal.connect(receiver, weak=False)
        connected.append((signal, receiver))

    yield receive
    for signal, receiver in connected:
        signal.disconnect(receiver)


@pytest.fixture
def _three_outcomes(handlers):
    job("completes")(lambda: {"n": 1})
    job("fails", retry=IN_AN_HOUR)(lambda: 1 / 0)
    job("discards", retry={"max_attempts": 1})(lambda: 1 / 0)
    job("skips", skip_unless=lambda: False)(lambda: None)
    for type in ("completes", "fails", "discards", "skips"):
        Job.objects.enqueue(type)


@pytest.mark.usefixtures("_three_outcomes")
def test_each_outcome_is_told_once(receive):
    told = []
    for name, signal in SIGNALS.items():
        receive(signal, lambda name=name, **kwargs: told.append((name, kwargs["job"].type, kwargs["using"])))
    Worker().run(drain=True)
    assert Counter(told) == Counter(
        {("started", type, "default"): 1 for type in ("completes", "fails", "discards", "skips")}
        | {("completed", type, "default"): 1 for type in ("completes", "skips")}
        | {("failed", "fails", "default"): 1, ("discarded", "discards", "default"): 1}
    )


@pytest.mark.usefixtures("_three_outcomes")
def test_the_outcome_is_committed_and_the_job_says_it(receive):
    told = {}

    def receiver(job, **kwargs):
        row = Job.objects.get(pk=job.pk)
        assert not connection.in_atomic_block
        told[job.type] = (job.state, row.state, job.finished_at == row.finished_at, job.skipped == row.skipped)

    for signal in (job_completed, job_failed, job_discarded):
        receive(signal, receiver)
    Worker().run(drain=True)
    assert told == {
        "completes": ("completed", "completed", True, True),
        "skips": ("completed", "completed", True, True),
        "fails": ("retryable", "retryable", True, True),
        "discards": ("discarded", "discarded", True, True),
    }


@pytest.mark.slow
@pytest.mark.usefixtures("_three_outcomes")
def test_what_the_worker_did_not_read_can_be_read_from_the_job(receive):
    told = {}

    def receiver(job, **kwargs):
        told[job.type] = (job.created_at is not None, job.extra, job.unique, job.retry_policy.max_attempts, job.result)

    for signal in SIGNALS.values():
        receive(signal, receiver)
    Worker().run(drain=True)
    assert told == {
        "completes": (True, {}, None, 3, {"n": 1}),
        "skips": (True, {}, None, 3, None),
        "fails": (True, {}, None, 3, None),
        "discards": (True, {}, None, 1, None),
    }


@pytest.mark.usefixtures("_three_outcomes")
def test_the_error_of_the_run_comes_along(receive):
    told = {}
    for signal in (job_failed, job_discarded):
        receive(signal, lambda job, error, **kwargs: told.update({job.type: error}))
    Worker().run(drain=True)
    assert {type: (error["type"], error["retryable"]) for type, error in told.items()} == {
        "fails": ("ZeroDivisionError", True),
        "discards": ("ZeroDivisionError", False),
    }
    assert [told["fails"]] == Job.objects.get(type="fails").errors


def raises(**kwargs):
    raise RuntimeError("from a receiver")


def leaves_a_transaction_open(**kwargs):
    transaction.set_autocommit(False)
    Job.objects.count()


def makes_a_query_that_fails(**kwargs):
    with pytest.raises(DatabaseError), connection.cursor() as cursor:
        cursor.execute("SELECT nothing FROM nowhere")


@pytest.mark.slow
@pytest.mark.usefixtures("_three_outcomes")
@pytest.mark.parametrize(
    "receiver", [raises, breaks_the_connection, leaves_a_transaction_open, makes_a_query_that_fails]
)
def test_a_receiver_that_misbehaves_does_no_harm(receive, receiver):
    for signal in SIGNALS.values():
        receive(signal, receiver)
    summary = Worker(concurrency=1).run(drain=True)
    assert (summary.completed, summary.skipped, summary.retried, summary.discarded) == (1, 1, 1, 1)
    job("more")(lambda: Job.objects.count())
    Job.objects.enqueue("more")
    assert Worker(concurrency=1).run(drain=True).completed == 1


@pytest.mark.usefixtures("_three_outcomes")
def test_a_refused_result_is_told_to_nobody(receive, handlers):
    told = []
    for signal in (job_completed, job_failed, job_discarded):
        receive(signal, lambda job, **kwargs: told.append(job.type))
    job("cancelled")(lambda: Job.objects.get(type="cancelled").cancel())
    Job.objects.enqueue("cancelled")
    assert Worker().run(drain=True).refused == 1
    assert "cancelled" not in told


def test_a_batch_whose_failures_cannot_be_finalized_yet_is_not_called_refused(receive, take, monkeypatch):
    """What was completed with them is told and counted, when the finalize is repeated."""
    told, counted, failures = [], [], iter([OperationalError("gone")])
    real = lifecycle.schedule_retry

    def failing(*args, **kwargs):
        for error in failures:
            raise error
        return real(*args, **kwargs)

    monkeypatch.setattr(lifecycle, "schedule_retry", failing)
    receive(job_completed, lambda job, **kwargs: told.append(job.args["n"]))
    for n in (0, 1):
        Job.objects.enqueue("t", {"n": n})
    first, second = take()
    error = {"type": "E", "code": "handler_error", "message": "", "attempt": 1}
    finalizer = Finalizer(Job.objects.all(), counted.extend)
    finalizer.put(RunResult(first))
    finalizer.put(RunResult(second, error=error, error_types=("E",)))
    with pytest.raises(OperationalError):
        finalizer.finalize_waiting()
    finalizer.finalize_waiting()
    assert told == [0]
    assert sorted(outcome for _, outcome in counted) == ["completed", "retried"]


@pytest.mark.usefixtures("_three_outcomes")
def test_a_failure_is_told_while_its_exception_is_handled(receive):
    told = {}

    def receiver(job, exception, **kwargs):
        frames = []
        trace = exception.__traceback__
        while trace:
            frames.append(trace.tb_frame.f_code.co_name)
            trace = trace.tb_next
        told[job.type] = type(exception), sys.exc_info()[1] is exception, frames[-1], "announce_failure" in frames

    for signal in (job_failed, job_discarded):
        receive(signal, receiver)
    Worker().run(drain=True)
    assert told == dict.fromkeys(["fails", "discards"], (ZeroDivisionError, True, "<lambda>", False))


def test_a_failure_in_another_process_is_told_without_an_exception(receive, take):
    told = []
    receive(job_discarded, lambda exception, **kwargs: told.append((exception, sys.exc_info()[1])))
    Job.objects.enqueue("t")
    (held,) = take()
    error = {"message": "no", "type": "ValueError", "attempt": 1}
    finalizer = Finalizer(Job.objects.all(), [].extend)
    finalizer.put(RunResult(held, error=error, gives_up=True))
    finalizer.finalize_waiting()
    assert told == [(None, None)]


@pytest.mark.parametrize(
    ("raised", "level"),
    [(ZeroDivisionError(), logging.ERROR), (Discard(), logging.WARNING)],
    ids=["error", "on purpose"],
)
def test_a_job_that_is_given_up_is_logged_as_an_error_unless_its_handler_gives_it_up(raised, level, handlers, caplog):
    def fail():
        raise raised

    job("gives.up", retry={"max_attempts": 1})(fail)
    Job.objects.enqueue("gives.up")
    with caplog.at_level(logging.WARNING, logger="django_ojs_unique.worker"):
        Worker().run(drain=True)
    (record,) = [record for record in caplog.records if "discarded after attempt 1 of 1" in record.getMessage()]
    assert (record.levelno, bool(record.exc_info)) == (level, level == logging.ERROR)


@pytest.mark.parametrize(("attempts", "level"), [(2, logging.ERROR), (3, logging.WARNING)])
def test_a_job_whose_worker_died_is_logged_as_an_error_if_that_was_its_last_attempt(attempts, level, take, caplog):
    Job.objects.enqueue("t", retry={"max_attempts": attempts})
    Job._base_manager.update(attempt=1)
    take(lease=-HOUR)
    rescue(Job.objects.all(), timezone.now())
    (record,) = [record for record in caplog.records if "Took back" in record.getMessage()]
    assert (record.levelno, Job.objects.get().state == "discarded") == (level, level == logging.ERROR)
