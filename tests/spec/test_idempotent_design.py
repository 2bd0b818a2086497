"""S1-01..S1-25: jobs that are safe to run again, and what each layer of protection prevents alone.

The job opens the account of a user who is not active yet: it makes a mailbox, which must happen once, and activates
the user.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from datetime import timedelta
from queue import SimpleQueue
from threading import Event

import pytest
from django.contrib.admin.models import ADDITION, LogEntry
from django.contrib.auth.models import User
from django.db import OperationalError, connection, connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ojs_unique import JobState, RetryPolicy, Skip, UniquePolicy, job
from django_ojs_unique.exceptions import InvalidTransition
from django_ojs_unique.execution.claim import claim as claim_jobs
from django_ojs_unique.execution.execute import execute
from django_ojs_unique.execution.run import Run
from django_ojs_unique.idempotency import Heal, ScanResult, locked, scan
from django_ojs_unique.models import Job
from django_ojs_unique.worker import Summary, Worker
from tests.support.jobs import claim, columns, elsewhere, enqueue, fresh, live, outcome, put, stored
from tests.support.pages import table
from tests.support.processes import PATIENCE, together, wait_until_blocked

pytestmark = pytest.mark.django_db(transaction=True)

LAYERS = ("skip_unless", "locked", "unique")
BY_ARGS = UniquePolicy(keys=["type", "args"], on_conflict="ignore")
LATER = RetryPolicy(initial_interval="PT5M")


def shows(statement):
    """Name the statement that a test without parameters shows."""
    return pytest.mark.parametrize((), [pytest.param(id=statement)])


def pending_user():
    return User.objects.create(username=f"u{User.objects.count()}", is_active=False)


def is_pending(user_id):
    return User.objects.filter(pk=user_id, is_active=False).exists()


def make_mailbox(user):
    LogEntry.objects.create(user=user, action_flag=ADDITION, object_repr="mailbox")


def mailboxes():
    return LogEntry.objects.count()


def activate(user):
    user.is_active = True
    user.save(update_fields=["is_active"])


def open_for(user):
    make_mailbox(user)
    activate(user)


def declare(layers, work=open_for, *, type="account.open", **options):
    """Declare the job with these layers only; ``check`` is the first one repeated on the row that the second locks."""
    if "skip_unless" in layers:
        options["skip_unless"] = is_pending
    if "unique" in layers:
        options["unique"] = BY_ARGS
    if "atomic" in layers:
        options["atomic"] = True

    def open_account(user_id):
        with locked(User, pk=user_id) if "locked" in layers else nullcontext(User.objects.get(pk=user_id)) as user:
            if "check" in layers and user.is_active:
                raise Skip("somebody else was faster")
            work(user)

    return job(type, retry=LATER, **options)(open_account)


def drain(**options):
    return Worker(concurrency=1, **options).run(drain=True)


# The matrix: each scenario does its worst and returns whether the bad thing happened.


def done_and_enqueued_again(layers):
    handler, user = declare(layers), pending_user()
    for _ in range(2):
        handler.enqueue(user.pk)
        drain()
    return mailboxes() > 1


def two_workers_on_one_row(layers):
    """Two jobs of different types want the row, so that no policy keeps one out. Return whether both were at it."""
    entered, go, log = SimpleQueue(), Event(), []

    def work(user):
        log.append("in")
        entered.put(None)
        assert go.wait(PATIENCE)
        open_for(user)
        log.append("out")

    user = pending_user()
    for name in ("one", "two"):
        declare(layers, work, type=f"account.{name}", queue=name).enqueue(user.pk)
    with ThreadPoolExecutor(2) as pool:
        workers = [pool.submit(worker_thread, name) for name in ("one", "two")]
        entered.get(timeout=PATIENCE)
        if "locked" in layers:
            wait_until_blocked(1)
        else:
            entered.get(timeout=PATIENCE)
        go.set()
        assert [worker.result().failed for worker in workers] == [0, 0]
    return log[:2] == ["in", "in"]


def worker_thread(queue):
    try:
        return drain(queues=[queue])
    finally:
        connections.close_all()


def two_entries_in_the_queue(layers):
    handler, user = declare(layers), pending_user()
    handler.enqueue(user.pk)
    handler.enqueue(user.pk)
    drain()
    return mailboxes() > 1


def half_done_and_retried(layers):
    failures = [RuntimeError("between the two steps")]

    def work(user):
        make_mailbox(user)
        if failures:
            raise failures.pop()
        activate(user)

    queued = declare(layers, work).enqueue(pending_user().pk).job
    assert drain().retried == 1
    fresh(queued).retry()
    assert drain().completed == 1
    return mailboxes() > 1


def two_enqueues_at_once(layers):
    handler, user = declare(layers), pending_user()
    together([lambda _: handler.enqueue(user.pk).created] * 2)
    return Job.objects.count() > 1


def fresh_claim(queued):
    options = {"queues": (queued.queue,), "types": (queued.type,), "limit": 1, "worker_id": "w"}
    (claimed,) = claim_jobs(Job.objects.all(), **options, lease=timedelta(minutes=1), now=timezone.now())
    return claimed


def the_worker_dies_after_the_work(layers):
    queued = declare(layers).enqueue(pending_user().pk).job
    execute(Run(fresh_claim(queued)))  # and then nobody finalizes it
    Job._base_manager.filter(pk=queued.pk, state="active").update(lease_expires_at=timezone.now() - timedelta(hours=1))
    drain()
    assert fresh(queued).state == "completed"
    return mailboxes() > 1


MATRIX = {
    done_and_enqueued_again: {"skip_unless"},
    two_workers_on_one_row: {"locked"},
    two_entries_in_the_queue: {"skip_unless", "unique"},
    half_done_and_retried: {"locked", "atomic"},
    two_enqueues_at_once: {"unique"},
    the_worker_dies_after_the_work: {"skip_unless", "atomic"},
}
"""Each scenario, and the layers that suffice alone."""
STATEMENTS = {
    (two_workers_on_one_row, "skip_unless"): "S1-07",
    (done_and_enqueued_again, "locked"): "S1-11",
    (two_workers_on_one_row, "unique"): "S1-17",
}


ONE_WRITER = pytest.mark.skipif(connection.vendor == "sqlite", reason="one transaction keeps all others out")


def cells():
    for scenario, sufficient in MATRIX.items():
        for layer in (*LAYERS, "atomic"):
            name = f"{STATEMENTS.get((scenario, layer), 'S1-25')}-{scenario.__name__}-{layer}"
            marks = ONE_WRITER if (scenario, layer) == (two_workers_on_one_row, "atomic") else ()
            yield pytest.param(scenario, {layer}, layer not in sufficient, id=name, marks=marks)
        yield pytest.param(scenario, {*LAYERS, "check"}, False, id=f"S1-25-{scenario.__name__}-all-three")


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "layers", "happens"), list(cells()))
def test_what_a_layer_prevents(handlers, scenario, layers, happens):
    assert scenario(layers) is happens


@pytest.mark.parametrize("page", [pytest.param("docs/idempotency.md", id="S1-25-the-table")])
def test_the_page_prints_the_matrix(page):
    printed = [row[1:] for row in table(page, "scenario")]
    said = {True: "yes", False: "no"}
    expected = [[said[layer in ok] for layer in (*LAYERS, "atomic")] for ok in MATRIX.values()]
    assert printed == expected
    assert [row[0].lower().replace(" ", "_") for row in table(page, "scenario")] == [s.__name__ for s in MATRIX]


# Running again


@pytest.mark.slow
@pytest.mark.parametrize("runs", [pytest.param(2, id="S1-01"), pytest.param(5, id="S1-01-five-times")])
def test_running_again_ends_as_running_once(handlers, runs):
    handler, user = declare({*LAYERS, "check"}), pending_user()
    handler.enqueue(user.pk)
    drain()
    once = User.objects.values().get(), mailboxes()
    for _ in range(runs - 1):
        handler.enqueue(user.pk)
        drain()
    assert (User.objects.values().get(), mailboxes()) == once
    assert once[1] == 1


def declare_healing(layers=("unique",), work=open_for, **options):
    heal = Heal(pending=User.objects.filter(is_active=False), args={"user_id": "pk"})
    return declare(set(layers), work, heal=heal, **options)


@pytest.mark.slow
@pytest.mark.parametrize("waits", [pytest.param(False, id="S1-02"), pytest.param(True, id="S1-02-one-waits-to-retry")])
def test_three_sources_at_once_make_one_job(handlers, waits):
    handler, user = declare_healing(), pending_user()
    if waits:
        put(handler.enqueue(user.pk).job, "retryable")

    def retry():
        with suppress(InvalidTransition):  # a colleague was faster
            for waiting in Job.objects.filter(state="retryable"):
                waiting.retry()

    together([lambda _: handler.enqueue(user.pk).created, lambda _: scan(handler), lambda _: retry()])
    assert [(queued.type, queued.args) for queued in Job.objects.all()] == [("account.open", {"user_id": user.pk})]


@pytest.mark.slow
@shows("S1-03")
def test_a_retry_begins_at_the_beginning(handlers):
    steps = []

    @job("t", retry=LATER)
    def handler():
        steps.append("one")
        if len(steps) == 1:
            raise RuntimeError("after step one")
        steps.append("two")

    queued = handler.enqueue().job
    drain()
    fresh(queued).retry()
    drain()
    assert steps == ["one", "one", "two"]
    assert (fresh(queued).state, fresh(queued).attempt) == ("completed", 2)


@pytest.mark.parametrize("attempts", [pytest.param(None, id="S1-04"), pytest.param(25, id="S1-04-as-the-job-says")])
def test_retries_end_and_their_delays_grow(handlers, attempts):
    policy = RetryPolicy(jitter=False) if attempts is None else RetryPolicy(max_attempts=attempts, jitter=False)
    queued = job("t", retry=policy)(lambda: None).enqueue().job
    assert queued.max_attempts == (attempts or 3)
    assert not queued.retry_policy.allows(queued.max_attempts)
    delays = [queued.retry_policy.delay(attempt, 0) for attempt in range(1, 8)]
    assert delays == sorted(set(delays))
    assert queued.retry_policy.delay(1_000, 0) == timedelta(minutes=5)


# Layer 1


@shows("S1-05")
def test_a_job_with_nothing_to_do_is_skipped_visibly_and_writes_nothing(handlers):
    handler, user = declare({"skip_unless"}), pending_user()
    activate(user)
    before = User.objects.values().get()
    queued = handler.enqueue(user.pk).job
    assert drain() == Summary(skipped=1)
    queued = fresh(queued)
    assert (queued.state, queued.skipped) == ("completed", "skip_unless is_pending was false")
    assert (User.objects.values().get(), mailboxes()) == (before, 0)


@shows("S1-06")
def test_a_skip_costs_one_read_and_no_lock(handlers):
    handler, user = declare({"skip_unless"}), pending_user()
    activate(user)
    queued = handler.enqueue(user.pk).job
    claim(queued)
    with CaptureQueriesContext(connection) as queries:
        assert execute(Run(fresh(queued))).skipped
    statements = [query["sql"] for query in queries if "ojs_unique_job" not in query["sql"]]
    assert len(statements) == 1
    assert statements[0].startswith("SELECT")
    assert "FOR UPDATE" not in statements[0]


# Layer 2


@pytest.mark.slow
@pytest.mark.parametrize("layers", [pytest.param({"locked", "check"}, id="S1-08")])
def test_the_second_worker_waits_looks_again_and_skips(handlers, layers):
    assert not two_workers_on_one_row(layers)
    assert mailboxes() == 1
    assert sorted(Job.objects.values_list("state", "skipped")) == [
        ("completed", ""),
        ("completed", "somebody else was faster"),
    ]


def lock(user):
    with locked(User, pk=user.pk) as row:
        return row


@shows("S1-09")
def test_the_lock_ends_with_its_block():
    user = pending_user()
    with locked(user):
        activate(user)
    # Still within the handler, any other worker gets the row, and sees what the block wrote.
    assert elsewhere(lambda: lock(user)).is_active


@shows("S1-10")
def test_where_rows_have_no_locks_the_whole_database_is_locked():
    one, other = pending_user(), pending_user()

    def lock_the_other():
        if connection.vendor == "sqlite":
            with connection.cursor() as cursor:
                cursor.execute("PRAGMA busy_timeout = 0")
        return lock(other)

    with locked(one):
        if connection.vendor == "sqlite":
            with pytest.raises(OperationalError, match="locked"):
                elsewhere(lock_the_other)
            assert elsewhere(User.objects.count) == 2  # readers go on
        else:
            assert elsewhere(lock_the_other) == other
    assert elsewhere(lock_the_other) == other


# Layer 3

WINDOW = {"keys": ["type", "args"], "period": "PT1M"}
UNTIL_START = [state for state in BY_ARGS.states if state != JobState.ACTIVE]


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        pytest.param({}, "rejected", id="S1-12"),
        pytest.param({"args": {"id": 2}}, "created", id="S1-13-other-args"),
        pytest.param({"type": "u"}, "created", id="S1-13-other-type"),
    ],
)
def test_the_same_work_within_the_window_is_refused(changes, answer, clock):
    enqueue(args={"id": 1}, unique=WINDOW)
    clock.advance(timedelta(seconds=59))
    assert outcome(**{"args": {"id": 1}, "unique": WINDOW, **changes}) == answer


@shows("S1-14")
def test_after_the_window_the_same_work_is_admitted_although_the_first_still_waits(clock):
    first = enqueue(args={"id": 1}, unique=WINDOW).job
    clock.advance(timedelta(minutes=1))
    assert outcome(args={"id": 1}, unique=WINDOW) == "created"
    assert fresh(first).state == "available"


@pytest.mark.parametrize(
    ("states", "answers"),
    [
        pytest.param(UNTIL_START, ("rejected", "created", "created"), id="S1-15"),
        pytest.param(BY_ARGS.states, ("rejected", "rejected", "created"), id="S1-16"),
    ],
)
def test_the_key_is_held_until_the_job_starts_or_until_it_ends(states, answers):
    policy = {**WINDOW, "states": list(states)}
    found = []
    for state in ("available", "active", "completed"):
        Job.objects.all().delete()
        stored(state, unique=policy)
        found.append(outcome(unique=policy))
    assert tuple(found) == answers


# All three


@pytest.mark.slow
@shows("S1-18")
def test_user_scheduler_and_retry_with_two_workers_have_one_effect(handlers):
    failures = [RuntimeError("the first attempt")]

    def work(user):
        make_mailbox(user)
        if failures:
            raise failures.pop()
        activate(user)

    handler, user = declare_healing({*LAYERS, "check"}, work, queue="one"), pending_user()
    first = handler.enqueue(user.pk).job
    assert drain().retried == 1

    def retry():
        fresh(first).retry()

    answers = together([lambda _: handler.enqueue(user.pk).created, lambda _: scan(handler).created, lambda _: retry()])
    assert answers == [[False, 0, None]]
    # A worker that was thought dead has the job, too: it is beyond the reach of the policy.
    handler.using(queue="two", unique=None).enqueue(user.pk)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(worker_thread, ("one", "two")))
    assert mailboxes() == 1
    assert not is_pending(user.pk)
    assert sorted(Job.objects.values_list("state", flat=True)) == ["completed", "completed"]
    assert Job.objects.exclude(skipped=None).count() == 1
    assert scan(handler) == ScanResult()


# The scan


@pytest.mark.parametrize("pending", [pytest.param(25, id="S1-19")])
def test_after_a_loss_of_all_jobs_a_scan_gives_every_pending_record_its_job(handlers, pending):
    handler = declare_healing()
    users = [pending_user() for _ in range(pending)]
    activate(users.pop())
    for user in users:
        handler.enqueue(user.pk)
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {Job._meta.db_table}")
    assert scan(handler) == ScanResult(created=pending - 1)
    assert sorted(queued.args["user_id"] for queued in Job.objects.all()) == [user.pk for user in users]


@pytest.mark.parametrize("state", [pytest.param(s, id=f"S1-20-{s}") for s in ("available", "active", "retryable")])
def test_a_second_scan_adds_nothing_and_counts_what_was_refused(handlers, state):
    handler = declare_healing()
    for _ in range(3):
        pending_user()
    assert scan(handler) == ScanResult(created=3)
    put(Job.objects.first(), state)
    before = [columns(queued) for queued in Job.objects.order_by("pk")]
    assert scan(handler) == ScanResult(refused=3)
    assert [columns(queued) for queued in Job.objects.order_by("pk")] == before


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [pytest.param(5, id="S1-21")])
def test_a_storm_of_retries_leaves_one_live_job(rounds):
    first = put(enqueue(unique=BY_ARGS).job, "retryable")

    def storm(number):
        with suppress(InvalidTransition):
            fresh(first).retry()
        enqueue(unique=BY_ARGS)
        return live().count()

    assert together([storm] * 4, rounds=rounds) == [[1] * 4] * rounds
    assert Job.objects.get() == first


@pytest.mark.slow
@shows("S1-22")
def test_a_row_id_works_with_every_layer(handlers):
    @job("account.open", unique=UniquePolicy(keys=["type", "args"], on_conflict="ignore"), skip_unless=is_pending)
    def open_account(user_id):
        with locked(User, pk=user_id) as user:
            open_for(user)

    user = pending_user()
    assert [open_account.enqueue(user_id=user.pk).created for _ in range(2)] == [True, False]
    assert drain() == Summary(completed=1)
    open_account.enqueue(user_id=user.pk)
    assert drain() == Summary(skipped=1)
    assert mailboxes() == 1


# Tokens


@pytest.mark.parametrize(
    ("unique", "carried"),
    [
        pytest.param({"keys": ["args"], "args_keys": ["token"]}, lambda t: {"args": {"token": t}}, id="S1-23-args"),
        pytest.param({"keys": ["meta"], "meta_keys": ["token"]}, lambda t: {"meta": {"token": t}}, id="S1-23-meta"),
    ],
)
def test_a_token_tells_jobs_without_a_natural_key_apart(unique, carried):
    def send(token, text):
        options = carried(token)
        options["args"] = {"text": text, **options.get("args", {})}
        return outcome("promo.send", unique=unique, **options)

    assert send("a", "Hello") == "created"
    assert send("a", "Hello again") == "rejected"
    assert send("b", "Hello") == "created"


@shows("S1-24")
def test_a_token_of_a_request_does_not_replace_the_layers_of_the_worker(handlers):
    """Two requests are two jobs, though they ask for the same; the handler makes it one effect."""

    @job(
        "account.open",
        unique=UniquePolicy(keys=["type", "meta"], meta_keys=["request"], on_conflict="ignore"),
        skip_unless=is_pending,
    )
    def open_account(user_id):
        with locked(User, pk=user_id) as user:
            open_for(user)

    user = pending_user()
    requests = ["a", "a", "b"]
    created = [open_account.using(meta={"request": name}).enqueue(user.pk).created for name in requests]
    assert created == [True, False, True]
    assert drain() == Summary(completed=1, skipped=1)
    assert mailboxes() == 1
