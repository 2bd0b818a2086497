"""Steps run once per job, cursors go on where they were, and a stopping worker interrupts at checkpoints."""

from __future__ import annotations

import asyncio
import functools
import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from io import StringIO
from threading import Event
from types import SimpleNamespace
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import Group
from django.core.management import call_command
from django.db import OperationalError, transaction
from django.urls import reverse

from django_ojs_unique import LeaseLost, job, lifecycle
from django_ojs_unique.api.wire.envelope import show
from django_ojs_unique.execution import journal as journals
from django_ojs_unique.execution.execute import aexecute, execute
from django_ojs_unique.execution.finalize import finalize
from django_ojs_unique.execution.run import Run
from django_ojs_unique.handlers.registry import registry
from django_ojs_unique.lifecycle import write
from django_ojs_unique.models import Job
from django_ojs_unique.testing import crash_at, run_jobs
from tests.support.background import working
from tests.support.processes import PATIENCE

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("handlers")]


@pytest.fixture
def attempt(take):
    """Let a worker run the next attempt of the only job, if it must wait, at once; return what became of it."""

    def attempt(*, is_stopping=False, finalizes=True):
        if not Job.objects.exists():
            Job.objects.enqueue("t")
        write(Job.objects.filter(state="retryable"), state="available", run_at=None)
        (claimed,) = take(limit=1)
        started = Run(claimed, pool=SimpleNamespace(closed=is_stopping))
        is_async = registry.get("t").is_async
        finished = async_to_sync(aexecute)(started) if is_async else execute(started)
        if finalizes and not finished.is_requeued:
            finalize(Job.objects.all(), [finished])
        else:
            write(Job.objects.all(), state="available", lease_token=None)
        return finished

    return attempt


def transient():
    error = OperationalError("concurrent")
    error.__cause__ = type("Cause", (Exception,), {"sqlstate": "40001"})()
    return error


def steps():
    return [(entry["name"], entry.get("value", entry.get("cursor"))) for entry in Job.objects.get().steps]


def failing_once():
    """Return a function that raises at its first call."""
    failures = [ValueError("once")]

    def fail():
        if failures:
            raise failures.pop()

    return fail


def test_a_step_runs_once_however_often_the_job_runs(attempt):
    called, got, fail = [], [], failing_once()

    def charge(cents):
        called.append(cents)
        return {"id": "ch_1", "cents": cents}

    @job("t", takes_context=True)
    def handler(context):
        got.append(context.step("charge", charge, 500))
        fail()
        context.step("mail", called.append, "mail")
        return "done"

    assert attempt().error is not None
    assert steps() == [("charge", {"id": "ch_1", "cents": 500})]
    assert attempt().error is None
    assert called == [500, "mail"]
    assert got == [{"id": "ch_1", "cents": 500}] * 2
    assert [name for name, _ in steps()] == ["charge", "mail"]
    assert Job.objects.get().result == "done"


@pytest.mark.parametrize("is_async", [False, True])
def test_the_function_may_take_arguments_of_any_name(attempt, is_async):
    def greet(self, name, function):
        return f"{self} {name} {function}"

    async def agreet(**arguments):
        return greet(**arguments)

    arguments = {"self": "a", "name": "b", "function": "c"}
    if is_async:

        @job("t", takes_context=True)
        async def handler(context):
            await context.astep("greet", agreet, **arguments)

    else:
        job("t", takes_context=True)(lambda context: context.step("greet", greet, **arguments))

    assert attempt().error is None
    assert steps() == [("greet", "a b c")]


def test_it_runs_once_in_an_async_handler(attempt):
    called, fail = [], failing_once()

    async def charge(cents: int) -> Decimal:
        called.append(cents)
        return Decimal("5.00")

    @job("t", takes_context=True)
    async def handler(context):
        assert await context.astep("charge", charge, 500) == Decimal("5.00")
        fail()

    assert "once" in attempt().error["message"]
    assert attempt().error is None
    assert called == [500]


def test_a_step_that_raises_is_not_stored(attempt):
    called, fail = [], failing_once()

    def charge():
        called.append(1)
        fail()

    job("t", takes_context=True)(lambda context: context.step("charge", charge))
    attempt()
    assert steps() == []
    attempt()
    assert called == [1, 1]
    assert steps() == [("charge", None)]


@dataclass
class Receipt:
    cents: Decimal
    day: date


