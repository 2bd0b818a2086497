"""S4-01..S4-37: job keys, as Graphile Worker has them: rewrite, join, let go, remove."""

import json
import logging
import re
from contextlib import suppress
from datetime import timedelta
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test import override_settings
from django.utils import timezone

from django_ojs_unique import InvalidRequest, RetryPolicy, UniquePolicy, job, signals
from django_ojs_unique.db.inserts import CHANNEL
from django_ojs_unique.exceptions import JobIdTaken, PayloadTooLarge
from django_ojs_unique.execution.claim import claim
from django_ojs_unique.execution.finalize import Finalized, finalize
from django_ojs_unique.execution.leases import requeue
from django_ojs_unique.execution.run_result import RunResult
from django_ojs_unique.maintenance import cron, prune, timers
from django_ojs_unique.models import CronJob, Job, SuppressedEnqueue
from django_ojs_unique.unique import keys
from django_ojs_unique.unique.keys import KeyMode
from django_ojs_unique.worker import Worker
from tests.support.jobs import DAY, HOUR, LEASE, columns, elsewhere, fresh, put, row
from tests.support.pages import table, text_of
from tests.support.processes import PATIENCE
from tests.support.refusals import refused
from tests.support.rows import insert

pytestmark = pytest.mark.django_db(transaction=True)

MODES = [str(mode) for mode in KeyMode]
REWRITING = ["replace", "preserve_run_at"]
ERROR = {"type": "ValueError", "message": "no"}


def shows(statement):
    """Name the statement that a test without parameters of its own shows."""
    return pytest.mark.parametrize((), [pytest.param(id=statement)])


def each_mode(statement, modes=REWRITING):
    return pytest.mark.parametrize("mode", [pytest.param(mode, id=f"{statement}-{mode}") for mode in modes])


def add(args=None, *, mode="replace", key="k", type="t", **options):
    return Job.objects.enqueue(type, args, key=key, key_mode=mode, **options)


def take(*types):
    """Claim all available jobs as a worker would."""
    jobs = Job.objects.all()
    now, lease = timezone.now(), LEASE
    return claim(jobs, queues=["default"], types=types or ["t"], limit=10, worker_id="w", lease=lease, now=now)


def fail(running):
    ((_, finalized),) = finalize(
        Job.objects.all(), [RunResult(running, error=dict(ERROR), error_types=("ValueError",))]
    )
    return finalized


def complete(running):
    ((_, finalized),) = finalize(Job.objects.all(), [RunResult(running)])
    return finalized


def detach():
    """Return a running job that has lost its key, and the one that took it."""
    first = add(["old"]).job
    (running,) = take()
    second = add(["new"]).job
    assert running.pk == first.pk != second.pk
    return running, second


def waiting():
    return Job.objects.exclude(state="active").get()


def drain():
    return Worker(concurrency=1).run(drain=True)


@pytest.fixture
def ran(handlers):
    """Collect the arguments of the runs of type "t"."""
    runs = []

    @job("t", retry=RetryPolicy(initial_interval="PT5M"))
    def handler(*args, **kwargs):
        runs.append(list(args) or kwargs)

    return runs


# With and without a match


@shows("S4-01")
def test_without_a_key_every_add_is_a_job():
    assert [Job.objects.enqueue("t", {"n": 1}).created for _ in range(3)] == [True] * 3
    assert [stored.key for stored in Job.objects.all()] == [None] * 3


@each_mode("S4-02", MODES)
def test_without_a_match_there_is_a_new_job(mode):
    add(key="another")
    result = add({"n": 1}, mode=mode)
    assert (str(result.outcome), result.created, result.deduplicated) == ("created", True, False)
    stored = fresh(result.job)
    assert (stored.key, stored.revision, stored.args, stored.holds_unique_key) == ("k", 0, {"n": 1}, True)


@shows("S4-03")
def test_two_adds_in_one_transaction_make_one_run(ran):
    with transaction.atomic():
        first = add({"count": 1})
        second = add({"count": 2})
    assert first.job.pk == second.job.pk
    assert drain().completed == 1
    assert ran == [{"count": 2}]


@shows("S4-04")
def test_the_default_mode_is_replace():
    Job.objects.enqueue("t", {"n": 1}, key="k", scheduled_at=timezone.now() + HOUR)
    result = Job.objects.enqueue("t", {"n": 2}, key="k")
    assert (str(result.outcome), result.job.args, result.job.state) == ("replaced", {"n": 2}, "available")


REFUSED = [
    ({"key": "k", "key_mode": "replce"}, "key_mode", "'replace'?"),
    ({"key": "k", "key_mode": "Replace"}, "key_mode", "'replace'?"),
    ({"key": "k", "key_mode": None}, "key_mode", "'replace', "),
    ({"key": "k", "key_mode": []}, "key_mode", "'replace', "),
    ({"key": "k", "key_scope": "globl"}, "key_scope", "'global'?"),
    ({"key_mode": "preserve_run_at"}, "key_mode", "without a key"),
    ({"key_scope": "global"}, "key_scope", "without a key"),
    ({"key": "k", "unique": UniquePolicy()}, "key", "unique"),
    ({"key": "k", "unique": {}}, "key", "unique"),
    ({"key": ""}, "key", "empty"),
    ({"key": 42}, "key", "empty"),
    ({"key": "a\0b"}, "key", "U+0000"),
    ({"key": "\ud800"}, "key", "surrogate"),
    ({"key": "k" * 513}, "key", "512"),
]


