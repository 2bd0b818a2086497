"""S3-01..S3-31: River's unique jobs, by `river()`. S3-26, bulk inserts, is among the tests of batches."""

import os
import signal
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from django.contrib.admin.models import ADDITION, LogEntry
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ojs_unique import DuplicateJob, InvalidPolicy, RetryPolicy, UniquePolicy, job
from django_ojs_unique.maintenance import timers
from django_ojs_unique.maintenance.prune import prune
from django_ojs_unique.models import Job
from django_ojs_unique.unique.presets import ALL, river
from django_ojs_unique.worker import Summary, Worker
from tests.support.jobs import HOUR, enqueue, fresh, live, outcome, put, row, stored
from tests.support.processes import PATIENCE, wait_until_blocked
from tests.support.refusals import refused

pytestmark = pytest.mark.django_db

REQUIRED = ["pending", "scheduled", "available", "running"]
NO_RETRYABLE = river(by_args=True, by_state=REQUIRED)
QUARTER = "PT15M"


def shows(statement):
    """Name the statement that a test without parameters shows."""
    return pytest.mark.parametrize((), [pytest.param(id=statement)])


def at(text):
    return datetime.fromisoformat(f"2026-02-12T{text}").replace(tzinfo=UTC)


# What counts

OPTIONS = {"by_args": True, "by_period": QUARTER, "by_queue": True, "by_state": REQUIRED}
CHANGES = {
    "by_args": {"args": {"n": 2}},
    "by_period": {"scheduled_at": at("13:00")},
    "by_queue": {"queue": "other"},
}


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(names, id="S3-01-" + ("-".join(names) or "none"))
        for names in (
            tuple(name for name, on in zip(OPTIONS, bits, strict=True) if on) for bits in product([0, 1], repeat=4)
        )
    ],
)
def test_options_combine(chosen, clock):
    policy = river(**{name: OPTIONS[name] for name in chosen})
    first = {"args": {"n": 1}, "queue": "one", "unique": policy}
    enqueue(**first)
    assert outcome(**first) == ("deduplicated" if chosen else "created")
    for option, change in CHANGES.items():
        told_apart = option in chosen or not chosen
        assert outcome(**{**first, **change}) == ("created" if told_apart else "deduplicated")
    assert outcome("another.kind", **first) == "created"


@shows("S3-02")
def test_a_type_declares_the_options_of_its_inserts(handlers):
    @job("reconcile_account", unique=river(by_args=True, by_period="P1D"))
    def reconcile(account_id):
        pass

    answers = [reconcile.enqueue(account_id=1).created for _ in range(2)]
    answers += [Job.objects.enqueue("reconcile_account", {"account_id": n}).created for n in (1, 2)]
    assert answers == [True, False, False, True]


def one_by_one(items):
    return [str(Job.objects.enqueue(**item).outcome) for item in items]


def in_a_transaction(items):
    with transaction.atomic():
        return one_by_one(items)


def in_bulk(items):
    return [str(answer.outcome) for answer in Job.objects.enqueue_many(items).results]


@pytest.mark.parametrize(
    "insert",
    [
        pytest.param(one_by_one, id="S3-03"),
        pytest.param(in_a_transaction, id="S3-03-in-a-transaction"),
        pytest.param(in_bulk, id="S3-03-in-bulk"),
    ],
)
def test_options_of_an_insert_win_over_those_of_the_type(handlers, insert):
    job("t", unique=river(by_args=True))(lambda n: None)
    chosen = [
        {},
        {},
        {"unique": river(by_args=True, by_queue=True)},
        {"unique": river(by_queue=True)},
        {"unique": None},
    ]
    items = [{"type": "t", "args": {"n": 1}, **options} for options in [*chosen, {"unique": river(by_queue=True)}]]
    assert insert(items) == ["created", "deduplicated", "created", "created", "created", "deduplicated"]


@pytest.mark.parametrize(
    ("unique", "answer"),
    [
        pytest.param(river(), "created", id="S3-04"),
        pytest.param({}, "rejected", id="S3-04-an-empty-policy-of-the-specification-is-one"),
    ],
)
def test_no_options_mean_no_uniqueness(unique, answer):
    assert river() is None
    enqueue(unique=unique)
    assert outcome(unique=unique) == answer


@shows("S3-05")
def test_the_kind_always_counts_and_each_option_lets_more_in():
    def admitted(**options):
        Job.objects.all().delete()
        jobs = product(["a", "b"], [1, 2], ["x", "y"])
        return [
            outcome(kind, {"n": n}, queue=queue, unique=river(by_state=REQUIRED, **options)) for kind, n, queue in jobs
        ].count("created")

    assert admitted() == 2
    assert admitted(by_args=True) == admitted(by_queue=True) == 4
    assert admitted(by_args=True, by_queue=True) == 8


