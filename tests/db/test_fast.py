"""The fast box does what the plain way does: Django's cursor, `Model.from_db`, ``model(**values)``, its moves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from django.db import connection, connections, transaction
from django.utils import timezone
from hypothesis import given
from hypothesis import settings as configured
from hypothesis import strategies as st

from django_ojs_unique import UniquePolicy, lifecycle
from django_ojs_unique.db.dialect import Dialect
from django_ojs_unique.db.dialects import dialect_of
from django_ojs_unique.db.fast import cursors
from django_ojs_unique.db.fast.rows import RowReader, SharedJSON, UnreadRows, unsaved
from django_ojs_unique.execution.claim import NEEDED, claim
from django_ojs_unique.execution.finalize import finalize
from django_ojs_unique.execution.run_result import RunResult
from django_ojs_unique.models import Job
from tests.support.json_values import OBJECTS, TEXT, VALUES
from tests.support.rows import insert_all

pytestmark = pytest.mark.django_db
few = configured(max_examples=15)
at_once = pytest.mark.skipif(connection.vendor != "postgresql", reason="elsewhere no statement claims a batch")

LEASE = timedelta(minutes=1)
MOMENTS = st.datetimes(datetime(2001, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
SHORT = st.text("abcäß\u2028'\"%?\\{}", max_size=8)
ROWS = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["a", "b.c"]),
        "queue": st.sampled_from(["default", "mail"]),
        "args": OBJECTS,
        "state": st.just("available"),
        "enqueued_at": MOMENTS,
        "created_at": MOMENTS,
    },
    optional={
        "meta": st.dictionaries(TEXT, TEXT, max_size=3),
        "tags": st.lists(SHORT, max_size=3),
        "extra": OBJECTS,
        "priority": st.integers(-100, 100),
        "max_attempts": st.integers(1, 9),
        "timeout_ms": st.none() | st.integers(1, 10**9),
        "visibility_timeout_ms": st.none() | st.integers(1, 10**6),
        "scheduled_at": st.none() | MOMENTS,
        "expires_at": st.none() | MOMENTS,
        "schema": SHORT,
        "retry_options": st.none() | OBJECTS.map(SharedJSON),
        "unique_states": st.sets(st.sampled_from(["available", "active", "completed"])).map(frozenset),
        "progress": st.none() | st.floats(0, 1),
        "awaited": st.none() | st.booleans(),
    },
)


def job_of(row):
    return Job(id=uuid4(), **row)


def columns(*jobs):
    """Return the rows as the database has them, without what differs from job to job."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM django_ojs_unique_job")
        names = [column[0] for column in cursor.description]
        found = {str(values[names.index("id")]).replace("-", ""): values for values in cursor.fetchall()}
    left_out = {"id", "fingerprint"}
    return [
        {name: value for name, value in zip(names, found[job.pk.hex], strict=True) if name not in left_out}
        for job in jobs
    ]


def plainly(monkeypatch):
    """Execute on Django's cursors from now on."""
    monkeypatch.setattr(cursors, "_kept_cursor", lambda *arguments: None)


# Cursors


@few
@given(st.lists(st.none() | st.integers(-(2**31) + 1, 2**31 - 1) | TEXT, min_size=1, max_size=4))
@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor == "mysql", reason="MariaDB's statements go through Django's cursor")
def test_a_kept_cursor_answers_as_djangos_does(parameters):
    dialect = dialect_of(Job.objects.all())
    cast = {int: "::int", str: "::text", type(None): "::int"} if connection.vendor == "postgresql" else {}
    sql = f"SELECT {', '.join('%s' + cast.get(type(value), '') for value in parameters)} WHERE 1 = 1"
    kept = [cursors.execute(dialect, sql, parameters, plan=plan) for plan in cursors.Plan]
    with pytest.MonkeyPatch.context() as monkeypatch:
        plainly(monkeypatch)
        _, plain = cursors.execute(dialect, sql, parameters)
    assert [rows for _, rows in kept] == [plain] * 3
    assert plain == [tuple(parameters)]


# Rows


