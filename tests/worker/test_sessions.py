"""Each job meets database connections as new, whatever the one before it did on them."""

import asyncio
import threading
from datetime import timedelta
from functools import partial
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import DatabaseError, connection, connections, transaction
from django.db.backends.signals import connection_created
from django.utils import timezone

from django_ojs_unique import Discard, Skip, job
from django_ojs_unique.db import sessions
from django_ojs_unique.db.sessions import Session
from django_ojs_unique.models import Event, Job
from django_ojs_unique.signals import job_completed, job_discarded, job_started
from django_ojs_unique.worker import Worker
from tests.support.background import working
from tests.support.processes import until

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

LAST = {"max_attempts": 1}
only = pytest.mark.skipif
locks_rows = only(connection.vendor == "sqlite", reason="there is one writer at a time, and no lock on a row")


def run(sql, params=None, using="default"):
    with connections[using].cursor() as cursor:
        cursor.execute(sql, params)
        return cursor.fetchall() if cursor.description else None


def one_after_the_other():
    return Worker(concurrency=1, async_concurrency=1).run(drain=True)


# Transactions


def begins():
    run("BEGIN")
    Group.objects.create(name="undone")


def begins_in_a_comment():
    run("/* a project that names its queries */ START TRANSACTION")
    Group.objects.create(name="undone")


def begins_again():
    run("BEGIN")
    Group.objects.create(name="undone")
    run("ROLLBACK AND CHAIN" if connection.vendor != "sqlite" else "SAVEPOINT once_more")
    Group.objects.create(name="undone too")


def turns_autocommit_off():
    transaction.set_autocommit(False)
    Group.objects.create(name="undone")


def enters_an_atomic_block():
    transaction.atomic().__enter__()
    Group.objects.create(name="undone")


def swallows_the_error_that_ended_it():
    begins()
    try:
        run("SELECT nothing FROM nowhere")
    except DatabaseError:
        connection.errors_occurred = False  # as a connection has it that Django does not know to be broken


def skips():
    begins()
    raise Skip("nothing to do")


OPENERS = [
    begins,
    pytest.param(
        begins_in_a_comment, marks=only(connection.vendor == "sqlite", reason="SQLite knows no START TRANSACTION")
    ),
    begins_again,
    turns_autocommit_off,
    enters_an_atomic_block,
    swallows_the_error_that_ended_it,
    skips,
]


@pytest.fixture
def writes(handlers):
    """Declare a job that writes a row, and commits it by itself."""
    job("writes", retry=LAST)(lambda: Group.objects.create(name="kept") and None)

    @job("writes.async", retry=LAST)
    async def awrite():
        await Group.objects.acreate(name="kept")


def in_a_thread(function):
    async def handler():
        await sync_to_async(function)()

    return handler


@pytest.mark.parametrize("opens", OPENERS)
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_run_that_leaves_a_transaction_open_has_failed_and_takes_in_nothing_of_the_next_job(writes, kind, opens):
    job("opens", retry=LAST)(opens if kind == "plain" else in_a_thread(opens))
    first = Job.objects.enqueue("opens", priority=1).job
    second = Job.objects.enqueue("writes" if kind == "plain" else "writes.async").job
    one_after_the_other()
    first.refresh_from_db()
    second.refresh_from_db()
    assert (first.state, second.state) == ("discarded", "completed")
    assert list(Group.objects.values_list("name", flat=True)) == ["kept"]
    (error,) = first.errors
    assert error["type"] == "django_ojs_unique.exceptions.TransactionLeftOpen"
    assert error["message"] == (
        "The handler left a transaction open on the database 'default', so all that it wrote there is undone."
        " Write `with transaction.atomic():`, or end each BEGIN with a COMMIT or a ROLLBACK."
    )


@pytest.mark.parametrize("opens", OPENERS)
def test_an_async_run_that_leaves_a_transaction_open_has_failed_on_a_connection_that_was_open_before(
    writes, monkeypatch, opens
):
    really_watch = sessions.watch

    def watch(kind=sessions.Session):
        really_watch(kind)
        connection.ensure_connection()  # by nobody's run

    monkeypatch.setattr(sessions, "watch", watch)
    job("opens", retry=LAST)(in_a_thread(opens))
    first = Job.objects.enqueue("opens").job
    one_after_the_other()
    first.refresh_from_db()
    assert first.state == "discarded"


