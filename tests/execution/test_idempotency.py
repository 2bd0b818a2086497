"""`locked`, `Heal` and `scan`."""

import gc
import tracemalloc
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import DatabaseError, connection, connections
from django.db.models import Count
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ojs_unique import UniquePolicy, job
from django_ojs_unique.enqueue.new_job import read
from django_ojs_unique.enqueue.request import Request
from django_ojs_unique.exceptions import HandlerError, InvalidRequest, UnknownJobType
from django_ojs_unique.execution.idempotency import CHUNK, HEAL, Heal, ScanResult, locked, scan
from django_ojs_unique.models import Job, SuppressedEnqueue
from django_ojs_unique.worker import Worker
from tests.support.jobs import before_the_insert, elsewhere
from tests.support.refusals import refused
from tests.support.rows import insert_all

UNIQUE = UniquePolicy(keys=["type", "args"], args_keys=["user_id"], on_conflict="ignore")


def user(**fields):
    return User.objects.create(username=f"u{User.objects.count()}", **fields)


def users(number):
    User.objects.bulk_create([User(username=f"u{index}") for index in range(number)], batch_size=500)


def users_with_jobs(number):
    users(number)
    now = timezone.now()
    waiting = (read(Request("t", {"user_id": pk}), Job, now).job for pk in User.objects.values_list("pk", flat=True))
    insert_all(waiting, batch_size=500)


# locked


@pytest.mark.django_db
@pytest.mark.parametrize(
    "target",
    [
        pytest.param(lambda row: (User, {"pk": row.pk}), id="a model"),
        pytest.param(lambda row: (User, {"username": row.username, "is_active": True}), id="any lookup"),
        pytest.param(lambda row: (User.objects, {"pk": row.pk}), id="a manager"),
        pytest.param(lambda row: (User.objects.filter(pk=row.pk), {}), id="a queryset"),
        pytest.param(lambda row: (User.objects.filter(is_active=True), {"pk": row.pk}), id="both"),
    ],
)
def test_the_row_is_handed_over_as_it_is_now(target):
    stale = user()
    User.objects.update(first_name="fresh")
    target, lookup = target(stale)
    with locked(target, **lookup) as row:
        assert connection.in_atomic_block
        assert (row, row.first_name) == (stale, "fresh")


@pytest.mark.django_db
def test_an_instance_is_locked_and_refreshed():
    stale = user()
    User.objects.update(first_name="fresh")
    with locked(stale) as row:
        assert row is stale
        assert row.first_name == "fresh"


@pytest.mark.django_db
def test_a_primary_key_may_have_any_name():
    session = Session.objects.create(session_key="k", session_data="", expire_date=timezone.now())
    with locked(Session, pk="k") as row:
        assert row == session
    with locked(session):
        pass


@pytest.mark.django_db
def test_a_row_that_is_gone_raises_does_not_exist():
    gone = user()
    User.objects.all().delete()
    with pytest.raises(User.DoesNotExist), locked(User, pk=gone.pk):
        pass
    with pytest.raises(User.DoesNotExist), locked(gone):
        pass


@pytest.mark.parametrize("target", [lambda: User, lambda: User.objects, lambda: User.objects.all()])
def test_nobody_locks_a_whole_table(target):
    with pytest.raises(TypeError, match=r"locked\(User, pk="), locked(target()):
        pass


@pytest.mark.django_db(transaction=True)
def test_what_the_block_wrote_is_rolled_back_when_it_raises():
    row = user()

    def fail_halfway():
        with locked(row):
            User.objects.update(first_name="half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_halfway()
    row.refresh_from_db()
    assert row.first_name == ""


@pytest.mark.django_db(transaction=True)
def test_a_queryset_may_say_how_it_waits():
    row = user()
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has no row locks.")

    def lock_without_waiting():
        with locked(User.objects.select_for_update(nowait=True), pk=row.pk):
            pass

    with locked(row), pytest.raises(DatabaseError):
        elsewhere(lock_without_waiting)
    elsewhere(lock_without_waiting)


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_the_lock_is_taken_in_the_database_of_the_queryset():
    User.objects.using("other").create(username="there")
    with locked(User.objects.using("other"), username="there") as row:
        assert row._state.db == "other"
        assert connections["other"].in_atomic_block
        assert not connection.in_atomic_block
    with locked(row):
        assert connections["other"].in_atomic_block


# Heal


@pytest.mark.parametrize(
    ("every", "text"), [("PT5M", "PT5M"), (timedelta(minutes=5), "PT5M"), (90, "PT1M30S"), ("P1D", "P1D")]
)
def test_every_is_read_back_as_iso_8601(handlers, every, text):
    assert Heal(every=every, pending=User.objects.all(), args={"user_id": "pk"}).every == text


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"every": "5 minutes"}, "ISO 8601"),
        ({"every": 0}, "positive"),
        ({"pending": None}, "callable"),
        ({"pending": User}, "callable"),
        ({"pending": User.objects}, "callable"),
        ({"pending": User.objects.all()[:5]}, "records"),
        ({"pending": User.objects.values("pk")}, "records"),
        ({"pending": User.objects.all().union(User.objects.all())}, "records"),
        ({"args": {}}, "callable"),
        ({"args": {"user_id": 1}}, "callable"),
        ({"args": "pk"}, "callable"),
        ({"args": {"user_id": "nmae"}}, "'nmae'"),
    ],
)
def test_a_wrong_declaration_is_refused_at_once(handlers, options, named):
    with refused(InvalidRequest, f"heal.{next(iter(options))}", names=named):
        Heal(**{"pending": User.objects.all(), "args": {"user_id": "pk"}, **options})
    assert HEAL not in handlers


