"""`run_jobs` and `run_one`: the worker's own code, in the test's thread, and in its transaction."""

import asyncio
import threading
from contextlib import suppress
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import Group
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError, IntegrityError, connection, connections, transaction
from django.utils import timezone, translation

from django_ojs_unique import Discard, LeaseLost, Retry, RetryPolicy, Skip, job
from django_ojs_unique.exceptions import UnknownJobType
from django_ojs_unique.models import Job, Queue
from django_ojs_unique.signals import job_completed, job_discarded, job_failed, job_started
from django_ojs_unique.testing import Ran, run_jobs, run_one, travel
from tests.support.refusals import refused
from tests.support.retries import IN_AN_HOUR

pytestmark = [pytest.mark.django_db, pytest.mark.every_database]

ONCE_MORE = RetryPolicy(max_attempts=2, initial_interval="PT5M", jitter=False)


@pytest.fixture
def broken(handlers):
    @job("broken", retry=ONCE_MORE)
    def broken():
        raise ValueError("out of paper")

    return broken


def outcomes(runs):
    return [str(ran.outcome) for ran in runs]


# What runs


def test_a_job_runs_in_the_tests_own_thread_and_transaction(database, handlers):
    seen = []

    @job("t")
    def handler(name):
        seen.append((threading.get_ident(), Group.objects.get(name=name).name))
        Group.objects.create(name="made by the handler")
        return {"greeted": name}

    Group.objects.create(name="uncommitted")
    handler.enqueue("uncommitted")
    (ran,) = run_jobs()
    assert seen == [(threading.get_ident(), "uncommitted")]
    assert Group.objects.filter(name="made by the handler").exists()
    assert isinstance(ran, Ran)
    assert (ran.outcome, ran.error, ran.job.state, ran.job.attempt) == ("completed", None, "completed", 1)
    assert ran.job.result == {"greeted": "uncommitted"}
    assert connection.in_atomic_block is (database == "TestCase")


@pytest.mark.slow
def test_run_one_runs_what_a_worker_would_take_next(handlers):
    @job("t")
    def handler(n):
        """Do nothing."""

    for n, priority in ((1, 0), (2, 0), (3, 5)):
        handler.using(priority=priority).enqueue(n)
    assert [run_one().job.args["n"] for _ in range(3)] == [3, 1, 2]
    assert run_one() is None


@pytest.mark.slow
def test_what_jobs_enqueue_runs_as_well(handlers):
    @job("countdown")
    def countdown(n):
        if n:
            countdown.enqueue(n - 1)

    countdown.enqueue(3)
    assert [ran.job.args["n"] for ran in run_jobs()] == [3, 2, 1, 0]


@pytest.mark.slow
def test_jobs_that_enqueue_each_other_without_end_are_stopped(handlers):
    @job("ping")
    def ping():
        pong.enqueue()

    @job("pong")
    def pong():
        ping.enqueue()

    ping.enqueue()
    with pytest.raises(AssertionError, match=r"7 .*(ping, pong|pong, ping)"):
        run_jobs(limit=7)


@pytest.mark.slow
def test_as_many_jobs_as_the_limit_are_fine(handlers):
    @job("t")
    def handler():
        """Do nothing."""

    for _ in range(3):
        handler.enqueue()
    assert len(run_jobs(limit=3)) == 3


@pytest.mark.slow
def test_only_some_types_and_queues_run(handlers):
    @job("a", queue="mail-fast")
    def a():
        """Do nothing."""

    @job("b", queue="mail-slow")
    def b():
        """Do nothing."""

    def enqueue_both():
        Job.objects.all().delete()
        a.enqueue()
        b.enqueue()

    for chosen, expected in (
        ({"types": "a"}, ["a"]),
        ({"types": [b]}, ["b"]),
        ({"types": ["a", b]}, ["a", "b"]),
        ({"queues": "mail-slow"}, ["b"]),
        ({"queues": ["mail-*"]}, ["a", "b"]),
        ({"types": a, "queues": "mail-slow"}, []),
    ):
        enqueue_both()
        assert [ran.job.type for ran in run_jobs(**chosen)] == expected, chosen
    with refused(UnknownJobType, "type", names="'a'?"):
        run_jobs(types="aa")