@pytest.mark.slow
def test_a_run_that_failed_by_itself_keeps_its_own_error(writes):
    @job("opens", retry=LAST)
    def opens():
        begins()
        raise ValueError("its own")

    first = Job.objects.enqueue("opens", priority=1).job
    Job.objects.enqueue("writes")
    assert one_after_the_other().completed == 1
    first.refresh_from_db()
    assert first.errors[0]["type"] == "ValueError"
    assert Group.objects.get().name == "kept"


@pytest.mark.slow
@only(connection.vendor == "mysql", reason="without the wrapper, that driver reports no transaction")
def test_a_transaction_left_open_is_found_though_a_receiver_failed_when_the_thread_connected(writes):
    @job("connects")
    def connects():
        try:
            run("SELECT 1")
        except ValueError as error:
            raise Discard(str(error)) from None

    job("opens", retry=LAST)(begins)
    fails = [True]

    def receiver(**kwargs):
        if threading.current_thread().name == "ojs-0" and fails and fails.pop():
            raise ValueError("once")

    jobs = [
        Job.objects.enqueue(type, priority=-number).job for number, type in enumerate(["connects", "opens", "writes"])
    ]
    connection_created.connect(receiver)
    try:
        one_after_the_other()
    finally:
        connection_created.disconnect(receiver)
    assert [Job.objects.get(pk=row.pk).state for row in jobs] == ["discarded", "discarded", "completed"]
    assert not fails
    assert Group.objects.get().name == "kept"


def test_a_transaction_left_open_on_another_database_counts_as_well(writes):
    @job("opens", retry=LAST)
    def opens():
        run("BEGIN", using="other")
        Group.objects.using("other").create(name="undone")

    first = Job.objects.enqueue("opens").job
    one_after_the_other()
    first.refresh_from_db()
    assert "on the database 'other'" in first.errors[0]["message"]
    assert not Group.objects.using("other").exists()


@locks_rows
@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize("ends", ["returns", "raises"])
def test_the_rows_that_a_handler_locked_are_free_before_its_outcome_is_finalized(handlers, kind, ends):
    def locks(job_id):
        run("BEGIN")
        row = Job.objects.select_for_update()
        connection.in_atomic_block = True  # or Django would refuse the lock
        row.get(pk=job_id)
        connection.in_atomic_block = False
        assert ends == "returns"

    async def alocks(context):
        await sync_to_async(locks)(context.job_id)

    job("locks", retry=LAST, takes_context=True)(alocks if kind == "async" else lambda context: locks(context.job_id))
    for _ in range(4):
        Job.objects.enqueue("locks")
    with working(concurrency=2, async_concurrency=2, shutdown_timeout=0.1):
        until(lambda: Job.objects.filter(state="discarded").count() == 4, "all runs are finalized")


@pytest.mark.slow
@pytest.mark.parametrize("commits", ["COMMIT", "ROLLBACK"])
def test_a_transaction_that_the_handler_ends_is_none_of_our_business(handlers, commits):
    connections_seen = []

    @job("t", retry=LAST)
    def handler():
        begins()
        run(commits)
        connections_seen.append(connection.connection)

    for _ in range(2):
        Job.objects.enqueue("t")
        if commits == "COMMIT":
            Group.objects.all().delete()
        assert one_after_the_other().completed == 1
        Group.objects.all().delete()


def test_autocommit_that_is_off_with_all_committed_is_turned_on_for_the_next_and_fails_nothing(writes):
    @job("t", retry=LAST)
    def handler():
        transaction.set_autocommit(False)
        Group.objects.create(name="committed")
        transaction.commit()

    Job.objects.enqueue("t", priority=1)
    Job.objects.enqueue("writes")
    assert one_after_the_other().completed == 2
    assert Group.objects.count() == 2


