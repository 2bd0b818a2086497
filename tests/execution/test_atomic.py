"""The work of a handler and the completion of its job are committed together, or neither is."""

from contextlib import ExitStack, nullcontext, suppress
from datetime import timedelta
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import Group
from django.db import DatabaseError, IntegrityError, OperationalError, connection, connections, transaction

from django_ojs_unique import Discard, LeaseLost, Retry, Skip, job
from django_ojs_unique.exceptions import HandlerError
from django_ojs_unique.execution import atomic, leases
from django_ojs_unique.execution.execute import aexecute, execute
from django_ojs_unique.execution.finalize import Finalized, finalize
from django_ojs_unique.execution.run import Run
from django_ojs_unique.execution.run_result import broken, timed_out
from django_ojs_unique.lifecycle import write
from django_ojs_unique.models import Job
from django_ojs_unique.worker.claimed_runs import ClaimedRuns
from tests.support.jobs import elsewhere
from tests.support.refusals import refused

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("handlers")]


@pytest.fixture
def run(take):
    """Execute a job as a worker's thread does, and finalize it as its finalizer does."""

    def run(**enqueue):
        Job.objects.enqueue("t", **enqueue)
        (claimed,) = take(limit=1)
        started = Run(claimed)
        finished = execute(started)
        ((_, outcome),) = finalize(Job.objects.all(), [finished])
        return started, finished, outcome

    return run


def names():
    return set(Group.objects.values_list("name", flat=True))


def take_away(**changes):
    """Do from another connection what cancels, replaces or rescues a job."""
    write(Job.objects.all(), **{"lease_token": uuid4(), **changes})


def test_writes_enqueues_the_result_and_the_completion_are_committed_together(run):
    @job("t", atomic=True)
    def handler():
        Group.objects.create(name="done")
        Job.objects.enqueue("next")
        return {"n": 1}

    _, finished, outcome = run()
    assert outcome is Finalized.COMPLETED
    assert finished.is_finalized
    row = Job.objects.get(type="t")
    assert (row.state, row.result, row.lease_token) == ("completed", {"n": 1}, None)
    assert row.finished_at is not None
    assert names() == {"done"}
    assert Job.objects.filter(type="next").exists()


def test_the_job_in_memory_has_its_new_state(run):
    job("t", atomic=True)(lambda: 7)
    _, finished, _ = run()
    assert (finished.job.state, finished.job.result, finished.job.lease_token) == ("completed", 7, None)


def test_the_completion_is_one_statement_more_than_the_handler_has(take):
    def statements(**options):
        job("t", **options)(lambda: Group.objects.update(name="x"))
        Job.objects.enqueue("t")
        (claimed,) = take(limit=1)
        said = []

        def note(execute, sql, *rest):
            said.append(sql)
            return execute(sql, *rest)

        with connection.execute_wrapper(note):
            execute(Run(claimed))
        return [sql for sql in said if not sql.startswith(("BEGIN", "COMMIT", "SAVEPOINT"))]

    plain = statements()
    assert len(statements(atomic=True)) == len(plain) + 1


def test_finalizing_what_is_committed_needs_no_statement(take, django_assert_num_queries):
    job("t", atomic=True)(lambda: None)
    Job.objects.enqueue("t")
    (claimed,) = take(limit=1)
    finished = execute(Run(claimed))
    with django_assert_num_queries(0):
        assert finalize(Job.objects.all(), [finished]) == [(finished, Finalized.COMPLETED)]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ValueError("no"), Finalized.RETRIED),
        (Retry("later"), Finalized.RETRIED),
        (Discard("never"), Finalized.DISCARDED),
        (Skip("nothing to do"), Finalized.SKIPPED),
    ],
)
def test_whatever_the_handler_raises_undoes_what_it_wrote(run, error, outcome):
    @job("t", atomic=True)
    def handler():
        Group.objects.create(name="half")
        Job.objects.enqueue("next")
        raise error

    assert run()[2] is outcome
    assert names() == set()
    assert not Job.objects.filter(type="next").exists()


