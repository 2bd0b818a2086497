"""Which jobs a worker takes, and in which order: patterns, priorities, pauses and limits."""

from datetime import timedelta
from threading import Event
from uuid import uuid4

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ojs_unique import job, lifecycle
from django_ojs_unique.db.dialect import ClaimRequest
from django_ojs_unique.db.dialects import dialect_of
from django_ojs_unique.exceptions import InvalidRequest
from django_ojs_unique.execution import claim as claiming
from django_ojs_unique.execution import leases
from django_ojs_unique.execution.claim_limited import ClaimOptions, Share, claim_limited
from django_ojs_unique.execution.finalize import finalize
from django_ojs_unique.execution.leases import Lease
from django_ojs_unique.execution.queue_rules import Rules
from django_ojs_unique.execution.run_result import RunResult
from django_ojs_unique.models import Job, Queue
from django_ojs_unique.ojs.states import JobState
from django_ojs_unique.worker import QueueFilter, Worker, claimed_runs, housekeeper, poller, pools, promoter
from django_ojs_unique.worker import loop as loop_module
from tests.support.background import working
from tests.support.claiming import Claiming
from tests.support.processes import PATIENCE, together, until
from tests.support.refusals import refused
from tests.support.rows import insert

pytestmark = pytest.mark.django_db(transaction=True)


# Names and patterns


@pytest.mark.parametrize(
    ("include", "exclude", "taken"),
    [
        (None, [], ["default", "mail-eu", "mail-us", "slow"]),
        (["*"], [], ["default", "mail-eu", "mail-us", "slow"]),
        (["mail-*"], [], ["mail-eu", "mail-us"]),
        (["mail-*", "slow"], [], ["mail-eu", "mail-us", "slow"]),
        (["*-us"], [], ["mail-us"]),
        (["mail-eu", "mail-us"], ["mail-eu"], ["mail-us"]),
        (None, ["mail-*"], ["default", "slow"]),
        (["mail-*"], ["*-eu"], ["mail-us"]),
        (["mail-*"], ["*"], []),
    ],
)
def test_a_worker_takes_from_the_queues_that_it_is_told(handlers, include, exclude, taken):
    job("t")(lambda: None)
    for queue in ("default", "mail-eu", "mail-us", "slow"):
        Job.objects.enqueue("t", queue=queue)
    Worker(queues=include, exclude=exclude).run(drain=True)
    assert sorted(Job.objects.filter(state="completed").values_list("queue", flat=True)) == taken
    chosen = QueueFilter(include, exclude)
    assert [queue for queue in ("default", "mail-eu", "mail-us", "slow") if queue in chosen] == taken


@pytest.mark.parametrize("text", ["", "UPPER", "a b", "a/*", "[ab]", "a?", "-x", 7, None, "x" * 200])
@pytest.mark.parametrize("field", ["queues", "exclude"])
def test_what_is_no_pattern_of_a_queue_is_refused_with_the_hint(text, field):
    with refused(InvalidRequest, field, names="'emails-*'"):
        Worker(**{field: [text]})


def test_a_queue_that_appears_while_the_worker_runs_is_found_by_its_pattern(handlers):
    job("t")(lambda: None)
    with working(queues=["mail-*"]) as worker:
        for number in range(3):
            Job.objects.enqueue("t", queue=f"mail-{number}")
        until(lambda: worker.summary.completed == 3, "the jobs of the new queues completed")


# Order


@pytest.mark.slow
def test_priority_goes_first_then_age_across_queues_and_partitions(handlers):
    order = []
    job("t")(order.append)
    for number, (queue, priority) in enumerate([("a", 0), ("b", 10), ("a", 10), ("c", -10), ("b", 0), ("a", 0)]):
        Job.objects.enqueue("t", [number], queue=queue, priority=priority)
    Worker(concurrency=1).run(drain=True)
    assert order == [1, 2, 0, 4, 5, 3]


def test_a_released_job_keeps_its_place_in_the_queue(take):
    first, second = (Job.objects.enqueue("t").job for _ in range(2))
    held = take(1)
    assert leases.requeue(Job.objects.all(), held) == (1, set())
    assert [row.pk for row in take(2)] == [first.pk, second.pk]


# Pauses


@pytest.mark.slow
def test_a_paused_queue_is_left_alone_at_once_and_taken_when_resumed(handlers):
    job("t")(lambda: None)
    Queue.objects.pause("a")
    for queue in ("a", "b"):
        Job.objects.enqueue("t", queue=queue)
    assert Worker().run(drain=True).completed == 1
    assert Job.objects.get(queue="a").state == "available"
    Queue.objects.resume("a")
    assert Worker(queues=["a"]).run(drain=True).completed == 1