def test_an_async_handler_is_not_blamed_for_the_transaction_of_another(handlers):
    opened, may_end = asyncio.Event(), asyncio.Event()

    @job("opens", retry=LAST)
    async def opens():
        await sync_to_async(begins)()
        opened.set()
        await may_end.wait()

    @job("looks", retry=LAST)
    async def looks():
        await opened.wait()
        await Group.objects.acount()
        asyncio.get_running_loop().call_later(0, may_end.set)  # once this one has ended

    first, second = Job.objects.enqueue("opens").job, Job.objects.enqueue("looks").job
    Worker(async_concurrency=2).run(drain=True)
    first.refresh_from_db()
    second.refresh_from_db()
    assert (first.state, second.state) == ("discarded", "completed")
    assert not Group.objects.exists()


# Sessions


SESSIONS = {
    "postgresql": [
        ("SET search_path TO pg_catalog", "SHOW search_path"),
        ("set statement_timeout = 12345", "SHOW statement_timeout"),
        ("/* a comment */ -- and one more\n SET ROLE pg_monitor", "SELECT current_user"),
        ("SELECT 1; SET lock_timeout = 12345", "SHOW lock_timeout"),
        ("SELECT set_config('work_mem', '12345kB', false)", "SHOW work_mem"),
        ("PREPARE leftover AS SELECT 1", "SELECT name FROM pg_prepared_statements"),
        ("CREATE TEMP TABLE leftover (id int)", "SELECT to_regclass('pg_temp.leftover')"),
        ("SELECT 1 AS id INTO TEMPORARY leftover", "SELECT to_regclass('pg_temp.leftover')"),
        ("DECLARE leftover CURSOR WITH HOLD FOR SELECT 1", "SELECT name FROM pg_cursors WHERE name = 'leftover'"),
        ("LISTEN leftover", "SELECT pg_listening_channels()"),
        (
            "SELECT pg_try_advisory_lock(4242)",
            "SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
        ),
    ],
    "mysql": [
        # Locks belong to the server, which other processes of pytest use at the same time.
        ("SET SESSION sort_buffer_size = 1234944", "SELECT @@sort_buffer_size"),
        ("SET @leftover = 1", "SELECT @leftover"),
        ("CREATE TEMPORARY TABLE leftover (id int)", "SHOW CREATE TABLE auth_group"),
        ("LOCK TABLES auth_group READ", "SELECT COUNT(*) FROM auth_permission WHERE id < 0"),
        ("SELECT GET_LOCK(CONCAT('leftover', DATABASE()), 0)", "SELECT IS_USED_LOCK(CONCAT('leftover', DATABASE()))"),
        ("USE information_schema", "SELECT DATABASE()"),
    ],
    "sqlite": [
        ("PRAGMA query_only = ON", "PRAGMA query_only"),
        ("ATTACH ':memory:' AS leftover", "SELECT name FROM pragma_database_list"),
        ("CREATE TEMP TABLE leftover (id int)", "SELECT name FROM sqlite_temp_master"),
    ],
}[connection.vendor]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize(("leaves", "look"), SESSIONS)
def test_what_a_job_changes_of_its_session_is_not_seen_by_the_next(handlers, kind, leaves, look):
    seen = []
    plain = {"leaves": partial(run, leaves), "looks": lambda: seen.append(run(look))}
    for name, function in plain.items():
        job(name, retry=LAST)(
            in_a_thread(function) if kind == "async" else lambda function=function: function() and None
        )
    for priority, name in enumerate(("looks", "leaves", "looks")):
        Job.objects.enqueue(name, priority=-priority)
    assert one_after_the_other().completed == 3
    assert seen[0] == seen[1]


def test_a_temporary_table_is_gone(handlers):
    def leaves():
        run("CREATE TEMPORARY TABLE leftover (id int)")

    job("t", retry=LAST)(leaves)
    for _ in range(2):
        Job.objects.enqueue("t")
    assert one_after_the_other().completed == 2


def reads():
    Group.objects.count()