def test_the_error_is_recorded_after_the_rollback(run):
    @job("t", atomic=True)
    def handler():
        Group.objects.create(name="x")
        raise ValueError("bad luck")

    run()
    row = Job.objects.get()
    assert (row.state, row.errors[0]["message"]) == ("retryable", "bad luck")


def test_a_broken_transaction_is_undone_although_the_handler_caught_the_error(run):
    @job("t", atomic=True)
    def handler():
        Group.objects.create(name="x")
        try:
            Group.objects.create(name="x")
        except IntegrityError:
            return "done"

    _, finished, outcome = run()
    assert outcome is Finalized.RETRIED
    assert "TransactionManagementError" in finished.error["type"]
    assert names() == set()


@pytest.mark.parametrize("changes", [{}, {"state": "cancelled"}, {"state": "available", "lease_token": None}])
def test_if_the_job_was_taken_away_everything_is_undone(take, changes):
    @job("t", atomic=True)
    def handler():
        Group.objects.create(name="zombie")
        Job.objects.enqueue("next")

    Job.objects.enqueue("t")
    (claimed,) = take(limit=1)
    take_away(**changes)
    before = Job.objects.values().get()
    finished = execute(Run(claimed))
    assert "LeaseLost" in finished.error["type"]
    assert finalize(Job.objects.all(), [finished]) == [(finished, Finalized.REFUSED)]
    assert Job.objects.values().get() == before
    assert names() == set()


def test_a_handler_that_catches_the_loss_commits_nothing(take):
    @job("t", atomic=True, takes_context=True)
    def handler(context):
        Group.objects.create(name="zombie")
        try:
            context.fence()
        except LeaseLost:
            return "never mind"

    Job.objects.enqueue("t")
    (claimed,) = take(limit=1)
    take_away()
    finished = execute(Run(claimed))
    assert finished.error is not None
    assert names() == set()


def test_a_job_is_completed_whatever_its_on_commit_callbacks_raise(run, caplog):
    @job("t", atomic=True)
    def handler():
        Group.objects.create(name="done")

        def fail():
            raise ValueError("too late")

        transaction.on_commit(fail)
        return 5

    _, finished, outcome = run()
    assert outcome is Finalized.COMPLETED
    assert isinstance(finished.exception, ValueError)
    assert Job.objects.get().state == "completed"
    assert Job.objects.get().result == 5
    assert names() == {"done"}
    assert "is completed, but then its handler" in caplog.text


def test_a_result_that_cannot_be_stored_is_dropped_as_elsewhere(run, caplog):
    job("t", atomic=True)(lambda: object())
    assert run()[2] is Finalized.COMPLETED
    assert Job.objects.get().result is None
    assert "its result is lost" in caplog.text


def fail_at_first(monkeypatch, error, step="_complete"):
    """Let a step of the first transaction fail; return how often it was called."""
    real, calls = getattr(atomic, step), []

    def fails(*args):
        calls.append(args)
        if len(calls) == 1:
            raise error
        return real(*args)

    monkeypatch.setattr(atomic, step, fails)
    return calls


def transient():
    error = OperationalError("concurrent")
    error.__cause__ = type("Cause", (Exception,), {"sqlstate": "40001"})()
    return error


def test_after_a_serialisation_failure_the_handler_is_called_again_in_the_same_attempt(run, monkeypatch):
    calls = []

    @job("t", atomic=True)
    def handler():
        calls.append(1)
        Group.objects.create(name=f"try {len(calls)}")

    locked = []
    real = atomic.fence
    monkeypatch.setattr(atomic, "fence", lambda run: (locked.append(len(calls)), real(run)))
    fail_at_first(monkeypatch, transient())
    _, _, outcome = run()
    assert outcome is Finalized.COMPLETED
    assert names() == {"try 2"}
    assert Job.objects.get().attempt == 1
    assert locked == [1], "the second try locks the row, and the first does not"


