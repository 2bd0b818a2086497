"""Each look of a hot path reads an index: the plans of its statements over thousands of jobs."""

from functools import partial
from itertools import pairwise
from uuid import uuid4

import pytest
from django.db import connection, transaction
from django.utils import timezone

from django_ojs_unique import JobState
from django_ojs_unique.db.constraints import finished, holding_unique_key, of_fingerprint, released
from django_ojs_unique.execution.leases import requeue_claims
from django_ojs_unique.limits.blocks import Blocks, blocks_of
from django_ojs_unique.limits.candidates import AvailableJobs
from django_ojs_unique.limits.slots import Slots
from django_ojs_unique.limits.waiting import RoundRobin, Waiting, look
from django_ojs_unique.maintenance import due, superseded, timers
from django_ojs_unique.models import Job, LimitPartition
from django_ojs_unique.worker.queues import waiting_queues
from tests.support.jobs import ALL_STATES, LEASE, attempt, enqueue
from tests.support.rows import insert_all

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

TABLE = Job._meta.db_table
FINGERPRINT = "f" * 64
WHOLE_TABLE = {"sqlite": f"SCAN {TABLE}", "mysql": "ALL ", "postgresql": f"Seq Scan on {TABLE}"}
SORT = {"sqlite": "TEMP B-TREE", "mysql": "filesort", "postgresql": "Sort"}
POLICIES = {"default": {}, "period": {"period": "PT1H"}, "calendar": {"period": "P1M", "states": ALL_STATES}}


def raw(sql, *params):
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return cursor.fetchall() if cursor.description else None


@pytest.fixture(scope="module")
def many_jobs(django_db_setup, django_db_blocker):
    """Thousands of jobs of different keys and states, known to the planner."""
    with django_db_blocker.unblock():
        insert_all(thousands(), batch_size=500)
        if connection.vendor == "postgresql":
            raw(f"REINDEX TABLE {TABLE}")  # what earlier tests have left in an index makes another one look cheaper
        raw(f"ANALYZE TABLE {TABLE}" if connection.vendor == "mysql" else f"ANALYZE {TABLE}")
        yield
        Job._base_manager.all()._raw_delete("default")


def thousands():
    states = ["available", "scheduled", "active", "completed", "discarded"]
    now = timezone.now()
    return [
        Job(
            type="t",
            queue=f"q{n % 7}",
            state=states[n % 5],
            priority=n % 11,
            fingerprint=f"{n:064x}",
            unique_states=frozenset() if n % 5 > 2 else frozenset({JobState.AVAILABLE, JobState.SCHEDULED}),
            enqueued_at=now,
            run_at=now if n % 5 == 1 else None,
            lease_token=uuid4() if n % 5 == 2 else None,
            lease_expires_at=now + LEASE if n % 5 == 2 else None,
            finished_at=now if n % 5 > 2 else None,
        )
        for n in range(5000)
    ]


def plan(sql, params):
    """Return the plan of a statement as text."""
    if connection.vendor == "sqlite":
        return "\n".join(row[3] for row in raw(f"EXPLAIN QUERY PLAN {sql}", *params))
    if connection.vendor == "mysql":
        lines = [line for line in raw(f"EXPLAIN {sql}", *params) if not (line[2] or "").startswith("<")]  # <derived2>
        return "\n".join(f"{line[3]} {line[5]} {line[9]}" for line in lines)
    return "\n".join(line[0] for line in raw(f"EXPLAIN {sql}", *params))


