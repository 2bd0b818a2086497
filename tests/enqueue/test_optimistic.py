"""A batch outside a transaction inserts piece by piece, without a query; its answers are those of single enqueues."""

from __future__ import annotations

import logging
from contextlib import closing
from datetime import timedelta
from itertools import takewhile
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from django.db import DataError, OperationalError, ProgrammingError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ojs_unique import signals
from django_ojs_unique.db import clock, postgresql
from django_ojs_unique.db.dialects import dialect_of
from django_ojs_unique.db.fast import cursors
from django_ojs_unique.db.inserts import CHANNEL
from django_ojs_unique.db.postgresql import PostgreSQL
from django_ojs_unique.enqueue import bulk, optimistic
from django_ojs_unique.enqueue.items import Items
from django_ojs_unique.enqueue.resolved_options import forget_options
from django_ojs_unique.exceptions import NotMigrated
from django_ojs_unique.models import Job
from tests.support.processes import PATIENCE, wait_until_blocked

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL's driver works while it waits"),
]
IGNORE = {"keys": ["type", "args"], "on_conflict": "ignore"}
FIRST, SECOND = optimistic.FIRST, optimistic.FIRST + optimistic.NEXT
"""Where the second and the third piece begin."""
CLOCK = clock.QUERIES["postgresql"]


@pytest.fixture(autouse=True)
def pieces(monkeypatch):
    """Forget earlier duplicates; collect what is stored of each piece, by the numbers of its jobs."""
    connection.ensure_connection()
    forget_options()
    numbers: list[list[int]] = []
    insert = PostgreSQL.insert_new

    def spy(dialect, jobs, overlap):
        ids = insert(dialect, jobs, overlap)
        numbers.append(sorted(job["args"]["n"] for job in jobs if job["id"] in (ids or ())))
        return ids

    monkeypatch.setattr(PostgreSQL, "insert_new", spy)
    return numbers


@pytest.fixture
def decided(monkeypatch):
    """Collect how many items of each batch are decided by queries."""
    numbers = []
    decide = bulk.decide_under_locks

    def spy(jobs, entries, work, **options):
        numbers.append(len(entries))
        decide(jobs, entries, work, **options)

    monkeypatch.setattr(bulk, "decide_under_locks", spy)
    return numbers


@pytest.fixture
def announced():
    """Collect the jobs of the signals about new jobs."""
    heard: list[Any] = []

    def receiver(job, **_):
        heard.append(job)

    signals.job_enqueued.connect(receiver)
    yield heard
    signals.job_enqueued.disconnect(receiver)


def item(number: int, **options: Any) -> dict[str, Any]:
    return {"type": "t", "args": {"n": number}, "unique": IGNORE, **options}


def many(numbers, **options: Any) -> Any:
    return Job.objects.enqueue_many((item(number) for number in numbers), **options)


def numbers_of(jobs) -> list[int]:
    return [job.args["n"] for job in jobs]


def test_new_jobs_are_inserted_in_pieces_and_answered_and_announced_in_order(monkeypatch, pieces, decided, announced):
    now = timezone.now()
    monkeypatch.setattr(timezone, "now", lambda: now)  # a batch that waits for a second is dated anew
    result = many(range(1_100))
    assert pieces == [
        list(range(FIRST)),
        list(range(FIRST, SECOND)),
        list(range(SECOND, 1_000)),
        list(range(1_000, 1_100)),
    ]
    assert decided == []
    assert [answer.index for answer in result] == list(range(1_100))
    assert result.counts == {"created": 1_100}
    assert numbers_of(answer.job for answer in result) == numbers_of(announced) == list(range(1_100))
    assert not any(job._state.adding for job in announced)
    stored = Job.objects.order_by("pk")
    assert numbers_of(stored) == list(range(1_100))
    assert [job.pk for job in stored] == [answer.job.pk for answer in result]
    assert {job.created_at for job in stored} == {now}


