"""What every dialect does, on whichever database the suite runs; and the plain one, which unknown databases get."""

import time
from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ojs_unique import UniquePolicy
from django_ojs_unique.db.clock import QUERIES
from django_ojs_unique.db.dialect import ClaimRequest, Dialect, LookUp
from django_ojs_unique.db.dialects import dialect_of, kind_of
from django_ojs_unique.enqueue.new_job import read
from django_ojs_unique.enqueue.request import Request
from django_ojs_unique.models import Job
from tests.support.jobs import DAY, elsewhere, enqueue, put, row, stored
from tests.support.rows import insert_all

pytestmark = pytest.mark.django_db
POLICY = UniquePolicy(keys=["type"])
RICH = {
    "args": {"text": "é\u2028\U0001f600", "n": [1, 1.5, None, {"deep": [True]}], "empty": {}},
    "meta": {"a": "b"},
    "tags": ["x", "ü"],
    "schema": "urn:x",
    "extra": {"vendor": [1]},
    "priority": -3,
    "queue": "mail",
    "timeout": "PT5M",
    "lease": "PT1M",
    "retry": {"max_attempts": 7},
}


def _plain(jobs):
    return Dialect(Job, connections[jobs.db])


@pytest.fixture(
    params=[
        dialect_of,
        pytest.param(
            _plain,
            marks=pytest.mark.skipif(connection.vendor == "mysql", reason="MariaDB has no ON CONFLICT DO NOTHING"),
        ),
    ],
    ids=["own", "plain"],
)
def dialect(request):
    return request.param(Job.objects.all())


@pytest.fixture
def own():
    return dialect_of(Job.objects.all())


def incoming(type="t", *, now=None, **options):
    return read(Request(type, **{"unique": POLICY, **options}), Job, now or timezone.now()).job


def values(job):
    return job.__dict__


def ids():
    return set(Job.objects.values_list("pk", flat=True))


def test_a_connection_has_the_dialect_of_its_database(own):
    assert own.name == connection.vendor
    assert own.mechanism
    assert type(own) is kind_of(connection)
    assert own.quote("x") == connection.ops.quote_name("x")


def test_the_plain_dialect_promises_nothing():
    assert (Dialect.mechanism, Dialect.claims_at_once, Dialect.can_notify) == ("", False, False)


def test_an_insert_stores_each_field_as_it_was_given(dialect):
    job = incoming(**RICH)
    assert dialect.insert(values(job))
    stored = Job.objects.get()
    for field in Job._meta.concrete_fields:
        assert getattr(stored, field.attname) == getattr(job, field.attname), field.name


def test_an_insert_stores_what_django_would_store(dialect):
    ours, djangos = incoming(**RICH), incoming("other", **RICH)
    djangos.created_at, djangos.enqueued_at = ours.created_at, ours.enqueued_at
    dialect.insert(values(ours))
    insert_all([djangos])
    differ = {"id", "type", "fingerprint"}
    one, other = (Job.objects.filter(pk=job.pk).values().get() for job in (ours, djangos))
    assert {name for name, value in one.items() if other[name] != value} == differ


@pytest.mark.parametrize("many", [False, True])
def test_a_held_key_or_a_taken_id_is_answered_by_false_and_the_transaction_goes_on(dialect, many):
    first = enqueue().job
    same_id = incoming("other", id=first.pk)
    with transaction.atomic():
        for job in (incoming(), same_id):
            assert (dialect.insert_all([values(job)]) if many else dialect.insert(values(job))) is False
        assert ids() == {first.pk}
        assert dialect.insert(values(incoming("third")))


def test_a_key_that_is_no_longer_held_is_free(dialect):
    put(enqueue().job, "completed")
    assert dialect.insert(values(incoming()))


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 2, 1001])
def test_many_jobs_go_in_by_the_thousand(dialect, count):
    jobs = [incoming(f"t{number}", args={"n": number}) for number in range(count)]
    with CaptureQueriesContext(connection) as queries:
        assert dialect.insert_all(list(map(values, jobs)))
    assert len([one for one in queries if one["sql"].startswith("INSERT")]) <= (count > 0) + (count > 1000) or (
        not own_batches()  # each row is a statement of its own, all sent together
    )
    assert {job.pk: job.args for job in Job.objects.all()} == {job.pk: job.args for job in jobs}