def receipt() -> Receipt:
    return Receipt(Decimal("1.50"), date(2026, 2, 28))


def pair() -> tuple[int, date]:
    return 1, date(2026, 1, 1)


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (receipt, Receipt(Decimal("1.50"), date(2026, 2, 28))),
        (pair, (1, date(2026, 1, 1))),
        (functools.partial(receipt), Receipt(Decimal("1.50"), date(2026, 2, 28))),
        (functools.cache(receipt), Receipt(Decimal("1.50"), date(2026, 2, 28))),
        (lambda: (1, 2), [1, 2]),
        (len, 0),
    ],
    ids=["dataclass", "tuple", "partial", "wrapped", "plain", "builtin"],
)
def test_a_value_is_the_same_in_each_attempt(attempt, function, value):
    got, fail = [], failing_once()
    arguments = ("",) if function is len else ()

    @job("t", takes_context=True)
    def handler(context):
        got.append(context.step("one", function, *arguments))
        fail()

    attempt()
    attempt()
    assert got == [value, value]
    assert [type(each) for each in got] == [type(value)] * 2


def test_what_the_handler_does_to_a_value_is_not_stored(attempt):
    got, fail = [], failing_once()

    @job("t", takes_context=True)
    def handler(context):
        waiting = context.step("fetch", lambda: [1, 2, 3])
        seen = context.cursor("seen", start=[])
        got.append(([*waiting], [*seen.value]))
        seen.set([7])
        seen.value.append(8)
        waiting.clear()
        context.step("next", list)
        fail()

    attempt()
    attempt()
    assert got == [([1, 2, 3], []), ([1, 2, 3], [7])]
    assert steps()[0] == ("fetch", [1, 2, 3])


def test_a_result_is_stored_although_a_concurrent_write_ends_the_statement(attempt, monkeypatch):
    """Under REPEATABLE READ an extension of the lease is one. The step would be called again although nobody died."""
    called, failures, real = [], [transient()], lifecycle.write

    def fails_once(*args, **changes):
        if "steps" in changes and failures:
            raise failures.pop()
        return real(*args, **changes)

    monkeypatch.setattr(lifecycle, "write", fails_once)
    job("t", takes_context=True)(lambda context: context.step("charge", called.append, 1))
    assert attempt().error is None
    assert (called, steps(), failures) == ([1], [("charge", None)], [])


def test_a_result_that_cannot_be_stored_ends_the_job_as_each_attempt_would_do_the_step_again(attempt):
    called = []
    job("t", takes_context=True)(lambda context: context.step("one", lambda: called.append(1) or Decimal(1)))
    assert "type hint" in attempt().error["message"]
    assert Job.objects.get().state == "discarded"
    assert called == [1]


@pytest.mark.parametrize("hint", [int | date, "OnlyForTypeCheckers"])
def test_a_hint_that_cannot_be_converted_is_told_before_the_step(attempt, hint):
    called = []

    def one():
        called.append(1)
        return 1

    one.__annotations__["return"] = hint
    job("t", takes_context=True)(lambda context: context.step("one", one))
    assert "step 'one' cannot be stored by its type hint" in attempt().error["message"]
    assert called == []


def test_all_steps_together_have_a_size(attempt, settings):
    settings.OJS_UNIQUE = {"MAX_RESULT_BYTES": 1000}
    job("t", takes_context=True)(lambda context: context.step("one", lambda: "x" * 2000))
    assert "return their keys" in attempt().error["message"]
    assert Job.objects.get().state == "discarded"


@pytest.mark.parametrize("name", ["", "x" * 101, 5, None])
def test_a_name_is_a_short_text(attempt, name):
    job("t", takes_context=True)(lambda context: context.step(name, list))
    assert "must be a text of 1 to 100 characters" in attempt().error["message"]


# Other steps than before


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (["a", "b"], ["a", "c"], "'c' comes where an earlier attempt did 'b'"),
        (["a", "b"], ["c", "a", "b"], "'c' comes where an earlier attempt did 'a'"),
        (["a"], ["a", "b"], None),
        (["a", "b"], ["b", "a"], None),
        (["a", "b"], ["a"], None),
        (["a"], ["a", "a"], "'a' comes twice"),
        ([], ["a", "a"], "'a' comes twice"),
    ],
)
def test_steps_that_changed_are_an_error_that_says_what_to_do(attempt, before, after, message):
    called = []

    def declare(names, ends):
        def handler(context):
            for name in names:
                context.step(name, called.append, name)
            ends()

        job("t", takes_context=True)(handler)

    fail = failing_once()
    declare(before, fail)
    attempt()
    called.clear()
    declare(after, lambda: None)
    finished = attempt()
    if message is None:
        assert finished.error is None
        assert called == [name for name in after if name not in before]
    else:
        assert message in finished.error["message"]
        assert Job.objects.get().state == "retryable", "the code may be fixed"


