"""Time limits: of plain handlers, of async ones, and of those that do not heed them."""

import asyncio
import os
import sys
import threading
import time
from datetime import timedelta
from select import select
from threading import Event, Thread

import pytest
from django.contrib.auth.models import Group
from django.db import OperationalError, connection, transaction

from django_ojs_unique import job
from django_ojs_unique.execution import leases, run
from django_ojs_unique.execution.run import Interruptible
from django_ojs_unique.handlers.control import TimeLimitExceeded
from django_ojs_unique.models import Job
from django_ojs_unique.worker import Worker, claimed_runs
from django_ojs_unique.worker.claimed_runs import ClaimedRuns
from tests.support.background import working
from tests.support.processes import PATIENCE, until
from tests.support.retries import IN_AN_HOUR

ROUNDS = 3_000

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.interrupts]


@pytest.fixture
def begun(monkeypatch):
    """Return an event before which no time is up: a busy machine may take long to come to the code in question."""
    begun, enforce = Event(), ClaimedRuns.enforce_time_limits
    monkeypatch.setattr(claimed_runs, "WRITE_OFF_SECONDS", PATIENCE)
    monkeypatch.setattr(ClaimedRuns, "enforce_time_limits", lambda self: begun.is_set() and enforce(self))
    return begun


def go_on(begun):
    """Run Python code until interrupted."""
    never = Event()
    begun.set()
    while True:
        never.wait(0.001)


@pytest.mark.slow
def test_plain_python_code_is_interrupted_and_the_error_says_timeout(handlers, begun):
    job("t", timeout="PT0.01S", retry=IN_AN_HOUR)(lambda: go_on(begun))
    Job.objects.enqueue("t")
    assert Worker().run(drain=True).retried == 1
    row = Job.objects.get()
    assert (row.state, row.errors[0]["type"], row.errors[0]["code"]) == ("retryable", "timeout", "timeout")
    assert row.errors[0]["message"] == "The attempt took longer than 0.01 seconds."
    assert "in go_on" in row.errors[0]["details"]["traceback"]


@pytest.mark.parametrize("names", [["timeout"], ["TimeLimitExceeded"], ["django_ojs_unique.handlers.control.*"]])
def test_the_retry_policy_may_discard_what_took_too_long(handlers, begun, names):
    job("t", timeout="PT0.01S", retry={"non_retryable_errors": names})(lambda: go_on(begun))
    Job.objects.enqueue("t")
    assert Worker().run(drain=True).discarded == 1


@pytest.mark.slow
def test_an_except_exception_does_not_swallow_the_interruption_and_finally_runs(handlers, begun):
    ended = []

    @job("t", timeout="PT0.01S", retry={"max_attempts": 1})
    def handler():
        while True:
            try:
                go_on(begun)
            except Exception:
                ended.append("swallowed")
            finally:
                ended.append("finally")

    Job.objects.enqueue("t")
    Worker().run(drain=True)
    assert ended == ["finally"]
    assert Job.objects.get().errors[0]["code"] == "timeout"


def test_the_skip_unless_of_a_handler_is_under_its_time_limit(handlers, begun):
    job("t", timeout="PT0.01S", skip_unless=lambda: go_on(begun))(lambda: None)
    Job.objects.enqueue("t")
    Worker().run(drain=True)
    assert Job.objects.get().errors[0]["code"] == "timeout"


def swallow(pipe, arrive):
    """Take no notice of any exception until the pipe is closed."""
    while True:
        try:
            arrive()
            while not select([pipe], [], [], 0.001)[0]:
                pass
            return
        except BaseException:
            continue


def block(pipe, arrive):
    """Wait outside of Python code, where no exception arrives."""
    try:
        arrive()
        select([pipe], [], [])
    except TimeLimitExceeded:  # it came before the wait began
        select([pipe], [], [])


@pytest.mark.parametrize("resist", [swallow, block])
def test_a_handler_that_does_not_end_is_written_off_and_the_worker_goes_on(
    handlers, begun, monkeypatch, caplog, resist
):
    monkeypatch.setattr(claimed_runs, "WRITE_OFF_SECONDS", 0.01)
    pipe, other_end = os.pipe()
    threads = set()

    def arrive():
        threads.add(threading.current_thread())
        if len(threads) == 2:
            begun.set()

    @job("stubborn", timeout="PT0.01S", retry={"max_attempts": 1})
    def stubborn():
        resist(pipe, arrive)
        return "late"

    job("next")(lambda: "in time")
    for _ in range(2):
        Job.objects.enqueue("stubborn", priority=1)
    for _ in range(3):
        Job.objects.enqueue("next")
    worker = Worker(concurrency=2)
    try:
        summary = worker.run(drain=True)
    finally:
        os.close(other_end)
    assert (summary.completed, summary.discarded, worker.left_behind) == (3, 2, 2)
    assert caplog.text.count("does not end; going on without it") == 2
    for thread in threads:
        thread.join(PATIENCE)
    os.close(pipe)
    assert caplog.text.count("ended after it was given up") == 2
    late = Job.objects.filter(type="stubborn")
    assert {(row.state, row.errors[0]["code"], row.result) for row in late} == {("discarded", "timeout", None)}