def test_a_pause_reaches_a_worker_that_is_at_work(handlers):
    """The first job pauses its queue; nothing that was not yet claimed starts."""
    job("t")(lambda: Queue.objects.pause("default"))
    for _ in range(5):
        Job.objects.enqueue("t")
    assert Worker(concurrency=1).run(drain=True).completed == 1
    assert Job.objects.filter(state="available").count() == 4


# Limits


@pytest.mark.skipif(connection.vendor != "postgresql", reason="elsewhere each claim queries for the rules")
@pytest.mark.parametrize(("change", "values"), [("pause", ()), ("limit", (1,)), ("rate_limit", (1,))])
def test_a_claim_skips_a_queue_whose_rule_its_worker_does_not_know(take, change, values):
    getattr(Queue.objects, change)("a", *values)
    for number, queue in enumerate(["a", "b", "a"]):
        Job.objects.enqueue("t", {"n": number}, queue=queue)
    assert [row.args["n"] for row in take(4, queues=("a", "b"), with_rules=())] == [1]


@pytest.mark.slow
def test_a_worker_learns_of_a_first_limit_while_it_works(handlers):
    job("t")(lambda n: None)
    with working():
        Job.objects.enqueue("t", {"n": 0})
        until(lambda: Job.objects.filter(state="completed").count() == 1, "the worker has begun")
        Queue.objects.limit("default", 1)
        for number in range(1, 4):
            Job.objects.enqueue("t", {"n": number})
        until(lambda: Job.objects.filter(state="completed").count() == 4, "the limited queue is empty")


@pytest.mark.slow
def test_a_drain_leaves_no_job_of_a_queue_that_is_limited_meanwhile(handlers):
    job("t")(lambda: Queue.objects.limit("default", 1))
    for _ in range(5):
        Job.objects.enqueue("t")
    assert Worker(concurrency=1).run(drain=True).completed == 5


def test_a_limit_holds_within_one_claim_and_over_several(take):
    Queue.objects.limit("default", 3)
    for _ in range(5):
        Job.objects.enqueue("t")
    assert [len(take(2)), len(take(2)), len(take(2))] == [2, 1, 0]


def test_a_limited_queue_takes_the_best_jobs_and_leaves_room_for_the_others(take):
    Queue.objects.limit("a", 1)
    for number, (queue, priority) in enumerate([("a", 1), ("a", 9), ("b", 5), ("b", 0)]):
        Job.objects.enqueue("t", {"n": number}, queue=queue, priority=priority)
    assert [row.args["n"] for row in take(4, queues=("a", "b"))] == [1, 2, 3]


def test_a_limit_counts_what_others_run_and_frees_what_has_ended(take):
    Queue.objects.limit("default", 1)
    for _ in range(2):
        Job.objects.enqueue("t")
    (running,) = take(worker_id="other")
    assert not take()
    finalize(Job.objects.all(), [RunResult(running)])
    assert len(take()) == 1


def test_a_limit_that_is_lifted_no_longer_holds(take):
    Queue.objects.limit("default", 1)
    for _ in range(3):
        Job.objects.enqueue("t")
    assert len(take()) == 1
    Queue.objects.limit("default", None)
    assert len(take()) == 2


@pytest.mark.slow
def test_a_worker_runs_all_jobs_of_a_limited_queue_and_never_more_at_once_than_the_limit(handlers):
    Queue.objects.limit("default", 2)
    most = []

    @job("t")
    def handler():
        most.append(Job.objects.filter(state="active").count())

    for _ in range(10):
        Job.objects.enqueue("t")
    assert Worker(concurrency=8).run(drain=True).completed == 10
    assert max(most) <= 2


@pytest.mark.torture
def test_no_more_jobs_run_than_the_limit_however_many_processes_claim_at_once():
    Queue.objects.limit("default", 3)
    for _ in range(40):
        Job.objects.enqueue("t")

    def claim_and_finish(number):
        """ClaimRequest, look how many are active, then end what was claimed."""
        claimed = claiming.claim(
            Job.objects.all(),
            queues=["default"],
            types=["t"],
            limit=2,
            worker_id="w",
            lease=timedelta(seconds=30),
            now=timezone.now(),
        )
        active = Job.objects.filter(state="active").count()
        for row in claimed:
            Job._base_manager.filter(pk=row.pk).update(
                state="completed", finished_at=timezone.now(), lease_expires_at=None
            )
        return len(claimed), active

    rounds = together([claim_and_finish] * 4, rounds=25)
    assert max(active for results in rounds for _, active in results) <= 3
    assert sum(count for results in rounds for count, _ in results) == 40