@few
@given(ROWS)
def test_a_row_is_read_as_django_reads_it(row):
    with transaction.atomic():
        job = insert_all([job_of(row)])[0]
        for names in (None, NEEDED):
            reader = RowReader(Job, connections["default"], names)
            with connection.cursor() as cursor:
                cursor.execute(
                    f"SELECT {', '.join(map(connection.ops.quote_name, reader.columns))}"
                    f" FROM django_ojs_unique_job WHERE id = %s",
                    [job.pk.hex if connection.vendor != "postgresql" else job.pk],
                )
                raw = cursor.fetchone()
            rows = Job.objects.filter(pk=job.pk)
            fast, plain = reader.read(raw), (rows if names is None else rows.only(*names)).get()
            assert without_state(fast) == without_state(plain)
            assert fast.get_deferred_fields() == plain.get_deferred_fields()
            assert (fast._state.adding, fast._state.db) == (plain._state.adding, plain._state.db)
            assert [without_state(one) for one in UnreadRows(reader, [raw, raw])] == [without_state(plain)] * 2
        assert without_state(dialect_of(rows).get(job.pk, NEEDED)) == without_state(plain)
        assert dialect_of(rows).get(uuid4(), NEEDED) is None
        transaction.set_rollback(True)


def without_state(job):
    return {name: value for name, value in job.__dict__.items() if name != "_state"}


@few
@given(ROWS)
def test_an_unsaved_row_is_as_the_model_makes_it(row):
    given = {"id": uuid4(), "meta": {}, "tags": [], "extra": {}, "steps": [], "errors": [], **row}
    fast, plain = unsaved(Job, **given), Job(**given)
    assert without_state(fast) == without_state(plain)
    assert (fast._state.adding, fast._state.db) == (True, None)


@given(OBJECTS)
def test_shared_json_is_stored_as_any_dict(value):
    field = Job._meta.get_field("unique")
    for shared in (SharedJSON(value), SharedJSON(value)):
        assert shared == value
    dialect, table = dialect_of(Job.objects.all()), dialect_of(Job.objects.all()).table
    (_, (text,)), (_, (plain,)) = (table.written({field.attname: one}) for one in (SharedJSON(value), dict(value)))
    assert dialect.adapter(field)(value) == plain or connection.vendor != "postgresql"
    assert Job._meta.get_field("unique").from_db_value(text, None, connection) == value
    assert Job._meta.get_field("unique").from_db_value(_text(plain), None, connection) == value


def _text(value):
    return value if isinstance(value, str) else value.dumps(value.obj) if hasattr(value, "obj") else str(value)


# Statements


@few
@given(st.lists(ROWS, min_size=1, max_size=4))
def test_rows_are_stored_as_djangos_bulk_create_stores_them(rows):
    with transaction.atomic():
        plain = insert_all([job_of(row) for row in rows])
        ways = [dialect_of(Job.objects.all())]
        if connection.vendor != "mysql":
            ways.append(Dialect(Job, connections["default"]))
        for dialect in ways:
            each, together = ([{**row, "id": uuid4()} for row in rows] for _ in range(2))
            assert [dialect.insert(row) for row in each] == [True] * len(rows)
            assert dialect.insert_all(together)
            for stored in (each, together):
                assert columns(*(Job(id=row["id"]) for row in stored)) == columns(*plain)
        transaction.set_rollback(True)


@at_once
@few
@given(st.lists(ROWS, min_size=1, max_size=4))
@pytest.mark.django_db(transaction=True)
def test_new_jobs_are_stored_as_those_of_a_transaction(rows):
    dialect = dialect_of(Job.objects.all())
    alone, together = ([{**row, "id": uuid4()} for row in rows] for _ in range(2))
    assert set(dialect.insert_new(alone)) == {row["id"] for row in alone}
    assert dialect.insert_all(together)
    assert columns(*(Job(id=row["id"]) for row in alone)) == columns(*(Job(id=row["id"]) for row in together))