def test_the_connection_of_an_interrupted_handler_is_not_used_again(handlers, begun):
    seen = []

    @job("first", timeout="PT0.01S", retry=IN_AN_HOUR)
    def first():
        with transaction.atomic():
            Job.objects.filter(type="second").update(tags=["unfinished"])
            seen.append(connection.connection)
            go_on(begun)

    @job("second")
    def second():
        seen.extend([Job.objects.get(type="second").tags, connection.in_atomic_block, connection.connection])

    for type in ("first", "second"):
        Job.objects.enqueue(type)
    assert Worker(concurrency=1).run(drain=True).completed == 1
    before, tags, in_atomic_block, after = seen
    assert (tags, in_atomic_block) == ([], False)
    assert before is not after


def test_a_handler_is_interrupted_though_no_lease_can_be_extended(handlers, begun, monkeypatch):
    """A handler that holds SQLite's write lock keeps its own worker from extending leases."""

    extend, failures, unlocked = leases.extend, [], Event()

    def fail(*args, **options):
        if unlocked.is_set() or len(failures) == 100:
            return extend(*args, **options)
        failures.append(args)
        begun.set()
        raise OperationalError("database is locked")

    @job("t", timeout="PT0.01S", retry=IN_AN_HOUR)
    def lock():
        try:
            go_on(Event())
        finally:
            unlocked.set()

    monkeypatch.setattr(leases, "extend", fail)
    Job.objects.enqueue("t")
    assert Worker(lease=timedelta(seconds=3)).run(drain=True).retried == 1  # it extends after a second
    assert 0 < len(failures) < 100


@pytest.fixture
def locking(handlers, begun, monkeypatch):
    """Declare an atomic handler that goes on when its worker waits for the lock that it holds; return an end for it."""
    waits, extend, ended = Event(), leases.extend, Event()

    def note(*args, **options):
        waits.set()
        return extend(*args, **options)

    @job("t", atomic=True, timeout="PT0.01S", retry=IN_AN_HOUR)
    def handler():
        Group.objects.create(name="locks")
        waits.wait(PATIENCE)
        begun.set()
        while not ended.wait(0.001):
            pass

    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "timeout", 10 * PATIENCE)
    monkeypatch.setattr(leases, "extend", note)
    Job.objects.enqueue("t")
    yield waits
    ended.set()


@pytest.mark.skipif(connection.vendor != "sqlite", reason="elsewhere a worker skips what is locked")
def test_an_atomic_handler_is_interrupted_though_its_worker_waits_for_its_lock(locking):
    with working(lease=timedelta(seconds=0.3)):
        until(Job.objects.filter(state="retryable").exists, "the handler was interrupted")
    assert Job.objects.get().errors[0]["code"] == "timeout"
    assert not Group.objects.exists()


@pytest.mark.skipif(connection.vendor != "sqlite", reason="elsewhere a worker skips what is locked")
def test_a_worker_stops_in_time_though_an_atomic_handler_holds_the_lock(locking, monkeypatch):
    monkeypatch.setattr(ClaimedRuns, "enforce_time_limits", lambda self: None)
    with working(lease=timedelta(seconds=0.3), shutdown_timeout=0.1):
        assert locking.wait(PATIENCE)


@pytest.mark.skipif(connection.vendor != "sqlite", reason="the tests of session limits cover the others")
def test_the_connection_of_the_caller_waits_for_locks_as_long_as_before(handlers):
    def patience():
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout")
            return cursor.fetchone()

    before, seen = patience(), []
    job("t")(lambda: None)
    Job.objects.enqueue("t")
    worker = Worker(lease=timedelta(seconds=6), on_finalized=lambda summary: seen.append(patience()))
    worker.run(drain=True)
    assert (seen, patience()) == ([(1000,)], before)


def test_an_async_handler_is_cancelled_where_it_awaits(handlers, begun):
    ended = []

    @job("t", timeout="PT0.01S", retry=IN_AN_HOUR)
    async def handler():
        try:
            begun.set()
            await asyncio.Event().wait()
        except Exception:
            ended.append("swallowed")
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    Job.objects.enqueue("t")
    assert Worker().run(drain=True).retried == 1
    assert ended == ["cancelled"]
    error = Job.objects.get().errors[0]
    assert (error["type"], error["code"]) == ("timeout", "timeout")