@shows("S3-06")
def test_by_period_alone_one_of_the_kind_per_window_whatever_the_args(clock):
    policy = river(by_period=QUARTER)
    assert [outcome(args={"n": n}, unique=policy) for n in (1, 2)] == ["created", "deduplicated"]
    clock.advance(timedelta(minutes=15))
    assert outcome(args={"n": 2}, unique=policy) == "created"


@shows("S3-07")
def test_by_period_and_args_one_per_account_and_window(clock):
    policy = river(by_args=True, by_period="P1D")
    answers = [outcome(args={"account_id": n}, unique=policy) for n in (1, 1, 2)]
    assert answers == ["created", "deduplicated", "created"]


@pytest.mark.parametrize(
    ("by_args", "one", "other", "answer"),
    [
        pytest.param(True, {"a": 1, "b": 2}, {"b": 2, "a": 1}, "deduplicated", id="S3-08"),
        pytest.param(True, {"a": {"x": 1, "y": 2}}, {"a": {"y": 2, "x": 1}}, "deduplicated", id="S3-09"),
        pytest.param(True, {"a": [{"x": 1, "y": 2}]}, {"a": [{"y": 2, "x": 1}]}, "deduplicated", id="S3-09-in-a-list"),
        pytest.param(["id"], {"id": 1, "trace": "a"}, {"id": 1, "trace": "b"}, "deduplicated", id="S3-10"),
        pytest.param(["id"], {"id": 1, "trace": "a"}, {"id": 2, "trace": "a"}, "created", id="S3-10-another"),
        pytest.param(
            ["/customer/id"],
            {"customer": {"id": 1, "name": "Ada"}, "trace": "a"},
            {"customer": {"id": 1, "name": "Bob"}, "trace": "b"},
            "deduplicated",
            id="S3-11",
        ),
        pytest.param(
            ["/customer/id", "kind"],
            {"customer": {"id": 1}, "kind": "a"},
            {"customer": {"id": 2}, "kind": "a"},
            "created",
            id="S3-11-another",
        ),
    ],
)
def test_by_args(by_args, one, other, answer):
    policy = river(by_args=by_args)
    enqueue(args=one, unique=policy)
    assert outcome(args=other, unique=policy) == answer


# Periods


@pytest.mark.parametrize(
    ("first", "second", "answer"),
    [
        pytest.param("15:21", "15:28", "deduplicated", id="S3-12"),
        pytest.param("15:21", "15:31", "created", id="S3-12-next"),
        pytest.param("15:15", "15:29:59.999999", "deduplicated", id="S3-12-whole"),
        pytest.param("15:29:59", "15:30:00", "created", id="S3-13"),
        pytest.param("15:30:00", "15:44:59", "deduplicated", id="S3-13-the-edge-belongs-to-the-new-one"),
    ],
)
def test_a_period_is_rounded_down(first, second, answer, clock):
    policy = river(by_period=QUARTER)
    clock.now = at(first)
    enqueue(unique=policy)
    clock.now = at(second)
    assert outcome(unique=policy) == answer


@pytest.mark.parametrize(
    ("scheduled_at", "answer"),
    [
        pytest.param("15:44", "created", id="S3-14"),
        pytest.param("15:29", "deduplicated", id="S3-14-in-this-window"),
        pytest.param("15:16", "deduplicated", id="S3-14-in-the-past"),
        pytest.param("14:59", "created", id="S3-14-in-a-window-that-is-over"),
    ],
)
def test_the_window_is_that_of_the_schedule(scheduled_at, answer, clock):
    policy = river(by_period=QUARTER)
    clock.now = at("15:21")
    enqueue(unique=policy)
    assert outcome(unique=policy, scheduled_at=at(scheduled_at)) == answer
    assert outcome(unique=policy, scheduled_at=at(scheduled_at)) == "deduplicated"


@pytest.mark.parametrize(
    "period",
    [
        pytest.param(timedelta(milliseconds=999), id="S3-15"),
        pytest.param("PT0.5S", id="S3-15-text"),
        pytest.param(0.999, id="S3-15-number"),
    ],
)
def test_a_period_below_a_second_is_refused(period):
    with refused(InvalidPolicy, "by_period", names="second"):
        river(by_period=period)
    assert river(by_period=1).period == "PT1S"


# Queues


@pytest.mark.parametrize(
    ("by_queue", "answer"),
    [pytest.param(True, "created", id="S3-16"), pytest.param(False, "deduplicated", id="S3-16-without")],
)
def test_by_queue(by_queue, answer):
    policy = river(by_args=True, by_queue=by_queue)
    enqueue(queue="default", unique=policy)
    assert outcome(queue="high-priority", unique=policy) == answer


# States