@pytest.mark.parametrize(
    ("options", "field", "named"),
    [pytest.param(*case, id=f"S4-04-{number}") for number, case in enumerate(REFUSED[:-1])]
    + [pytest.param(*REFUSED[-1], id="S4-34")],
)
@pytest.mark.parametrize("bulk", [False, True], ids=["single", "bulk"])
def test_a_bad_key_is_refused_with_its_field_and_the_hint(options, field, named, bulk):
    if bulk:
        answer, other = Job.objects.enqueue_many([{"type": "t", **options}, {"type": "t", "key": "good"}])
        error = answer.error
        assert (str(answer.outcome), error.details["index"], other.created) == ("invalid", 0, True)
        assert str(error).startswith(f"items[0].{field}: ")
    else:
        with pytest.raises(InvalidRequest) as refusal:
            Job.objects.enqueue("t", **options)
        error = refusal.value
    assert error.details["field"] == field
    assert named in error.message
    assert Job.objects.count() == bulk


@pytest.mark.parametrize("key", [pytest.param("é" * 512, id="S4-34-the-longest"), "\u0301", " ", "🦆" * 512])
def test_a_key_may_be_any_text_of_512_characters(key):
    first = add(key=key).job
    assert add(key=key).job.pk == first.pk
    assert fresh(first).key == key
    assert Job.objects.remove(key=key).pk == first.pk


@shows("S4-04-none")
def test_a_key_overrides_the_policy_of_the_type_and_unique_none_says_so(handlers):
    @job("t", unique=UniquePolicy())
    def handler():
        pass

    assert handler.using(key="a").enqueue().created
    assert Job.objects.enqueue("t", key="b", unique=None).created
    assert {stored.unique for stored in Job.objects.all()} == {None}


@shows("S4-04-queue-rule")
@override_settings(OJS_UNIQUE={"UNIQUE_QUEUES": True})
def test_a_key_overrides_the_rule_of_a_queue():
    assert add(key="a").created
    assert add(key="b").created


# Rewriting what waits


@shows("S4-05")
def test_replace_rewrites_the_row_with_all_new_values(clock):
    first = add({"n": 1}).job
    born = clock.now
    clock.advance(HOUR)
    options = {
        "queue": "slow",
        "meta": {"m": 1},
        "priority": 7,
        "scheduled_at": clock.now + DAY,
        "expires_at": clock.now + 2 * DAY,
        "tags": ["x"],
        "retry": RetryPolicy(max_attempts=9),
        "timeout": 5,
    }
    result = add({"n": 2}, **options)
    assert (result.job.pk, str(result.outcome), result.created, result.replaced) == (first.pk, "replaced", False, ())
    stored = fresh(first)
    expected = {
        "args": {"n": 2},
        "queue": "slow",
        "meta": {"m": 1},
        "priority": 7,
        "state": "scheduled",
        "scheduled_at": clock.now + DAY,
        "run_at": clock.now + DAY,
        "enqueued_at": None,
        "expires_at": clock.now + 2 * DAY,
        "tags": ["x"],
        "max_attempts": 9,
        "timeout_ms": 5000,
        "revision": 1,
        "created_at": born,
        "key": "k",
        "fingerprint": first.fingerprint,
        "holds_unique_key": True,
    }
    assert {name: getattr(stored, name) for name in expected} == expected
    assert stored.retry_options["max_attempts"] == 9
    assert columns(result.job) == {name: getattr(result.job, name) for name in columns(first)}


@shows("S4-05-revisions")
def test_each_rewriting_is_counted_and_nothing_else():
    add()
    assert [add().job.revision for _ in range(3)] == [1, 2, 3]
    assert add(mode="unsafe_dedupe").job.revision == 3
    take()
    assert add().job.revision == 0


@pytest.mark.parametrize("mode", [pytest.param(mode, id=f"S4-06-{mode}") for mode in REWRITING])
def test_what_is_not_given_reverts_to_its_default(mode):
    add(
        {"n": 1},
        mode=mode,
        queue="slow",
        meta={"m": 1},
        priority=7,
        expires_at=timezone.now() + DAY,
        tags=["x"],
        retry=RetryPolicy(max_attempts=9),
        timeout=5,
    )
    names = (
        "args", "queue", "meta", "priority", "expires_at", "tags", "retry_options", "max_attempts", "timeout_ms",
        "visibility_timeout_ms", "schema", "extra", "unique",
    )  # fmt: skip
    plain = columns(Job.objects.enqueue("t").job)
    rewritten = columns(add(mode=mode).job)
    assert {name: rewritten[name] for name in names} == {name: plain[name] for name in names}


@shows("S4-06-of-the-type")
def test_the_defaults_are_those_of_the_type(handlers):
    @job("t", queue="slow", priority=3, retry=RetryPolicy(max_attempts=4))
    def handler():
        pass

    add(queue="fast", priority=9, retry=None)
    rewritten = add().job
    assert (rewritten.queue, rewritten.priority, rewritten.max_attempts) == ("slow", 3, 4)


@shows("S4-07")
def test_replace_debounces(clock, ran):
    for number in range(4):
        add({"n": number}, scheduled_at=clock.now + HOUR)
        clock.advance(HOUR / 2)
        assert timers.promote(Job.objects.all(), clock.now) == 0
    clock.advance(HOUR / 2)
    assert timers.promote(Job.objects.all(), clock.now) == 1
    drain()
    assert ran == [{"n": 3}]


@shows("S4-08")
def test_preserve_run_at_rewrites_all_but_the_time(clock):
    first = add({"n": 1}, priority=1, scheduled_at=clock.now + HOUR).job
    clock.advance(HOUR / 2)
    again = add({"n": 2}, mode="preserve_run_at", queue="slow", scheduled_at=clock.now + DAY).job
    for stored in (again, fresh(first)):
        assert (stored.pk, stored.args, stored.priority, stored.queue) == (first.pk, {"n": 2}, 0, "slow")
        times = (stored.state, stored.run_at, stored.scheduled_at, stored.enqueued_at)
        assert times == ("scheduled", first.run_at, first.scheduled_at, None)