@pytest.mark.parametrize("kind", ["step", "cursor"])
def test_a_type_that_changed_is_an_error_that_can_be_fixed_and_quotes_no_value(attempt, kind):
    value = "secret"

    def declare(hint):
        def one():
            return value

        one.__annotations__["return"] = hint

        def handler(context):
            if kind == "step":
                context.step("one", one)
            else:
                context.cursor("one", value, type=hint).set(value)
            raise ValueError("no")

        job("t", takes_context=True)(handler)

    declare(str)
    attempt()
    declare(int)
    error = attempt().error
    assert "does not fit its type now" in error["message"]
    assert value not in json.dumps(error)
    assert Job.objects.get().state == "retryable", "the code may be fixed"
    declare(str)
    assert attempt().error["message"] == "no"


def test_a_step_is_no_cursor(attempt):
    kinds = ["step", "cursor"]

    @job("t", takes_context=True)
    def handler(context):
        if kinds.pop(0) == "cursor":
            context.cursor("rows")
        context.step("rows", list)
        raise ValueError("no")

    attempt()
    assert "Give one of them another name" in attempt().error["message"]


def test_steps_come_one_after_the_other(attempt):
    @job("t", takes_context=True)
    def handler(context):
        context.step("outer", lambda: context.step("inner", list))

    assert "while 'outer' still runs" in attempt().error["message"]


# Transactions and leases


def test_a_step_in_a_transaction_is_rolled_back_with_it(attempt):
    called = []

    @job("t", takes_context=True)
    def handler(context):
        for _ in range(2):
            try:
                with transaction.atomic():
                    context.step("group", lambda: called.append(Group.objects.create(name="g").name))
                    if len(called) == 1:
                        raise ValueError("no")
            except ValueError:
                assert steps() == []

    assert attempt().error is None
    assert called == ["g", "g"]
    assert Group.objects.count() == 1
    assert steps() == [("group", None)]


def test_after_a_rollback_no_later_save_stores_the_steps_of_the_transaction(attempt):
    """Else the next attempt would pass over a step whose writes were rolled back."""
    fail = failing_once()

    @job("t", takes_context=True)
    def handler(context):
        context.cursor("rows", 0).set(5)
        with transaction.atomic():
            context.step("group", lambda: Group.objects.create(name="g").name)
            context.step("fails", fail)

    attempt()
    assert steps() == [("rows", 5)]
    assert attempt().error is None
    assert Group.objects.count() == 1


def test_in_an_atomic_handler_steps_are_committed_with_the_rest_or_not_at_all(attempt):
    called, fail = [], failing_once()

    @job("t", takes_context=True, atomic=True)
    def handler(context):
        context.step("a", called.append, 1)
        context.step("b", called.append, 2)
        fail()

    attempt()
    assert steps() == []
    attempt()
    assert called == [1, 2, 1, 2]
    assert [name for name, _ in steps()] == ["a", "b"]


@pytest.mark.parametrize("in_transaction", [False, True])
def test_who_has_lost_the_job_stores_no_step(attempt, take, in_transaction):
    @job("t", takes_context=True)
    def handler(context):
        write(Job.objects.all(), lease_token=uuid4())
        if not in_transaction:
            context.step("one", list)
        with transaction.atomic():
            Group.objects.create(name="zombie")
            try:
                context.step("one", list)
            except LeaseLost:
                return

    finished = attempt(finalizes=False)
    assert steps() == []
    assert not Group.objects.exists()
    assert in_transaction or "LeaseLost" in finished.error["type"]


def test_a_job_that_is_retried_keeps_its_steps_and_one_that_is_enqueued_again_has_none(attempt):
    called = []

    @job("t", takes_context=True, retry={"max_attempts": 1})
    def handler(context):
        context.step("one", called.append, 1)
        raise ValueError("no")

    attempt()
    Job.objects.get().retry()
    attempt()
    assert called == [1]
    new = Job.objects.get().enqueue_again().job
    assert new.steps == []