# Leases of jobs


def test_a_jobs_own_lease_goes_before_that_of_the_worker(handlers, take):
    hour = timedelta(hours=1)
    job("long", lease="P1D")(lambda: None)
    job("t")(lambda: None)
    for type in ("long", "t"):
        Job.objects.enqueue(type)
    now = timezone.now()
    take(types=("long", "t"), lease=hour)
    until_when = dict(Job.objects.values_list("type", "lease_expires_at"))
    assert round((until_when["long"] - now) / hour) == 24
    assert round((until_when["t"] - now) / hour) == 1


@pytest.mark.slow
def test_a_lease_that_is_shorter_than_the_workers_is_extended_in_time(handlers):
    """The worker's own leases need no extension for a long while."""
    extended = []

    @job("t", lease="PT1.5S", takes_context=True)
    def handler(context):
        first = Job.objects.get(type="t").lease_expires_at
        until(lambda: Job.objects.get(type="t").lease_expires_at != first, "the lease was extended or lost")
        extended.append(Job.objects.get(type="t").lease_expires_at)

    # A first job, so that the worker has thought about its leases before.
    job("first")(lambda: Job.objects.enqueue("t"))
    Job.objects.enqueue("first")
    summary = Worker(lease=timedelta(hours=1)).run(drain=True)
    assert (summary.completed, summary.refused) == (2, 0)
    assert None not in extended


# PostgreSQL's single statements


@pytest.fixture
def _postgresql():
    if connection.vendor != "postgresql":
        pytest.skip("claims and completes row by row")


def varied_jobs():
    hour = timedelta(hours=1)
    now = timezone.now()
    states = [[], ["available"], ["available", "active"], ["available", "active", "completed"], list(JobState)]
    for number, priority, states_, lease in zip(
        range(20), [0, 5, -5, 9] * 5, states * 4, [None, "PT2H"] * 10, strict=True
    ):
        row = Job.objects.enqueue(
            "t" if number % 7 else "u",
            {"n": number} if number % 3 else [number, {"ü": [None, 1.5, "☃"]}],
            queue=f"q{number % 3}",
            priority=priority,
            meta={"trace": number},
            tags=["x"] * (number % 2),
            unique={"keys": ["type", "args"], "states": states_} if states_ else None,
            expires_at=now + hour if number % 5 == 0 else None,
            timeout="PT1M" if number % 4 == 0 else None,
        ).job
        changes = {"visibility_timeout_ms": None if lease is None else 7_200_000}
        if number == 10:
            changes["expires_at"] = now - hour  # never started: it must not start
        if number == 15:
            changes.update(expires_at=now - hour, started_at=now - 2 * hour)
        Job._base_manager.filter(pk=row.pk).update(progress=0.5, progress_note="old", **changes)


def rows(now):
    """All columns; the ends of leases to the minute, as each statement has its own time."""
    found = list(Job.objects.order_by("pk").values())
    for row in found:
        if row["lease_expires_at"]:
            row["lease_expires_at"] = round((row["lease_expires_at"] - now) / timedelta(minutes=1))
    return found