def writes_in_a_transaction():
    with transaction.atomic():
        Group.objects.create(name="set_config; SET x; advisory_lock; temp")
        with transaction.atomic():
            Group.objects.update(name="CREATE TEMP TABLE")
        Group.objects.all().delete()


def begins_and_commits():
    run("BEGIN")
    run("SAVEPOINT one")
    run("ROLLBACK TO SAVEPOINT one")
    run("COMMIT")


def inside_a_transaction(*statements):
    def handler():
        with transaction.atomic():
            for statement in statements:
                run(*statement) if isinstance(statement, tuple) else run(statement)

    return handler


BEHAVED = [reads, writes_in_a_transaction, begins_and_commits]
if connection.vendor == "postgresql":
    BEHAVED += [
        inside_a_transaction("SET LOCAL statement_timeout = 12345"),
        inside_a_transaction("SET CONSTRAINTS ALL IMMEDIATE"),
        inside_a_transaction("SELECT set_config('app.tenant', '1', true)"),
        inside_a_transaction(("SELECT set_config('app.tenant', %s, %s)", ["1", True])),
        inside_a_transaction("CREATE TEMP TABLE brief (id int) ON COMMIT DROP"),
        inside_a_transaction("SELECT pg_advisory_xact_lock(4242)"),
        inside_a_transaction("SELECT pg_advisory_lock(4242)", "SELECT pg_advisory_unlock(4242)"),
        inside_a_transaction("LOCK TABLE auth_group IN SHARE MODE"),
    ]
if connection.vendor == "mysql":
    BEHAVED += [
        inside_a_transaction(
            "SELECT GET_LOCK(CONCAT('brief', DATABASE()), 0)", "SELECT RELEASE_LOCK(CONCAT('brief', DATABASE()))"
        ),
        inside_a_transaction("SET STATEMENT max_statement_time = 10 FOR SELECT 1"),
    ]


@pytest.mark.parametrize("behaves", BEHAVED)
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_handlers_that_leave_nothing_behind_keep_their_connection(handlers, kind, behaves):
    used = []

    def handler():
        behaves()
        used.append(connection.connection)

    job("t", retry=LAST)(in_a_thread(handler) if kind == "async" else handler)
    for _ in range(3):
        Job.objects.enqueue("t")
    assert one_after_the_other().completed == 3
    assert used[0] is used[1] is used[2] is not None


# Receivers


@pytest.fixture
def receiver():
    """Connect receivers, for this test only."""
    connected = []

    def connect(signal, function):
        def receive(**arguments):
            function()

        connected.append((signal, receive))
        signal.connect(receive)

    yield connect
    for signal, receive in connected:
        signal.disconnect(receive)


@pytest.mark.parametrize("signal", [job_started, job_completed])
@pytest.mark.parametrize("kind", ["writes", "writes.async"])
def test_what_receivers_leave_open_takes_in_nothing_and_the_log_says_so(
    writes, receiver, caplog, settings, signal, kind
):
    settings.OJS_UNIQUE = {"EVENTS": True}
    receiver(signal, lambda: run("BEGIN"))
    Job.objects.enqueue(kind)
    assert one_after_the_other().completed == 1
    assert Group.objects.get().name == "kept"
    assert Event.objects.filter(type="job.completed").count() == 1
    assert "A receiver of a signal left a transaction open on the database 'default'" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("signal", [job_started, job_completed])
def test_what_receivers_change_of_their_session_is_not_seen_by_the_next(handlers, receiver, signal):
    seen = []
    leaves, look = SESSIONS[0]
    receiver(signal, lambda: seen.append(run(look)))
    receiver(signal, partial(run, leaves))
    job("t", retry=LAST)(lambda: None)
    for _ in range(2):
        Job.objects.enqueue("t")
        Worker(concurrency=1, max_jobs=1).run()
    for _ in range(2):
        Job.objects.enqueue("t")
    with working(concurrency=1):
        until(lambda: Job.objects.filter(state="completed").count() == 4, "all jobs are completed")
    assert seen == [seen[0]] * 4