@at_once
@few
@given(st.lists(ROWS, min_size=1, max_size=4), st.none() | VALUES, st.booleans())
def test_a_batch_is_claimed_and_completed_as_the_moves_do_it_one_by_one(rows, result, is_unconfirmed):
    now, token = timezone.now(), uuid4()
    rows = [{**row, "expires_at": None} for row in rows]
    with transaction.atomic():
        ours, plain = (insert_all([job_of(row) for row in rows]) for _ in range(2))
        Job._base_manager.filter(pk__in=[job.pk for job in plain]).update(state="scheduled")
        wanted = {"queues": ["default", "mail"], "types": None, "limit": 9, "worker_id": "w", "lease": LEASE}
        taken = claim(Job.objects.all(), **wanted, now=now, token=token, with_rules=())
        assert {job.pk for job in taken} == {job.pk for job in ours}
        Job._base_manager.filter(pk__in=[job.pk for job in plain]).update(state="available")
        for job in plain:
            own = job.visibility_timeout_ms
            lease = LEASE if own is None else timedelta(milliseconds=own)
            rows_of = Job.objects.filter(pk=job.pk)
            assert lifecycle.claim(rows_of, now, worker_id="w", token=token, lease=lease) == 1
        compare(ours, plain)
        finalize(Job.objects.all(), [RunResult(job, result=result, at=now) for job in taken])
        for job in plain:
            lifecycle.complete(Job.objects.filter(pk=job.pk), now, token=token, result=result)
        compare(ours, plain)
        transaction.set_rollback(True)


def compare(ours, plain):
    for one, other in zip(columns(*ours), columns(*plain), strict=True):
        ends = one.pop("lease_expires_at"), other.pop("lease_expires_at")
        assert one == other
        assert ends == (None, None) or abs(ends[0] - ends[1]) < timedelta(seconds=30)


# Nothing lazy leaks


def test_what_an_enqueue_hands_out_is_the_callers_own():
    given = {"args": {"list": [1]}, "meta": {"a": "b"}, "tags": ["x"]}
    options = {"unique": UniquePolicy(keys=["type", "args"]), "retry": {"max_attempts": 2}, **given}
    job = Job.objects.enqueue("t", **options).job
    assert type(job) is Job
    assert job.get_deferred_fields() == set()
    for field in Job._meta.concrete_fields:
        assert type(getattr(job, field.attname)).__module__ != "django_ojs_unique.db.fast.rows", field.name
    for change in (job.args["list"], job.tags):
        change.append(2)
    job.unique["keys"].append("x")
    job.retry_options["max_attempts"] = 9
    job.meta["c"] = "d"
    stored = Job.objects.get(pk=job.pk)
    assert (stored.args, stored.meta, stored.tags) == tuple(given.values())
    other = Job.objects.enqueue("t", {"n": 2}, **{name: options[name] for name in ("unique", "retry")}).job
    assert (other.unique["keys"], other.retry_options["max_attempts"]) == (["type", "args"], 2)
    assert (other.tags, other.extra, other.errors, other.steps) == ([], {}, [], [])
    other.errors.append(1)
    assert Job.objects.enqueue("t", {"n": 3}).job.errors == []


def test_what_a_bulk_enqueue_hands_out_shares_nothing():
    shared = {"n": [1]}
    first, second = (
        answer.job for answer in Job.objects.enqueue_many({"type": t, "args": shared, "unique": {}} for t in ("a", "b"))
    )
    for name in ("args", "meta", "tags", "extra", "unique", "errors", "steps"):
        assert getattr(first, name) is not getattr(second, name), name
    assert first.args["n"] is not second.args["n"] is not shared["n"]


def test_what_a_claim_hands_out_is_the_workers_own():
    for number in range(2):
        Job.objects.enqueue("t", {"n": number})
    now = timezone.now()
    jobs = claim(
        Job.objects.all(), queues=["default"], types=None, limit=2, worker_id="w", lease=LEASE, now=now, with_rules=()
    )
    first, second = jobs
    assert [job is again for job, again in zip(jobs, jobs, strict=True)] == [True, True]
    assert (type(first), first.state) == (Job, "active")
    for name in ("args", "meta", "tags", "extra", "errors"):
        assert type(getattr(first, name)) in (dict, list)
        assert getattr(first, name) is not getattr(second, name), name