@pytest.mark.parametrize("state", [pytest.param(str(state), id=f"S3-17-{state}") for state in sorted(ALL)])
def test_by_default_all_but_the_cancelled_and_the_discarded_count(state):
    policy = river(by_args=True)
    stored(state, unique=policy)
    assert outcome(unique=policy) == ("created" if state in ("cancelled", "discarded") else "deduplicated")


@shows("S3-18")
def test_without_completed_the_next_is_admitted_when_the_first_completes():
    policy = river(by_args=True, by_state=[*REQUIRED, "retryable"])
    first = enqueue(unique=policy).job
    assert outcome(unique=policy) == "deduplicated"
    put(first, "completed")
    assert outcome(unique=policy) == "created"


@pytest.mark.parametrize("missing", [pytest.param(name, id=f"S3-19-{name}") for name in REQUIRED])
def test_a_required_state_that_is_missing_is_named_with_the_reason(missing):
    listed = [name for name in [*REQUIRED, "completed"] if name != missing]
    with refused(InvalidPolicy, "by_state", names=f"lacks {missing}:"):
        river(by_args=True, by_state=listed)
    assert UniquePolicy(states=["active" if name == "running" else name for name in listed])


@shows("S3-19-several")
def test_all_missing_states_are_named():
    with refused(InvalidPolicy, "by_state", names="lacks scheduled, available, running:"):
        river(by_state=["pending"])


@pytest.mark.parametrize(
    ("name", "named"),
    [
        pytest.param("runing", "'running'?", id="S3-20"),
        pytest.param("canceled", "'cancelled'?", id="S3-20-american"),
        pytest.param(7, "string", id="S3-20-no-string"),
    ],
)
def test_an_unknown_state_is_refused(name, named):
    with refused(InvalidPolicy, "by_state[4]", names=named):
        river(by_state=[*REQUIRED, name])


@pytest.mark.parametrize("state", [pytest.param(s, id=f"S3-21-{s}") for s in ("cancelled", "discarded")])
def test_states_that_are_added_block_too(state):
    policy = river(by_args=True, by_state=[*REQUIRED, "retryable", state])
    stored(state, unique=policy)
    assert outcome(unique=policy) == "deduplicated"


def promote(after=2 * HOUR):
    return timers.promote(Job.objects.all(), timezone.now() + after)


@shows("S3-22")
def test_without_retryable_a_retry_that_was_superseded_is_discarded_and_says_why():
    first = stored("retryable", args={"n": 1}, unique=NO_RETRYABLE)
    second = enqueue(args={"n": 1}, unique=NO_RETRYABLE).job
    assert promote() == 0
    first = fresh(first)
    assert (first.state, first.run_at, first.dead_letter) == ("discarded", None, False)
    assert first.errors[0] == {"type": "e"}
    assert first.errors[1]["type"] == "superseded"
    assert str(second.pk) in first.errors[1]["message"]
    assert (fresh(second).state, fresh(second).holds_unique_key) == ("available", True)


@shows("S3-22-the-specification-does-not")
def test_without_the_named_behaviour_the_retry_goes_on():
    policy = UniquePolicy(states=["available", "active", "scheduled", "pending"])
    first = stored("retryable", unique=policy)
    second = enqueue(unique=policy).job
    assert promote() == 1
    assert fresh(first).state == fresh(second).state == "available"


@shows("S3-23")
def test_of_two_retries_that_are_due_together_one_survives():
    first = stored("retryable", unique=NO_RETRYABLE)
    second = stored("retryable", unique=NO_RETRYABLE)
    assert promote() == 1
    assert [fresh(first).state, fresh(second).state] == ["discarded", "available"]
    assert str(second.pk) in fresh(first).errors[-1]["message"]


@shows("S3-23-no-conflict-with-itself")
def test_a_retry_is_no_duplicate_of_itself():
    first = stored("retryable", unique=NO_RETRYABLE)
    assert promote() == 1
    assert fresh(first).holds_unique_key


@shows("S3-24")
def test_when_a_completed_holder_is_pruned_the_next_is_admitted_without_a_period(settings):
    settings.OJS_UNIQUE = {"RETENTION": {"completed": "P1D"}}
    policy = river(by_args=True)
    first = stored("completed", unique=policy)
    finished = fresh(first).finished_at
    assert not prune(Job.objects.all(), finished + timedelta(hours=23))
    assert outcome(unique=policy) == "deduplicated"
    pruned = prune(Job.objects.all(), finished + timedelta(hours=24))
    assert (pruned.deleted, pruned.payload_pruned) == (1, 0)
    assert outcome(unique=policy) == "created"


# Results and transactions


@shows("S3-25")
def test_a_skipped_insert_is_an_answer_with_the_job_that_is_there():
    policy = river(by_args=True)
    first = enqueue(unique=policy)
    second = enqueue(unique=policy)
    assert (first.created, first.deduplicated) == (True, False)
    assert (second.created, second.deduplicated, second.job) == (False, True, first.job)