@pytest.mark.parametrize(
    ("unique", "args", "named"),
    [
        (None, {"user_id": "pk"}, "heal="),
        (UniquePolicy(), {"user_id": "pk"}, "heal="),
        (UniquePolicy(keys=["args"], states=["completed"]), {"user_id": "pk"}, "heal="),
        (UNIQUE, {"usr_id": "pk"}, "heal.args"),
        (UNIQUE, {"user_id": "pk", "name": "username"}, "heal.args"),
    ],
)
def test_a_handler_that_cannot_be_healed_is_refused(handlers, unique, args, named):
    def declare_and_scan():
        job("t", unique=unique, heal=Heal(pending=User.objects.all(), args=args))(lambda user_id: None)
        scan("t")

    with refused(HandlerError, names=named):
        declare_and_scan()


def test_it_is_refused_when_it_is_declared(handlers):
    with refused(HandlerError, names="heal="):
        job("t", heal=Heal(pending=User.objects.all(), args={"user_id": "pk"}))(lambda user_id: None)
    assert "t" not in handlers


def test_no_query_reads_the_records_when_a_handler_is_declared_or_shown(handlers):
    heal = Heal(pending=User.objects.all(), args={"user_id": "pk"})  # no database is open to this test
    assert "args={'user_id': 'pk'}" in repr(heal)


def test_the_job_type_of_the_scan_exists_once_something_is_to_heal(handlers):
    assert HEAL not in handlers
    Heal(pending=User.objects.all(), args={"user_id": "pk"})
    assert HEAL in handlers


# scan


@pytest.fixture
def healed(handlers):
    """Declare a handler whose jobs heal."""

    def declare(pending=None, args=None, unique=UNIQUE):
        heal = Heal(
            pending=User.objects.filter(is_active=True) if pending is None else pending, args=args or {"user_id": "pk"}
        )
        return job("t", unique=unique, heal=heal)(lambda user_id: User.objects.filter(pk=user_id).update(is_active=0))

    return declare


@pytest.mark.django_db
@pytest.mark.parametrize("args", [{"user_id": "pk"}, lambda user: {"user_id": user.pk}], ids=["fields", "callable"])
def test_every_pending_record_gets_its_job_and_only_one(healed, args):
    handler = healed(args=args)
    users(3)
    user(is_active=False)
    Job.objects.enqueue("t", {"user_id": User.objects.first().pk})
    assert scan(handler) == ScanResult(created=2, refused=1)
    assert scan("t") == ScanResult(refused=3)
    assert sorted(job.args["user_id"] for job in Job.objects.all()) == sorted(
        User.objects.filter(is_active=True).values_list("pk", flat=True)
    )


@pytest.mark.django_db
def test_a_callable_is_asked_for_the_records_each_time(healed):
    healed(pending=lambda: User.objects.filter(last_name="Doe"))
    user()
    assert scan("t") == ScanResult()
    user(last_name="Doe")
    assert scan("t") == ScanResult(created=1)
    user(last_name="Doe")
    assert scan("t") == ScanResult(created=1, refused=1)


@pytest.mark.django_db
def test_a_queryset_that_was_read_before_is_read_again(healed):
    pending = User.objects.all()
    assert list(pending) == []
    healed(pending=pending)
    user()
    assert scan("t").created == 1


@pytest.mark.django_db
def test_a_callable_that_returns_no_queryset_is_refused(healed):
    healed(pending=lambda: [1])
    with refused(InvalidRequest, "heal.pending", value="[1]"):
        scan("t")