def looks_of(act, column="fingerprint"):
    """Collect the looks for a fingerprint, or another column, that ``act`` sends, with their parameters."""
    seen = []

    def wrapper(execute, sql, params, many, context):
        if TABLE in sql and column in sql.partition("WHERE")[2]:
            seen.append((sql, params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(wrapper):
        act()
    assert seen
    return seen


def check_that_an_index_is_used(looks):
    for sql, params in looks:
        explained = plan(sql, params)
        assert WHOLE_TABLE[connection.vendor] not in explained, explained
        indexes = ("ojs_job_history", "ojs_job_released", "ojs_unique_key")
        assert any(index in explained for index in indexes), explained


def test_every_look_for_duplicates_goes_through_an_index(many_jobs, transactional_db):
    # Runs last, as pytest-django orders it; its end empties the tables.
    for name, policy in POLICIES.items():
        enqueue(name, unique=policy)
        for strategy in ("reject", "ignore", "replace"):
            again = partial(attempt, name, unique={**policy, "on_conflict": strategy})
            check_that_an_index_is_used(looks_of(again))


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_explain_and_duplicates_of_go_through_an_index(policy, many_jobs):
    check_that_an_index_is_used(looks_of(lambda: Job.objects.explain("u", unique=policy)))
    check_that_an_index_is_used(looks_of(lambda: Job.objects.duplicates_of(FINGERPRINT, policy)))


@pytest.mark.parametrize("limit", [1, 10])
def test_a_claim_reads_its_queue_in_the_order_of_an_index(limit, many_jobs):
    ready = Job.objects.filter(state="available", queue="q1", blocked_by="", finished_at=None)
    ready = ready.order_by("-priority", "enqueued_at", "id")
    sql, params = ready[:limit].query.sql_with_params()
    explained = plan(sql, params)
    assert "ojs_job_live" in explained, explained
    assert WHOLE_TABLE[connection.vendor] not in explained
    if connection.vendor != "mysql":
        assert SORT[connection.vendor] not in explained, explained


def running(jobs, now):
    """Count what runs in partitions."""
    LimitPartition.objects.create(id="k" * 33, name="n", key={}, used_at=now)
    with transaction.atomic():
        Slots(AvailableJobs(jobs, now), Waiting(partitions={"k" * 33: {"id": "k" * 33, "name": "n"}}))


MAINTENANCE = {
    "promote": (timers.promote_unseen, "ojs_job_timer"),
    "next": (lambda jobs, now: timers.timed(jobs).first(), "ojs_job_timer"),
    "superseded": (superseded.promote, "ojs_job_timer"),
    "rescue": (timers.rescue, "ojs_job_timer"),
    "expire": (timers.expire, "ojs_job_expiry"),
    "queues": (lambda jobs, now: waiting_queues(jobs), "ojs_job_live"),
    "blocks": (lambda jobs, now: blocks_of(jobs, ["q1"]), "ojs_job_live"),
    "due": (lambda jobs, now: due.look(jobs, now, {"q1": None, "q2": ["t"]}), "ojs_job_timer"),
    "slots": (
        lambda jobs, now: look(AvailableJobs(jobs, now), {"q1": Blocks(*[True] * 4)}, 5, RoundRobin()),
        "ojs_job_live",
    ),
    "heads": (lambda jobs, now: AvailableJobs(jobs, now).first_of_each("q1", ["k" * 33, "k" * 34], 2), "ojs_job_live"),
    "partitions": (
        lambda jobs, now: AvailableJobs(jobs, now).first_of_partitions([("q1", "k" * 33)] * 3),
        "ojs_job_live",
    ),
    "running": (running, "ojs_job_live"),
    "requeue": (lambda jobs, now: requeue_claims(jobs, [uuid4()]), "ojs_job_live"),
}


@pytest.mark.skipif("connection.vendor == 'mysql'", reason="its EXPLAIN changes with the statistics")
@pytest.mark.parametrize(("act", "index"), MAINTENANCE.values(), ids=MAINTENANCE)
def test_what_workers_look_for_is_read_by_an_index(act, index, many_jobs):
    seen = looks_of(lambda: act(Job.objects.all(), timezone.now() - LEASE), "")
    for sql, params in seen:
        explained = plan(sql, params)
        assert index in explained, explained
        assert WHOLE_TABLE[connection.vendor] not in explained, explained


@pytest.mark.parametrize("names", [[FINGERPRINT], [FINGERPRINT, "e" * 64]], ids=len)
def test_the_jobs_of_a_fingerprint_are_read_by_its_indexes(names, many_jobs):
    sql, params = Job.objects.filter(of_fingerprint(fingerprint__in=names)).query.sql_with_params()
    explained = plan(sql, params)
    assert WHOLE_TABLE[connection.vendor] not in explained, explained
    others = [] if connection.vendor == "mysql" else ["ojs_unique_key", "ojs_job_released"]  # there, one has all jobs
    assert all(index in explained for index in ["ojs_job_history", *others]), explained


def test_the_order_of_the_index_is_the_order_of_a_claim(many_jobs):
    ready = Job.objects.filter(state="available", queue="q1").order_by("-priority", "enqueued_at", "id")
    ranks = [(-job.priority, job.enqueued_at, job.pk) for job in ready]
    assert len(ranks) > 100
    assert all(one < other for one, other in pairwise(ranks))


OF_A_FINGERPRINT = {
    "ojs_unique_key": holding_unique_key(),
    "ojs_job_history": finished(),
    "ojs_job_released": released(),
}


@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="it chooses among indexes by statistics")
@pytest.mark.parametrize(("index", "condition"), OF_A_FINGERPRINT.items(), ids=OF_A_FINGERPRINT)
def test_no_other_index_can_answer_a_look_for_a_fingerprint(index, condition):
    # Otherwise statistics of an empty queue can make PostgreSQL read all jobs that wait, or all that have finished.
    sql, params = Job._base_manager.filter(condition, fingerprint=FINGERPRINT).values("pk").query.sql_with_params()
    raw("SET LOCAL enable_seqscan = off")
    assert index in plan(sql, params)
    raw(f"DROP INDEX {index}")
    assert WHOLE_TABLE["postgresql"] in plan(sql, params), plan(sql, params)