@pytest.mark.parametrize("given", [pytest.param(None, id="S4-08-now"), pytest.param(DAY, id="S4-08-later")])
def test_preserve_run_at_leaves_an_available_job_at_its_place_in_the_queue(clock, given):
    first = add().job
    clock.advance(HOUR)
    add(mode="preserve_run_at", scheduled_at=given and clock.now + given)
    stored = fresh(first)
    assert (stored.state, stored.enqueued_at, stored.run_at) == ("available", first.enqueued_at, None)


@shows("S4-09")
def test_preserve_run_at_throttles(clock, ran):
    due = clock.now + HOUR
    for number in range(4):
        add({"n": number}, mode="preserve_run_at", scheduled_at=clock.now + HOUR)
        clock.advance(HOUR / 5)
    timers.promote(Job.objects.all(), due)
    drain()
    assert ran == [{"n": 3}]


# After a failure


def failed_before(how):
    """Return a job of the key that has run before; ``how`` it waits now."""
    first = add(["old"], retry=RetryPolicy(max_attempts=1 if how == "discarded" else 3)).job
    (running,) = take()
    assert fail(running) is (Finalized.DISCARDED if how == "discarded" else Finalized.RETRIED)
    if how == "available":
        row(first).update(run_at=timezone.now())
        assert timers.promote(Job.objects.all(), timezone.now()) == 1
    stored = fresh(first)
    assert (stored.state, stored.attempt, len(stored.errors)) == (how, 1, 1)
    return stored


FAILED = {"retryable": "S4-10", "available": "S4-10", "discarded": "S4-16"}


@pytest.mark.parametrize("scheduled", [False, True], ids=["now", "later"])
@pytest.mark.parametrize(
    ("how", "mode"),
    [pytest.param(how, mode, id=f"{id}-{how}-{mode}") for how, id in FAILED.items() for mode in REWRITING],
)
def test_a_job_that_failed_before_is_rewritten_as_if_new_its_time_included(how, mode, scheduled):
    old = failed_before(how)
    at = timezone.now() + DAY if scheduled else None
    result = add(["new"], mode=mode, scheduled_at=at)
    assert (result.job.pk, str(result.outcome), Job.objects.count()) == (old.pk, "replaced", 1)
    stored = fresh(old)
    assert (stored.attempt, stored.errors, stored.max_attempts) == (0, [], 3)
    assert (stored.started_at, stored.finished_at, stored.worker_id, stored.dead_letter) == (None, None, None, False)
    assert (stored.state, stored.scheduled_at, stored.run_at) == ("scheduled" if scheduled else "available", at, at)
    assert stored.args == ["old", "new"]
    assert (stored.revision, stored.key, stored.holds_unique_key) == (1, "k", True)


@shows("S4-16-dead-letter")
def test_a_dead_letter_is_used_again_and_runs(ran):
    first = add({"n": 1}, retry=RetryPolicy(max_attempts=1, on_exhaustion="dead_letter")).job
    (running,) = take()
    fail(running)
    assert fresh(first).dead_letter
    add({"n": 2})
    assert drain().completed == 1
    stored = fresh(first)
    assert (ran, stored.state, stored.attempt, stored.dead_letter) == ([{"n": 2}], "completed", 1, False)


@shows("S4-16-expired")
def test_a_job_that_expired_is_used_again():
    first = add({"n": 1}, expires_at=timezone.now() + HOUR).job
    assert timers.expire(Job.objects.all(), timezone.now() + DAY) == 1
    result = add({"n": 2})
    assert (result.job.pk, result.job.state, result.job.expires_at) == (first.pk, "available", None)


@shows("S4-16-pruned")
def test_a_failed_job_that_was_pruned_holds_no_key():
    old = failed_before("discarded")
    row(old).update(finished_at=timezone.now() - timedelta(days=400))
    assert prune.prune(Job.objects.all(), timezone.now()).deleted == 1
    assert add().created


# While it runs


@each_mode("S4-11")
def test_a_running_job_loses_its_key_and_its_attempts_and_both_run(ran, mode):
    first = add(["old"]).job
    (running,) = take()
    result = add(["new"], mode=mode)
    assert (result.created, str(result.outcome)) == (True, "created")
    old = fresh(first)
    assert (old.state, old.key, old.fingerprint, old.holds_unique_key) == ("active", None, None, False)
    assert (old.attempt, old.most_attempts, old.args) == (1, 1, ["old"])
    assert complete(running) is Finalized.COMPLETED
    assert drain().completed == 1
    assert ran == [["new"]]
    assert [stored.state for stored in Job.objects.all()] == ["completed", "completed"]


@shows("S4-12-fails")
def test_a_job_that_was_let_go_is_not_retried():
    running, second = detach()
    assert fail(running) is Finalized.DISCARDED
    stored = fresh(running)
    assert (stored.state, stored.key, stored.holds_unique_key) == ("discarded", None, False)
    assert stored.errors[-1]["retryable"] is False
    assert [taken.pk for taken in take()] == [second.pk]


@shows("S4-12-snoozes")
def test_a_job_that_was_let_go_is_not_retried_however_its_handler_asks():
    running, _ = detach()
    finished = RunResult(running, error=dict(ERROR), error_types=("Retry",), retry_after=HOUR)
    ((_, finalized),) = finalize(Job.objects.all(), [finished])
    assert finalized is Finalized.DISCARDED