def expired():
    """Enqueue a job whose last attempt has lost its lease."""
    now = timezone.now()
    job = Job.objects.enqueue("t", retry=LAST).job
    lease = {"lease_token": uuid4(), "lease_expires_at": now - timedelta(seconds=1)}
    Job._base_manager.filter(pk=job.pk).update(state="active", attempt=1, started_at=now, **lease)


@pytest.mark.slow
def test_what_receivers_leave_open_does_not_stop_the_upkeep(receiver, caplog):
    receiver(job_discarded, lambda: run("BEGIN"))
    with working(concurrency=1):
        for _ in range(2):
            expired()
            until(lambda: not Job.objects.exclude(state="discarded").exists(), "expired leases are taken back")
    assert "A task of the worker failed" not in caplog.text


@locks_rows
def test_a_drain_leaves_no_limits_to_its_caller_if_receivers_broke_its_session(receiver):
    receiver(job_discarded, lambda: run("BEGIN"))
    if connection.vendor == "postgresql":
        look = "SELECT current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout')"
    else:
        look = "SELECT @@SESSION.innodb_lock_wait_timeout, @@SESSION.idle_transaction_timeout"
    before = run(look)
    expired()
    one_after_the_other()
    assert Job.objects.get().state == "discarded"
    assert run(look) == before


# What is not the next job's business, or not this one's


def test_the_wrapper_of_a_handler_ends_with_its_block_though_the_block_was_the_first_to_connect(handlers):
    seen, run_by = [], []

    def wrapper(execute, sql, params, many, context):
        seen.append(run_by[-1])
        return execute(sql, params, many, context)

    @job("wraps", retry=LAST)
    def wraps():
        run_by.append("wraps")
        with connection.execute_wrapper(wrapper):
            run("SELECT 1")
        run("BEGIN")

    @job("looks", retry=LAST)
    def looks():
        run_by.append("looks")
        run("SELECT 1")

    first = Job.objects.enqueue("wraps", priority=1).job
    Job.objects.enqueue("looks")
    one_after_the_other()
    assert set(seen) == {"wraps"}
    assert sessions_of(connection) == []
    first.refresh_from_db()
    assert "left a transaction open" in first.errors[0]["message"]


def sessions_of(connection):
    return [wrapper for wrapper in connection.execute_wrappers if isinstance(wrapper, Session)]


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_connection_that_the_handler_closed_behind_django_is_made_anew(writes, kind):
    def closes():
        run("SELECT 1")
        connection.connection.close()

    job("closes", retry=LAST)(closes if kind == "plain" else in_a_thread(closes))
    Job.objects.enqueue("closes", priority=1)
    Job.objects.enqueue("writes" if kind == "plain" else "writes.async")
    assert one_after_the_other().completed == 2


@only(connection.vendor == "sqlite", reason="SQLite has no such locks")
def test_an_async_handler_keeps_its_lock_while_others_end(handlers):
    lock, unlock = {
        "postgresql": ("SELECT pg_advisory_lock(4242)", "SELECT pg_advisory_unlock(4242)"),
        "mysql": ("SELECT GET_LOCK(CONCAT('ojs', DATABASE()), 1)", "SELECT RELEASE_LOCK(CONCAT('ojs', DATABASE()))"),
    }[connection.vendor]
    locked, other_ended, was_locked = asyncio.Event(), asyncio.Event(), []

    @job("locks", retry=LAST)
    async def locks():
        await sync_to_async(run)(lock)
        loop = asyncio.get_running_loop()

        def heard(job, **kwargs):
            loop.call_soon_threadsafe(other_ended.set)

        job_completed.connect(heard)
        try:
            locked.set()
            await other_ended.wait()
        finally:
            job_completed.disconnect(heard)
        was_locked.extend(await sync_to_async(run)(unlock))

    @job("looks", retry=LAST)
    async def looks():
        await locked.wait()
        await Group.objects.acount()

    for name in ("locks", "looks"):
        Job.objects.enqueue(name)
    assert Worker(async_concurrency=2).run(drain=True).completed == 2
    assert [bool(row[0]) for row in was_locked] == [True]