@pytest.mark.django_db
def test_only_a_handler_with_heal_can_be_scanned(handlers):
    job("t")(lambda: None)
    with refused(HandlerError, names="heal="):
        scan("t")
    with pytest.raises(UnknownJobType):
        scan("u")


@pytest.mark.django_db
def test_a_scan_pages_through_all_records_whatever_their_key_is(healed, monkeypatch):
    monkeypatch.setattr("django_ojs_unique.execution.idempotency.CHUNK", 2)
    now = timezone.now()
    for key in ("b", "e", "a", "c", "d"):
        Session.objects.create(session_key=key, session_data="", expire_date=now)
    healed(pending=Session.objects.order_by("-expire_date"), args={"user_id": "session_key"})
    assert scan("t") == ScanResult(created=5)
    assert sorted(job.args["user_id"] for job in Job.objects.all()) == ["a", "b", "c", "d", "e"]


@pytest.mark.slow
@pytest.mark.django_db
def test_a_queryset_may_annotate_and_join(healed):
    users(3)
    healed(pending=User.objects.annotate(number=Count("groups")).filter(number=0, logentry__isnull=True))
    assert scan("t") == ScanResult(created=3)


@pytest.mark.django_db
def test_records_of_one_key_share_a_job(healed):
    users(3)
    healed(args={"user_id": "last_name"})
    assert scan("t") == ScanResult(created=1, refused=2)


@pytest.mark.django_db
@pytest.mark.parametrize("strategy", ["reject", "ignore", "replace", "replace_except_schedule"])
def test_a_job_that_waits_stays_whatever_the_strategy_is(healed, strategy):
    users(2)
    healed(unique=UniquePolicy(keys=["type", "args"], on_conflict=strategy))
    scan("t")
    before = sorted(Job.objects.values_list("pk", "state"))
    assert scan("t") == ScanResult(refused=2)
    assert sorted(Job.objects.values_list("pk", "state")) == before


@pytest.mark.django_db
@pytest.mark.parametrize("strategy", ["reject", "ignore", "replace"])
def test_a_scan_and_an_enqueue_agree_about_finished_jobs(healed, strategy):
    """A policy that counts cancelled jobs keeps new ones out, but for a strategy that replaces."""
    users(1)
    healed(unique=UniquePolicy(keys=["args"], states=["available", "cancelled"], on_conflict=strategy))
    scan("t")
    Job.objects.get().cancel()
    assert scan("t").created == (strategy == "replace")


@pytest.mark.django_db
@pytest.mark.parametrize("period", ["PT1H", "P1M"])
def test_a_job_whose_window_has_passed_keeps_no_other_out(healed, period):
    users(1)
    healed(unique=UniquePolicy(keys=["args"], period=period))
    scan("t")
    assert scan("t").refused == 1
    Job.objects.update(created_at=timezone.now() - timedelta(days=32))
    assert scan("t").created == 1


@pytest.mark.django_db
def test_what_the_scan_sees_to_be_there_leaves_no_suppressed_attempt(healed):
    users(2)
    healed(unique=UniquePolicy(keys=["args"], on_conflict="reject"))
    scan("t")
    scan("t")
    assert not SuppressedEnqueue.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("strategy", ["reject", "ignore"])
def test_a_job_that_comes_in_between_is_refused_and_recorded_and_loses_no_other(healed, strategy):
    if connection.vendor != "postgresql":
        pytest.skip("While a scan holds the lock of a key, nobody comes in between.")
    users(5)
    healed(unique=UniquePolicy(keys=["type", "args"], on_conflict=strategy))
    third = {"user_id": User.objects.order_by("pk")[2].pk}
    with before_the_insert(lambda: elsewhere(lambda: Job.objects.enqueue("t", third, unique=UNIQUE))):
        assert scan("t") == ScanResult(created=4, refused=1)
    assert Job.objects.count() == 5
    assert SuppressedEnqueue.objects.get().args == third


@pytest.mark.django_db
def test_a_record_with_invalid_arguments_does_not_stop_the_others(healed, caplog):
    users(30)
    odd = [user.pk for user in User.objects.order_by("pk") if user.pk % 2]

    def args(user):
        if user.pk in odd[:1]:
            raise RuntimeError("no luck")
        return {"user_id": object() if user.pk in odd else user.pk}

    healed(args=args)
    assert scan("t") == ScanResult(created=15, invalid=15)
    logged = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(logged) == 10
    assert logged[0].getMessage() == f"Record {odd[0]} gets no job t: its arguments are invalid."