@shows("S4-12-dies")
def test_a_job_that_was_let_go_is_not_run_again_after_its_lease():
    running, second = detach()
    row(running).update(lease_expires_at=timezone.now() - DAY)
    assert timers.rescue(Job.objects.all(), timezone.now()) == 1
    assert fresh(running).state == "discarded"
    assert [taken.pk for taken in take()] == [second.pk]


@shows("S4-12-completes")
def test_a_job_that_was_let_go_completes_as_ever():
    running, second = detach()
    assert complete(running) is Finalized.COMPLETED
    assert (fresh(running).state, fresh(second).state) == ("completed", "available")


@shows("S4-12-requeued")
def test_a_job_that_was_let_go_and_is_requeued_does_not_run_again():
    running, second = detach()
    assert requeue(Job.objects.all(), [running]) == (0, set())
    assert timers.rescue(Job.objects.all(), timezone.now()) == 1
    stored = fresh(running)
    assert (stored.state, stored.attempt, stored.key) == ("discarded", 1, None)
    assert stored.errors[-1]["code"] == "no_further_run"
    assert [taken.pk for taken in take()] == [second.pk]


@shows("S4-12-policy-kept")
def test_what_else_the_retry_policy_says_is_kept():
    first = add(retry=RetryPolicy(max_attempts=5, on_exhaustion="dead_letter")).job
    (running,) = take()
    add()
    assert fail(running) is Finalized.DISCARDED
    assert fresh(first).dead_letter


@each_mode("S4-13")
def test_further_adds_rewrite_the_new_row(mode):
    _, second = detach()
    for number in range(3):
        result = add([number], mode=mode)
        assert (result.job.pk, str(result.outcome)) == (second.pk, "replaced")
    assert fresh(second).args == ["new", 0, 1, 2]
    assert Job.objects.count() == 2


@shows("S4-13-again")
def test_when_the_second_runs_too_a_third_waits():
    _, second = detach()
    assert [taken.pk for taken in take()] == [second.pk]
    third = add(["third"]).job
    assert Job.objects.filter(key="k").get().pk == third.pk
    assert (fresh(second).key, fresh(second).most_attempts) == (None, 1)


@shows("S4-33")
def test_the_key_leads_to_the_new_row():
    running, second = detach()
    assert Job.objects.get(key="k").pk == second.pk
    assert Job.objects.explain("t", key="k").duplicates[0].job.pk == second.pk
    assert Job.objects.remove(key="k").pk == second.pk
    assert fresh(running).state == "active"


# unsafe_dedupe


CONDITIONS = ["available", "scheduled", "pending", "retryable", "active", "discarded"]


@pytest.mark.parametrize("state", [pytest.param(state, id=f"S4-14-{state}") for state in CONDITIONS])
def test_unsafe_dedupe_answers_with_the_job_in_any_condition(state):
    held = put(add(["old"]).job, state)
    before = columns(held)
    result = add(["new"], mode="unsafe_dedupe", priority=9)
    assert (result.deduplicated, str(result.outcome), result.job.pk) == (True, "deduplicated", held.pk)
    assert columns(held) == before
    assert Job.objects.count() == 1


@pytest.mark.parametrize("state", [pytest.param(state, id=f"S4-14-{state}") for state in ("completed", "cancelled")])
def test_unsafe_dedupe_does_not_count_what_has_ended(state):
    put(add().job, state)
    assert add(mode="unsafe_dedupe").created


@shows("S4-14-recorded")
def test_what_unsafe_dedupe_held_back_is_recorded_and_announced(received):
    held = add(["old"]).job
    add(["rewrites"])
    add(["new"], mode="unsafe_dedupe")
    Job.objects.enqueue_many([{"type": "t", "args": ["bulk"], "key": "k", "key_mode": "unsafe_dedupe"}])
    attempts = list(SuppressedEnqueue.objects.order_by("pk"))
    assert [(a.outcome, a.on_conflict, a.args) for a in attempts] == [
        ("deduplicated", "unsafe_dedupe", ["new"]),
        ("deduplicated", "unsafe_dedupe", ["bulk"]),
    ]
    assert {(a.existing_job_id, a.existing_state, a.fingerprint) for a in attempts} == {
        (held.pk, "available", held.fingerprint)
    }
    assert [name for name, _ in received] == ["enqueued", "suppressed", "suppressed"]
    assert received[-1][1]["existing_job"].pk == held.pk


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(keys.__file__, id="S4-15-api"),
        pytest.param("docs/keys.md", id="S4-15-page"),
        pytest.param("docs/coming-from-graphile-worker.md", id="S4-15-coming-from"),
    ],
)
def test_the_documentation_warns_of_unsafe_dedupe(text):
    paragraph = text_of(text).partition("unsafe_dedupe")[2]
    assert "angerous" in paragraph
    assert "unsafe_dedupe" in (Job.objects.enqueue.__doc__ or "")


# Arrays


@each_mode("S4-17")
def test_two_arrays_are_joined_the_old_one_first(mode):
    add([{"id": 1}, {"id": 2}], mode=mode)
    result = add([{"id": 3}], mode=mode)
    assert result.job.args == fresh(result.job).args == [{"id": 1}, {"id": 2}, {"id": 3}]


def gathered(clock, mode, adds=3):
    """Add an array each half hour to a batch that is due in an hour; return when it was due, add by add."""
    due = []
    for number in range(adds):
        due.append(add([number], mode=mode, scheduled_at=clock.now + HOUR).job.run_at)
        clock.advance(HOUR / 2)
    return due


@shows("S4-18")
def test_a_fixed_window_runs_at_the_first_time_with_all_items(clock, ran):
    start = clock.now
    assert gathered(clock, "preserve_run_at") == [start + HOUR] * 3
    timers.promote(Job.objects.all(), start + HOUR)
    drain()
    assert ran == [[0, 1, 2]]