@pytest.mark.usefixtures("_postgresql")
@pytest.mark.parametrize(("limit", "forced", "timed"), [(1, False, False), (7, True, True), (100, False, True)])
@pytest.mark.parametrize("unconfirmed", [False, True])
def test_the_single_statements_of_postgresql_do_what_the_others_do_to_each_column(
    handlers, limit, forced, timed, unconfirmed
):
    varied_jobs()
    hour = timedelta(hours=1)
    jobs, now, token, lease = Job.objects.all(), timezone.now(), uuid4(), Lease(hour, forced, timed, unconfirmed)
    rooms = {"q0": 100, "q1": 100, "q2": 100}
    results = [None, 0, {"a": [1, None, "ü"]}, "", False, [], 1e300]

    def ends(claimed):
        claimed = sorted(claimed, key=lambda row: row.pk)
        return [
            RunResult(row, result=results[number % 7], skipped="why" if number % 4 == 0 else "", at=now + hour)
            for number, row in enumerate(claimed)
        ]

    def with_one_statement_each():
        wanted = ClaimRequest(rooms, ["t"], limit, "w", token, hour, forced, timed, unconfirmed, now, claiming.NEEDED)
        claimed = dialect_of(jobs).claim(wanted)
        yield rows(now), sorted((row.pk, row.attempt, row.args, row.meta, row.tags) for row in claimed)
        for row in claimed:
            row.lease_token = token
        dialect_of(jobs).complete(ends(claimed))
        yield rows(now), None

    def row_by_row():
        shares = (Share(["t"], limit),)
        wanted = ClaimOptions(shares, "w", token, lease, now, 0.0, claiming.NEEDED, lambda: None, None, True, None)
        claimed, _ = claim_limited(jobs, Rules(list(rooms), [], {}), wanted)
        yield rows(now), sorted((row.pk, row.attempt, row.args, row.meta, row.tags) for row in claimed)
        for end in ends(claimed):
            row = jobs.filter(pk=end.job.pk)
            lifecycle.complete(row, end.at, token=token, result=end.result, skipped=end.skipped)
        yield rows(now), None

    seen = []
    for way in (with_one_statement_each, row_by_row):
        with transaction.atomic():
            seen.append([str(step) for step in way()])
            transaction.set_rollback(True)
    assert seen[0] == seen[1]


# Hoarding


@pytest.mark.slow
def test_what_could_not_start_in_a_while_goes_back_with_its_place_and_its_attempt(handlers, monkeypatch):
    monkeypatch.setattr(pools, "WORK_AHEAD_SECONDS", 100)  # hold more than can run
    monkeypatch.setattr(loop_module, "WATCH_SECONDS", 0.02)
    monkeypatch.setattr(claimed_runs, "LONGEST_UNSTARTED", 0.02)
    began, go_on = Event(), Event()

    @job("t")
    def handler():
        began.set()
        go_on.wait(PATIENCE)

    before = [Job.objects.enqueue("t").job for _ in range(4)]
    with working(concurrency=1) as worker:
        assert began.wait(PATIENCE)
        until(lambda: worker.summary.requeued >= 3, "what could not start went back")
        monkeypatch.setattr(pools, "WORK_AHEAD_SECONDS", 0)
        waiting = {row.pk: row for row in Job.objects.exclude(pk=before[0].pk)}
        for row in before[1:]:
            again = waiting[row.pk]
            assert again.enqueued_at == row.enqueued_at
            if again.state == "available":
                assert (again.attempt, again.started_at) == (0, None)
        go_on.set()
        until(lambda: worker.summary.completed == 4, "all jobs completed")
    assert set(Job.objects.values_list("attempt", flat=True)) == {1}


# Looking


def writes(statements):
    return [sql for sql in statements if not sql.startswith(("SELECT", "WITH"))]


def test_an_idle_worker_asks_little_and_writes_nothing(handlers):
    """One look at the queues and one at their rules for each kind of handler, whatever there is in other states."""
    job("plain")(lambda: None)

    @job("async")
    async def handler():
        """Do nothing."""

    for state in ("scheduled", "retryable"):
        insert(type="plain", queue="q", state=state)
    insert(type="plain", queue="q", state="completed", finished_at=timezone.now())
    claiming = Claiming()
    with CaptureQueriesContext(connection) as queries:
        assert claiming.claim() is False
    statements = [query["sql"] for query in queries]
    assert len(statements) <= 4
    assert writes(statements) == []


@pytest.mark.parametrize("queues", [None, ["a", "b"]])
def test_the_turns_of_an_idle_worker_write_nothing_on_sqlite(handlers, monkeypatch, queues):
    """Whatever is due each second only looks, until there is something to do."""
    if connection.vendor != "sqlite":
        pytest.skip("other databases have no single write lock")
    for module, name in ((loop_module, "WATCH_SECONDS"), (poller, "LONGEST_POLL")):
        monkeypatch.setattr(module, name, 0)
    for name in ("SCAN_SECONDS", "CRON_SECONDS"):  # these tasks write, but not each second
        monkeypatch.setattr(housekeeper, name, PATIENCE * 10)
    turns, real = [], promoter.look

    def look(*args):
        turns.append(len(queries))
        if len(turns) == 4:
            worker.stop()
        return real(*args)

    monkeypatch.setattr(promoter, "look", look)
    job("plain")(lambda: None)
    worker = Worker(queues=queues)
    with CaptureQueriesContext(connection) as queries:
        worker.run()
    statements = [query["sql"] for query in queries][turns[1] : turns[3]]
    assert any("lease_expires_at" in sql for sql in statements)
    assert writes(statements) == []