def test_a_timeout_error_of_an_async_handler_itself_is_its_own(handlers):
    @job("t", timeout="PT1H")
    async def handler():
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    Job.objects.enqueue("t")
    Worker().run(drain=True)
    error = Job.objects.get().errors[0]
    assert (error["type"], error["code"]) == ("TimeoutError", "handler_error")


@pytest.mark.slow
def test_an_async_handler_that_goes_on_is_written_off_and_others_take_its_place(handlers, monkeypatch):
    monkeypatch.setattr(claimed_runs, "WRITE_OFF_SECONDS", 0.01)
    release = Event()

    @job("stubborn", timeout="PT0.01S", retry={"max_attempts": 1})
    async def stubborn():
        while not release.is_set():
            try:
                await asyncio.sleep(0.001)
            except asyncio.CancelledError:
                continue
        return "late"

    @job("next")
    async def next_one():
        release.set()

    Job.objects.enqueue("stubborn", priority=1)
    Job.objects.enqueue("next")
    summary = Worker(async_concurrency=1).run(drain=True)
    assert (summary.completed, summary.discarded) == (1, 1)
    assert Job.objects.get(type="stubborn").result is None


# The interruption itself


def test_a_block_that_nobody_interrupts_is_left_as_it_is():
    block = Interruptible()
    with block:
        pass
    block.interrupt()


def test_an_interruption_that_comes_before_the_block_meets_it_at_its_entry():
    block = Interruptible()
    block.interrupt()
    with pytest.raises(TimeLimitExceeded), block:
        pytest.fail("The block ran.")


def test_what_the_block_raises_is_raised():
    with pytest.raises(ValueError, match="own"), Interruptible():
        raise ValueError("own")


@pytest.mark.parametrize("steps", [0, 1, 10, 100])
def test_an_interruption_never_arrives_after_the_end_of_its_block(steps):
    """Two threads race: one enters and leaves blocks, the other interrupts whichever is the newest."""
    rounds, counts = ROUNDS, {"in time": 0, "too late": 0, "astray": 0}
    newest = [Interruptible()]
    ended = Event()

    def keep_interrupting():
        while not ended.is_set():
            newest[0].interrupt()
            time.sleep(0)  # lets the other thread go on

    def work():
        for _ in range(rounds):
            block, caught = Interruptible(), False
            newest[0] = block
            try:
                with block:
                    for _ in range(steps):
                        pass
            except TimeLimitExceeded:
                caught = True
            for _ in range(20):  # it would arrive here
                (lambda: None)()
            counts["in time" if caught else "too late"] += 1
            if caught and not block._sent:
                counts["astray"] += 1

    def interrupted():
        try:
            work()
        except TimeLimitExceeded:
            counts["astray"] += 1
        finally:
            ended.set()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [Thread(target=keep_interrupting), Thread(target=interrupted)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    finally:
        sys.setswitchinterval(before)
    assert counts["astray"] == 0
    assert counts["in time"] + counts["too late"] == rounds


def test_an_interruption_while_the_block_raises_lets_one_of_both_through_and_nothing_else():
    rounds, newest, ended, strange = ROUNDS, [Interruptible()], Event(), []

    def keep_interrupting():
        while not ended.is_set():
            newest[0].interrupt()
            time.sleep(0)  # lets the other thread go on

    thread = Thread(target=keep_interrupting)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for _ in range(rounds):
            newest[0] = Interruptible()
            try:
                with newest[0]:
                    raise ValueError
            except (ValueError, TimeLimitExceeded):
                pass
            else:
                strange.append("nothing raised")
            for _ in range(20):
                (lambda: None)()
    finally:
        ended.set()
        thread.join()
        sys.setswitchinterval(before)
    assert strange == []


def test_a_block_does_not_end_while_its_interruption_is_on_its_way(monkeypatch):
    """The interruption is sent when the block's thread is already at its end; it must not arrive behind it."""
    on_its_way, left, real = Event(), Event(), run._raise_in
    runner = threading.get_ident()

    def send_late(thread, error):
        if error is not None:
            on_its_way.set()
            ends = Interruptible.__exit__.__code__
            until(lambda: left.is_set() or sys._current_frames()[runner].f_code is ends, "the block came to its end")
        real(thread, error)

    monkeypatch.setattr(run, "_raise_in", send_late)
    block = Interruptible()
    interrupter = Thread(target=block.interrupt)
    try:
        with block:
            interrupter.start()
            assert on_its_way.wait(PATIENCE)
        left.set()
        interrupter.join()
        for _ in range(20):
            (lambda: None)()
    except TimeLimitExceeded:
        pytest.fail("It arrived after the end of the block.")