@shows("S4-19")
def test_a_rolling_window_moves_on_with_each_item(clock, ran):
    start = clock.now
    assert gathered(clock, "replace") == [start + HOUR, start + 1.5 * HOUR, start + 2 * HOUR]
    assert timers.promote(Job.objects.all(), start + 1.75 * HOUR) == 0
    timers.promote(Job.objects.all(), start + 2 * HOUR)
    drain()
    assert ran == [[0, 1, 2]]


MIXED = [([1], {"a": 1}), ({"a": 1}, [1]), ([1], None), (None, [1]), ([], {})]


@pytest.mark.parametrize("mode", REWRITING)
@pytest.mark.parametrize(("old", "new"), [pytest.param(*pair, id=f"S4-20-{n}") for n, pair in enumerate(MIXED)])
def test_an_array_and_an_object_are_replaced_with_a_warning(caplog, old, new, mode):
    first = add(old, mode=mode).job
    with caplog.at_level(logging.WARNING, "django_ojs_unique"):
        add(new, mode=mode)
    assert fresh(first).args == ({} if new is None else new)
    assert f"Job {first.pk} (t): an enqueue by key replaced an array by an object" in caplog.text


@pytest.mark.parametrize("bulk", [False, True], ids=["single", "bulk"])
@pytest.mark.parametrize(("old", "new"), [pytest.param(*pair, id=f"S4-20-refused-{n}") for n, pair in enumerate(MIXED)])
@override_settings(OJS_UNIQUE={"REPLACE_MIXED_ARGS": False})
def test_by_option_an_array_and_an_object_are_refused(old, new, bulk):
    before = columns(add(old).job)
    with transaction.atomic():
        if bulk:
            answer, other = Job.objects.enqueue_many([{"type": "t", "args": new, "key": "k"}, {"type": "t"}])
            assert (str(answer.outcome), answer.error.details["field"], other.created) == ("invalid", "args", True)
            assert "REPLACE_MIXED_ARGS" in answer.error.message
        else:
            with refused(InvalidRequest, "args", names="REPLACE_MIXED_ARGS") as refusal:
                add(new)
            assert f"{'array' if isinstance(old, list) else 'object'}, as job {before['id']}" in refusal.value.message
    assert columns(Job.objects.get(key="k")) == before


@override_settings(OJS_UNIQUE={"REPLACE_MIXED_ARGS": False})
def test_explain_refuses_what_the_option_refuses(caplog):
    add([1])
    with refused(InvalidRequest, "args", names="REPLACE_MIXED_ARGS"):
        Job.objects.explain("t", {"a": 1}, key="k")
    assert not caplog.records


@pytest.mark.parametrize("same", [({"a": 1}, {"b": 2}), ({"a": 1}, None)])
@override_settings(OJS_UNIQUE={"REPLACE_MIXED_ARGS": False})
def test_objects_replace_each_other_whatever_the_option_says(same):
    add(same[0])
    assert add(same[1]).job.args == (same[1] or {})


@shows("S4-21")
def test_unsafe_dedupe_joins_nothing():
    first = add([1]).job
    add([2], mode="unsafe_dedupe")
    assert fresh(first).args == [1]


@each_mode("S4-22")
def test_what_runs_is_not_joined(mode):
    first = add([1]).job
    take()
    assert add([2], mode=mode).job.args == [2]
    assert fresh(first).args == [1]


EDGES = [([], [1], [1]), ([1], [], [1]), ([], [], []), ([None], [None], [None, None]), ([[1]], [[2]], [[1], [2]])]


@pytest.mark.parametrize(("old", "new", "both"), [pytest.param(*case, id=f"S4-23-{n}") for n, case in enumerate(EDGES)])
def test_the_edges_of_joining(old, new, both):
    add(old)
    assert add(new).job.args == both


@shows("S4-23-default")
def test_missing_args_are_an_object_and_replace():
    add([1])
    assert add().job.args == {}


@shows("S4-17-largest")
@override_settings(OJS_UNIQUE={"MAX_ARGS_BYTES": 20})
def test_joined_arrays_may_not_be_larger_than_args_may_be():
    first = add(["0123456789"]).job
    with refused(PayloadTooLarge, "args", names="27"):
        add(["0123456789"])
    assert fresh(first).args == ["0123456789"]


# Removing


@pytest.mark.parametrize(
    "state",
    [pytest.param(state, id=f"S4-25-{state}") for state in ("available", "scheduled", "pending", "retryable")]
    + [pytest.param("discarded", id="S4-29")],
)
def test_a_job_that_does_not_run_is_deleted_and_returned(state):
    held = put(add({"n": 1}).job, state)
    other = add(key="other").job
    removed = Job.objects.remove(key="k")
    assert (removed.pk, removed.args, removed.state) == (held.pk, {"n": 1}, state)
    assert Job.objects.get().pk == other.pk


@pytest.mark.parametrize("state", [pytest.param(s, id=f"S4-26-{s}") for s in (None, "completed", "cancelled")])
def test_without_a_holder_there_is_nothing_to_remove(state):
    held = put(add().job, state) if state else None
    assert Job.objects.remove(key="k") is None
    assert Job.objects.remove(key="k", type="t") is None
    assert [stored.pk for stored in Job.objects.all()] == ([held.pk] if held else [])


@shows("S4-26-twice")
def test_the_second_of_two_removals_finds_nothing():
    add()
    assert Job.objects.remove(key="k") is not None
    assert Job.objects.remove(key="k") is None


