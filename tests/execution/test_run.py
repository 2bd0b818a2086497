import time
from contextlib import contextmanager

import pytest
from asgiref.sync import async_to_sync

from django_ojs_unique import job
from django_ojs_unique.execution.errors import LONGEST_MESSAGE, LONGEST_TRACEBACK
from django_ojs_unique.execution.execute import aexecute, execute
from django_ojs_unique.execution.run import Run
from django_ojs_unique.models import Job
from django_ojs_unique.ojs.moments import milliseconds
from django_ojs_unique.signals import job_started

pytestmark = pytest.mark.django_db(transaction=True)


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@pytest.fixture
def run(handlers, take):
    """Declare a handler, enqueue one job for it, claim it and run it here."""

    def run(function, args=None, *, takes_context=False, **options):
        job("t", takes_context=takes_context)(function)
        Job.objects.enqueue("t", args, **options)
        (claimed,) = take()
        return execute(Run(claimed))

    return run


@pytest.mark.parametrize("seconds", [-1, 1000])
def test_a_run_does_not_begin_once_its_lease_may_have_run_out(seconds):
    assert Run(Job(), lease_until=time.monotonic() + seconds).begin() is (seconds > 0)


@contextmanager
def started(receiver):
    """Call a function when a job starts, before its handler."""
    job_started.connect(receiver, weak=False, dispatch_uid="late")
    try:
        yield
    finally:
        job_started.disconnect(dispatch_uid="late")


@pytest.mark.parametrize("kind", ["plain", "atomic", "async"])
@pytest.mark.parametrize(
    ("meanwhile", "error"),
    [
        (lambda run: run.end(), "LeaseLost"),
        (lambda run: setattr(run, "cancelled", True), "LeaseLost"),
        (lambda run: setattr(run, "interrupted", True), "timeout"),
        (lambda run: None, None),
    ],
)
def test_a_handler_is_not_called_when_its_run_ended_while_receivers_waited(handlers, take, kind, meanwhile, error):
    calls = []

    def handler():
        calls.append(1)

    async def awaited():
        calls.append(1)

    job("t", atomic=kind == "atomic")(awaited if kind == "async" else handler)
    Job.objects.enqueue("t")
    (claimed,) = take()
    run = Run(claimed)
    with started(lambda **kwargs: meanwhile(run)):
        finished = async_to_sync(aexecute)(run) if kind == "async" else execute(run)
    assert calls == [1] * (error is None)
    assert (finished.error and finished.error["type"].rpartition(".")[2]) == error


def test_an_object_arrives_as_keywords_and_an_array_in_order(run):
    assert run(lambda a, b: [a, b], {"b": 2, "a": 1}).result == [1, 2]
    assert run(lambda a, b: [a, b], [1, 2]).result == [1, 2]


def test_the_context_tells_the_handler_about_its_run(run):
    told = []

    def handler(context, n):
        told.append(context)

    run(handler, {"n": 1}, takes_context=True, meta={"trace": "x"}, tags=["a"], queue="default")
    (context,) = told
    row = Job.objects.get()
    assert (context.job_id, context.type, context.queue, context.attempt) == (row.pk, "t", "default", 1)
    assert (context.meta, context.tags, context.max_attempts) == ({"trace": "x"}, ["a"], 3)
    assert (context.enqueued_at, context.started_at) == (row.enqueued_at, row.started_at)


def test_a_handler_can_see_that_its_job_was_cancelled(run):
    seen = []

    def handler(context):
        seen.append(context.cancelled)
        Job.objects.get().cancel()
        seen.append(context.cancelled)

    run(handler, takes_context=True)
    assert seen == [False, True]


def test_an_exception_becomes_an_error_record(run):
    def handler():
        raise ValueError("no luck")

    ended = run(handler)
    assert ended.error_types == ("ValueError",)
    assert (ended.error["type"], ended.error["message"], ended.error["attempt"]) == ("ValueError", "no luck", 1)
    assert ended.error["occurred_at"] == milliseconds(ended.at)
    assert "in handler" in ended.error["details"]["traceback"]


def test_an_exception_is_known_with_and_without_its_module(run):
    def handler():
        raise Unprintable

    ended = run(handler)
    assert ended.error_types == (f"{__name__}.Unprintable", "Unprintable")


def test_an_exception_whose_str_raises_is_recorded_all_the_same(run):
    def handler():
        raise Unprintable

    assert "Unprintable" in run(handler).error["message"]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError, RecursionError])
def test_no_exception_ends_the_worker(run, error):
    def handler():
        raise error

    assert run(handler).error["type"] == error.__name__


def test_a_huge_message_and_traceback_are_cut(run):
    def handler():
        raise ValueError("x" * 1_000_000)

    error = run(handler).error
    assert len(error["message"]) == LONGEST_MESSAGE
    assert len(error["details"]["traceback"]) == LONGEST_TRACEBACK


def fails(depth, message, cause=None):
    """Raise an error with a message below so many frames, which do not look alike."""
    if depth:
        return fails_too(depth - 1, message, cause)
    raise ValueError(message) from cause


def fails_too(depth, message, cause):
    return fails(depth, message, cause)


@pytest.mark.parametrize("depth", [1, 300])
@pytest.mark.parametrize("long", [1, 1_000_000])
def test_the_last_frames_both_ends_of_a_message_and_the_cause_stay_in_the_traceback(run, depth, long):
    def handler():
        try:
            fails(depth, f"first begins{'x' * long}first ends")
        except ValueError as error:
            fails(depth, f"then begins{'y' * long}then ends", error)

    text = run(handler).error["details"]["traceback"]
    assert len(text) <= LONGEST_TRACEBACK
    wanted = ["first begins", "first ends", "the direct cause", "in fails\n", "then begins", "then ends"]
    assert [word for word in wanted if word not in text] == []
    assert text.count("raise ValueError(message) from cause") == 2


def test_a_chain_without_end_keeps_its_first_cause_and_its_last_error(run):
    def handler(left=200):
        try:
            if left:
                handler(left - 1)
        finally:
            raise ValueError(f"error {left}")

    text = run(handler).error["details"]["traceback"]
    assert len(text) <= LONGEST_TRACEBACK
    assert "error 0\n" in text
    assert text.endswith("error 200\n")


def test_text_that_the_database_refuses_is_made_storable(run):
    def handler():
        raise ValueError("a\x00b\ud800c")

    assert run(handler).error["message"] == "a�b?c"


def test_args_that_do_not_fit_the_handler_are_an_error(run):
    ended = run(lambda a: a, {"b": 1})
    assert (ended.error["type"], ended.gives_up) == ("invalid_args", True)
    assert "missing a required argument" in ended.error["message"]


def test_a_result_that_json_cannot_carry_is_lost_but_the_work_counts(run, caplog):
    ended = run(object)
    assert (ended.result, ended.error) == (None, None)
    assert "its result is lost" in caplog.text


def test_a_handler_that_leaves_a_transaction_open_does_not_spoil_the_next(run):
    from django.db import transaction

    def handler():
        transaction.set_autocommit(False)
        return Job.objects.update(priority=1)

    assert run(handler).error["type"] == "django_ojs_unique.exceptions.TransactionLeftOpen"
    assert transaction.get_autocommit()
