"""`enqueue_many` answers and stores what enqueues one by one would, by a constant number of statements."""

from __future__ import annotations

import contextlib
import inspect
import os
import sqlite3
import tracemalloc
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import Group
from django.db import OperationalError, connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from django_ojs_unique import DuplicateJob, signals
from django_ojs_unique.db.fields import new_id
from django_ojs_unique.enqueue import bulk, entry
from django_ojs_unique.enqueue.look import Look
from django_ojs_unique.enqueue.request import ARGUMENTS, Request
from django_ojs_unique.enqueue.resolved_options import forget_options
from django_ojs_unique.enqueue.results import Outcome
from django_ojs_unique.exceptions import (
    InvalidPolicy,
    InvalidRequest,
    JobIdTaken,
    OJSError,
    UnknownJobType,
)
from django_ojs_unique.handlers.declare import job as declare
from django_ojs_unique.models import Job, SuppressedEnqueue
from tests.support.jobs import (
    ALL_STATES,
    DEFAULT_STATES,
    before_the_insert,
    columns,
    elsewhere,
    fresh,
    put,
    stored,
)
from tests.support.refusals import refused

many = Job.objects.enqueue_many
EACH = {"keys": ["type", "args"]}
"""A policy that tells jobs apart by their args."""
IGNORE, REPLACE = {"on_conflict": "ignore"}, {"on_conflict": "replace"}
NOON = datetime(2026, 2, 12, 12, 30, tzinfo=UTC)
PART = 1000
MANY = 250
EXAMPLES = int(os.environ.get("OJS_BATCH_EXAMPLES", "20"))


def numbered(count: int, **options: Any) -> list[dict[str, Any]]:
    return [{"type": "t", "args": {"n": number}, **options} for number in range(count)]


def outcomes(result: Any) -> list[str]:
    return [str(answer.outcome) for answer in result]


# The same as one by one

STATES = [DEFAULT_STATES, ALL_STATES, ["completed", "cancelled", "discarded"], *[[state] for state in ALL_STATES]]
WINDOWS = [
    {},
    {"period": "PT1H"},
    {"period": "P1M"},
    {"period": "PT1H", "window": "fixed"},
    {"period": "P1D", "window": "fixed"},
    {"window": "retention"},
]
policies = st.builds(
    lambda keys, on_conflict, states, window: {"keys": keys, "on_conflict": on_conflict, "states": states, **window},
    st.sampled_from([["type"], ["type"], ["type", "args"]]),
    st.sampled_from(["reject", "replace", "replace_except_schedule", "ignore"]),
    st.sampled_from([DEFAULT_STATES, *STATES]),
    st.sampled_from([{}, {}, *WINDOWS]),
)
types, keys = st.sampled_from("ab"), st.sampled_from(["k", "l"])
objects, arrays = st.sampled_from([{}, {"n": 1}, {"n": True}]), st.lists(st.integers(0, 3), max_size=2)
times = st.sampled_from([None, None, NOON + timedelta(hours=1), NOON + timedelta(days=2), NOON - timedelta(hours=1)])
ids = st.none() | st.none() | st.integers(0, 5)
"""Which of the stored jobs and earlier items an item takes its id from, if it does."""
unique_items = st.fixed_dictionaries(
    {"type": types, "args": objects, "unique": policies, "scheduled_at": times, "id": ids}
)
keyed_items = st.fixed_dictionaries(
    {
        "type": types,
        "args": objects | arrays,
        "key": keys,
        "key_mode": st.sampled_from(["replace", "replace", "preserve_run_at", "unsafe_dedupe"]),
        "key_scope": st.sampled_from(["type", "global"]),
        "scheduled_at": times,
        "id": ids,
    }
)
plain_items = st.fixed_dictionaries({"type": types, "id": ids})
INVALID = [
    3,
    None,
    "t",
    {},
    {"type": 5},
    {"type": "a", "uniqe": {}},
    {"type": "a", "args": {"x": object}},
    {"type": "a", "unique": {"states": []}},
    {"type": "a", "unique": {}, "key": "k"},
    {"type": "a", "id": "no"},
    {"type": "a", "scheduled_at": "tomorrow"},
]
items = st.lists(
    st.one_of(unique_items, unique_items, keyed_items, keyed_items, plain_items, st.sampled_from(INVALID)), max_size=9
)
rows = st.lists(
    st.tuples(
        st.one_of(unique_items, keyed_items),
        st.sampled_from(ALL_STATES),
        st.sampled_from([timedelta(minutes=5), timedelta(hours=2), timedelta(days=40)]),
    ),
    max_size=5,
)