@pytest.mark.slow
@pytest.mark.django_db
def test_progress_is_told_after_each_chunk(healed):
    users(CHUNK + 500)
    healed()
    told = []
    scan("t", progress=lambda *word: told.append(word))
    assert told == [
        (pytest.approx(2 / 3), "1,000 created, 0 refused, 0 invalid"),
        (1.0, "1,500 created, 0 refused, 0 invalid"),
    ]


@pytest.mark.django_db(transaction=True)
def test_each_chunk_is_committed_at_once(healed, monkeypatch):
    monkeypatch.setattr("django_ojs_unique.execution.idempotency.CHUNK", 100)
    users(202)
    healed()
    with CaptureQueriesContext(connection) as queries:
        scan("t")
    assert sum(query["sql"].startswith("COMMIT") for query in queries) == 3


@pytest.mark.slow
@pytest.mark.django_db
def test_a_chunk_of_waiting_jobs_costs_two_queries(healed):
    healed()
    users_with_jobs(3 * CHUNK)
    costs = []
    for number in (1, 2, 3):
        User.objects.update(is_active=False)
        last = User.objects.order_by("pk")[number * CHUNK - 1].pk
        User.objects.filter(pk__lte=last).update(is_active=True)
        with CaptureQueriesContext(connection) as queries:
            assert scan("t") == ScanResult(refused=number * CHUNK)
        costs.append(len(queries))
    assert costs == [4, 6, 8]  # the number of records, and the end of the last page, beside two for each chunk


@pytest.mark.slow
@pytest.mark.django_db
def test_memory_does_not_grow_with_the_records(healed, monkeypatch):
    monkeypatch.setattr("django_ojs_unique.execution.idempotency.CHUNK", 100)

    def kept(number):
        """Return the most memory that is in use after a chunk, without cycles that wait for the collector."""
        users_with_jobs(number)
        in_use = []

        def measure(fraction, note):
            gc.collect()
            in_use.append(tracemalloc.get_traced_memory()[0])

        gc.freeze()  # so that each collection is short, whatever the other tests keep
        tracemalloc.start()
        try:
            assert scan("t", progress=measure).refused == number
        finally:
            tracemalloc.stop()
            gc.unfreeze()
            User.objects.all()._raw_delete(connection.alias)
            Job.objects.all()._raw_delete(connection.alias)
        return max(in_use)

    healed()
    kept(100)  # what is made once, is made
    small = kept(200)
    assert kept(2_000) < small + 50_000  # a list of so many records would take ten times as much


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_two_scans_at_once_create_each_job_once(healed):
    from tests.support.processes import together

    users(300)
    healed()
    connections.close_all()
    ((one, other),) = together([lambda _: scan("t"), lambda _: scan("t")])
    assert one.created + other.created == 300
    assert one.records == other.records == 300
    assert Job.objects.count() == 300


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_the_jobs_may_live_in_another_database(healed):
    users(2)
    healed()
    assert scan("t", using="other") == ScanResult(created=2)
    assert (Job.objects.count(), Job.objects.using("other").count()) == (0, 2)


# The scan as a job


@pytest.mark.django_db(transaction=True)
def test_a_worker_scans(healed):
    users(3)
    healed()
    scanner = Job.objects.enqueue(HEAL, {"type": "t"}).job
    assert Worker().run(drain=True).completed == 4
    scanner.refresh_from_db()
    assert scanner.result == {"created": 3, "refused": 0, "invalid": 0}
    assert not User.objects.filter(is_active=True).exists()


@pytest.mark.django_db(transaction=True)
def test_scans_of_one_type_do_not_pile_up(healed):
    healed()
    first = Job.objects.enqueue(HEAL, {"type": "t"})
    assert Job.objects.enqueue(HEAL, {"type": "t"}).deduplicated
    assert Job.objects.enqueue(HEAL, {"type": "u"}).created
    assert first.created


@pytest.mark.django_db(transaction=True)
def test_a_cancelled_scan_stops_after_its_chunk(healed, monkeypatch):
    monkeypatch.setattr("django_ojs_unique.execution.idempotency.CHUNK", 2)
    users(5)

    def args(user):
        Job.objects.get(type=HEAL, state="active").cancel() if user.username == "u0" else None
        return {"user_id": user.pk}

    healed(args=args)
    scanner = Job.objects.enqueue(HEAL, {"type": "t"}).job
    Worker(queues=["default"]).run(drain=True)
    scanner.refresh_from_db()
    assert scanner.state == "cancelled"
    assert Job.objects.filter(type="t").count() == 2