@shows("S4-27")
def test_a_running_job_is_not_removed_but_will_not_run_again():
    held = add({"n": 1}).job
    (running,) = take()
    removed = Job.objects.remove(key="k")
    stored = fresh(held)
    assert (removed.pk, removed.state, stored.state) == (held.pk, "active", "active")
    assert (stored.key, stored.fingerprint, stored.most_attempts, stored.holds_unique_key) == (None, None, 1, False)
    assert Job.objects.remove(key="k") is None
    assert fail(running) is Finalized.DISCARDED
    assert not take()


@shows("S4-27-completes")
def test_a_running_job_whose_key_was_removed_completes():
    add()
    (running,) = take()
    Job.objects.remove(key="k")
    assert complete(running) is Finalized.COMPLETED


@shows("S4-28")
def test_after_the_removal_of_a_running_job_the_key_makes_a_new_one():
    add(["old"])
    (running,) = take()
    Job.objects.remove(key="k")
    result = add(["new"])
    assert result.created
    assert result.job.pk != running.pk
    assert result.job.args == ["new"]


BAD_REMOVALS = [
    ({"key": ""}, "key", "empty"),
    ({"key": None}, "key", "empty"),
    ({"key": "k" * 513}, "key", "512"),
    ({"key": "k", "type": "T!"}, "type", "'T!'"),
]


@pytest.mark.parametrize(
    ("arguments", "field", "named"), [pytest.param(*c, id=f"S4-34-{n}") for n, c in enumerate(BAD_REMOVALS)]
)
def test_a_bad_removal_is_refused(arguments, field, named):
    with refused(InvalidRequest, field, names=named):
        Job.objects.remove(**arguments)


@shows("S4-30")
def test_a_completed_job_holds_no_key_and_is_kept():
    first = add({"n": 1}).job
    complete(*take())
    second = add({"n": 2})
    assert second.created
    stored = fresh(first)
    assert (stored.state, stored.key, stored.holds_unique_key) == ("completed", "k", False)


@shows("S4-30-cancelled")
def test_a_cancelled_job_holds_no_key():
    add().job.cancel()
    assert add().created


# Scope


@shows("S4-31-by-default")
def test_a_key_counts_within_its_type():
    first = add({"n": 1}, type="a").job
    second = add({"n": 2}, type="b")
    assert second.created
    assert (fresh(first).type, fresh(first).args) == ("a", {"n": 1})


@shows("S4-31-global")
def test_a_global_key_turns_the_job_into_one_of_another_type():
    first = add({"n": 1}, type="a", key_scope="global").job
    result = add({"n": 2}, type="b", key_scope="global")
    assert (str(result.outcome), result.job.pk) == ("replaced", first.pk)
    stored = fresh(first)
    assert (stored.type, stored.args) == ("b", {"n": 2})
    assert not take("a")
    assert [taken.pk for taken in take("b")] == [first.pk]


@shows("S4-31-apart")
def test_the_two_scopes_do_not_meet():
    assert add(key_scope="global").created
    assert add(key_scope="type").created
    assert add(key='["t","k"]', key_scope="global").created


@shows("S4-31-remove")
def test_a_key_that_jobs_of_several_types_hold_is_removed_by_type():
    first, second = add(type="a").job, add(type="b").job
    with refused(InvalidRequest, "key", names="a, b"):
        Job.objects.remove(key="k")
    assert Job.objects.count() == 2
    assert Job.objects.remove(key="k", type="b").pk == second.pk
    assert Job.objects.remove(key="k").pk == first.pk


@shows("S4-31-remove-scope")
def test_a_key_that_both_scopes_hold_is_removed_by_scope():
    apart, everywhere = add(key_scope="type").job, add(key_scope="global").job
    with refused(InvalidRequest, "key", names="key_scope="):
        Job.objects.remove(key="k", type=apart.type)
    assert Job.objects.remove(key="k", key_scope="global").pk == everywhere.pk
    assert Job.objects.remove(key="k", key_scope="global") is None
    assert Job.objects.remove(key="k", key_scope="type").pk == apart.pk


# One job per key


@shows("S4-32")
def test_the_database_refuses_a_second_holder():
    held = add().job
    assert add().job.pk == add(mode="preserve_run_at").job.pk == held.pk
    with pytest.raises(Exception, match=r"(?i)unique|duplicate"), transaction.atomic():
        insert(id=uuid4(), type="t", queue="q", fingerprint=held.fingerprint, unique_states=held.unique_states)


@shows("S4-32-spelling")
def test_keys_that_only_look_alike_are_different_keys():
    """MariaDB compares text without case, accents and trailing spaces."""
    for key in ("order-1", "Order-1", "order-1 ", "ordér-1"):
        assert add({"key": key}, key=key).created
    for key in ("Order-1", "order-1 ", "ordér-1", "order-1"):
        assert Job.objects.remove(key=key).args == {"key": key}


# Transactions


@each_mode("S4-35")
@pytest.mark.parametrize("how", ["available", "scheduled", "retryable", "active", "discarded"])
def test_a_rollback_restores_the_row_exactly(mode, how):
    held = put(add(["old"]).job, how)
    before = columns(held)
    for act in (
        lambda: add(["new"], mode=mode, priority=5),
        lambda: Job.objects.enqueue_many([{"type": "t", "args": ["new"], "key": "k", "key_mode": mode}]),
        lambda: Job.objects.remove(key="k"),
    ):
        with transaction.atomic():
            act()
            transaction.set_rollback(True)
        assert columns(held) == before
        assert Job.objects.count() == 1


