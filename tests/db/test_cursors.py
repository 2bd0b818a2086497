"""The kept cursor: what an enqueue executes on it is the same, and whoever watches Django's cursors misses nothing."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from threading import Thread

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError, connection, connections, transaction
from django.db.backends.utils import CursorWrapper
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django.utils.asyncio import async_unsafe

from django_ojs_unique import DuplicateJob, UniquePolicy
from django_ojs_unique.db.dialects import dialect_of
from django_ojs_unique.db.fast import cursors
from django_ojs_unique.db.postgresql import PostgreSQL
from django_ojs_unique.db.sessions import watched
from django_ojs_unique.exceptions import NotMigrated
from django_ojs_unique.execution.claim import claim
from django_ojs_unique.execution.finalize import finalize
from django_ojs_unique.execution.run_result import RunResult
from django_ojs_unique.models import Job, SuppressedEnqueue

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor == "mysql", reason="MariaDB's statements go through Django's cursor"),
]
postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="about the driver of PostgreSQL")
ARGS = {"text": "é\u2028", "n": [1, 1.5, None, {"deep": [True]}]}
HOUR = timedelta(hours=1)
POLICY = UniquePolicy(keys=["type", "args"], on_conflict="ignore")


@pytest.fixture(autouse=True)
def connected(transactional_db):
    """Open a connection of this test alone."""
    connection.close()
    connection.ensure_connection()
    yield
    connection.close()


@pytest.fixture
def kept(monkeypatch):
    """Collect what is executed on kept cursors."""
    statements = []
    make = cursors._kept_cursor

    def spy(dialect, connection):
        found = make(dialect, connection)
        return found if found is None else Spy(found)

    class Spy:
        def __init__(self, found):
            self.found = found

        def execute(self, sql, params, *overlap, **options):
            statements.append(sql)
            return self.found.execute(sql, params, *overlap, **options)

    monkeypatch.setattr(cursors, "_kept_cursor", spy)
    return statements


def enqueue(number=0, **options):
    return Job.objects.enqueue("t", {**ARGS, "number": number}, **{"unique": POLICY, **options})


def met(unique):
    """Enqueue, and return what the answer says of the duplicate."""
    try:
        job = enqueue(unique=unique).job
        return job.pk, job.state
    except DuplicateJob as refusal:
        return refusal.existing_job_id, refusal.existing_job_state


def first_words(statements):
    return [sql.split()[0] for sql in statements]


def test_a_new_job_takes_one_statement_and_is_stored_as_it_was_given(kept):
    job = enqueue(meta={"a": 1}, tags=["x"], priority=5, scheduled_at=timezone.now() + timedelta(hours=1)).job
    assert first_words(kept) == ["INSERT"]
    stored = Job.objects.get()
    for field in Job._meta.concrete_fields:
        assert getattr(stored, field.attname) == getattr(job, field.attname), field.name


@pytest.mark.parametrize("period", [None, "PT1H", "P1M"])
@pytest.mark.parametrize("on_conflict", ["ignore", "reject"])
def test_a_duplicate_takes_one_statement_more_and_the_next_ones_take_one_beside_their_record(kept, period, on_conflict):
    unique = UniquePolicy(keys=["args"], period=period, on_conflict=on_conflict)
    first = enqueue(unique=unique).job
    if connection.vendor == "sqlite":  # where a look before an insert could not become a write
        found = expected = ["INSERT", "SELECT", "INSERT"]
    else:
        found = ["SELECT", "INSERT"] if period == "P1M" else ["WITH"]
        expected = ["INSERT", *found]
    for _ in range(3):
        kept.clear()
        assert met(unique) == (first.pk, "available")
        assert first_words(kept) == expected
        expected = found
    kept.clear()
    assert enqueue(2, unique=unique).created
    assert first_words(kept) == ([found[0], "INSERT"] if connection.vendor == "postgresql" else ["INSERT"])
    records = SuppressedEnqueue.objects.values_list("existing_job", "existing_state", "outcome", "args", "job")
    outcome = {"ignore": "deduplicated", "reject": "rejected"}[on_conflict]
    assert list(records) == [(first.pk, "available", outcome, first.args, None)] * 3
    kept.clear()
    assert enqueue(3, unique=unique).created
    assert first_words(kept) == ["INSERT"]


@pytest.mark.parametrize("period", [None, "PT1H", "P1M"])
@pytest.mark.parametrize("is_counted", [True, False])
def test_a_record_is_written_exactly_when_the_policy_counts_what_was_found(period, is_counted):
    enqueue()
    policy = UniquePolicy(keys=["type", "args"], period=period, on_conflict="ignore", states=["available", "active"])
    if not is_counted:
        old = timezone.now() - timedelta(days=40)
        Job._base_manager.update(**({"state": "scheduled"} if period is None else {"created_at": old}))
    assert enqueue(unique=policy).created is not is_counted
    assert SuppressedEnqueue.objects.count() == is_counted


@postgresql
def test_a_record_in_a_transaction_that_django_does_not_know_of_waits_with_it():
    enqueue()
    with connection.connection.transaction(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL synchronous_commit = on")
        assert enqueue().deduplicated
        cursor.execute("SHOW synchronous_commit")
        assert cursor.fetchone() == ("on",)
    assert SuppressedEnqueue.objects.count() == 1


@postgresql
@pytest.mark.parametrize("is_kept", [True, False])
def test_only_a_record_on_its_own_does_not_wait_for_the_disk(kept, is_kept):
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = on")

    def waits():
        with connection.cursor() as cursor:
            cursor.execute("SHOW synchronous_commit")
            return cursor.fetchone()[0]

    enqueue()
    with transaction.atomic():
        enqueue()
        assert waits() == "on"
        transaction.set_rollback(not is_kept)
    assert SuppressedEnqueue.objects.count() == is_kept
    enqueue()
    assert waits() == "on"
    assert SuppressedEnqueue.objects.count() == is_kept + 1
    assert ["'synchronous_commit', 'off'" in sql for sql in kept if sql.startswith("WITH")] == [False, True]


def test_a_replacement_and_a_stale_hold_are_finalized(kept):
    first = enqueue().job
    second = enqueue(unique={"keys": ["type", "args"], "on_conflict": "replace"})
    assert [job.pk for job in second.replaced] == [first.pk]
    Job.objects.filter(pk=second.job.pk).update(created_at=timezone.now() - timedelta(hours=2))
    third = enqueue(unique={"keys": ["type", "args"], "period": "PT1H"})
    assert third.created
    assert not Job.objects.get(pk=second.job.pk).holds_unique_key


def test_a_batch_and_its_duplicates_are_the_same_on_a_kept_cursor(kept):
    items = [{"type": "t", "args": {**ARGS, "number": number}, "unique": POLICY} for number in range(3)]
    assert [str(one.outcome) for one in Job.objects.enqueue_many(items)] == ["created"] * 3
    assert [str(one.outcome) for one in Job.objects.enqueue_many(items)] == ["deduplicated"] * 3
    assert [job.args["number"] for job in Job.objects.order_by("pk")] == [0, 1, 2]


# who watches


def test_captured_queries_are_all_of_them(kept):
    with CaptureQueriesContext(connection) as queries:
        enqueue()
    assert kept == []
    assert len(queries) == 1


def test_with_debug_on_each_statement_is_logged(kept, settings):
    settings.DEBUG = True
    enqueue()
    assert kept == []
    assert any("INSERT" in query["sql"] for query in connection.queries)


def test_an_execute_wrapper_sees_each_statement(kept):
    seen = []

    def wrapper(execute, sql, params, many, context):
        seen.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(wrapper):
        enqueue()
    assert kept == []
    assert first_words(seen) == ["INSERT"]


def test_what_a_worker_attaches_to_its_connections_is_no_watcher(kept):
    with watched():
        enqueue()
    assert first_words(kept) == ["INSERT"]


@pytest.mark.parametrize("wraps", [True, False])
@pytest.mark.parametrize("name", ["execute", "_execute", "_execute_with_wrappers"])
def test_a_patched_cursor_sees_each_statement(kept, monkeypatch, name, wraps):
    plain, seen = getattr(CursorWrapper, name), []

    def execute(self, sql, *args, **kwargs):
        seen.append(sql)
        return plain(self, sql, *args, **kwargs)

    monkeypatch.setattr(CursorWrapper, name, functools.wraps(plain)(execute) if wraps else execute)
    enqueue()
    assert kept == []
    assert first_words(seen) == ["INSERT"]


@pytest.mark.parametrize("name", ["cursor", "make_cursor", "create_cursor", "_cursor", "ensure_connection"])
@pytest.mark.parametrize("on_class", [True, False])
def test_a_patched_connection_sees_each_statement(kept, monkeypatch, name, on_class):
    own = connections["default"]
    owner, seen = (type(own) if on_class else own), []
    plain = getattr(owner, name)

    def patch(*args, **kwargs):
        seen.append(name)
        return plain(*args, **kwargs)

    monkeypatch.setattr(owner, name, patch, raising=False)
    enqueue()
    assert kept == []
    assert set(seen) == {name}


def test_a_patch_inside_a_decorator_of_django_is_a_patch(kept, monkeypatch):
    kind = type(connections["default"])
    plain, seen = kind.cursor, []

    def cursor(self):
        seen.append("cursor")
        return plain(self)

    monkeypatch.setattr(kind, "cursor", async_unsafe(cursor))
    enqueue()
    assert kept == []
    assert seen == ["cursor"]


def test_a_method_with_a_proxy_around_it_is_a_patch(kept, monkeypatch):
    class Proxy:
        """What `wrapt` makes: it takes over every attribute."""

        def __init__(self, wrapped):
            self.__wrapped__ = wrapped
            self.__code__ = wrapped.__code__

        def __get__(self, instance, owner):
            return self if instance is None else functools.partial(self.__wrapped__, instance)

        def __hash__(self):
            return id(self)

    monkeypatch.setattr(CursorWrapper, "execute", Proxy(CursorWrapper.execute))
    enqueue()
    assert kept == []


@postgresql
@pytest.mark.parametrize("what", ["factory", "class", "timezone"])
def test_a_driver_that_somebody_has_changed_keeps_no_cursor(kept, what, monkeypatch):
    raw = connection.connection
    if what == "factory":
        raw.cursor_factory = type("Traced", (raw.cursor_factory,), {})
    elif what == "class":
        raw.__class__ = type("Traced", (type(raw),), {})
    else:
        monkeypatch.setitem(connection.settings_dict, "TIME_ZONE", "Asia/Tokyo")
        vars(connections["default"]).pop("timezone", None)
        vars(connections["default"]).pop("timezone_name", None)
    first = enqueue().job
    assert kept == []
    assert enqueue().job == first
    vars(connections["default"]).pop("timezone", None)
    vars(connections["default"]).pop("timezone_name", None)


# what Django's cursors refuse


def test_in_a_running_event_loop_django_refuses_and_so_does_an_enqueue(monkeypatch):
    monkeypatch.delitem(os.environ, "DJANGO_ALLOW_ASYNC_UNSAFE", raising=False)

    async def call():
        return enqueue()

    with pytest.raises(SynchronousOnlyOperation):
        asyncio.run(call())
    assert not Job.objects.exists()


def test_a_kept_cursor_is_not_used_in_a_running_event_loop(monkeypatch):
    monkeypatch.delitem(os.environ, "DJANGO_ALLOW_ASYNC_UNSAFE", raising=False)
    enqueue()
    dialect = dialect_of(Job.objects.all())

    async def call():
        cursors.execute(dialect, "SELECT 1", [])

    with pytest.raises(SynchronousOnlyOperation):
        asyncio.run(call())


def test_a_kept_cursor_is_not_used_in_another_thread():
    enqueue()
    dialect = dialect_of(Job.objects.all())
    with ThreadPoolExecutor(1) as threads, pytest.raises(DatabaseError, match="thread"):
        threads.submit(cursors.execute, dialect, "SELECT 1", []).result()


def test_a_connection_that_django_must_check_first_is_used_by_its_cursor(kept, monkeypatch):
    own = connections["default"]
    monkeypatch.setattr(own, "health_check_enabled", True)
    monkeypatch.setattr(own, "health_check_done", False)
    enqueue(1)
    assert kept == []
    assert own.health_check_done
    enqueue(2)
    assert first_words(kept) == ["INSERT"]


def test_in_a_broken_transaction_django_refuses_and_so_does_an_enqueue():
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(transaction.TransactionManagementError):
            enqueue()


def test_a_failed_statement_raises_djangos_error_and_marks_the_connection(kept):
    with connection.cursor() as cursor:
        cursor.execute('ALTER TABLE "django_ojs_unique_job" RENAME TO "elsewhere"')
    try:
        with pytest.raises(NotMigrated) as caught:
            enqueue()
        assert isinstance(caught.value.__cause__, DatabaseError)
        assert kept
        assert connection.errors_occurred
    finally:
        with connection.cursor() as cursor:
            cursor.execute('ALTER TABLE "elsewhere" RENAME TO "django_ojs_unique_job"')


def test_a_new_connection_gets_a_cursor_of_its_own(kept):
    enqueue(1)
    connection.close()
    assert enqueue(2).created  # connects by Django's cursor
    assert enqueue(3).created
    assert first_words(kept) == ["INSERT", "INSERT"]


# preparing


def prepared():
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement, generic_plans FROM pg_prepared_statements")
        return dict(cursor.fetchall())


@postgresql
def test_after_a_few_uses_statements_are_prepared():
    for number in range(4):
        enqueue(number)
    assert prepared() == {}
    for number in range(4, 20):
        enqueue(number)
    assert [sql.split()[0] for sql in prepared()] == ["INSERT"]
    assert Job.objects.count() == 20


@postgresql
def test_a_project_can_forbid_preparing(monkeypatch):
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "prepare_threshold", None)
    for number in range(20):
        enqueue(number)
    assert prepared() == {}


@postgresql
@pytest.mark.parametrize("options", [{}, {"prepare_threshold": 100}])
def test_nothing_is_prepared_behind_a_pooler_unless_the_project_says_that_it_can(monkeypatch, options):
    from psycopg import ConnectionInfo

    backend = ConnectionInfo.backend_pid.fget
    monkeypatch.setattr(ConnectionInfo, "backend_pid", property(lambda info: backend(info) + 1))
    for name, value in options.items():
        monkeypatch.setitem(connection.settings_dict["OPTIONS"], name, value)
    for number in range(20):
        enqueue(number)
    assert bool(prepared()) is bool(options)


@postgresql
@pytest.mark.parametrize("end", ["DISCARD ALL", "DEALLOCATE ALL", "DISCARD PLANS"])
def test_a_project_that_discards_what_is_prepared_stops_nothing(end):
    for number in range(10):
        enqueue(number)
    with connection.cursor() as cursor:
        cursor.execute(end)
    for number in range(10, 20):
        assert enqueue(number).created
    assert Job.objects.count() == 20


@postgresql
def test_a_column_that_gets_another_type_stops_nothing():
    for _ in range(10):
        enqueue()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE django_ojs_unique_job ALTER COLUMN type TYPE varchar(300)")
    try:
        for _ in range(3):
            assert enqueue().deduplicated
        assert enqueue(2).created
        with transaction.atomic():
            assert enqueue().deduplicated
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE django_ojs_unique_job ALTER COLUMN type TYPE varchar(255)")


@postgresql
@pytest.mark.parametrize("end", ["DISCARD ALL", "DEALLOCATE ALL", "SELECT 1"])
def test_a_statement_beside_which_something_else_is_done_is_prepared_too(end):
    done = []
    for number in range(20):
        if number == 10:
            assert [sql.split()[0] for sql in prepared()] == ["VALUES"]
            with connection.cursor() as cursor:
                cursor.execute(end)
        count, rows = cursors.execute(
            dialect_of(Job.objects.all()), "VALUES (%s::int)", [number], lambda: done.append(connection.connection)
        )
        assert (count, rows) == (1, [(number,)])
    assert done == [connection.connection] * 20
    assert connection.connection.info.pipeline_status.name == "OFF"


class Interrupt(Exception):
    """What a time limit raises."""


@postgresql
@pytest.mark.parametrize("kind", [Interrupt, KeyboardInterrupt])
def test_an_interrupt_while_the_database_works_is_raised_and_leaves_a_usable_connection(monkeypatch, kind):
    from psycopg import Pipeline

    def claim_one(overlap):
        return claim(
            Job.objects.all(), queues=["default"], types=None, limit=1, worker_id="w", lease=HOUR, now=timezone.now(),
            with_rules=(), overlap=overlap,
        )  # fmt: skip

    for number in range(3):
        enqueue(number)
    fetch = Pipeline._exit_gen

    def interrupted(pipeline):
        if pipeline.result_queue:
            raise kind
        yield from fetch(pipeline)

    with monkeypatch.context() as patch:
        patch.setattr(Pipeline, "_exit_gen", interrupted)
        with pytest.raises(kind):
            claim_one(bool)
    assert len(claim_one(bool)) == 1


@postgresql
@pytest.mark.parametrize("is_supported", [True, False])
def test_what_overlaps_a_statement_is_done_once_with_pipelines_and_without(monkeypatch, is_supported):
    from psycopg import Connection, Pipeline

    if not is_supported:
        monkeypatch.setattr(Pipeline, "is_supported", lambda: False)
        monkeypatch.setattr(Connection, "pipeline", None)
    enqueue(1)
    happened = []
    dialect = dialect_of(Job.objects.all())
    assert cursors.execute(dialect, "SELECT 1", [], lambda: happened.append(1)) == (1, [(1,)])
    assert happened == [1]


@postgresql
def test_a_rolled_back_transaction_stops_nothing():
    for number in range(10):
        enqueue(number)
    for undo in (True, False):
        with transaction.atomic():
            enqueue(100)
            with transaction.atomic():
                enqueue(101)
                transaction.set_rollback(True)
            transaction.set_rollback(undo)
    assert enqueue(100).deduplicated
    assert enqueue(101).created


@postgresql
def test_django_prepares_no_statement_of_the_project_because_of_it():
    for number in range(10):
        enqueue(number)
        list(Job.objects.filter(type="t"))
    assert [sql.split()[0] for sql in prepared()] == ["INSERT"]


@postgresql
def test_the_driver_prepares_no_other_statement_because_of_it():
    from psycopg import Cursor

    for number in range(10):
        enqueue(number)
    for _ in range(20):
        Cursor(connection.connection).execute("SELECT 42")
    assert [sql.split()[0] for sql in prepared()] == ["INSERT"]


@postgresql
def test_no_text_of_the_projects_statements_is_kept():
    for number in range(10):
        enqueue(number)
    for number in range(150):
        Job.objects.filter(type=f"{number}" * 10_000).exists()
    assert sum(len(text) for text, _ in connection.connection._prepared._counts) < 10_000
    assert len(prepared()) == 1


@postgresql
def test_a_pool_that_resets_its_connections_keeps_nothing_prepared(monkeypatch):
    from django_ojs_unique.db.fast.prepared import PreparingCursor

    with monkeypatch.context() as patch:  # only while the cursor is made
        patch.setitem(connection.settings_dict["OPTIONS"], "pool", {"reset": print})
        cursor = PreparingCursor(connections["default"])
    for _ in range(20):
        cursor.execute("SELECT 1", [])
    assert prepared() == {}


@postgresql
def test_a_plan_for_an_empty_table_does_not_stay_when_the_table_grows(monkeypatch):
    monkeypatch.setattr("django_ojs_unique.db.fast.prepared.USES_OF_A_PLAN", 50)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE django_ojs_unique_job")
    for number in range(40):
        enqueue(number)
    items = [{"type": "t", "args": {"bulk": number}, "unique": POLICY} for number in range(3000)]
    Job.objects.enqueue_many(items)
    for number in range(40, 100):
        enqueue(number)
    before = rows_read_in_sequence()
    for number in range(100, 140):
        enqueue(number)
    assert rows_read_in_sequence() - before < 40


@postgresql
def test_a_burst_after_a_time_with_few_jobs_does_not_read_the_table_once_for_each_job():
    def work(limit):
        jobs = Job.objects.all()
        taken = claim(
            jobs, queues=["default"], types=None, limit=limit, worker_id="w", lease=HOUR, now=now, with_rules=()
        )
        return finalize(jobs, [RunResult(job) for job in taken])

    enqueue(0)
    now = timezone.now()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE django_ojs_unique_job")
    for number in range(1, 20):
        enqueue(number)
        assert len(work(1)) == 1
    assert [sql.split()[0] for sql in prepared()] == ["INSERT", "UPDATE", "UPDATE"]
    items = [{"type": "t", "args": {"bulk": number}, "unique": POLICY} for number in range(3000)]
    Job.objects.enqueue_many(items)
    before = rows_read_in_sequence()
    while work(100):
        """Go on."""
    assert rows_read_in_sequence() - before < 31 * 3 * 3020  # each claim and completion may read the table, a few times


@postgresql
def test_a_plan_for_few_rows_does_not_stay_when_the_table_grows_between_two_batches(monkeypatch):
    monkeypatch.setattr("django_ojs_unique.db.fast.prepared.SECONDS_OF_A_PLAN", 0)
    jobs, now = Job.objects.all(), timezone.now()

    def enqueue_and_work(numbers):
        Job.objects.enqueue_many({"type": "t", "args": {"bulk": number}, "unique": POLICY} for number in numbers)
        count = 0
        while taken := claim(
            jobs, queues=["default"], types=None, limit=100, worker_id="w", lease=HOUR, now=now, with_rules=()
        ):
            count += len(finalize(jobs, [RunResult(job) for job in taken]))
        return count

    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE django_ojs_unique_job")
    for number in range(20):
        assert enqueue_and_work(range(30 * number, 30 * number + 30)) == 30
        Job.objects.all().delete()
        with connection.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE django_ojs_unique_job")
    assert sorted(sql.split()[0] for sql in prepared() if "state = 'active'" in sql) == ["UPDATE", "UPDATE"]
    before = rows_read_in_sequence()
    assert enqueue_and_work(range(10_000, 13_000)) == 3000
    assert rows_read_in_sequence() - before < 31 * 3 * 3000  # each claim and completion may read the table, a few times


def rows_read_in_sequence():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'django_ojs_unique_job'")
        return cursor.fetchone()[0]


# what is kept with a connection


@pytest.mark.slow
def test_what_is_kept_with_a_connection_goes_with_it():
    seen = []

    def live():
        enqueue(1)
        enqueue(1)
        Job.objects.enqueue_many([{"type": "t", "args": {"n": 1}, "unique": POLICY}])
        seen.append(weakref.ref(connections["default"]))
        connections.close_all()

    thread = Thread(target=live)
    thread.start()
    thread.join()
    del thread
    gc.collect()
    assert seen[0]() is None


@postgresql
@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Kathmandu"])
def test_times_are_read_as_django_reads_them(zone):
    sql = "SELECT '2026-03-29 01:30:00.123456+00'::timestamptz"
    with closing(connection.copy()) as here:
        here.settings_dict["TIME_ZONE"] = zone
        with here.cursor() as cursor:
            cursor.execute(sql)
            (expected,) = cursor.fetchone()
        _, [(read,)] = cursors.execute(PostgreSQL(Job, here), sql, [])
        assert hasattr(here, cursors._KEPT)
    assert (read, read.tzinfo) == (expected, expected.tzinfo)
