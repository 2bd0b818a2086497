"""Handlers, arguments and results that are not what they should be: the worker goes on."""

import asyncio
import logging
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import translation

from django_ojs_unique import job
from django_ojs_unique.execution.errors import LONGEST_MESSAGE, LONGEST_TRACEBACK
from django_ojs_unique.handlers.control import Discard, Retry, Skip
from django_ojs_unique.models import Job
from django_ojs_unique.worker import Worker, housekeeper
from tests.support.outage import breaks_the_connection
from tests.support.retries import IN_AN_HOUR
from tests.support.rows import insert

pytestmark = pytest.mark.django_db(transaction=True)

LAST = {"max_attempts": 1}


@pytest.fixture
def result_of(handlers):
    """Run one job of a handler, then one more, which must be none the worse; return the first row."""

    def result_of(function, args=None, **options):
        job("t", retry=LAST, **options)(function)
        job("after")(lambda: Job.objects.count())
        row = Job.objects.enqueue("t", args).job
        worker = Worker(concurrency=1, async_concurrency=1)
        worker.run(drain=True)
        Job.objects.enqueue("after")
        assert Worker(concurrency=1).run(drain=True).completed == 1
        row.refresh_from_db()
        return row

    return result_of


# Handlers that are missing


def test_a_job_without_a_handler_waits_and_no_attempt_is_burnt(handlers):
    job("known")(lambda: None)
    Job.objects.enqueue("stranger")
    Job.objects.enqueue("known")
    assert Worker().run(drain=True).finalized == 1
    row = Job.objects.get(type="stranger")
    assert (row.state, row.attempt, row.errors) == ("available", 0, [])


def test_the_log_names_what_waits_for_a_handler_once_a_minute(handlers, caplog):
    for _ in range(3):
        Job.objects.enqueue("stranger", queue="a")
    Job.objects.enqueue("stranger.too", queue="b")
    Worker().run(drain=True)
    said = [record.getMessage() for record in caplog.records if "handlers" in record.getMessage()]
    assert said == ["Jobs wait for handlers that are not here: stranger, stranger.too."]
    assert housekeeper.UNKNOWN_SECONDS == 60


# Arguments that do not fit


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({"b": 1}, "missing a required argument: 'a'"),
        ({"a": 1, "c": 1}, "got an unexpected keyword argument 'c'"),
        ({"a": 1, "bb": 1}, "got an unexpected keyword argument 'bb' (Did you mean 'b'?)"),
        ([1, 2, 3], "too many positional arguments"),
        ([], "missing a required argument: 'a'"),
    ],
)
def test_arguments_that_do_not_fit_discard_at_once_and_the_message_names_both(handlers, args, problem):
    @job("t", retry={"max_attempts": 5})
    def handler(a, b=0):
        """Do nothing."""

    Job.objects.enqueue("t", args)
    assert Worker().run(drain=True).discarded == 1
    (error,) = Job.objects.get().errors
    place = f"{__name__}.{handler.__qualname__}"
    assert (error["type"], error["code"], error["retryable"]) == ("invalid_args", "invalid_args", False)
    assert error["message"] == f"args do not fit {place}(a, b=0): {problem}"


def test_arguments_that_do_not_fit_an_async_handler_discard_as_well(handlers):
    @job("t")
    async def handler(a):
        """Do nothing."""

    Job.objects.enqueue("t")
    assert Worker().run(drain=True).discarded == 1
    assert Job.objects.get().errors[0]["code"] == "invalid_args"


def test_a_type_error_inside_the_handler_is_its_own_and_is_retried(handlers):
    job("t", retry=IN_AN_HOUR)(lambda a: a + 1)
    Job.objects.enqueue("t", {"a": "x"})
    assert Worker().run(drain=True).retried == 1
    assert Job.objects.get().errors[0]["code"] == "handler_error"


# Results


class Strange:
    def __iter__(self):
        raise RuntimeError("no")

    __len__ = __str__ = __repr__ = __iter__


@pytest.mark.parametrize(
    "result", [object(), {1: 2}, float("nan"), 2**53, b"bytes", "\x00", {"a": [set()]}, Strange(), "\ud800"]
)
def test_a_result_that_json_cannot_carry_is_lost_and_the_work_counts(result_of, caplog, result):
    row = result_of(lambda: result)
    assert (row.state, row.result, row.errors) == ("completed", None, [])
    assert "completed, but its result is lost" in caplog.text


def test_a_result_that_contains_itself_is_lost_and_the_work_counts(result_of):
    result = []
    result.append(result)
    assert result_of(lambda: result).state == "completed"