def own_batches():
    return connection.vendor == "postgresql"


def test_many_jobs_are_stored_as_they_were_given(dialect):
    jobs = [incoming("rich", **RICH), incoming("poor"), incoming("late", scheduled_at=timezone.now() + timedelta(1))]
    assert dialect.insert_all(list(map(values, jobs)))
    stored = Job.objects.in_bulk()
    for job in jobs:
        for field in Job._meta.concrete_fields:
            assert getattr(stored[job.pk], field.attname) == getattr(job, field.attname), field.name


def test_where_one_statement_is_exact_it_inserts_what_has_no_duplicate(own):
    job = incoming()
    if own.decides_at_once(POLICY):
        assert own.insert_unless_duplicate(values(job), POLICY, None)
        assert ids() == {job.pk}


@pytest.mark.parametrize("state", ["available", "active", "scheduled", "retryable", "pending"])
@pytest.mark.parametrize("is_held", [True, False])
def test_no_unfinished_job_of_the_fingerprint_is_passed_over_by_the_insert(own, state, is_held):
    holder = put(enqueue().job, state)
    if not is_held:
        Job._base_manager.update(unique_states=frozenset())
    if own.decides_at_once(POLICY):
        assert not own.insert_unless_duplicate(values(incoming()), POLICY, None)
    assert ids() == {holder.pk}


@pytest.mark.skipif(connection.vendor == "mysql", reason="no single statement decides there")
def test_without_the_constraint_the_insert_still_looks_for_a_job_that_holds_the_unique_key(own):
    holder = enqueue().job
    with connection.cursor() as cursor:
        cursor.execute("DROP INDEX ojs_unique_key")
    assert not own.insert_unless_duplicate(values(incoming()), POLICY, None)
    assert not own.insert_all([values(incoming())], unless_live=True)
    assert ids() == {holder.pk}


@pytest.mark.parametrize("state", ["available", "active", "scheduled", "retryable", "pending"])
@pytest.mark.parametrize("full_row", [False, True])
@pytest.mark.parametrize("states", [None, ["available", "active", "scheduled", "retryable", "pending", "completed"]])
def test_the_newest_duplicate_is_found(dialect, state, full_row, states):
    policy = UniquePolicy(keys=["type"], **({} if states is None else {"states": states}))
    put(enqueue(args={"n": 1}).job, state)
    row_before = Job.objects.get()
    Job._base_manager.update(unique_states=frozenset(), created_at=row_before.created_at - timedelta(hours=1))
    newest = put(enqueue(args={"n": 2}, unique={"states": ["completed"]}).job, state)
    found = dialect.find_duplicate(LookUp(incoming().fingerprint, policy, None, full_row))
    assert (found.pk, found.state) == (newest.pk, state)
    assert bool(found.get_deferred_fields()) is not full_row
    assert found.created_at == newest.created_at
    if full_row:
        stored = Job.objects.get(pk=newest.pk)
        for field in Job._meta.concrete_fields:
            assert getattr(found, field.attname) == getattr(stored, field.attname), field.name


def test_neither_other_states_nor_other_keys_nor_what_is_too_old_counts(dialect):
    other = enqueue("other").job
    old = put(enqueue().job, "completed")
    finished = UniquePolicy(states=["completed"])
    before = old.created_at - timedelta(microseconds=1)
    wanted = incoming().fingerprint
    for policy, after in ((POLICY, None), (finished, old.created_at), (finished, old.created_at + timedelta(1))):
        assert dialect.find_duplicate(LookUp(wanted, policy, after)) is None
    assert dialect.find_duplicate(LookUp(wanted, finished, before)).pk == old.pk
    assert ids() == {other.pk, old.pk}


def test_a_finished_job_that_counts_keeps_the_insert_out_where_one_statement_is_exact(own):
    old = put(enqueue().job, "completed")
    finished = UniquePolicy(states=["completed"])
    if own.decides_at_once(finished):
        assert not own.insert_unless_duplicate(values(incoming()), finished, old.created_at - timedelta(1))
        assert own.insert_unless_duplicate(values(incoming()), finished, old.created_at)