def test_what_a_worker_leaves_alone_stays(handlers, caplog):
    @job("t")
    def handler():
        """Do nothing."""

    later = handler.using(scheduled_at=timezone.now() + timedelta(hours=1)).enqueue().job
    paused = handler.using(queue="paused").enqueue().job
    Queue.objects.pause("paused")
    Job.objects.enqueue("nobody.here")
    assert run_jobs() == []
    assert [job.state for job in (later, paused)] == ["scheduled", "available"]
    assert "Jobs wait for handlers that are not here: nobody.here." in caplog.text


def test_all_attempts_of_a_job_run_at_once_if_the_test_asks(database, broken):
    broken.enqueue()
    runs = run_jobs(retries=True, raise_errors=False)
    assert outcomes(runs) == ["retried", "discarded"]
    assert [ran.job.attempt for ran in runs] == [1, 2]
    broken.enqueue()
    with pytest.raises(ValueError, match="out of paper"):
        run_jobs(retries=True)
    assert Job.objects.filter(state="discarded", attempt=2).count() == 2


def test_an_attempt_that_is_not_the_last_may_fail(handlers):
    @job("t", retry=RetryPolicy(max_attempts=3, initial_interval="PT1H", max_interval="PT1H"), takes_context=True)
    def handler(context):
        if context.attempt < 3:
            raise ValueError

    handler.enqueue()
    later = handler.using(scheduled_at=timezone.now() + timedelta(minutes=1)).enqueue().job
    assert outcomes(run_jobs(retries=True)) == ["retried", "retried", "completed"]
    later.refresh_from_db()
    assert later.state == "scheduled"


def test_only_retries_of_the_chosen_types_and_queues_run_at_once(broken, handlers):
    job("other", retry=ONCE_MORE, queue="mail")(broken.definition.function).enqueue()
    broken.enqueue()
    assert outcomes(run_jobs(raise_errors=False)) == ["retried", "retried"]
    assert outcomes(run_jobs(types=broken, queues="mail", retries=True, raise_errors=False)) == []
    assert {each.run_at > timezone.now() for each in Job.objects.all()} == {True}
    assert outcomes(run_jobs(types=broken, retries=True, raise_errors=False)) == ["discarded"]
    assert outcomes(run_jobs(queues="mai*", retries=True, raise_errors=False)) == ["discarded"]


def test_an_expired_job_is_discarded_and_does_not_run(handlers):
    @job("t")
    def handler():
        raise AssertionError

    row = handler.using(expires_at=timezone.now() - timedelta(seconds=1)).enqueue().job
    assert run_jobs() == []
    row.refresh_from_db()
    assert row.state == "discarded"


@pytest.mark.slow
@pytest.mark.django_db(databases=["default", "other"])
def test_jobs_on_another_database_run_there(handlers):
    ran_on = []
    receiver = lambda using, **arguments: ran_on.append(using)  # noqa: E731

    @job("t")
    def handler():
        """Do nothing."""

    job_completed.connect(receiver)
    try:
        Job.objects.enqueue("t")
        Job.objects.using("other").enqueue("t")
        assert outcomes(run_jobs(using="other")) == ["completed"]
        assert ran_on == ["other"]
        assert Job.objects.get().state == "available"
        assert run_one(using="other") is None
    finally:
        job_completed.disconnect(receiver)


# How it runs


def test_the_context_is_that_of_a_worker(handlers):
    seen = {}

    @job("t", takes_context=True)
    def handler(context):
        context.progress(0.5, "half of it")
        seen.update(attempt=context.attempt, id=context.job_id, cancelled=context.cancelled)
        Job.objects.get(pk=context.job_id).cancel()
        seen["cancelled later"] = context.cancelled

    row = handler.enqueue().job
    ran = run_one()
    assert seen == {"attempt": 1, "id": row.pk, "cancelled": False, "cancelled later": True}
    assert (ran.outcome, ran.job.state) == ("refused", "cancelled")


def test_progress_is_stored(handlers):
    @job("t", takes_context=True)
    def handler(context):
        context.progress(0.5, "half of it")

    handler.enqueue()
    assert run_one().job.progress_note == "half of it"