@shows("S3-27")
def test_a_rollback_takes_the_job_and_its_hold_with_it():
    policy = river(by_args=True)
    with transaction.atomic():
        enqueue(unique=policy)
        transaction.set_rollback(True)
    assert not Job.objects.exists()
    assert outcome(unique=policy) == "created"


def holding(parent, commits):
    with transaction.atomic():
        enqueue(unique=river(by_args=True))
        parent.tell()
        parent.hear()
        transaction.set_rollback(not commits)


def inserting(parent):
    connection.ensure_connection()
    parent.tell()
    return outcome(unique=river(by_args=True))


@pytest.mark.slow
@pytest.mark.parametrize("commits", [pytest.param(True, id="S3-27-commit"), pytest.param(False, id="S3-27-rollback")])
def test_another_session_waits_for_the_end_of_the_transaction(start, commits):
    first = start(holding, commits)
    first.hear()
    second = start(inserting)
    second.hear()
    wait_until_blocked(1)
    first.tell()
    first.result()
    assert second.result() == ("deduplicated" if commits else "created")


def note_that_it_is_done():
    LogEntry.objects.create(user=User.objects.get(), action_flag=ADDITION, object_repr="done")


def working(parent):
    """Do the work of the job, and die before anybody could write that it is done."""

    @job("t")
    def handler():
        note_that_it_is_done()
        os.kill(os.getpid(), signal.SIGKILL)

    parent.tell()
    Worker(concurrency=1).run(drain=True)


@pytest.mark.slow
@shows("S3-28")
def test_a_unique_job_can_run_more_than_once(start, handlers):
    User.objects.create(username="u")
    queued = enqueue(unique=river(by_args=True)).job
    child = start(working)
    child.hear()
    child.process.join(PATIENCE)
    row(queued).update(lease_expires_at=timezone.now() - HOUR)
    job("t")(note_that_it_is_done)
    assert Worker(concurrency=1).run(drain=True).completed == 1
    assert LogEntry.objects.count() == 2
    assert (fresh(queued).state, fresh(queued).attempt) == ("completed", 1)  # the lease was lost before its extension


# The index


@pytest.mark.parametrize("state", [pytest.param(str(s), id=f"S3-29-{s}") for s in sorted(ALL)])
def test_only_a_row_in_a_state_that_it_lists_holds_its_key(state):
    policy = river(by_args=True, by_state=[*REQUIRED, "retryable", "discarded"])
    assert stored(state, unique=policy).holds_unique_key == (state not in ("completed", "cancelled"))


@shows("S3-29-without-a-policy")
def test_a_job_without_a_policy_costs_one_statement_and_no_entry_of_the_index():
    with CaptureQueriesContext(connection) as queries:
        plain = enqueue(unique=river()).job
    assert [query["sql"].split()[0] for query in queries] == ["INSERT"]
    assert (fresh(plain).fingerprint, fresh(plain).unique_states) == (None, frozenset())


@shows("S3-30")
def test_jobs_of_one_kind_may_list_different_states():
    until_done = river(by_args=True, by_state=[*REQUIRED, "retryable"])
    for_good = river(by_args=True)
    first = stored("completed", args={"n": 1}, unique=until_done)
    second = stored("completed", args={"n": 2}, unique=for_good)
    assert (first.holds_unique_key, second.holds_unique_key) == (False, True)
    assert [outcome(args={"n": n}, unique=until_done) for n in (1, 2)] == ["created", "created"]
    assert outcome(args={"n": 2}, unique=for_good) == "deduplicated"


@pytest.mark.parametrize("state", [pytest.param(s, id=f"S3-31-{s}") for s in ("available", "active", "scheduled")])
def test_a_retry_beside_a_live_duplicate_is_a_clean_conflict(state):
    policy = river(by_args=True)
    dead = stored("discarded", unique=policy)
    alive = stored(state, unique=policy)
    with pytest.raises(DuplicateJob) as conflict:
        dead.retry()
    assert conflict.value.existing_job_id == alive.pk
    assert live().get() == alive


@pytest.mark.django_db(transaction=True)
@shows("S3-22-by-a-worker")
def test_a_draining_worker_discards_what_was_superseded(handlers):
    ran = []

    @job("t", retry=RetryPolicy(initial_interval="PT0.001S", jitter=False), unique=NO_RETRYABLE)
    def handler(n):
        ran.append(n)

    first = stored("retryable", args={"n": 1}, unique=NO_RETRYABLE)
    row(first).update(run_at=timezone.now() - HOUR)
    second = enqueue(args={"n": 1}, unique=NO_RETRYABLE).job
    assert Worker(concurrency=1).run(drain=True) == Summary(completed=1)
    assert ran == [1]
    assert [fresh(first).state, fresh(second).state] == ["discarded", "completed"]