def test_a_second_try_is_not_taken_for_a_completed_run(take, monkeypatch):
    """Else the worker would not tell it that its job was cancelled."""
    completions, real = [], atomic._complete

    def fails_at_its_commit(*args):
        real(*args)
        if len(completions) == 1:
            raise transient()

    job("t", atomic=True)(lambda: completions.append(started.completion))
    monkeypatch.setattr(atomic, "_complete", fails_at_its_commit)
    Job.objects.enqueue("t")
    (claimed,) = take(limit=1)
    started = Run(claimed)
    execute(started)
    assert completions == [None, None]


def test_a_deadlock_in_a_callback_after_the_commit_does_not_start_over(run):
    error = transient()

    @job("t", atomic=True)
    def handler():
        def fail():
            raise error

        transaction.on_commit(fail)

    _, finished, outcome = run()
    assert (outcome, finished.exception) == (Finalized.COMPLETED, error)


def test_it_is_not_called_again_without_end(run, monkeypatch):
    calls = []
    job("t", atomic=True)(lambda: calls.append(1))

    def fails(*args):
        raise transient()

    monkeypatch.setattr(atomic, "_complete", fails)
    assert run()[2] is Finalized.RETRIED
    assert len(calls) == atomic.MOST_TRIES


def test_another_database_error_is_an_error_of_the_attempt(run, monkeypatch):
    calls = []
    job("t", atomic=True)(lambda: calls.append(1))
    fail_at_first(monkeypatch, DatabaseError("no such table"))
    assert run()[2] is Finalized.RETRIED
    assert len(calls) == 1


@pytest.mark.parametrize("is_committed", [True, False])
def test_if_the_answer_to_the_commit_is_lost_the_row_tells(take, monkeypatch, is_committed):
    """As when the line is cut after COMMIT was sent: the driver raises, and the server may have committed."""
    job("t", atomic=True)(lambda: Group.objects.create(name="done").pk and 3)
    Job.objects.enqueue("t")
    (claimed,) = take(limit=1)
    started = Run(claimed)

    wrapper = type(connections["default"])
    commit = wrapper._commit

    def loses_the_answer(self):
        if is_committed:
            commit(self)
        raise OperationalError("the line was cut")

    with monkeypatch.context() as patch:
        patch.setattr(wrapper, "_commit", loses_the_answer)
        finished = execute(started)
    assert finished.error is not None
    assert not started.is_committed
    ((_, outcome),) = finalize(Job.objects.all(), [finished])
    row = Job.objects.get()
    if is_committed:
        assert (outcome, row.state, row.result, names()) == (Finalized.COMPLETED, "completed", 3, {"done"})
        assert (finished.error, finished.result) == (None, 3)
    else:
        assert (outcome, row.state, names()) == (Finalized.RETRIED, "retryable", set())


def test_a_transaction_that_was_open_for_long_is_warned_of(run, monkeypatch, caplog):
    job("t", atomic=True)(lambda: None)
    run()
    assert "was open for" not in caplog.text
    monkeypatch.setattr(atomic, "LONG_SECONDS", -1)
    run()
    assert "was open for" in caplog.text


@pytest.mark.parametrize("is_known", [True, False])
def test_a_failure_around_a_handler_that_has_committed_does_not_hide_its_completion(take, is_known):
    """Else nobody would be told that the job is completed."""
    job("t", atomic=True)(lambda: 3)
    Job.objects.enqueue("t")
    (claimed,) = take(limit=1)
    started = Run(claimed)
    execute(started)
    started.is_committed = is_known
    ended = broken(started, MemoryError())
    ((_, outcome),) = finalize(Job.objects.all(), [ended])
    assert (outcome, ended.result, ended.error) == (Finalized.COMPLETED, 3, None)