@shows("S4-35-savepoint")
def test_a_savepoint_that_is_rolled_back_takes_only_its_own_with_it():
    with transaction.atomic():
        first = add([1]).job
        with suppress(ZeroDivisionError), transaction.atomic():
            add([2])
            raise ZeroDivisionError
        add([3])
    assert (fresh(first).args, fresh(first).revision) == ([1, 3], 1)


@shows("S4-35-created")
def test_a_key_whose_creation_was_rolled_back_is_free():
    with transaction.atomic():
        add([1])
        transaction.set_rollback(True)
    result = add([2])
    assert (result.created, result.job.args) == (True, [2])


@shows("S4-35-unseen")
@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite in one transaction locks all others out")
def test_others_see_the_old_row_until_the_commit():
    first = add([1]).job
    with transaction.atomic():
        add([2])
        assert elsewhere(lambda: fresh(first).args) == [1]
    assert fresh(first).args == [1, 2]


# Many


def item(args=None, *, key="k", mode="replace", **options):
    return {"type": "t", "args": args, "key": key, "key_mode": mode, **options}


@shows("S4-36")
def test_equal_keys_in_a_batch_are_merged_in_order():
    results = Job.objects.enqueue_many(
        [item([1]), item([2]), item({"n": 3}, key="b"), item([4]), item({"n": 5}, key="b")]
    )
    assert [str(result.outcome) for result in results] == ["created", "replaced", "created", "replaced", "replaced"]
    assert {stored.key: (stored.args, stored.revision) for stored in Job.objects.all()} == {
        "k": ([1, 2, 4], 2),
        "b": ({"n": 5}, 1),
    }
    assert [result.job.pk for result in results] == [Job.objects.get(key=key).pk for key in ("k", "k", "b", "k", "b")]


@pytest.mark.slow
@shows("S4-36-stored")
def test_a_batch_does_to_stored_jobs_what_adds_one_by_one_do(clock):
    def play(enqueue):
        Job.objects.all().delete()
        for key, state in (("w", "available"), ("s", "scheduled"), ("f", "retryable"), ("d", "discarded")):
            put(add([key], key=key, retry=RetryPolicy(max_attempts=7)).job, state)
        put(add(["r"], key="r").job, "active")
        later = clock.now + DAY
        outcomes = enqueue(
            [
                item([1], key="w", scheduled_at=later, timeout=3),
                item([1], key="s", mode="preserve_run_at"),
                item([1], key="f", mode="preserve_run_at", scheduled_at=later),
                item([1], key="d", mode="unsafe_dedupe"),
                item([1], key="r", mode="preserve_run_at", scheduled_at=later),
                item([2], key="r", mode="preserve_run_at"),
                item([2], key="r", mode="unsafe_dedupe"),
                item([2], key="w", priority=4),
                item([2], key="n"),
                item([3], key="n", mode="unsafe_dedupe"),
                item([2], key="s"),
                item([3], key="s", mode="preserve_run_at", scheduled_at=later),
                item([2], key="d", queue="slow"),
            ]
        )
        unlike = ("id", "started_at", "lease_token", "lease_expires_at")
        found = [
            {name: value for name, value in stored.items() if name not in unlike}
            for stored in Job.objects.order_by("created_at", "key", "args").values()
        ]
        for stored in found:  # a batch with keys keeps their order by microseconds
            stored["enqueued_at"] = stored["enqueued_at"] and stored["enqueued_at"].replace(microsecond=0)
        return outcomes, sorted(map(repr, found))

    one_by_one = play(lambda items: [str(Job.objects.enqueue(**each).outcome) for each in items])
    at_once = play(lambda items: [str(result.outcome) for result in Job.objects.enqueue_many(items)])
    atomic = play(lambda items: [str(result.outcome) for result in Job.objects.enqueue_many(items, mode="atomic")])
    assert one_by_one == at_once == atomic


@shows("S4-36-null")
def test_rows_that_are_rewritten_together_have_the_nulls_of_those_rewritten_alone():
    for key in ("a", "b"):
        add(key=key, retry=RetryPolicy(max_attempts=7), timeout=1, scheduled_at=timezone.now() + DAY)
    Job.objects.enqueue_many([item(key="a"), item(key="b")])
    nulls = {
        "retry_options__isnull": True,
        "timeout_ms__isnull": True,
        "scheduled_at__isnull": True,
        "run_at__isnull": True,
    }
    assert Job.objects.filter(**nulls, max_attempts=3, state="available").count() == 2


@pytest.mark.slow
@shows("S4-36-thousands")
def test_a_key_in_two_thousands_gathers_all_items():
    counts = Job.objects.enqueue_many([item([number]) for number in range(1500)]).counts
    assert (counts["created"], counts["replaced"]) == (1, 1499)
    assert Job.objects.get().args == list(range(1500))


@shows("S4-36-atomic")
def test_an_atomic_batch_with_a_bad_key_changes_nothing():
    before = columns(add(["old"]).job)
    with refused(InvalidRequest, "key_mode", index=1):
        Job.objects.enqueue_many([item(["new"]), item(mode="merge")], mode="atomic")
    assert columns(Job.objects.get()) == before


@shows("S4-36-id-taken")
def test_an_item_with_a_key_and_an_id_that_is_taken_is_an_answer():
    taken = Job.objects.enqueue("other").job
    answer, other = Job.objects.enqueue_many([item(["new"], id=taken.pk), item(key="b")])
    assert isinstance(answer.error, JobIdTaken)
    assert (str(answer.outcome), other.created) == ("invalid", True)
    with pytest.raises(JobIdTaken):
        add(id=taken.pk)