def test_the_next_piece_is_read_while_the_database_inserts(monkeypatch):
    happened = []
    connection.ensure_connection()
    read, execute, leave = Items.read, psycopg.Cursor.execute, psycopg.Pipeline.__exit__

    def note(name, do):
        def noted(*arguments, **options):
            if CLOCK not in arguments:  # asked when the last answer is some seconds old
                happened.append(name)
            return do(*arguments, **options)

        return noted

    monkeypatch.setattr(Items, "read", note("read", read))
    monkeypatch.setattr(psycopg.Cursor, "execute", note("send", execute))
    monkeypatch.setattr(psycopg.Pipeline, "__exit__", note("answer", leave))
    many(range(SECOND))
    assert happened[:6] == ["read", "send", "read", "answer", "send", "read"]


def test_without_pipelines_the_pieces_follow_each_other(monkeypatch, pieces):
    monkeypatch.setattr(psycopg.Pipeline, "is_supported", lambda: False)
    monkeypatch.setattr(psycopg.Connection, "pipeline", None)
    assert many(range(SECOND)).counts == {"created": SECOND}
    assert list(map(len, pieces)) == [FIRST, SECOND - FIRST]


def test_who_watches_statements_sees_all_of_them(pieces):
    with CaptureQueriesContext(connection) as queries:
        many(range(SECOND))
    assert [query["sql"].split()[0] for query in queries] == ["WITH"] * 2
    assert list(map(len, pieces)) == [FIRST, SECOND - FIRST]


def test_a_stored_duplicate_and_what_follows_its_piece_are_decided_by_queries(pieces, decided):
    met = Job.objects.enqueue(**item(FIRST + 3)).job
    forget_options()
    result = many(range(1_000))
    assert pieces == [list(range(FIRST)), [number for number in range(FIRST, SECOND) if number != FIRST + 3]]
    assert decided == [1_000 - SECOND + 1]
    assert [answer.index for answer in result if answer.outcome == "deduplicated"] == [FIRST + 3]
    assert result[FIRST + 3].job == met
    assert [answer.index for answer in result] == list(range(1_000))
    assert sorted(numbers_of(Job.objects.all())) == list(range(1_000))


def test_when_all_are_duplicates_none_is_stored(pieces, decided):
    many(range(3))
    forget_options()
    assert many(range(3)).counts == {"deduplicated": 3}
    assert (pieces[1:], decided) == ([[]], [3])


@pytest.mark.parametrize("refused", [0, FIRST - 1])
def test_after_a_duplicate_the_rest_is_not_tried_in_vain(refused, monkeypatch, decided):
    Job.objects.enqueue(**item(refused))
    forget_options()
    tried = []

    def spied(insert):
        def spy(dialect, jobs, **options):
            tried.append(options)
            return insert(dialect, jobs, **options)

        return spy

    for name in ("insert", "insert_all"):
        monkeypatch.setattr(PostgreSQL, name, spied(getattr(PostgreSQL, name)))
    many(range(FIRST + 1))
    assert (decided, tried) == ([2], [{}])


@pytest.mark.parametrize("on_conflict", ["ignore", "reject", "replace"])
@pytest.mark.parametrize("again", [FIRST - 1, FIRST, SECOND + 5], ids=["piece", "next", "third"])
def test_an_item_that_comes_twice_is_the_duplicate_of_the_first_wherever_the_pieces_end(on_conflict, again, announced):
    unique = {"keys": ["type", "args"], "on_conflict": on_conflict}
    numbers = [*range(again), 7, *range(again, 1_000)]
    result = Job.objects.enqueue_many(item(number, unique=unique) for number in numbers)
    assert [answer.index for answer in result] == list(range(1_001))
    outcome = {"ignore": "deduplicated", "reject": "rejected", "replace": "replaced"}[on_conflict]
    assert [answer.index for answer in result if answer.outcome != "created"] == [again]
    assert result[again].outcome == outcome
    first, second = result[7].job, result[again].job
    unfinished = Job.objects.filter(finished_at=None)
    assert sorted(numbers_of(unfinished)) == list(range(1_000))
    if on_conflict == "replace":
        assert [job.pk for job in result[again].replaced] == [first.pk]
        assert unfinished.get(args={"n": 7}).pk == second.pk
    else:
        assert (first.pk, len(announced)) == (second.pk, 1_000)