def test_the_time_limit_rolls_back(take):
    started = []

    @job("t", atomic=True, timeout=60)
    def handler():
        Group.objects.create(name="late")
        started[0].block.interrupt()  # as the worker does when the time is up
        for _ in range(1000):
            pass

    Job.objects.enqueue("t")
    (claimed,) = take(limit=1)
    started.append(Run(claimed))
    finished = execute(started[0])
    assert finished.error["code"] == "timeout"
    assert names() == set()
    assert finalize(Job.objects.all(), [finished])[0][1] is Finalized.RETRIED


# Declared wrongly


def test_an_async_handler_is_refused():
    with refused(HandlerError, names="async def"):

        @job("t", atomic=True)
        async def handler():
            pass


def test_atomic_is_true_or_false():
    with refused(HandlerError, names="atomic=True"):
        job("t", atomic="yes")(lambda: None)


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_a_write_to_another_database_is_refused_with_the_hint(run):
    @job("t", atomic=True)
    def handler():
        Group.objects.create(name="here")
        assert not Group.objects.using("other").filter(name="there").exists()
        Group.objects.using("other").create(name="there")

    _, finished, outcome = run()
    assert outcome is Finalized.RETRIED
    assert "writes to 'other'" in finished.error["message"]
    assert "a job of its own" in finished.error["message"]
    assert names() == set()
    assert not Group.objects.using("other").exists()


# context.complete() and context.fence()


def test_complete_commits_with_the_block(run):
    @job("t", takes_context=True)
    def handler(context):
        with transaction.atomic():
            Group.objects.create(name="done")
            context.complete({"n": 2})
        return "deduplicated"

    _, finished, outcome = run()
    assert (outcome, finished.is_finalized) == (Finalized.COMPLETED, True)
    assert Job.objects.get().result == {"n": 2}
    assert names() == {"done"}


def test_what_is_raised_after_the_commit_is_logged_and_the_job_stays_completed(run, caplog):
    @job("t", takes_context=True)
    def handler(context):
        with transaction.atomic():
            context.complete()
        raise ValueError("afterwards")

    assert run()[2] is Finalized.COMPLETED
    assert Job.objects.get().state == "completed"
    assert "afterwards" in caplog.text


def test_a_block_that_is_rolled_back_takes_the_completion_with_it(run):
    @job("t", takes_context=True)
    def handler(context):
        with transaction.atomic():
            Group.objects.create(name="half")
            context.complete(1)
            raise ValueError("no")

    assert run()[2] is Finalized.RETRIED
    assert names() == set()


def test_after_a_rollback_the_handler_may_go_on_and_return(run):
    @job("t", takes_context=True)
    def handler(context):
        try:
            with transaction.atomic():
                context.complete(1)
                raise ValueError("no")
        except ValueError:
            return 2

    _, finished, outcome = run()
    assert (outcome, finished.is_finalized) == (Finalized.COMPLETED, False)
    assert Job.objects.get().result == 2


def test_a_savepoint_that_is_rolled_back_takes_the_completion_with_it(run):
    @job("t", takes_context=True)
    def handler(context):
        with transaction.atomic():
            try:
                with transaction.atomic():
                    context.complete(1)
                    raise ValueError("no")
            except ValueError:
                pass
        return 2

    assert run()[2] is Finalized.COMPLETED
    assert Job.objects.get().result == 2


@pytest.mark.parametrize("call", ["complete", "fence"])
def test_both_need_a_transaction(run, call):
    job("t", takes_context=True)(lambda context: getattr(context, call)())
    _, finished, _ = run()
    assert f"context.{call}() needs a transaction" in finished.error["message"]
    assert "with transaction.atomic():" in finished.error["message"]


def test_an_atomic_handler_returns_its_result(run):
    job("t", takes_context=True, atomic=True)(lambda context: context.complete(1))
    _, finished, _ = run()
    assert "return the result" in finished.error["message"]