@shows("S4-36-signals")
def test_each_item_is_announced_as_an_add_of_its_own(received):
    updated = []

    def receive(sender, job, **arguments):
        updated.append((job.pk, job.args))

    signals.job_updated.connect(receive)
    try:
        first = add([1]).job
        add([2])
        Job.objects.enqueue_many([item([3]), item([4], key="b"), item([5], mode="unsafe_dedupe")])
    finally:
        signals.job_updated.disconnect(receive)
    assert updated == [(first.pk, [1, 2]), (first.pk, [1, 2, 3])]
    assert [name for name, _ in received] == ["enqueued", "enqueued", "suppressed"]


# The words of the specification, and what is said


MAPPING = {
    "replace": ("cancelled", "available"),
    "preserve_run_at": ("cancelled", "scheduled"),
    "unsafe_dedupe": ("scheduled",),
}


@pytest.mark.parametrize("mode", [pytest.param(mode, id=f"S4-37-{mode}") for mode in MODES])
def test_the_page_maps_each_mode_to_a_policy(mode):
    """The policy that the page names does what the mode does, but cancels and inserts where the mode rewrites."""
    ((_, on_conflict, states, *_),) = [
        cells for cells in table("docs/coming-from-graphile-worker.md", "mode") if cells[0].strip("`") == mode
    ]
    named = re.findall(r"`(\w+)=([^`]+)`", states)
    options = {name: json.loads(value) for name, value in named}
    policy = UniquePolicy(keys=["type", "meta"], meta_keys=["key"], on_conflict=on_conflict, **options)
    later = timezone.now() + DAY

    def by_policy(args, **given):
        return Job.objects.enqueue("t", args, meta={"key": "k"}, unique=policy, **given).job

    by_policy({"n": 1}, scheduled_at=later)
    by_policy({"n": 2})
    assert tuple(Job.objects.order_by("created_at", "id").values_list("state", flat=True)) == MAPPING[mode]
    last = Job.objects.order_by("created_at", "id").last()
    Job.objects.all().delete()
    add({"n": 1}, scheduled_at=later)
    by_key = add({"n": 2}, mode=mode).job
    assert Job.objects.count() == 1
    assert (by_key.args, by_key.state, by_key.run_at) == (last.args, last.state, last.run_at)


REASONS = {
    None: ("create", "no job holds the key."),
    "available": ("replace", "it would be rewritten."),
    "active": ("create", "it would lose the key and its further attempts."),
    "discarded": ("replace", "it would be rewritten."),
}


@pytest.mark.parametrize(("state", "expected"), REASONS.items(), ids=[f"S4-33-explain-{state}" for state in REASONS])
def test_explain_says_what_an_add_would_do_and_writes_nothing(state, expected):
    held = put(add().job, state) if state else None
    before = list(Job.objects.values())
    said = Job.objects.explain("t", key="k")
    action, reason = expected
    assert said.action == action
    assert said.reason.endswith(reason)
    assert [duplicate.job.pk for duplicate in said.duplicates] == ([held.pk] if held else [])
    assert list(Job.objects.values()) == before
    assert Job.objects.explain("t", key="k", key_mode="unsafe_dedupe").action == ("ignore" if held else "create")


# Beside the statements


@shows("S4-34-normal-form")
def test_a_key_is_found_in_either_normal_form():
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    first = add([1], key=composed).job
    assert add([2], key=decomposed).job.pk == first.pk
    assert Job.objects.remove(key=composed).args == [1, 2]


@shows("S4-31-both-scopes")
def test_a_key_that_two_jobs_of_one_type_hold_by_scope_is_refused_in_words_that_help():
    add()
    add(key_scope="global")
    with refused(InvalidRequest, "key", names="t, t"):
        Job.objects.remove(key="k", type="t")
    assert Job.objects.count() == 2


@shows("S4-05-cron")
@pytest.mark.parametrize("state", ["scheduled", "active"])
def test_a_periodic_job_with_a_key_rewrites_what_waits(state):
    now = timezone.now()
    CronJob.objects.define("hourly", "0 * * * *", "t", {"n": 1}, key="k", overlap_policy="allow")
    held = put(add().job, state)
    CronJob.objects.update(next_run_at=now)
    cron.tick("default", now + HOUR)
    entry, holder = CronJob.objects.get(), Job.objects.get(key="k")
    assert (entry.last_outcome, entry.last_job_id) == ("replaced" if state == "scheduled" else "created", holder.pk)
    assert (holder.pk == held.pk, holder.args) == (state == "scheduled", {"n": 1})


@pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL can notify")
@pytest.mark.parametrize("bulk", [pytest.param(False, id="S4-05-wakes"), pytest.param(True, id="S4-36-wakes")])
def test_a_job_that_becomes_available_by_its_key_wakes_the_workers_of_its_queue(bulk):
    add(queue="a", scheduled_at=timezone.now() + DAY)
    listener = connection.copy()
    with listener.cursor() as cursor:
        cursor.execute(f"LISTEN {CHANNEL}")
    if bulk:
        Job.objects.enqueue_many([{"type": "t", "key": "k", "queue": "b"}])
    else:
        add(queue="b")
    with connection.cursor() as cursor:
        cursor.execute(f"NOTIFY {CHANNEL}, 'the end'")
    heard = [notification.payload for notification in listener.connection.notifies(timeout=PATIENCE, stop_after=2)]
    listener.close()
    assert heard == ["b", "the end"]


@shows("S4-05-async")
def test_keys_from_asynchronous_code():
    @async_to_sync
    async def play():
        first = await Job.objects.aenqueue("t", [1], key="k")
        await Job.objects.aenqueue_many([item([2])])
        said = await Job.objects.aexplain("t", [3], key="k")
        return first.job.pk, said.action, await Job.objects.aremove(key="k")

    pk, action, removed = play()
    assert (action, removed.pk, removed.args) == ("replace", pk, [1, 2])