class Ear:
    """Hears the signals about enqueues."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def __call__(self, sender: Any, signal: Any, using: str, **about: Any) -> None:
        self.heard.append(
            (NAMES[signal], *[getattr(value, "pk", value) for name, value in sorted(about.items()) if name != "sender"])
        )


NAMES = {
    signals.job_enqueued: "enqueued",
    signals.job_updated: "updated",
    signals.job_suppressed: "suppressed",
    signals.job_cancelled: "cancelled",
}


@contextlib.contextmanager
def listening() -> Iterator[list[tuple[Any, ...]]]:
    ear = Ear()
    for signal in NAMES:
        signal.connect(ear)
    try:
        yield ear.heard
    finally:
        for signal in NAMES:
            signal.disconnect(ear)


def said(outcome: Any, job: Any, replaced: Any = (), error: Any = None) -> tuple[Any, ...]:
    """Return what matters of an answer."""
    return (
        str(outcome),
        job and job.pk,
        sorted(row.pk for row in replaced),
        error and (error.code, str(getattr(error, "existing_job_state", ""))),
    )


def one_by_one(batch: list[Any]) -> list[tuple[Any, ...]]:
    answers = []
    for item in batch:
        try:
            result = Job.objects.enqueue(**item)
        except DuplicateJob as error:
            answers.append(said("rejected", error.existing_job, error=error))
        except (OJSError, TypeError) as error:
            answers.append(said("invalid", None, error=error if isinstance(error, OJSError) else InvalidRequest("?")))
        else:
            answers.append(said(result.outcome, result.job, result.replaced))
    return answers


def at_once(batch: list[Any]) -> list[tuple[Any, ...]]:
    result = many(batch)
    assert [answer.index for answer in result] == list(range(len(batch)))
    assert result.counts == Counter(answer.outcome for answer in result)
    return [said(answer.outcome, answer.job, answer.replaced, answer.error) for answer in result]


def everything() -> tuple[list[Any], list[Any]]:
    attempts = [
        {name: value for name, value in attempt.items() if name != "id"}
        for attempt in SuppressedEnqueue.objects.order_by("id").values()
    ]
    stored = list(Job.objects.order_by("id").values())
    for row in stored:  # a batch whose items have ids keeps their order by microseconds
        row["enqueued_at"] = row["enqueued_at"] and row["enqueued_at"].replace(microsecond=0)
    return stored, attempts


def observed(act: Any, batch: list[Any]) -> tuple[Any, ...]:
    """Let a batch be enqueued, and put everything back; return the answers, the rows, the attempts, the signals."""
    with listening() as heard, transaction.atomic():
        answers = act(batch)
        stored, attempts = everything()
        transaction.set_rollback(True)
    return answers, stored, attempts, heard


def with_ids(batch: list[Any], stored: list[UUID]) -> list[Any]:
    """Give each item an id of its own, or one of those before it."""
    known, whole = list(stored), []
    for item in batch:
        if isinstance(item, dict) and "id" in item and not isinstance(item["id"], str):
            number = item["id"]
            id = known[number] if number is not None and number < len(known) else new_id()
            known.append(id)
            item = {**item, "id": id}
        whole.append(item)
    return whole


@pytest.mark.slow
@pytest.mark.django_db
def test_a_batch_answers_and_leaves_what_enqueues_one_by_one_do(monkeypatch):
    monkeypatch.setattr(timezone, "now", lambda: NOON)

    @hypothesis_settings(max_examples=EXAMPLES)
    @given(rows, items, st.booleans(), st.booleans())
    def check(before, batch, replace_active, replace_mixed):
        chosen = {"REPLACE_ACTIVE": replace_active, "REPLACE_MIXED_ARGS": replace_mixed}
        with override_settings(OJS_UNIQUE=chosen), transaction.atomic():
            stored = store(before)
            batch = with_ids(batch, stored)
            expected, found = observed(one_by_one, batch), observed(at_once, batch)
            for what, theirs, ours in zip(["answers", "rows", "attempts", "signals"], expected, found, strict=True):
                assert ours == theirs, what
            transaction.set_rollback(True)

    def store(before: list[Any]) -> list[UUID]:
        stored = []
        for item, state, age in before:
            item = {**item, "scheduled_at": None, "id": None}
            with contextlib.suppress(DuplicateJob, InvalidRequest):
                result = Job.objects.enqueue(**item)
                if result.created:
                    if result.job.state == "available":  # or it has inherited a schedule
                        put(result.job, state)
                    Job.objects.filter(pk=result.job.pk).update(created_at=NOON - age)
                    stored.append(result.job.pk)
        SuppressedEnqueue.objects.all().delete()
        return stored

    check()


@pytest.mark.django_db
@pytest.mark.parametrize("id", ["S3-26"])
def test_each_item_has_its_answer_and_its_row_in_order_and_equal_items_are_resolved(id):
    old = Job.objects.enqueue("b", unique={}).job
    result = many([{"type": kind, "unique": IGNORE} for kind in ["a", "b", "a", "c", "c", "c"]])
    assert outcomes(result) == ["created", *["deduplicated"] * 2, "created", *["deduplicated"] * 2]
    first, fourth = result[0].job.pk, result[3].job.pk
    assert [answer.job.pk for answer in result] == [first, old.pk, first, fourth, fourth, fourth]
    assert [answer.job.type for answer in result] == ["a", "b", "a", "c", "c", "c"]
    assert [answer.deduplicated for answer in result] == [False, True, True, False, True, True]
    assert Job.objects.count() == 3


@pytest.mark.django_db
@pytest.mark.parametrize("id", ["S4-36"])
def test_equal_keys_in_one_batch_are_merged_in_order(id):
    soon, later = timezone.now() + timedelta(hours=1), timezone.now() + timedelta(hours=2)
    waiting = Job.objects.enqueue("t", [0], key="stored", scheduled_at=soon).job
    result = many(
        [
            {"type": "t", "args": [1], "key": "stored", "key_mode": "preserve_run_at", "scheduled_at": later},
            {"type": "t", "args": [1], "key": "new", "scheduled_at": soon},
            {"type": "t", "args": [2], "key": "stored", "key_mode": "unsafe_dedupe"},
            {"type": "t", "args": [2], "key": "new", "scheduled_at": later},
            {"type": "t", "args": [3], "key": "new", "key_mode": "preserve_run_at", "scheduled_at": soon},
            {"type": "t", "args": [3], "key": "stored", "key_mode": "preserve_run_at"},
        ]
    )
    assert outcomes(result) == ["replaced", "created", "deduplicated", "replaced", "replaced", "replaced"]
    assert (fresh(waiting).args, fresh(waiting).scheduled_at, fresh(waiting).revision) == ([0, 1, 3], soon, 2)
    new = fresh(result[1].job)
    assert (new.args, new.scheduled_at, new.revision) == ([1, 2, 3], later, 2)
    assert {answer.job.pk for answer in result} == {waiting.pk, new.pk}
    assert Job.objects.count() == 2


@pytest.mark.django_db
def test_an_answer_names_the_job_that_held_the_key_at_its_turn():
    running = put(Job.objects.enqueue("t", key="k").job, "active")
    result = many([{"type": "t", "key": "k", "key_mode": "unsafe_dedupe"}, {"type": "t", "key": "k"}])
    assert outcomes(result) == ["deduplicated", "created"]
    assert result[0].job.pk == running.pk != result[1].job.pk
    attempt = SuppressedEnqueue.objects.get()
    assert (attempt.existing_job_id, attempt.existing_state) == (running.pk, "active")


@pytest.mark.django_db
def test_an_attempt_records_the_state_that_it_met_and_not_a_later_one():
    Job.objects.enqueue("t", unique={})
    many([{"type": "t", "unique": IGNORE}, {"type": "t", "unique": REPLACE}])
    assert list(SuppressedEnqueue.objects.order_by("id").values_list("outcome", "existing_state")) == [
        ("deduplicated", "available"),
        ("replaced", "available"),
    ]


def in_a_window_that_ends_soon(monkeypatch, on_conflict):
    """Enqueue a job whose window ends in a quarter of a second; return its policy, the time, and a clock to set."""
    once = {"keys": ["type"], "period": "PT3S", "states": ["available", "completed"], "on_conflict": on_conflict}
    began = timezone.now()
    Job.objects.enqueue("t", unique=once)
    Job.objects.update(created_at=began - timedelta(seconds=2.75))
    clock = [began]
    monkeypatch.setattr(entry, "database_now", lambda using: clock[0])
    return once, began, clock


@pytest.mark.django_db
@pytest.mark.parametrize("waited", [0.5, 8], ids=["a moment", "long"])
def test_a_batch_that_waited_admits_by_the_moment_from_which_its_windows_count(monkeypatch, waited):
    once, began, clock = in_a_window_that_ends_soon(monkeypatch, "ignore")
    decide = bulk.decide_under_locks

    def decide_late(*arguments, **options):
        clock[0] = began + timedelta(seconds=waited)
        decide(*arguments, **options)

    monkeypatch.setattr(bulk, "decide_under_locks", decide_late)
    answer, _ = Job.objects.enqueue_many([{"type": "t", "unique": once}, {"type": "other"}])
    if answer.outcome == Outcome.CREATED:
        assert answer.job.created_at == began + timedelta(seconds=waited)
    first, *others = Job.objects.filter(type="t").order_by("created_at").values_list("created_at", flat=True)
    assert all(later - first >= timedelta(seconds=3) for later in others)
    assert bool(others) == (waited == 8)


@pytest.mark.django_db
@pytest.mark.parametrize("many", [False, True], ids=["single", "bulk"])
def test_an_enqueue_that_waited_for_locks_in_its_look_is_dated_and_judged_afterwards(monkeypatch, many):
    once, began, clock = in_a_window_that_ends_soon(monkeypatch, "replace")
    look = Look.families

    def look_for_long(*arguments, **options):
        clock[0] = began + timedelta(seconds=8)
        return look(*arguments, **options)

    monkeypatch.setattr(Look, "families", look_for_long)
    if many:
        (answer,) = Job.objects.enqueue_many([{"type": "t", "unique": once}])
    else:
        answer = Job.objects.enqueue("t", unique=once)
    assert (answer.outcome, answer.job.created_at) == ("created", clock[0])  # the window has ended meanwhile


@pytest.mark.django_db
def test_a_new_job_that_a_later_item_rewrites_is_stored_for_both():
    result = many([{"type": "t", "args": [number], "key": "k"} for number in range(2)])
    assert [(answer.outcome, answer.job._state.adding, answer.job._state.db) for answer in result] == [
        ("created", False, "default"),
        ("replaced", False, "default"),
    ]
    assert fresh(result[1].job).args == result[1].job.args == [0, 1]


@pytest.mark.django_db
def test_args_that_python_takes_for_equal_stay_what_they_are():
    args = [{"n": 1}, {"n": True}, {"n": 0}, {"n": False}]
    result = many([{"type": "t", "args": value} for value in args])
    assert [repr(fresh(answer.job).args) for answer in result] == [repr(value) for value in args]
    ones = many([{"type": "t", "args": [1]}, {"type": "t", "args": [True]}])
    assert [repr(fresh(answer.job).args) for answer in ones] == ["[1]", "[True]"]


@pytest.mark.slow
@pytest.mark.django_db
def test_jobs_of_one_batch_are_in_order_for_the_worker():
    result = many(numbered(PART + 5))
    in_line = Job.objects.order_by("-priority", "enqueued_at", "id").values_list("pk", flat=True)
    assert list(in_line) == [answer.job.pk for answer in result]


@pytest.mark.django_db
def test_jobs_with_ids_of_their_caller_are_in_order_for_the_worker():
    ids = [new_id() for _ in range(5)][::-1]
    many([{**item, "id": id} for item, id in zip(numbered(5, unique=EACH), ids, strict=True)])
    assert list(Job.objects.order_by("-priority", "enqueued_at", "id").values_list("pk", flat=True)) == ids


@pytest.mark.parametrize("before", [[], ["a"], ["b", "a"]])
@pytest.mark.parametrize("keys", ["a-a", "-a-a-", "aba-b", "ab--ba", "aA-a", "-A-"])
@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.django_db
def test_jobs_that_a_batch_rewrites_by_key_stand_in_line_as_after_enqueues_one_by_one(before, keys, with_ids):
    """Small letters are keys that replace, capital ones keep the time of the job, and "-" is a job without a key."""

    def item(number, letter):
        mode = {"key_mode": "preserve_run_at" if letter.isupper() else "replace"}
        named = {} if letter == "-" else {"key": letter.lower(), **mode}
        return {"type": "t", "args": {"n": number}, **named, **({"id": new_id()} if with_ids else {})}

    def line(enqueue):
        with transaction.atomic():
            for key in before:
                Job.objects.enqueue("t", {"n": key}, key=key)
            enqueue([item(number, letter) for number, letter in enumerate(keys)])
            in_line = [job.args["n"] for job in Job.objects.order_by("-priority", "enqueued_at", "id")]
            transaction.set_rollback(True)
        return in_line

    assert line(many) == line(one_by_one)


@pytest.mark.skipif(connection.vendor == "mysql", reason="InnoDB keeps no order of inserts")
@pytest.mark.django_db
def test_all_batches_insert_in_the_order_of_the_fingerprints():
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("TRUNCATE django_ojs_unique_job")  # or rows would fill the gaps of earlier ones
    many(numbered(50, unique=EACH))
    with connection.cursor() as cursor:
        order = "ctid" if connection.vendor == "postgresql" else "rowid"
        cursor.execute(f"SELECT fingerprint FROM django_ojs_unique_job ORDER BY {order}")
        inserted = [fingerprint for (fingerprint,) in cursor.fetchall()]
    assert inserted == sorted(inserted)


@pytest.mark.django_db
def test_after_a_batch_of_duplicates_the_next_one_looks_before_it_inserts():
    for _ in range(2):
        many(numbered(3, unique={**EACH, **IGNORE}))
    with CaptureQueriesContext(connection) as queries:
        assert outcomes(many(numbered(3, unique={**EACH, **IGNORE}))) == ["deduplicated"] * 3
    inserts = [query["sql"] for query in queries if "INSERT INTO" in query["sql"]]
    assert all("suppressedenqueue" in sql for sql in inserts)


@pytest.mark.django_db
def test_each_answer_of_a_replacing_batch_is_an_enqueue_that_was_replaced_by_the_next():
    result = many([{"type": "t", "unique": REPLACE}] * 3)
    assert outcomes(result) == ["created", "replaced", "replaced"]
    assert [[row.pk for row in answer.replaced] for answer in result] == [[], [result[0].job.pk], [result[1].job.pk]]
    first, second, third = [columns(answer.job) for answer in result]
    assert [row["state"] for row in (first, second, third)] == ["cancelled", "cancelled", "available"]
    assert (first["replaced_by_id"], second["replaced_by_id"]) == (second["id"], third["id"])


# Statements


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"unique": EACH},
        {"unique": {**EACH, **IGNORE}},
        {"unique": {**EACH, **REPLACE}},
        {"unique": {**EACH, **REPLACE, "states": ["available", "completed"]}},
        {"unique": {}},
        {"unique": REPLACE},
        {"key": "k"},
        {"key": None},
    ],
    ids=["plain", "reject", "ignore", "replace", "finished", "one", "one replaced", "one key", "keys"],
)
def test_the_number_of_statements_does_not_grow_with_the_batch(options, again):
    def batch(count: int) -> list[Any]:
        chosen = numbered(count, **options)
        return [{**item, "key": str(item["args"]["n"])} for item in chosen] if options == {"key": None} else chosen

    statements = {}
    for count in (2, 10, MANY):
        with transaction.atomic():
            if again:
                many(batch(count))
            with CaptureQueriesContext(connection) as queries:
                many(batch(count))
            statements[count] = len(queries)
            transaction.set_rollback(True)
    attempt = 4  # a savepoint, one insert for all, and what undoes it
    assert statements[2] == statements[10] == statements[MANY] <= 9 + attempt


@pytest.mark.django_db
@pytest.mark.parametrize("options", [{}, {"unique": IGNORE}, {"key": "k"}], ids=str)
def test_a_lone_item_takes_the_statements_of_a_single_enqueue(options):
    statements = []
    for enqueue in (lambda: Job.objects.enqueue("t", **options), lambda: many([{"type": "t", **options}])):
        with transaction.atomic(), CaptureQueriesContext(connection) as queries:
            enqueue()
            enqueue()
        statements.append([query["sql"].split()[0] for query in queries])
        Job.objects.all().delete()
        forget_options()
    assert statements[0] == statements[1]


@pytest.mark.django_db
def test_no_item_means_no_statement():
    for mode in ("partial", "atomic"):
        with CaptureQueriesContext(connection) as queries:
            result = many([], mode=mode)
        assert (len(queries), len(result), list(result), result.counts, str(result)) == (0, 0, [], Counter(), "none")


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize("unique", [REPLACE, IGNORE], ids=str)
def test_many_items_of_one_key_cost_what_many_items_cost(unique):
    """Count the rows that are weighed, which is what would grow with the square."""
    from django_ojs_unique import UniquePolicy

    weighed, is_duplicate = 0, UniquePolicy.is_duplicate

    def counting(self: Any, *about: Any) -> bool:
        nonlocal weighed
        weighed += 1
        return is_duplicate(self, *about)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UniquePolicy, "is_duplicate", counting)
        many([{"type": "t", "unique": unique}] * PART, mode="atomic")
    assert weighed <= 10 * PART


# Modes


@pytest.mark.django_db
def test_in_atomic_mode_an_invalid_item_is_raised_before_the_database_is_asked_about_the_others():
    Job.objects.enqueue("t", unique={})
    with CaptureQueriesContext(connection) as queries, refused(InvalidRequest, "type", index=1):
        many([{"type": "t", "unique": {}}, {"type": 5}], mode="atomic")
    assert len(queries) == 0


@pytest.mark.django_db
def test_in_partial_mode_a_refused_and_an_invalid_item_are_answers_beside_which_the_others_go_on():
    old = Job.objects.enqueue("t", unique={}).job
    result = many([{"type": "a"}, {"type": "t", "unique": {}}, {"type": "b", "args": 5}, {"type": "c"}])
    assert outcomes(result) == ["created", "rejected", "invalid", "created"]
    assert result.counts == {"created": 2, "rejected": 1, "invalid": 1}
    assert str(result) == "2 created, 1 rejected, 1 invalid"
    refused, invalid = result[1], result[2]
    assert isinstance(refused.error, DuplicateJob)
    assert (refused.job.pk, refused.error.existing_job_id) == (old.pk, old.pk)
    assert refused.error.message == "items[1]: A job matching the uniqueness key already exists"
    assert refused.error.details == {
        "existing_job_id": str(old.pk),
        "existing_job_state": "available",
        "index": 1,
    }
    assert invalid.job is None
    assert str(invalid.error).startswith("items[2].args: must be an object")
    assert invalid.error.details == {"field": "args", "value": "5", "index": 2}
    assert set(Job.objects.values_list("type", flat=True)) == {"a", "c", "t"}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("bad", "error", "field"),
    [
        ({"type": "b", "args": 5}, InvalidRequest, "args"),
        ({"type": "t", "unique": {}}, DuplicateJob, None),
        ({"type": "a", "unique": {"states": []}}, InvalidPolicy, "unique.states"),
        ({"type": "a", "id": UUID(int=1)}, JobIdTaken, "id"),
        (None, InvalidRequest, None),
    ],
    ids=["invalid", "refused", "policy", "id", "no object"],
)
def test_in_atomic_mode_the_first_bad_item_is_raised_and_nothing_is_stored(bad, error, field):
    Job.objects.enqueue("t", unique={}, id=UUID(int=1))
    before = everything()
    with refused(error, field, index=2) as caught, listening() as heard:
        many([{"type": "a"}, {"type": "b", "key": "k"}, bad, {"type": "c"}], mode="atomic")
    assert caught.value.message.startswith(f"items[2].{field}: " if field else "items[2]: ")
    assert heard == []
    assert everything() == before


@pytest.mark.django_db
def test_in_atomic_mode_a_lone_item_that_is_refused_is_raised_and_not_recorded():
    Job.objects.enqueue("t", unique={})
    before = everything()
    with refused(DuplicateJob, index=0):
        many([{"type": "t", "unique": {}}], mode="atomic")
    assert everything() == before


@pytest.mark.slow
@pytest.mark.django_db
def test_in_atomic_mode_more_than_a_thousand_are_stored_as_a_whole():
    batch = [*numbered(PART + 1, unique=EACH), *numbered(PART + 1, unique={**EACH, **REPLACE})]
    result = many(batch, mode="atomic")
    assert result.counts == {Outcome.CREATED: PART + 1, Outcome.REPLACED: PART + 1}
    assert Job.objects.filter(state="available").count() == PART + 1
    again = many(batch, mode="partial")
    assert again.counts == {Outcome.REJECTED: PART + 1, Outcome.REPLACED: PART + 1}
    assert Job.objects.filter(state="available").count() == PART + 1
    keyed = [{"type": "t", "key": str(number)} for number in range(PART + 1)]
    assert many(keyed, mode="atomic").counts == {"created": PART + 1}
    assert many(keyed, mode="atomic").counts == {"replaced": PART + 1}


@pytest.mark.django_db
@pytest.mark.parametrize("mode", ["", "Partial", "all", None, 3, []], ids=repr)
def test_another_mode_is_refused(mode):
    with refused(InvalidRequest, "mode"):
        many([{"type": "t"}], mode=mode)
    assert not Job.objects.exists()


# Items


@pytest.mark.django_db
@pytest.mark.parametrize("whole", ["t", b"t", {"type": "t"}, None, 3, object()], ids=lambda value: type(value).__name__)
def test_what_is_no_list_of_items_is_refused(whole):
    with refused(InvalidRequest, "items"):
        many(whole)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("t", "items[0]: must be an object with the arguments of enqueue() (got 't'). Write {'type': ...}."),
        ([("type", "t")], "items[0]: must be an object with the arguments of enqueue()"),
        ({"type": "t", "uniqe": {}}, "items[0].uniqe: is not an argument of enqueue(). Did you mean 'unique'?"),
        ({"type": "t", "lease": 5}, "items[0].lease: is not an argument of enqueue()."),
        ({"type": "t", 5: 5}, "items[0].5: is not an argument of enqueue()."),
        ({"args": {}}, "items[0].type: is missing. Write {'type': 'email.send', ...}."),
        ({"type": "t", "id": "5"}, "items[0].id: must be a UUID"),
    ],
    ids=["string", "list", "misspelt", "hidden", "number", "typeless", "id"],
)
def test_a_bad_item_is_told_by_its_index_its_field_and_its_hint(item, message):
    (answer,) = many([item])
    assert (answer.outcome, answer.job, answer.index) == ("invalid", None, 0)
    assert str(answer.error).startswith(message)


@pytest.mark.django_db
def test_any_mapping_is_an_item():
    plain = {"type": "t", "args": MappingProxyType({"n": 1})}
    result = many([MappingProxyType(plain), OrderedDict(plain), Unhashable(plain)])
    assert outcomes(result) == ["created"] * 3
    assert [fresh(answer.job).args for answer in result] == [{"n": 1}] * 3


class Unhashable(OrderedDict):  # type: ignore[type-arg]
    __hash__ = None  # type: ignore[assignment]


@pytest.mark.django_db
def test_an_item_that_its_source_changes_afterwards_is_taken_as_it_was():
    def source() -> Iterator[dict[str, Any]]:
        item: dict[str, Any] = {"type": "t", "args": {"list": []}, "unique": EACH}
        for number in range(3):
            item["args"]["list"].append(number)
            yield item

    assert [fresh(answer.job).args["list"] for answer in many(source())] == [[0], [0, 1], [0, 1, 2]]


@pytest.mark.django_db
def test_an_item_is_not_changed():
    item = {"type": "t", "args": {"n": [1]}, "unique": {"keys": ["type"]}, "meta": {}, "tags": ["x"], "retry": {}}
    before = repr(item)
    many([item, item])
    assert repr(item) == before


@pytest.mark.slow
@pytest.mark.django_db
def test_an_orm_iterator_can_be_the_source():
    Group.objects.bulk_create(Group(name=str(number)) for number in range(2 * PART + 10))
    rows = Group.objects.order_by("pk").values_list("pk", flat=True).iterator(chunk_size=100)
    result = many({"type": "t", "args": {"group": pk}, "unique": EACH} for pk in rows)
    assert result.counts == {Outcome.CREATED: 2 * PART + 10}


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_an_orm_iterator_outlives_the_transactions_of_the_parts_even_one_that_starts_over():
    taken = Job.objects.enqueue("t").job.pk
    Group.objects.bulk_create(Group(name=str(number)) for number in range(2 * PART + 10))
    rows = Group.objects.order_by("pk").iterator(chunk_size=100)
    result = many(
        {"type": "t", "args": {"name": group.name}, "id": taken if group.name == "3" else None} for group in rows
    )
    assert result.counts == {Outcome.CREATED: 2 * PART + 9, Outcome.INVALID: 1}


@pytest.mark.django_db
def test_handlers_make_items(handlers):
    @declare("mail.send", queue="mail", unique={"keys": ["type", "args"]})
    def send(user: int, template: str = "welcome") -> None:
        """Send."""

    item = send.item(5)
    assert item == {"type": "mail.send", "args": {"user": 5}}
    later = send.using(key="k", priority=3).item(5, template="bye")
    assert later == {"type": "mail.send", "args": {"user": 5, "template": "bye"}, "key": "k", "priority": 3}
    result = many([item, item, later, {**item, "queue": "other", "unique": None}])
    assert outcomes(result) == ["created", "rejected", "created", "created"]
    assert [fresh(result[n].job).queue for n in (0, 2, 3)] == ["mail", "mail", "other"]
    with refused(InvalidRequest, "args", names="'user'"):
        send.item()


@pytest.mark.django_db
@override_settings(OJS_UNIQUE={"REQUIRE_HANDLER": True})
def test_an_unknown_type_is_an_answer():
    (answer,) = many([{"type": "nobody.knows"}])
    assert (answer.outcome, type(answer.error)) == ("invalid", UnknownJobType)


# Ids


@pytest.mark.django_db
@pytest.mark.parametrize("options", [{}, {"unique": {}}, {"unique": REPLACE}, {"key": "k"}], ids=str)
def test_an_id_that_a_stored_job_has_spoils_its_item_only(options):
    id = Job.objects.enqueue("stored").job.pk
    with listening() as heard:
        result = many([{"type": "a"}, {"type": "b", "id": id, **options}, {"type": "c", "unique": {}}])
    assert outcomes(result) == ["created", "invalid", "created"]
    assert isinstance(result[1].error, JobIdTaken)
    assert (result[1].job, result[1].error.details["index"]) == (None, 1)
    assert heard == [("enqueued", result[0].job.pk), ("enqueued", result[2].job.pk)]
    assert not SuppressedEnqueue.objects.exists()
    assert Job.objects.count() == 3
    (alone,) = many([{"type": "b", "id": id, **options}])
    assert (alone.outcome, type(alone.error), alone.error.details["index"]) == ("invalid", JobIdTaken, 0)


@pytest.mark.django_db
@pytest.mark.parametrize("options", [{}, {"unique": EACH}, {"key": "other"}], ids=str)
@pytest.mark.parametrize("first", [{}, {"unique": {}}, {"key": "k"}], ids=str)
def test_an_id_given_twice_goes_to_the_first(first, options):
    id = new_id()
    result = many([{"type": "a", "id": id, **first}, {"type": "b", "id": id, **options}, {"type": "c"}])
    assert outcomes(result) == ["created", "invalid", "created"]
    assert fresh(result[0].job).type == "a"


@pytest.mark.django_db
def test_a_duplicate_does_not_need_its_id():
    id = Job.objects.enqueue("t", unique={}).job.pk
    result = many(
        [
            {"type": "t", "unique": IGNORE, "id": id},
            {"type": "u", "unique": {}},
            {"type": "u", "unique": IGNORE, "id": UUID(int=7)},
            {"type": "v", "id": UUID(int=7)},
        ]
    )
    assert outcomes(result) == ["deduplicated", "created", "deduplicated", "created"]
    assert (result[0].job.pk, result[3].job.pk) == (id, UUID(int=7))


@pytest.mark.django_db
def test_a_replacement_whose_id_is_taken_leaves_the_earlier_item_as_it_was():
    id = Job.objects.enqueue("stored").job.pk
    result = many([{"type": "t", "unique": {}}, {"type": "t", "unique": REPLACE, "id": id}])
    assert outcomes(result) == ["created", "invalid"]
    stored = columns(result[0].job)
    assert (stored["state"], stored["finished_at"], stored["replaced_by_id"]) == ("available", None, None)


# Races


@pytest.mark.skipif(connection.vendor == "sqlite", reason="nobody comes between the statements of the one writer")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("strategy", "expected"), [("reject", "rejected"), ("ignore", "deduplicated"), ("replace", "replaced")]
)
def test_a_batch_that_loses_a_race_looks_again_and_stores_everything_else(strategy, expected):
    batch = [
        *numbered(3, unique={**EACH, "on_conflict": strategy}),
        {"type": "t", "args": [1], "key": "k"},
        {"type": "t", "args": [2], "key": "k"},
        {"type": "plain"},
    ]

    def rival() -> UUID:
        return Job.objects.enqueue("t", {"n": 1}, unique=EACH).job.pk

    with listening() as heard, before_the_insert(lambda: elsewhere(rival)) as theirs:
        result = many(batch)
    assert outcomes(result) == ["created", expected, "created", "created", "replaced", "created"]
    assert Job.objects.exclude(state="cancelled").count() == 5
    assert fresh(result[4].job).args == [1, 2]
    assert theirs == [result[1].replaced[0].pk if expected == "replaced" else result[1].job.pk]
    assert Counter(name for name, *_ in heard)["enqueued"] == 1 + (5 if expected == "replaced" else 4)


class GivenUp(Exception):
    """What a driver raises when its database gives a transaction up for another one."""

    sqlstate = "40P01"
    sqlite_errorcode = sqlite3.SQLITE_BUSY_SNAPSHOT


@pytest.mark.django_db(transaction=True)
def test_a_batch_that_the_database_gives_up_starts_over_as_if_it_had_not_begun():
    given_up = []

    def give_up_once(execute: Any, sql: str, *about: Any) -> Any:
        if sql.startswith("INSERT INTO") and not given_up:
            given_up.append(sql)
            raise OperationalError from GivenUp(1213)
        return execute(sql, *about)

    Job.objects.enqueue("t", unique={})
    batch = [
        *[{"type": "t", "unique": options} for options in (REPLACE, {}, REPLACE)],
        *[{"type": "u", "args": [number], "key": "k"} for number in range(3)],
    ]
    with connection.execute_wrapper(give_up_once), listening() as heard:
        result = many(batch)
    assert given_up
    assert outcomes(result) == ["replaced", "rejected", "replaced", "created", "replaced", "replaced"]
    assert len(heard) == 3 + 1 + 3 + 3
    assert [fresh(result[n].job).state for n in (0, 2)] == ["cancelled", "available"]
    assert (fresh(result[5].job).args, fresh(result[5].job).revision) == ([0, 1, 2], 2)
    assert SuppressedEnqueue.objects.count() == 3


@pytest.mark.skipif(connection.vendor == "sqlite", reason="nobody comes between the statements of the one writer")
@pytest.mark.django_db(transaction=True)
def test_a_rival_that_came_and_finished_still_counts_where_finished_jobs_do():
    policy = {**EACH, "states": [*DEFAULT_STATES, "completed"]}

    def rival() -> UUID:
        return put(Job.objects.enqueue("t", {"n": 1}, unique=EACH).job, "completed").pk

    with before_the_insert(lambda: elsewhere(rival)) as theirs:
        result = many(numbered(3, unique=policy))
    assert outcomes(result) == ["created", "rejected", "created"]
    assert theirs == [result[1].job.pk]


# The caller's transaction, and the caller's callback


@pytest.mark.slow
@pytest.mark.django_db
def test_a_rollback_of_the_caller_takes_the_whole_batch_with_it():
    old = Job.objects.enqueue("t", {"n": 0}, unique=EACH).job
    before = everything()
    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        result = many(numbered(PART + 5, unique={**EACH, **REPLACE}))
        assert result.counts == {Outcome.CREATED: PART + 4, Outcome.REPLACED: 1}
        assert fresh(old).state == "cancelled"
        raise ZeroDivisionError
    assert everything() == before


@pytest.mark.django_db
def test_a_batch_that_raises_leaves_the_callers_transaction_usable():
    id = Job.objects.enqueue("t", unique={}).job.pk
    with transaction.atomic():
        Group.objects.create(name="before")
        for bad in ({"type": "t", "unique": {}}, {"type": "u", "id": id}, {"type": 5}):
            with pytest.raises(OJSError):
                many([{"type": "u"}, bad], mode="atomic")
        Group.objects.create(name="after")
    assert set(Group.objects.values_list("name", flat=True)) == {"before", "after"}
    assert Job.objects.count() == 1


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize("mode", ["partial", "atomic"])
def test_each_is_called_with_every_answer_in_order_and_none_is_kept(mode):
    seen: list[Any] = []
    result = many(numbered(PART + 5), mode=mode, each=seen.append)
    assert [answer.index for answer in seen] == list(range(PART + 5))
    assert [answer.job.args["n"] for answer in seen] == list(range(PART + 5))
    assert (len(result), result.counts) == (0, {Outcome.CREATED: PART + 5})


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_when_each_raises_what_was_answered_is_stored_and_announced_and_the_rest_is_not_read():
    drawn = 0

    def source() -> Iterator[dict[str, Any]]:
        nonlocal drawn
        for item in numbered(4 * PART):
            drawn += 1
            yield item

    def each(answer: Any) -> None:
        if answer.index == PART + 3:
            raise ZeroDivisionError

    with listening() as heard, pytest.raises(ZeroDivisionError):
        many(source(), each=each)
    assert drawn < 4 * PART
    assert PART + 4 <= Job.objects.count() == len(heard) <= 2 * PART


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("mode", ["partial", "atomic"])
def test_when_the_source_raises_what_was_answered_is_stored_and_nothing_else(mode):
    def source() -> Iterator[dict[str, Any]]:
        yield from numbered(2 * PART + 10)
        raise ZeroDivisionError

    seen: list[Any] = []
    with pytest.raises(ZeroDivisionError):
        many(source(), mode=mode, each=seen.append)
    assert Job.objects.count() == len(seen)
    assert len(seen) in ([PART, 2 * PART] if mode == "partial" else [0])


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize("slow", ["source", "each"])
def test_a_job_is_dated_when_it_is_stored_however_slow_the_source_or_each_is(monkeypatch, slow):
    clock = [NOON]
    monkeypatch.setattr(timezone, "now", lambda: clock[0])

    def tick() -> None:
        clock[0] += timedelta(hours=1)

    def source() -> Iterator[dict[str, Any]]:
        for item in numbered(2 * PART):
            if slow == "source" and item["args"]["n"] == 2 * PART - 1:
                tick()
            yield {**item, "scheduled_at": NOON + timedelta(minutes=5)}

    def each(answer: Any) -> None:
        if slow == "each" and answer.index == 0:
            tick()

    many(source(), each=each)
    last = Job.objects.order_by("-id").first()
    assert (last.created_at, last.state) == (NOON + timedelta(hours=1), "available")


@pytest.mark.django_db(transaction=True)
def test_each_may_enqueue():
    def each(answer: Any) -> None:
        Job.objects.enqueue("after", {"n": answer.index})

    many(numbered(3), each=each)
    assert Job.objects.count() == 6


@pytest.mark.slow
@pytest.mark.django_db
def test_with_each_memory_does_not_grow_with_the_number_of_items():
    def peak(first: int, count: int) -> int:
        source = ({"type": "t", "args": {"n": number}, "unique": EACH} for number in range(first, first + count))
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        many(source, each=lambda answer: None)
        return tracemalloc.get_traced_memory()[1] - before

    many(numbered(PART))
    tracemalloc.start()
    try:
        few, more = peak(10_000, 2 * PART), peak(20_000, 4 * PART)
    finally:
        tracemalloc.stop()
    assert more < few * 1.3


# Waking


@pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL can notify")
@pytest.mark.django_db(transaction=True)
def test_a_batch_wakes_the_workers_of_each_queue_once():
    import psycopg

    from django_ojs_unique.db.inserts import CHANNEL

    batch = [{"type": "t", "queue": f"q{number % 3}", "key": str(number)} for number in range(100)]
    batch += [{"type": "t", "queue": "later", "scheduled_at": timezone.now() + timedelta(hours=1)}]
    with psycopg.connect(**connection.get_connection_params(), autocommit=True) as listener:
        listener.execute(f"LISTEN {CHANNEL}")
        for _ in range(2):  # the second rewrites
            many(batch)
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_notify(%s, 'the end')", [CHANNEL])
            names = []
            for notification in listener.notifies():
                if notification.payload == "the end":
                    break
                names.append(notification.payload)
            assert names == ["q0", "q1", "q2"]


@pytest.mark.slow
@pytest.mark.django_db
def test_an_execute_wrapper_sees_the_context_variables_of_the_caller_in_each_statement():
    span: ContextVar[str | None] = ContextVar("span", default=None)
    seen = []

    def wrapper(execute, *call):
        seen.append(span.get())
        return execute(*call)

    token = span.set("the request")
    try:
        with connection.execute_wrapper(wrapper):
            many({"type": "report", "args": [number]} for number in range(PART + 1))
    finally:
        span.reset(token)
    assert set(seen) == {"the request"}


def test_an_item_takes_the_arguments_of_enqueue_and_no_others():
    *parameters, _unknown = inspect.signature(Job.objects.enqueue).parameters
    assert sorted(ARGUMENTS) == sorted(parameters)
    for name in set(Request.__slots__) - ARGUMENTS:
        with refused(InvalidRequest, name, index=0):
            Job.objects.enqueue_many([{"type": "t", name: True}], mode="atomic")
        if name != "context":  # an explanation asks about another one
            with pytest.raises(TypeError, match=f"'{name}'"):
                Job.objects.explain("t", **{name: True})


@pytest.mark.django_db
@pytest.mark.parametrize("longer", ["P1D", None])
def test_policies_of_one_batch_count_each_by_its_own_period(longer):
    counts = {"states": ["completed"], "on_conflict": "ignore"}
    for type in ("short", "long"):
        stored("completed", type=type, unique={}, age=timedelta(hours=2))
    items = [
        {"type": "short", "unique": {**counts, "period": "PT1H"}},
        {"type": "long", "unique": {**counts, "period": longer}},
    ]
    for order in (1, -1):
        outcomes = [str(one.outcome) for one in Job.objects.enqueue_many(items[::order]).results]
        assert outcomes == ["created", "deduplicated"][::order]
        Job.objects.filter(type="short", state="available").delete()


@pytest.mark.django_db
def test_an_item_inherits_the_schedule_of_the_job_that_it_replaces():
    due = timezone.now().replace(microsecond=0) + timedelta(hours=3)
    first = Job.objects.enqueue("t", {"n": 1}, unique={}, scheduled_at=due).job
    unique = {"on_conflict": "replace_except_schedule"}
    items = [{"type": "t", "args": {"n": n}, "unique": unique} for n in (2, 3)]
    *_, last = Job.objects.enqueue_many(items).results
    assert (last.job.args, last.job.state, last.job.scheduled_at) == ({"n": 3}, "scheduled", due)
    assert (fresh(last.job).run_at, fresh(first).state) == (due, "cancelled")