@pytest.mark.parametrize("call", ["complete", "fence"])
def test_both_raise_when_the_job_was_taken_away_and_the_block_cannot_commit(take, call):
    @job("t", takes_context=True)
    def handler(context):
        with transaction.atomic():
            Group.objects.create(name="zombie")
            with suppress(LeaseLost):
                getattr(context, call)()

    Job.objects.enqueue("t")
    (claimed,) = take(limit=1)
    take_away()
    execute(Run(claimed))
    assert names() == set()


@pytest.mark.parametrize("is_atomic", [False, True])
@pytest.mark.parametrize("depth", [1, 2])
def test_the_block_cannot_commit_although_an_inner_one_was_left_before_the_error_was_caught(take, depth, is_atomic):
    @job("t", takes_context=True, atomic=is_atomic)
    def handler(context):
        with nullcontext() if is_atomic else transaction.atomic():
            Group.objects.create(name="zombie")
            with suppress(LeaseLost), ExitStack() as blocks:
                for _ in range(depth):
                    blocks.enter_context(transaction.atomic())
                context.fence()
            context.progress(1)

    Job.objects.enqueue("t")
    (claimed,) = take(limit=1)
    take_away()
    execute(Run(claimed))
    assert names() == set()
    Group.objects.create(name="the next transaction commits")
    assert len(names()) == 1


def test_fence_lets_the_holder_go_on(run):
    @job("t", takes_context=True)
    def handler(context):
        with transaction.atomic():
            context.fence()
            Group.objects.create(name="done")

    assert run()[2] is Finalized.COMPLETED
    assert names() == {"done"}


def test_complete_works_from_an_async_handler(take):
    @job("t", takes_context=True)
    async def handler(context):
        def write():
            with transaction.atomic():
                Group.objects.create(name="done")
                context.complete(9)

        await sync_to_async(write)()

    Job.objects.enqueue("t")
    (claimed,) = take(limit=1)
    finished = async_to_sync(aexecute)(Run(claimed))
    assert finalize(Job.objects.all(), [finished])[0][1] is Finalized.COMPLETED
    assert Job.objects.get().result == 9


# Beside the worker


@pytest.mark.parametrize("kind", ["completed", "pruned", "rolled back"])
def test_the_worker_does_not_take_a_completed_run_for_a_lost_one(take, kind):
    class Pool:
        runs = 0
        cancelled = False

        def cancel(self, run):
            self.cancelled = True

    job("t", takes_context=True)(lambda context: None)
    Job.objects.enqueue("t")
    (claimed,) = take(limit=1)
    pool = Pool()
    started = Run(claimed, pool=pool)
    claimed_runs = ClaimedRuns(Job.objects.all(), timedelta(seconds=30), lambda *_: None)
    claimed_runs.add(started)
    started.begin()
    with transaction.atomic():
        atomic.complete_here(started, 1)
        transaction.set_rollback(kind == "rolled back")
    if kind == "pruned":
        Job._base_manager.all().delete()
    elif kind == "rolled back":
        claimed_runs.cancel_lost(longer_than=-1)
        assert not started.cancelled, "it still has its lease"
        Job.objects.get().cancel()
    claimed_runs.cancel_lost(longer_than=-1)
    assert pool.cancelled == started.cancelled == (kind == "rolled back")


def test_a_run_that_is_given_up_after_its_commit_stays_completed(take):
    job("t", takes_context=True, timeout=1)(lambda context: None)
    Job.objects.enqueue("t")
    (claimed,) = take(limit=1)
    started = Run(claimed)
    with transaction.atomic():
        atomic.complete_here(started, 1)
    finished = timed_out(started)
    assert finalize(Job.objects.all(), [finished])[0][1] is Finalized.COMPLETED


# Keys