@pytest.mark.parametrize("result", [0, False, "", [], {}, {"a": None}, 1.5, "ü"])
def test_a_result_is_stored_as_it_is(result_of, result):
    row = result_of(lambda: result)
    assert (row.result, type(row.result)) == (result, type(result))


# Exceptions


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no words")

    __repr__ = __str__


class Unpicklable(Exception):
    def __init__(self, one, two):
        self.lock = asyncio.Lock()

    def __reduce__(self):
        raise TypeError("cannot be pickled")


class Deep(Exception):
    pass


def deep(depth=500):
    if depth:
        deep(depth - 1)
    raise Deep("x" * 1_000_000)


def raising(error):
    def handler():
        raise error

    return handler


def raising_async(error):
    async def handler():
        raise error

    return handler


@pytest.mark.parametrize("kind", [raising, raising_async])
@pytest.mark.parametrize(
    "error",
    [
        Unprintable(),
        Unpicklable(1, 2),
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        MemoryError(),
        asyncio.CancelledError(),
        ExceptionGroup("several", [ValueError(1), Unprintable()]),
        Discard(17),
        Retry(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_handler_raises_is_recorded_and_the_worker_goes_on(result_of, kind, error):
    row = result_of(kind(error))
    assert row.state == "discarded"
    assert row.errors[0]["type"].endswith(type(error).__qualname__)


@pytest.mark.parametrize("kind", [raising, raising_async])
def test_a_reason_that_is_no_text_is_made_one(result_of, kind):
    assert result_of(kind(Skip(17))).skipped == "17"


def test_a_huge_traceback_and_message_are_cut_and_stored(result_of):
    (error,) = result_of(deep).errors
    assert len(error["message"]) == LONGEST_MESSAGE
    assert len(error["details"]["traceback"]) == LONGEST_TRACEBACK


def test_an_endless_recursion_is_an_error_like_any_other(result_of):
    def handler():
        handler()

    assert result_of(handler).errors[0]["type"] == "RecursionError"


def test_the_log_of_an_exception_that_cannot_be_printed_is_written(result_of, caplog):
    result_of(raising(Unprintable()))
    assert "<Unprintable, whose __str__ raises>" in caplog.text


@pytest.mark.parametrize("after", ["soon", 0, -1, "P1M", True, timedelta(days=400_000), 1e300])
def test_an_invalid_delay_fails_the_run_and_names_the_hint(result_of, after):
    def handler():
        raise Retry(after=after)

    (error,) = result_of(handler).errors
    assert error["type"] == "django_ojs_unique.exceptions.InvalidRequest"
    assert error["message"].startswith("after: ")
    assert "Write an ISO 8601 duration such as 'PT30S'" in error["message"]


# What handlers leave behind


def leaves_a_transaction():
    transaction.set_autocommit(False)
    Job.objects.count()


def leaves_an_atomic_block():
    transaction.atomic().__enter__()
    insert(type="left", queue="q")


def closes_the_connection():
    connection.close()


@pytest.mark.parametrize(
    "handler", [leaves_a_transaction, leaves_an_atomic_block, breaks_the_connection, closes_the_connection]
)
def test_what_a_handler_does_to_its_connection_stays_its_own(result_of, handler):
    row = result_of(handler)
    assert row.finished_at is not None
    assert not Job.objects.filter(type="left").exists()


def test_the_switches_of_a_job_do_not_reach_the_next(handlers):
    seen = []

    @job("t")
    def handler():
        seen.append(translation.get_language())
        translation.activate("de")

    for _ in range(2):
        Job.objects.enqueue("t")
    Worker(concurrency=1).run(drain=True)
    assert seen == [translation.get_language()] * 2


def test_every_record_about_a_run_says_of_which(handlers, caplog):
    caplog.set_level(logging.DEBUG, logger="django_ojs_unique")
    job("t", queue="q", retry=IN_AN_HOUR)(lambda: 1 / 0)
    job("lost", queue="q")(object)
    job("cancels", queue="q")(lambda: Job.objects.get(type="cancels").cancel())
    rows = {type: Job.objects.enqueue(type).job for type in ("t", "lost", "cancels")}
    Worker().run(drain=True)
    labels = {
        (record.job_id, record.job_type, record.queue, record.attempt)
        for record in caplog.records
        if record.getMessage().startswith(("Job ", "Result "))
    }
    assert labels == {(str(row.pk), type, "q", 1) for type, row in rows.items()}