@pytest.mark.slow
def test_the_signals_of_a_run_are_sent(database, handlers, broken):
    said = []

    def hear(signal, name):
        receiver = lambda job, **arguments: said.append((name, job.type))  # noqa: E731
        signal.connect(receiver, weak=False)
        return signal, receiver

    @job("fine")
    def fine():
        """Do nothing."""

    heard = [hear(job_started, "started"), hear(job_completed, "completed"), hear(job_failed, "failed")]
    heard.append(hear(job_discarded, "discarded"))
    try:
        fine.enqueue()
        broken.using(retry=RetryPolicy(max_attempts=1)).enqueue()
        broken.enqueue()
        run_jobs(raise_errors=False)
    finally:
        for signal, receiver in heard:
            signal.disconnect(receiver)
    assert said == [
        ("started", "fine"),
        ("completed", "fine"),
        ("started", "broken"),
        ("discarded", "broken"),
        ("started", "broken"),
        ("failed", "broken"),
    ]


def test_what_a_handler_activates_is_not_seen_by_the_test(handlers):
    @job("t")
    def handler():
        translation.activate("fr")

    handler.enqueue()
    with translation.override("de"):
        run_jobs()
        assert translation.get_language() == "de"


def test_async_handlers_run_too_and_see_the_tests_rows(database, handlers):
    @job("t")
    async def handler(name):
        await asyncio.sleep(0)
        return await Group.objects.filter(name=name).acount()

    Group.objects.create(name="uncommitted")
    handler.enqueue("uncommitted")
    assert run_one().job.result == 1


def test_an_async_handler_may_not_query_plainly_here_either(handlers):
    @job("t")
    async def handler():
        Group.objects.count()

    handler.enqueue()
    with pytest.raises(SynchronousOnlyOperation):
        run_jobs()


def test_an_async_handler_that_takes_too_long_is_timed_out(handlers):
    @job("t", timeout=0.01)
    async def handler():
        await asyncio.Event().wait()

    handler.enqueue()
    ran = run_one(raise_errors=False)
    assert (ran.outcome, ran.job.errors[-1]["code"]) == ("retried", "timeout")


@pytest.mark.slow
def test_an_async_test_runs_jobs_through_sync_to_async(database, handlers):
    @job("t")
    def handler():
        """Do nothing."""

    @job("u")
    async def other():
        return await Group.objects.acount()

    async def test():
        await handler.aenqueue()
        await other.aenqueue()
        return await sync_to_async(run_jobs)()

    assert outcomes(async_to_sync(test)()) == ["completed", "completed"]


# Failures


def test_what_a_handler_raises_is_raised_in_the_test_once_it_is_finalized(database, broken):
    row = broken.enqueue().job
    with pytest.raises(ValueError, match="out of paper") as raised:
        run_jobs()
    assert raised.traceback[-1].name == "broken"
    row.refresh_from_db()
    assert (row.state, row.errors[-1]["message"]) == ("retryable", "out of paper")


@pytest.mark.slow
def test_failures_can_be_kept_as_outcomes(broken):
    broken.enqueue()
    first = run_one(raise_errors=False)
    assert (first.outcome, str(first.error), first.job.state) == ("retried", "out of paper", "retryable")
    assert run_jobs(raise_errors=False) == []
    with travel("PT5M"):
        second = run_one(raise_errors=False)
    assert (second.outcome, second.job.state, second.job.attempt) == ("discarded", "discarded", 2)


@pytest.mark.slow
def test_what_a_handler_decides_is_an_outcome_and_no_failure(handlers):
    @job("t", skip_unless=lambda say: say is not None)
    def handler(say):
        raise {"retry": Retry("busy", after="PT1H"), "discard": Discard("gone"), "skip": Skip("done")}[say]

    for say in ("retry", "discard", "skip", None):
        handler.enqueue(say)
    runs = run_jobs()
    assert outcomes(runs) == ["retried", "discarded", "skipped", "skipped"]
    assert [type(ran.error) for ran in runs] == [Retry, Discard, type(None), type(None)]


@pytest.mark.slow
def test_a_retry_that_is_due_at_once_runs_at_once(handlers):
    @job("t", takes_context=True, retry=RetryPolicy(max_attempts=3, initial_interval="PT0.001S", jitter=False))
    def handler(context):
        if context.attempt < 3:
            raise Retry(after=0.001)
        return context.attempt

    row = handler.enqueue().job
    runs = []
    while not runs or runs[-1].outcome != "completed":
        runs += run_jobs()
    row.refresh_from_db()
    assert (outcomes(runs), row.result) == (["retried", "retried", "completed"], 3)