def test_a_job_that_is_rewritten_by_its_key_has_no_steps(attempt):
    @job("t", takes_context=True)
    def handler(context, n):
        context.step("one", list)
        raise ValueError("no")

    Job.objects.enqueue("t", {"n": 1}, key="k")
    attempt()
    assert steps() == [("one", [])]
    Job.objects.enqueue("t", {"n": 2}, key="k")
    assert steps() == []


# Cursors


def walk(context, rows, seen, fail=lambda row: None):
    cursor = context.cursor("rows", start=0)
    for row in rows:
        if row > cursor.value:
            seen.append(row)
            cursor.set(row)
            fail(row)


def loop(rows, fail, seen):
    return job("t", takes_context=True)(lambda context: walk(context, rows, seen, fail))


def at(place, error=ValueError):
    failures = [error("there")]

    def fail(row):
        if row == place and failures:
            raise failures.pop()

    return fail


def test_a_loop_goes_on_where_the_attempt_failed(attempt):
    seen = []
    loop(range(1, 10), at(5), seen)
    attempt()
    assert steps() == [("rows", 5)]
    assert attempt().error is None
    assert seen == [*range(1, 10)]


def test_a_cursor_is_stored_now_and_then_and_not_for_each_row(attempt, monkeypatch):
    saved, real = [], lifecycle.write

    def write(*args, **changes):
        saved.extend(entry["cursor"] for entry in changes.get("steps", ()))
        return real(*args, **changes)

    monkeypatch.setattr(lifecycle, "write", write)
    loop(range(1, 100), at(50), [])
    attempt()
    assert saved == [50], "once, after the failure"
    monkeypatch.setattr(journals, "SAVE_SECONDS", 0)
    attempt()
    assert saved == [50, *range(51, 100)]