def test_invalid_items_are_answered_in_their_places(pieces):
    items = [item(number) if number % 3 else {"type": ""} for number in range(FIRST)]
    items += [{"type": ""}] * (SECOND - FIRST) + [item(SECOND)]
    result = Job.objects.enqueue_many(items)
    assert [str(answer.outcome) for answer in result] == ["created" if one["type"] else "invalid" for one in items]
    assert [answer.index for answer in result] == list(range(SECOND + 1))
    assert list(map(len, pieces)) == [FIRST - (FIRST + 2) // 3, 1]
    assert Job.objects.count() == result.counts["created"]


def test_invalid_items_alone_need_no_statement(pieces):
    assert Job.objects.enqueue_many([{"type": ""}] * 3).counts == {"invalid": 3}
    assert pieces == []


@pytest.mark.parametrize(
    "options", [{"key": "k"}, {"id": "01890a5d-ac96-774b-bcce-b302099a8057"}, {"unique": {"states": ["completed"]}}]
)
def test_an_item_that_an_insert_cannot_decide_ends_the_pieces(options, pieces, decided):
    items = [item(number) for number in range(SECOND)]
    items[FIRST + 1] = {"type": "t", "args": {"n": FIRST + 1}, **options}
    assert Job.objects.enqueue_many(items).counts == {"created": SECOND}
    assert (list(map(len, pieces)), decided) == ([FIRST], [SECOND - FIRST])


def test_the_source_and_each_may_use_the_connection_between_the_pieces():
    many(range(1_500), each=lambda answer: None)
    seen = []

    def each(answer):
        seen.append(answer.job.pk)
        if answer.index % 300 == 0:
            Job.objects.enqueue("other", {"n": answer.index})
            assert Job.objects.filter(pk__in=seen).count() == len(seen)

    source = Job.objects.filter(type="t").order_by("pk").values_list("args__n", flat=True).iterator(chunk_size=100)
    result = Job.objects.enqueue_many(({"type": "copy", "args": {"n": number}} for number in source), each=each)
    assert result.counts == {"created": 1_500}
    assert Job.objects.filter(type="copy").count() == len(seen) == 1_500
    assert Job.objects.filter(type="other").count() == 5


def test_the_callers_transaction_gets_no_such_statement_and_undoes_all(pieces):
    with transaction.atomic():
        assert many(range(SECOND)).counts == {"created": SECOND}
        transaction.set_rollback(True)
    connection.set_autocommit(False)
    try:
        assert many(range(SECOND)).counts == {"created": SECOND}
        connection.rollback()
    finally:
        connection.set_autocommit(True)
    assert not Job.objects.exists()
    assert pieces == []


def test_a_transaction_that_only_the_driver_knows_gets_no_such_statement():
    dialect = dialect_of(Job.objects.all())
    assert dialect.inserts_alone()
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        assert not dialect.inserts_alone()
        cursor.execute("ROLLBACK")


def test_a_tracer_surrounds_a_whole_batch(pieces, monkeypatch):
    monkeypatch.setattr(optimistic, "is_traced", lambda: True)
    assert many(range(SECOND)).counts == {"created": SECOND}
    assert pieces == []


@pytest.mark.parametrize("count", [1, 5])
def test_a_batch_in_a_transaction_that_waited_is_dated_when_it_is_stored(monkeypatch, count):
    clock = [timezone.now()]
    monkeypatch.setattr(timezone, "now", lambda: clock[0])
    decide = bulk.decide_at_once

    def decide_late(*arguments, **options):
        clock[0] += timedelta(seconds=30)
        return decide(*arguments, **options)

    monkeypatch.setattr(bulk, "decide_at_once", decide_late)
    with transaction.atomic():
        many(range(count))
    assert set(Job.objects.values_list("created_at", flat=True)) == {clock[0]}


def test_a_batch_before_the_first_migration_says_so():
    with connection.schema_editor() as editor:
        editor.execute("ALTER TABLE django_ojs_unique_job RENAME TO elsewhere")
    try:
        with pytest.raises(NotMigrated):
            many(range(3))
    finally:
        with connection.schema_editor() as editor:
            editor.execute("ALTER TABLE elsewhere RENAME TO django_ojs_unique_job")


def test_events_are_in_the_transaction_of_their_jobs(pieces, settings):
    settings.OJS_UNIQUE = {"EVENTS": True}
    assert many(range(SECOND)).counts == {"created": SECOND}
    assert pieces == []


def test_without_the_constraint_stored_jobs_are_met(decided):
    met = Job.objects.enqueue(**item(3)).job
    forget_options()
    with connection.cursor() as cursor:
        cursor.execute("DROP INDEX ojs_unique_key")
    try:
        result = many(range(SECOND))
    finally:
        Job.objects.all().delete()
        with connection.schema_editor() as editor:
            editor.add_constraint(Job, next(one for one in Job._meta.constraints if one.name == "ojs_unique_key"))
    assert result.counts == {"created": SECOND - 1, "deduplicated": 1}
    assert result[3].job == met


@pytest.mark.parametrize("state", ["available", "active"])
def test_an_unfinished_job_without_a_unique_key_is_met_too(state):
    met = Job.objects.enqueue(**item(3)).job
    Job._base_manager.update(unique_states=frozenset(), state=state)
    forget_options()
    result = many(range(5))
    assert (result[3].outcome, result[3].job) == ("deduplicated", met)


@pytest.mark.parametrize("sqlstate", ["40P01", "40001"])
def test_a_statement_that_meets_a_deadlock_is_repeated_in_a_transaction(monkeypatch, sqlstate, decided):
    failing(monkeypatch, at=1, error=OperationalError("ended"), cause=psycopg.errors.lookup(sqlstate)("ended"))
    result = many(range(1_000))
    assert result.counts == {"created": 1_000}
    assert decided == []
    assert sorted(numbers_of(Job.objects.all())) == list(range(1_000))


@pytest.mark.parametrize(
    ("error", "sqlstate"), [(DataError, "22021"), (OperationalError, "57P01"), (ProgrammingError, "42501")]
)
def test_what_is_stored_before_an_error_is_answered_and_announced(monkeypatch, announced, error, sqlstate):
    failing(monkeypatch, at=2, error=error("no"), cause=psycopg.errors.lookup(sqlstate)("no"))
    seen: list[Any] = []
    with pytest.raises(error):
        many(range(1_000), each=seen.append)
    assert len(seen) == len(announced) == Job.objects.count() == FIRST


def failing(monkeypatch, *, at: int, error: Exception, cause: Exception) -> None:
    """Let one of the statements fail."""
    count = 0
    error.__cause__ = cause

    def execute(dialect, statement, parameters, overlap=None, plan=cursors.Plan.KEPT):
        nonlocal count
        count += plan is cursors.Plan.ONCE
        if plan is cursors.Plan.ONCE and count == at:
            raise error
        return cursors.execute(dialect, statement, parameters, overlap, plan)

    monkeypatch.setattr(postgresql, "execute", execute)


def test_the_statement_is_planned_for_the_table_as_it_is():
    for number in range(10):
        many([number])
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement FROM pg_prepared_statements")
        assert cursor.fetchall() == []


def test_what_is_too_large_for_one_statement_is_stored_by_smaller_ones(monkeypatch, pieces, decided):
    monkeypatch.setattr(postgresql, "LARGEST_STATEMENT", 5_000)
    assert many(range(SECOND)).counts == {"created": SECOND}
    assert (pieces, decided) == ([[]], [])


def test_a_piece_that_waited_is_dated_when_it_is_stored(monkeypatch):
    clock = [timezone.now()]
    monkeypatch.setattr(timezone, "now", lambda: clock[0])

    def each(answer):
        if answer.index == FIRST - 1:
            clock[0] += timedelta(seconds=30)

    began = clock[0]
    many(range(SECOND), each=each)
    dates = Job.objects.order_by("pk").values_list("created_at", "enqueued_at")
    assert list(dates) == [(began, began)] * FIRST + [(clock[0], clock[0])] * (SECOND - FIRST)


@pytest.mark.parametrize("notify", [True, False])
def test_each_piece_wakes_the_workers_of_its_queues_once(notify, settings):
    settings.OJS_UNIQUE = {"NOTIFY": notify}
    soon = timezone.now() + timedelta(hours=1)
    with psycopg.connect(**connection.get_connection_params(), autocommit=True) as listener:
        listener.execute(f"LISTEN {CHANNEL}")
        items = [item(number, queue="ab"[number % 2]) for number in range(FIRST)]
        items += [item(number, queue="c", scheduled_at=soon) for number in range(FIRST, SECOND)]
        Job.objects.enqueue_many(items)
        with connection.cursor() as cursor:
            cursor.execute(f"NOTIFY {CHANNEL}, 'end'")
        with closing(listener.notifies(timeout=PATIENCE)) as notes:  # it locks the connection until it is closed
            woken = list(takewhile(lambda name: name != "end", (note.payload for note in notes)))
    assert sorted(woken) == (["a", "b"] if notify else [])


# What happens in between


def test_a_duplicate_whose_key_is_released_while_the_batch_waits_is_still_met(start):
    """The batch waits for the first fingerprint, and a laxer policy takes the second one from its job."""
    first, second = sorted((0, 1), key=lambda number: Job.objects.enqueue(**item(number)).job.fingerprint)
    Job.objects.filter(args={"n": first}).delete()
    Job._base_manager.update(state="active")
    met = Job.objects.get()
    holder = start(enqueue_and_roll_back, item(first))
    holder.hear()
    batch = start(enqueue_both, [first, second])
    wait_until_blocked(1)
    start(enqueue_and_cancel, item(second, unique={**IGNORE, "states": ["available"]})).result()
    holder.tell()
    holder.result()
    (created, _), (outcome, id) = batch.result()
    assert (created, outcome, id) == ("created", "deduplicated", met.pk)


def enqueue_and_roll_back(parent, wanted):
    with transaction.atomic():
        Job.objects.enqueue(**wanted)
        parent.tell()
        parent.hear()
        transaction.set_rollback(True)


def enqueue_both(parent, numbers):
    return [(str(answer.outcome), answer.job.pk) for answer in many(numbers)]


def enqueue_and_cancel(parent, wanted):
    Job.objects.enqueue(**wanted).job.cancel()


class Interrupt(Exception):
    """What a time limit raises."""


@pytest.mark.parametrize("kind", [Interrupt, KeyboardInterrupt])
def test_an_interrupt_while_the_database_works_is_raised_and_leaves_a_usable_connection(monkeypatch, kind):
    many(range(3))
    fetch = psycopg.Pipeline._exit_gen

    def interrupted(pipeline):
        if pipeline.result_queue:
            raise kind
        yield from fetch(pipeline)

    monkeypatch.setattr(psycopg.Pipeline, "_exit_gen", interrupted)
    with pytest.raises(kind):
        many(range(10, 20 + FIRST))
    monkeypatch.undo()
    assert many(range(20, 30)).counts == {"created": 10}
    assert {*range(3), *range(20, 30)} <= set(numbers_of(Job.objects.all()))


def test_what_the_log_does_with_the_connection_harms_no_batch(pieces):
    class Handler(logging.Handler):
        def emit(self, record):
            with transaction.atomic():
                Job.objects.enqueue("audit", {"n": -1})

    logger, handler = logging.getLogger("django_ojs_unique.enqueue"), Handler()
    logger.addHandler(handler)
    try:
        items = [item(number, type="t" if number < FIRST else f"unknown.a{uuid4().hex}") for number in range(SECOND)]
        items[FIRST:] = [{**one, "type": items[-1]["type"]} for one in items[FIRST:]]
        assert Job.objects.enqueue_many(items).counts == {"created": SECOND}
    finally:
        logger.removeHandler(handler)
    assert list(map(len, pieces)) == [FIRST, SECOND - FIRST]
    assert Job.objects.exclude(type="audit").count() == SECOND


def test_the_signals_of_a_batch_are_in_the_order_of_its_items():
    Job.objects.enqueue(**item(3))
    forget_options()
    heard = []

    def receiver(signal, job, **_):
        heard.append(job.args["n"])

    for signal in (signals.job_enqueued, signals.job_suppressed):
        signal.connect(receiver)
    try:
        many(range(8))
    finally:
        for signal in (signals.job_enqueued, signals.job_suppressed):
            signal.disconnect(receiver)
    assert heard == list(range(8))


def test_the_first_batch_of_a_connection_is_one_statement_too(pieces):
    connection.close()
    assert many(range(5)).counts == {"created": 5}
    assert pieces == [list(range(5))]