def test_only_a_single_writer_can_look_at_finished_jobs_and_insert_in_one_statement(own):
    finished = UniquePolicy(states=["available", "completed"])
    assert own.decides_at_once(finished) is own.single_writer
    assert own.decides_at_once(POLICY) is (own.name in ("postgresql", "sqlite"))


def test_rows_are_found_by_their_fingerprints(dialect):
    jobs = [enqueue(f"t{number}").job for number in range(3)]
    wanted = [job.fingerprint for job in jobs[:2]]
    assert {job.pk for job in dialect.find(Job.objects.filter(state="available"), wanted, ())} == {
        job.pk for job in jobs[:2]
    }
    assert list(dialect.find(Job.objects.filter(state="active"), wanted, ())) == []


def test_of_the_finished_rows_the_newest_of_each_wanted_state_is_found(dialect):
    cancelled, completed = (
        [stored(state, age=DAY * days) for days in (3, 1, 2)] for state in ("cancelled", "completed")
    )
    live = enqueue().job

    def found(*ended):
        rows = dialect.find(Job.objects.filter(state__in=[*ended, "available"]), [live.fingerprint], ended)
        newest = sorted(rows, key=lambda job: job.created_at, reverse=True)
        return list({job.state: job.pk for job in reversed(newest)}.values())

    assert {*found("cancelled", "completed")} == {live.pk, cancelled[1].pk, completed[1].pk}
    assert {*found("completed")} == {live.pk, completed[1].pk}
    assert found() == [live.pk]


@pytest.mark.parametrize("by_key", [False, True])
def test_locked_rows_come_in_the_order_of_their_keys(dialect, by_key):
    for number in range(5):
        enqueue(f"t{number}", id=uuid4())
    jobs = list(Job.objects.order_by("pk"))
    with transaction.atomic():
        dialect.lock_keys([job.fingerprint for job in jobs])
        locked = dialect.lock(Job.objects.filter(state="available"), by_key=by_key)
    assert [job.pk for job in locked] == [job.pk for job in jobs]


def test_no_keys_need_no_lock(dialect):
    with transaction.atomic():
        dialect.lock_keys([])
        assert dialect.lock(Job.objects.none(), by_key=True) == []


@pytest.mark.django_db(transaction=True)
def test_a_single_writer_waits_for_the_write_lock_and_others_do_not(own):
    other = enqueue("other").job

    def write():
        with connection.cursor() as cursor:
            if own.single_writer:
                cursor.execute("PRAGMA busy_timeout = 0")
        try:
            return row(other).update(priority=1)
        except Exception as error:
            return str(error)

    transaction.set_autocommit(False)  # as the tests' BEGIN IMMEDIATE takes the lock by itself
    try:
        own.take_write_lock()
        assert elsewhere(write) == ("database is locked" if own.single_writer else 1)
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


def test_text_is_compared_exactly(own):
    for key in ("Straße", "strasse", "STRASSE", "strasse "):
        Job.objects.enqueue("t", key=key)
    assert Job.objects.filter(own.exactly("key", "strasse"), key="strasse").count() == 1


@pytest.mark.skipif(connection.vendor not in QUERIES, reason="SQLite has no clock but that of the host")
def test_the_clock_answers_in_seconds_since_1970():
    before = time.time() - 1
    with connection.cursor() as cursor:
        cursor.execute(QUERIES[connection.vendor])
        assert before < cursor.fetchone()[0] < before + 3600


def test_the_database_says_the_condition_of_the_unique_key(own):
    condition = own.condition_of("ojs_unique_key")
    assert "unique_states" in condition
    with connection.cursor() as cursor:
        for expected, state in ((1, "available"), (0, "completed")):
            Job.objects.all().delete()
            put(enqueue().job, state)
            cursor.execute(f"SELECT count(*) FROM {own.quote(Job._meta.db_table)} WHERE {condition}")
            assert cursor.fetchone() == (expected,)


def test_a_batch_is_claimed_in_one_statement_only_where_that_is_there(dialect):
    if not dialect.claims_at_once:
        with pytest.raises(NotImplementedError):
            dialect.claim(
                ClaimRequest({}, None, 1, None, uuid4(), timedelta(1), False, False, False, timezone.now(), ())
            )
        with pytest.raises(NotImplementedError):
            dialect.complete([])
    dialect.wake([])
    dialect.wake(["default"])