def test_a_cursor_is_stored_again_when_a_second_has_passed_since_the_last_time(attempt, monkeypatch):
    saved, now = [], [0.0]
    real = journals.Journal._save
    monkeypatch.setattr(journals, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(journals.Journal, "_save", lambda *args: (real(*args), saved.extend(steps())))

    @job("t", takes_context=True)
    def handler(context):
        cursor = context.cursor("rows", 0)
        for row in range(1, 10):
            now[0] += 0.25
            cursor.set(row)

    attempt()
    assert saved == [("rows", 4), ("rows", 8)]


def test_an_async_function_is_refused_before_it_is_called(attempt):
    async def charge():
        raise AssertionError

    job("t", takes_context=True)(lambda context: context.step("charge", charge))
    finished = attempt()
    assert "await context.astep" in finished.error["message"]
    assert not finished.gives_up


def test_several_cursors_are_stored_when_the_attempt_fails(attempt):
    @job("t", takes_context=True)
    def handler(context):
        context.cursor("rows").set(1)
        context.cursor("pages").set(2)
        raise ValueError("no")

    attempt()
    assert steps() == [("rows", 1), ("pages", 2)]


def test_in_a_transaction_a_cursor_is_committed_with_the_work(attempt):
    fail = at(2)

    @job("t", takes_context=True)
    def handler(context):
        cursor = context.cursor("rows", start=0)
        for row in range(1, 5):
            if row > cursor.value:
                with transaction.atomic():
                    Group.objects.create(name=str(row))
                    cursor.set(row)
                    fail(row)

    attempt()
    assert steps() == [("rows", 1)]
    attempt()
    assert sorted(Group.objects.values_list("name", flat=True)) == ["1", "2", "3", "4"]


@pytest.mark.parametrize("rows", [[], [1, 2]])
def test_a_cursor_keeps_its_place_before_a_step_although_the_worker_dies(attempt, rows):
    """Else the next attempt, which comes to the cursor first, would find changed steps."""
    seen = []

    @job("t", takes_context=True)
    def handler(context):
        walk(context, rows, seen)
        context.step("mail", seen.append, "mail")
        context.step("end", seen.append, "end")

    Job.objects.enqueue("t")
    with crash_at("mail", "stored"):
        runs = run_jobs()
    assert [ran.outcome for ran in runs] == ["refused", "completed"]
    assert seen == [*rows, "mail", "end"]
    assert [name for name, _ in steps()] == ["rows", "mail", "end"]


def test_a_cursor_without_a_value_has_its_start_in_the_next_attempt(attempt):
    got, fail = [], failing_once()

    @job("t", takes_context=True)
    def handler(context):
        got.append(context.cursor("days", type=date).value)
        context.step("mail", list)
        fail()

    attempt()
    assert attempt().error is None
    assert got == [None, None]


@pytest.mark.parametrize("name", ["rows", "others"])
def test_a_rollback_takes_no_cursor_with_it_that_was_set_before(attempt, name):
    fail = failing_once()

    @job("t", takes_context=True)
    def handler(context):
        rows = context.cursor("rows", start=0)
        other = context.cursor("others") if name == "others" else rows
        rows.set(5)
        with transaction.atomic():
            other.set(6)
            fail()

    attempt()
    assert steps()[0] == ("rows", 5)


def test_a_cursor_does_not_go_back_behind_a_transaction(attempt):
    fail = failing_once()

    @job("t", takes_context=True)
    def handler(context):
        cursor = context.cursor("rows", start=0)
        cursor.set(1)
        with transaction.atomic():
            cursor.set(2)
        with suppress(ValueError), transaction.atomic():
            cursor.set(3)
            raise ValueError
        fail()

    attempt()
    assert steps() == [("rows", 2)]


def test_a_cursor_may_have_a_type(attempt):
    got, fail = [], failing_once()

    @job("t", takes_context=True)
    def handler(context):
        cursor = context.cursor("days", date(2026, 1, 1), type=date)
        got.append(cursor.value)
        cursor.set(cursor.value + timedelta(days=1))
        fail()

    attempt()
    attempt()
    assert got == [date(2026, 1, 1), date(2026, 1, 2)]


def test_a_cursor_that_json_cannot_carry_ends_the_job(attempt):
    job("t", takes_context=True)(lambda context: context.cursor("rows").set(date(2026, 1, 1)))
    assert "steps.rows" in attempt().error["message"]
    assert Job.objects.get().state == "discarded"


# A stopping worker


def test_a_stopping_worker_interrupts_at_a_checkpoint_and_the_attempt_does_not_count(attempt):
    seen = []

    @job("t", takes_context=True)
    def handler(context):
        seen.append("before")
        try:
            context.checkpoint()
        except Exception:
            seen.append("it is no Exception")
        seen.append("after")

    finished = attempt(is_stopping=True)
    assert (finished.is_requeued, finished.error) == (True, None)
    assert seen == ["before"]
    assert attempt().error is None
    assert seen == ["before", "before", "after"]


def test_a_cursor_is_a_checkpoint_and_is_stored_before_it(attempt):
    seen = []
    loop(range(1, 4), at(None), seen)
    assert attempt(is_stopping=True).is_requeued
    assert (seen, steps()) == ([1], [("rows", 1)])
    assert attempt().error is None
    assert seen == [1, 2, 3]


def test_an_atomic_handler_that_is_interrupted_commits_nothing(attempt):
    @job("t", takes_context=True, atomic=True)
    def handler(context):
        Group.objects.create(name="half")
        context.checkpoint()

    assert attempt(is_stopping=True).is_requeued
    assert not Group.objects.exists()
    assert attempt().error is None
    assert Group.objects.count() == 1


def test_an_async_handler_is_interrupted_too(attempt):
    @job("t", takes_context=True)
    async def handler(context):
        cursor = await sync_to_async(context.cursor)("rows", start=0)
        assert cursor.value in (0, 1)
        await cursor.aset(1)

    assert attempt(is_stopping=True).is_requeued
    assert steps() == [("rows", 1)]
    assert attempt().error is None


@pytest.mark.parametrize("beside", [None, ValueError("no")])
def test_a_checkpoint_in_a_task_group_interrupts_unless_another_task_failed(attempt, beside):
    async def fail():
        if beside is not None:
            raise beside

    @job("t", takes_context=True)
    async def handler(context):
        cursor = await sync_to_async(context.cursor)("rows", 0)
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            group.create_task(cursor.aset(1))

    finished = attempt(is_stopping=True)
    assert (finished.is_requeued, finished.error is None) == (beside is None, beside is None)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_worker_that_is_stopped_requeues_the_job_with_its_cursor(is_async):
    began = Event()

    if is_async:

        @job("t", takes_context=True)
        async def handler(context):
            cursor = await sync_to_async(context.cursor)("rows", 0)
            while True:
                began.set()
                await cursor.aset(cursor.value + 1)

    else:

        @job("t", takes_context=True)
        def handler(context):
            cursor = context.cursor("rows", 0)
            while True:
                began.set()
                cursor.set(cursor.value + 1)

    Job.objects.enqueue("t")
    with working():
        assert began.wait(PATIENCE)
    row = Job.objects.get()
    assert (row.state, row.attempt, row.lease_token, row.errors) == ("available", 0, None, [])
    assert row.steps[0]["cursor"] > 0


# Where people see them


STEPS = [{"name": "iban", "value": "DE89370400440532013000", "at": "2026-11-25T00:00:00.000Z"}]


@pytest.mark.parametrize("redact", [[], ["iban"]])
def test_steps_are_seen_in_the_admin_on_the_command_line_and_over_http_but_not_what_is_redacted(admin_client, redact):
    job("t", redact=redact)(lambda: None)
    row = Job.objects.enqueue("t").job
    write(Job.objects.all(), steps=STEPS)
    out = StringIO()
    call_command("jobs", "show", str(row.pk), stdout=out)
    page = admin_client.get(reverse("admin:django_ojs_unique_job_change", args=[row.pk])).content.decode()
    for text in (out.getvalue(), page, json.dumps(show(Job.objects.get()))):
        assert "iban" in text
        assert ("DE8937" in text) is not bool(redact)


# Crashes in tests


@pytest.mark.parametrize(("when", "called"), [("before", 1), ("done", 2), ("stored", 1)])
def test_a_test_may_let_a_handler_crash_at_a_step(when, called):
    calls, keys = [], set()

    def charge(key):
        calls.append(key)

    @job("t", takes_context=True)
    def handler(context):
        keys.add(context.idempotency_key("charge"))
        context.step("charge", charge, context.idempotency_key("charge"))
        return "paid"

    Job.objects.enqueue("t")
    with crash_at("charge", when):
        runs = run_jobs()
    assert [ran.outcome for ran in runs] == ["refused", "completed"]
    assert (len(calls), len(keys)) == (called, 1)
    row = Job.objects.get()
    assert (row.result, row.attempt) == ("paid", 2)
    assert "Lease expired" in row.errors[0]["message"]


def test_a_crash_stores_no_cursor_as_a_dead_process_stores_none():
    got = []

    @job("t", takes_context=True)
    def handler(context):
        cursor = context.cursor("rows", start=0)
        got.append(cursor.value)
        cursor.set(1)
        context.step("mail", list)

    Job.objects.enqueue("t")
    with crash_at("mail", "before"):
        run_jobs()
    assert got == [0, 0]


def test_a_crash_after_the_job_was_completed_leaves_it_alone():
    @job("t", takes_context=True)
    def handler(context):
        with transaction.atomic():
            context.complete(3)
        context.step("mail", list)

    Job.objects.enqueue("t")
    with crash_at("mail", "before"):
        run_jobs()
    row = Job.objects.get()
    assert (row.state, row.result, row.lease_expires_at) == ("completed", 3, None)


def test_a_crash_at_a_step_that_no_handler_comes_to_fails_the_test():
    job("t")(lambda: None)
    Job.objects.enqueue("t")
    with pytest.raises(AssertionError, match="'charge'"), crash_at("charge"):
        run_jobs()
    with pytest.raises(ValueError, match="'stored'"), crash_at("charge", "after"):
        pass


class Provider:
    """A payment provider that honours idempotency keys, as real ones do."""

    def __init__(self):
        self.charges = {}
        self.requests = 0

    def charge(self, cents, idempotency_key):
        self.requests += 1
        return self.charges.setdefault(idempotency_key, f"ch_{len(self.charges)}_{cents}")


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "done", "stored"])
def test_a_provider_that_honours_keys_is_charged_once_wherever_the_worker_dies(when):
    provider = Provider()

    @job("t", takes_context=True)
    def pay(context, cents):
        key = context.idempotency_key("charge")
        charge = context.step("charge", provider.charge, cents, idempotency_key=key)
        with transaction.atomic():
            Group.objects.create(name=charge)
            context.complete(charge)

    for cents in (100, 200):
        Job.objects.enqueue("t", {"cents": cents})
        with crash_at("charge", when):
            run_jobs()
    assert list(provider.charges.values()) == ["ch_0_100", "ch_1_200"]
    assert provider.requests == (4 if when == "done" else 2)
    assert Group.objects.count() == 2