def test_a_key_is_the_same_in_each_attempt_and_another_for_each_step_and_job(take):
    keys = []

    @job("t", takes_context=True)
    def handler(context):
        keys.append((context.idempotency_key(), context.idempotency_key("charge"), context.idempotency_key("refund")))

    first = Job.objects.enqueue("t").job
    for _ in range(2):
        (claimed,) = take(limit=1)
        execute(Run(claimed))
        write(Job.objects.filter(pk=first.pk), state="available", lease_token=None)
    assert keys[0] == keys[1]
    write(Job.objects.filter(pk=first.pk), state="completed")
    Job.objects.enqueue("t")
    (claimed,) = take(limit=1)
    execute(Run(claimed))
    assert len({*keys[0], *keys[2]}) == 6


# Isolation levels


@pytest.mark.skipif(connection.vendor != "postgresql", reason="elsewhere such a conflict is a deadlock, or none")
@pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE"])
def test_a_real_serialisation_failure_calls_the_handler_again(run, level):
    psycopg = pytest.importorskip("psycopg")
    Group.objects.create(name="0")
    calls = []

    @job("t", atomic=True)
    def handler():
        seen = int(Group.objects.get().name)
        calls.append(seen)
        if len(calls) == 1:
            elsewhere(lambda: Group.objects.update(name="10"))
        Group.objects.update(name=str(seen + 1))

    connection.ensure_connection()
    connection.connection.isolation_level = psycopg.IsolationLevel[level]
    _, _, outcome = run()
    assert outcome is Finalized.COMPLETED
    assert calls == [0, 10]
    assert Group.objects.get().name == "11"


ADVICE = "call context.fence() at the beginning of the transaction"


@pytest.fixture(params=["READ_COMMITTED", "REPEATABLE_READ", "SERIALIZABLE"])
def level(request):
    """Let the transactions of this connection have an isolation level."""
    psycopg = pytest.importorskip("psycopg")
    connection.ensure_connection()
    connection.connection.isolation_level = psycopg.IsolationLevel[request.param]
    yield request.param
    connection.close()


def extend():
    """Extend the leases as the worker does meanwhile; return whether that changed a row."""
    running = list(Job.objects.filter(state="active"))
    return bool(elsewhere(lambda: leases.extend(Job.objects.all(), running, timedelta(minutes=1))))


@pytest.mark.skipif(connection.vendor != "postgresql", reason="elsewhere an UPDATE sees the newest row")
@pytest.mark.parametrize("way", ["complete", "step", "late fence"])
def test_after_an_extension_a_snapshot_cannot_write_the_row_and_the_error_advises_to_fence(run, level, way):
    @job("t", takes_context=True)
    def handler(context):
        with transaction.atomic():
            Group.objects.create(name="done")
            assert extend()
            if way == "late fence":
                context.fence()
            if way == "step":
                context.step("count", Group.objects.count)
            context.complete(1)

    _, finished, outcome = run()
    if level == "READ_COMMITTED":
        assert (outcome, names()) == (Finalized.COMPLETED, {"done"})
    else:
        assert (outcome, names()) == (Finalized.RETRIED, set())
        assert finished.error["message"].startswith("could not serialize access")
        assert ADVICE in finished.error["message"]
        assert finished.exception.__cause__.sqlstate == "40001"


@pytest.mark.skipif(connection.vendor != "postgresql", reason="elsewhere an UPDATE sees the newest row")
@pytest.mark.parametrize("extends_before", [False, True])
def test_a_transaction_that_fences_first_completes_beside_extensions_at_every_level(run, level, extends_before):
    @job("t", takes_context=True)
    def handler(context):
        assert not extends_before or extend()
        with transaction.atomic():
            context.fence()
            Group.objects.create(name="done")
            assert not extend()
            context.step("count", Group.objects.count)
            context.complete(1)

    _, _, outcome = run()
    assert (outcome, names()) == (Finalized.COMPLETED, {"done"})


def test_another_error_of_the_database_gets_no_advice(run, monkeypatch):
    def fail(run, result):
        raise OperationalError("no connection")

    monkeypatch.setattr(atomic, "_complete", fail)

    @job("t", takes_context=True)
    def handler(context):
        with transaction.atomic():
            context.complete(1)

    assert run()[1].error["message"] == "no connection"