def test_arguments_that_do_not_fit_discard_the_job(handlers):
    @job("t")
    def handler(n):
        """Do nothing."""

    Job.objects.enqueue("t", {"m": 1})
    ran = run_one(raise_errors=False)
    assert (ran.outcome, ran.job.errors[-1]["code"], type(ran.error)) == ("discarded", "invalid_args", TypeError)


def test_what_ends_the_test_itself_is_always_raised(handlers):
    @job("t")
    def handler():
        pytest.skip("by a handler")

    handler.enqueue()
    with pytest.raises(pytest.skip.Exception):
        run_jobs(raise_errors=False)


# The test's transaction


def test_a_handler_whose_query_fails_breaks_no_transaction(database, handlers):
    job("t")(break_query)
    Job.objects.enqueue("t")
    ran = run_one(raise_errors=False)
    assert (ran.outcome, ran.job.state) == ("retried", "retryable")
    assert isinstance(ran.error, DatabaseError)
    assert Group.objects.count() == 0


def test_a_handler_that_catches_a_failure_of_its_own_block_keeps_what_it_did(handlers):
    Group.objects.create(name="there")

    @job("t")
    def handler():
        Group.objects.create(name="new")
        try:
            with transaction.atomic():
                Group.objects.create(name="there")
        except IntegrityError:
            return "there already"

    handler.enqueue()
    assert run_one().job.result == "there already"
    assert Group.objects.count() == 2


def test_what_a_failing_handler_did_before_stays_as_with_a_worker(handlers):
    @job("t")
    def handler():
        Group.objects.create(name="first half")
        raise ValueError

    handler.enqueue()
    run_one(raise_errors=False)
    assert Group.objects.exists()


@pytest.mark.parametrize("catches", [False, True])
def test_a_handler_that_loses_its_job_undoes_nothing_outside_of_its_own_transaction(database, handlers, catches):
    @job("t", takes_context=True)
    def handler(context):
        Job.objects.filter(pk=context.job_id).cancel()
        with suppress(LeaseLost if catches else ()):
            context.step("one", list)
        Group.objects.create(name="cleaned up")

    Job.objects.enqueue("t")
    ran = run_one(raise_errors=False)
    assert ran.outcome == "refused"
    assert Job.objects.get().state == "cancelled"
    assert Group.objects.exists() is catches


@pytest.mark.parametrize("call", ["complete", "fence"])
def test_a_call_that_needs_a_transaction_does_not_take_that_of_the_test(database, handlers, call):
    job("t", takes_context=True)(lambda context: getattr(context, call)())
    Job.objects.enqueue("t")
    with pytest.raises(RuntimeError, match="transaction"):
        run_one()


@pytest.mark.slow
def test_what_a_handler_leaves_for_the_commit_is_done(database, handlers):
    @job("first")
    def first():
        with transaction.atomic():
            transaction.on_commit(second.enqueue)

    @job("second")
    def second():
        """Do nothing."""

    first.enqueue()
    assert [ran.job.type for ran in run_jobs()] == ["first", "second"]
    assert connections["default"].run_on_commit == []


def test_what_the_test_itself_left_for_the_commit_is_not_touched(handlers, django_capture_on_commit_callbacks):
    @job("t")
    def handler():
        """Do nothing."""

    with django_capture_on_commit_callbacks() as callbacks:
        transaction.on_commit(lambda: None)
        handler.enqueue()
        run_jobs()
    assert len(callbacks) == 1


def break_off():
    raise ValueError


def break_query():
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM no_such_table")


@pytest.mark.parametrize(
    ("callback", "robust", "outcome"),
    [(break_off, False, "retried"), (break_query, False, "retried"), (break_query, True, "completed")],
)
def test_a_failure_at_the_commit_fails_the_job_and_undoes_nothing(handlers, callback, robust, outcome):
    @job("t")
    def handler():
        with transaction.atomic():
            Group.objects.create(name="committed")
            transaction.on_commit(callback, robust=robust)

    handler.enqueue()
    ran = run_one(raise_errors=False)
    assert (ran.outcome, ran.error is None) == (outcome, robust)
    assert Group.objects.exists()


@pytest.mark.slow
def test_a_handler_can_run_jobs_itself(handlers):
    @job("outer")
    def outer():
        inner.enqueue()
        return outcomes(run_jobs(types=inner, raise_errors=False))

    @job("inner", retry=IN_AN_HOUR)
    def inner():
        raise ValueError

    outer.enqueue()
    ran = run_one()
    assert (ran.outcome, ran.error, ran.job.result) == ("completed", None, ["retried"])


