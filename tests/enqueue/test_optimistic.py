"""A batch outside a transaction inserts piece by piece, without a query; its answers are those of single enqueues."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import DataError, OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ojs_unique import signals
from django_ojs_unique.db import cursors, postgresql
from django_ojs_unique.db.inserts import CHANNEL
from django_ojs_unique.enqueue import batch, optimistic
from django_ojs_unique.enqueue.items import Items
from django_ojs_unique.enqueue.shape import forget_shapes
from django_ojs_unique.models import Job

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL's driver works while it waits"),
]
IGNORE = {"keys": ["type", "args"], "on_conflict": "ignore"}
FIRST, SECOND = optimistic.FIRST, optimistic.FIRST + optimistic.NEXT
"""Where the second and the third piece begin."""


@pytest.fixture(autouse=True)
def pieces(monkeypatch):
    """Forget earlier duplicates; collect the pieces that are inserted, each by the numbers of its jobs."""
    forget_shapes()
    inserted: list[list[int]] = []
    insert = optimistic._Piece.insert

    def spy(piece, meanwhile):
        stored = insert(piece, meanwhile)
        inserted.append([entry.index for entry in stored])
        return stored

    monkeypatch.setattr(optimistic._Piece, "insert", spy)
    return inserted


@pytest.fixture
def decided(monkeypatch):
    """Collect how many items of each batch are decided by queries."""
    numbers = []
    make = batch._Batch.__init__

    def spy(self, jobs, entries, **options):
        numbers.append(len(entries))
        make(self, jobs, entries, **options)

    monkeypatch.setattr(batch._Batch, "__init__", spy)
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


def test_new_jobs_are_inserted_in_pieces_and_answered_and_announced_in_order(pieces, decided, announced):
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
    assert len({job.created_at for job in stored[:1_000]}) == 1


def test_the_next_piece_is_read_while_the_database_inserts(monkeypatch):
    happened = []
    connection.ensure_connection()
    read, enter, leave = Items.read, psycopg.Pipeline.__enter__, psycopg.Pipeline.__exit__

    def note(name, do):
        def noted(*arguments):
            happened.append(name)
            return do(*arguments)

        return noted

    monkeypatch.setattr(Items, "read", note("read", read))
    monkeypatch.setattr(psycopg.Pipeline, "__enter__", note("send", enter))
    monkeypatch.setattr(psycopg.Pipeline, "__exit__", note("answer", leave))
    many(range(SECOND))
    assert happened[:7] == ["read", "send", "read", "answer", "send", "read", "answer"]


def test_without_pipelines_the_pieces_follow_each_other(monkeypatch, pieces):
    monkeypatch.setattr(psycopg.Pipeline, "is_supported", lambda: False)
    assert many(range(SECOND)).counts == {"created": SECOND}
    assert list(map(len, pieces)) == [FIRST, SECOND - FIRST]


def test_who_watches_statements_sees_all_of_them(pieces):
    with CaptureQueriesContext(connection) as queries:
        many(range(SECOND))
    assert [query["sql"].split()[0] for query in queries] == ["INSERT"] * 2
    assert list(map(len, pieces)) == [FIRST, SECOND - FIRST]


def test_a_stored_duplicate_and_what_follows_its_piece_are_decided_by_queries(pieces, decided):
    met = Job.objects.enqueue(**item(FIRST + 3)).job
    forget_shapes()
    result = many(range(1_000))
    assert pieces == [list(range(FIRST)), [number for number in range(FIRST, SECOND) if number != FIRST + 3]]
    assert decided == [1_000 - SECOND + 1]
    assert [answer.index for answer in result if answer.outcome == "deduplicated"] == [FIRST + 3]
    assert result[FIRST + 3].job == met
    assert [answer.index for answer in result] == list(range(1_000))
    assert sorted(numbers_of(Job.objects.all())) == list(range(1_000))


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
    assert list(map(len, pieces)) == [FIRST - (FIRST + 2) // 3, 0, 1]
    assert Job.objects.count() == result.counts["created"]


@pytest.mark.parametrize(
    "options", [{"key": "k"}, {"id": "01890a5d-ac96-774b-bcce-b302099a8057"}, {"unique": {"states": ["completed"]}}]
)
def test_an_item_that_an_insert_cannot_decide_ends_the_pieces(options, pieces, decided):
    items = [item(number) for number in range(SECOND)]
    items[FIRST + 1] = {"type": "t", "args": {"n": FIRST + 1}, **options}
    assert Job.objects.enqueue_many(items).counts == {"created": SECOND}
    assert (list(map(len, pieces)), decided) == ([FIRST, 0], [SECOND - FIRST])


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


def test_the_callers_transaction_gets_no_pieces_and_undoes_all(pieces):
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


def test_events_are_in_the_transaction_of_their_jobs(pieces, settings):
    settings.OJS_UNIQUE = {"EVENTS": True}
    assert many(range(SECOND)).counts == {"created": SECOND}
    assert pieces == []


def test_without_the_constraint_queries_decide(pieces, decided):
    met = Job.objects.enqueue(**item(3)).job
    forget_shapes()
    with connection.cursor() as cursor:
        cursor.execute("ALTER INDEX ojs_unique_guard RENAME TO other_name; DROP INDEX other_name")
    try:
        result = many(range(SECOND))
    finally:
        Job.objects.all().delete()
        with connection.schema_editor() as editor:
            editor.add_constraint(Job, next(one for one in Job._meta.constraints if one.name == "ojs_unique_guard"))
    assert (pieces, decided) == ([[]], [SECOND])
    assert result.counts == {"created": SECOND - 1, "deduplicated": 1}
    assert result[3].job == met


@pytest.mark.parametrize("state", ["available", "active"])
def test_an_unfinished_job_without_a_guard_is_met_too(state):
    met = Job.objects.enqueue(**item(3)).job
    Job.objects.update(guarded_states=frozenset(), state=state)
    forget_shapes()
    result = many(range(5))
    assert (result[3].outcome, result[3].job) == ("deduplicated", met)


@pytest.mark.parametrize("sqlstate", ["40P01", "40001"])
def test_a_piece_that_meets_a_deadlock_is_decided_by_queries(monkeypatch, sqlstate, decided):
    failing(monkeypatch, at=2, error=OperationalError("ended"), cause=psycopg.errors.lookup(sqlstate)("ended"))
    result = many(range(1_000))
    assert result.counts == {"created": 1_000}
    assert decided == [1_000 - FIRST]
    assert sorted(numbers_of(Job.objects.all())) == list(range(1_000))


def test_what_is_stored_before_an_error_is_answered_and_announced(monkeypatch, announced):
    failing(monkeypatch, at=2, error=DataError("no"), cause=psycopg.errors.lookup("22021")("no"))
    seen: list[Any] = []
    with pytest.raises(DataError):
        many(range(1_000), each=seen.append)
    assert len(seen) == len(announced) == Job.objects.count() == FIRST


def failing(monkeypatch, *, at: int, error: Exception, cause: Exception) -> None:
    """Let one of the pieces' statements fail."""
    count = 0
    error.__cause__ = cause

    def execute(dialect, statement, parameters, meanwhile=None):
        nonlocal count
        count += meanwhile is not None
        if meanwhile is not None and count == at:
            raise error
        return cursors.execute(dialect, statement, parameters, meanwhile)

    monkeypatch.setattr(postgresql, "execute", execute)


def test_a_piece_that_is_too_large_for_one_statement_is_stored_by_smaller_ones(monkeypatch, pieces):
    monkeypatch.setattr(postgresql, "LARGEST_STATEMENT", 5_000)
    assert many(range(SECOND)).counts == {"created": SECOND}
    assert pieces == [[]]


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
        woken = [note.payload for note in listener.notifies(timeout=0, stop_after=None)]
    assert sorted(woken) == (["a", "b"] if notify else [])