# What a handler leaves behind


def enters_a_block():
    transaction.atomic().__enter__()
    Group.objects.create(name="left")


def turns_autocommit_off():
    transaction.set_autocommit(False)
    Group.objects.create(name="left")


def begins():
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
    Group.objects.create(name="left")


def plain(function):
    return lambda: function()


def in_a_thread(function):
    async def handler():
        await sync_to_async(function)()

    return handler


def assert_undone(row, is_inside):
    """The attempt failed, the block of the handler is undone, and the caller goes on as before."""
    row.refresh_from_db()
    assert (row.state, row.errors[0]["type"]) == ("discarded", "django_ojs_unique.exceptions.TransactionLeftOpen")
    assert connection.in_atomic_block is is_inside
    with transaction.atomic():
        Group.objects.create(name="of the next")
    assert set(Group.objects.values_list("name", flat=True)) == {"mine", "of the next"}


@pytest.mark.parametrize("kind", [plain, in_a_thread])
def test_a_block_that_a_handler_leaves_open_is_undone_and_that_of_the_caller_is_not(database, handlers, kind):
    job("t", retry={"max_attempts": 1})(kind(enters_a_block))
    Group.objects.create(name="mine")
    row = Job.objects.enqueue("t").job
    assert outcomes(run_jobs(raise_errors=False)) == ["discarded"]
    assert_undone(row, is_inside=database == "TestCase")


@pytest.mark.parametrize("depth", [1, 2])
def test_blocks_within_those_of_the_caller_are_undone_as_well(handlers, depth):
    def enter_some():
        for _ in range(depth - 1):
            transaction.atomic().__enter__()
        enters_a_block()

    job("t", retry={"max_attempts": 1})(enter_some)
    with transaction.atomic():
        Group.objects.create(name="mine")
        row = Job.objects.enqueue("t").job
        assert outcomes(run_jobs(raise_errors=False)) == ["discarded"]
        assert_undone(row, is_inside=True)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", [plain, in_a_thread])
@pytest.mark.parametrize(
    "opens",
    [
        turns_autocommit_off,
        pytest.param(begins, marks=pytest.mark.skipif(connection.vendor == "mysql", reason="its driver tells nothing")),
    ],
)
@pytest.mark.parametrize("way", ["eager", "run_jobs"])
def test_a_transaction_that_a_handler_leaves_open_is_undone_outside_of_a_transaction(
    handlers, settings, kind, opens, way
):
    settings.OJS_UNIQUE = {"EAGER": way == "eager"}
    job("t", retry={"max_attempts": 1})(kind(opens))
    Group.objects.create(name="mine")
    row = Job.objects.enqueue("t").job
    if way == "run_jobs":
        run_jobs(raise_errors=False)
    assert_undone(row, is_inside=False)
    assert connection.get_autocommit()


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "sqlite", reason="only SQLite has databases in memory")
@pytest.mark.parametrize("opens", [enters_a_block, turns_autocommit_off, begins])
def test_it_is_undone_in_a_database_in_memory_too_which_django_never_closes(handlers, monkeypatch, opens):
    called = []

    def open_and_register():
        opens()
        if connection.in_atomic_block:
            transaction.on_commit(lambda: called.append("too late"))

    monkeypatch.setattr(connection, "is_in_memory_db", lambda: True)
    job("t", retry={"max_attempts": 1})(open_and_register)
    Group.objects.create(name="mine")
    row = Job.objects.enqueue("t").job
    run_jobs(raise_errors=False)
    assert_undone(row, is_inside=False)
    assert (connection.get_autocommit(), connection.atomic_blocks, called) == (True, [], [])


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()])
@pytest.mark.parametrize("kind", [plain, in_a_thread])
def test_an_exit_of_a_handler_fails_its_attempt_in_eager_mode(handlers, settings, kind, error):
    def leave():
        raise error

    settings.OJS_UNIQUE = {"EAGER": True}
    job("t", retry={"max_attempts": 1})(kind(leave))
    row = Job.objects.enqueue("t").job
    row.refresh_from_db()
    assert (row.state, row.errors[0]["type"].rpartition(".")[2]) == ("discarded", type(error).__name__)
