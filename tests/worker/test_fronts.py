"""Claims begin behind the dead rows that an open transaction elsewhere keeps."""

from datetime import timedelta
from functools import partial

import pytest
from django.db import connection
from django.utils import timezone

from django_ojs_unique import job
from django_ojs_unique.models import Job, Queue
from django_ojs_unique.worker import claimer, queues
from django_ojs_unique.worker import fronts as module
from django_ojs_unique.worker.fronts import Front, Fronts
from tests.support import growth
from tests.support.background import working
from tests.support.claiming import Claiming
from tests.support.processes import until
from tests.support.rows import insert

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="elsewhere dead rows do not stay in an index"),
]

QUEUES = growth.QUEUES


@pytest.fixture
def old_transaction():
    with growth.open_transaction():
        yield


@pytest.fixture
def fronts():
    found = Fronts(Job.objects.all())
    found.look(QUEUES, None)
    return found


@pytest.fixture
def claims(fronts, take):
    """Claim as a worker does, and return the claimed jobs."""

    def claims(limit=10, **options):
        claimed = take(limit, queues=QUEUES, types=None, with_rules=frozenset(), fronts=fronts.of(QUEUES), **options)
        fronts.pass_by(claimed)
        return list(claimed)

    return claims


def look_again(fronts):
    fronts.until = 0
    fronts.look(QUEUES, None)


def waiting(age=0, queue="q0", **fields):
    """Store a job that has waited for so many seconds."""
    now = timezone.now()
    return insert(type="t", queue=queue, enqueued_at=now - timedelta(seconds=age), **fields).pk


def ids(jobs):
    return [job.pk for job in jobs]


def test_a_claim_beside_an_open_transaction_reads_at_most_three_times_as_much(transactional_db):
    claims = [name for name in growth.OPERATIONS if name.startswith("claim")]
    with growth.without_autovacuum():
        growth.fill_finished(1, 10_000)
        growth.fill_waiting(1, 1_000)
        growth.raw(f"VACUUM (ANALYZE, INDEX_CLEANUP ON) {growth.TABLE}")
        fresh = {name: growth.blocks(name) for name in claims}
        with growth.open_transaction(worked_off=10_000):
            read = {name: growth.blocks(name) for name in claims}
    assert all(read[name] <= 3 * fresh[name] for name in claims), (fresh, read)


def test_without_dead_rows_nobody_needs_fronts(fronts):
    waiting()
    look_again(fronts)
    assert (fronts.are_used, fronts.of(QUEUES)) == (False, [])


def test_all_waiting_jobs_are_claimed_in_their_order(old_transaction, fronts, claims):
    low, old, new, high = waiting(9, priority=-1), waiting(8), waiting(7, "q1"), waiting(1, "q3", priority=4)
    look_again(fronts)
    assert fronts.are_used
    assert ids(claims(2)) == [high, old]
    assert ids(claims()) == [new, low]
    assert claims() == []


def test_a_new_job_is_claimed_at_once_in_a_queue_that_was_empty(old_transaction, claims):
    fresh = waiting(queue="q2")
    assert ids(claims()) == [fresh]


def test_a_job_before_its_front_waits_for_the_next_look(old_transaction, fronts, claims):
    waiting(5)
    look_again(fronts)
    assert len(claims()) == 1
    late, unusual = waiting(60), waiting(priority=7)
    assert claims() == []
    fronts.look(QUEUES, None)
    assert claims() == [], "it is not yet time to look again"
    look_again(fronts)
    assert ids(claims()) == [unusual, late]


def test_the_fronts_of_some_types_are_behind_the_jobs_of_others(transactional_db, fronts, take):
    def claim():
        claimed = take(9, queues=QUEUES, types=["t"], with_rules=frozenset(), fronts=fronts.of(QUEUES))
        fronts.pass_by(claimed)
        return ids(claimed)

    growth.fill_waiting(1, 3_000)  # of a type that this worker cannot run
    first = [waiting(priority=2), waiting()]
    fronts.until = 0
    fronts.look(QUEUES, ["t"])
    begin = dict(Job.objects.filter(type="t").values_list("priority", "enqueued_at"))
    assert begin.items() <= {front.priority: front.since for front in fronts.of(["q0"])}.items()
    assert (fronts.are_used, claim()) == (True, first)
    second = waiting()
    assert claim() == [second]
    fronts.until = 0
    fronts.look(QUEUES, ["waiting"])
    assert not fronts.are_used


def test_a_worker_that_has_jobs_begins_behind_those_of_others_and_asks_which_queues_have_jobs(
    transactional_db, handlers, monkeypatch
):
    begun, asked = [], []
    claim, ask = claimer.claim, queues.waiting_queues
    monkeypatch.setattr(claimer, "claim", lambda *a, **k: begun.append((k["types"], k["fronts"])) or claim(*a, **k))
    monkeypatch.setattr(queues, "waiting_queues", lambda jobs: asked.append(jobs) or ask(jobs))
    growth.fill_waiting(1, 3_000)
    job("t")(lambda: None)
    claiming = Claiming(concurrency=1)
    for _ in range(3):
        waiting()
    for _ in range(5):
        claiming.claim()
        claiming.poller.exhausted()
        claiming.threads.runs = 0
    used = [bool(fronts) for types, fronts in begun if "t" in types]
    assert used == [False, True, True, True, False], "an idle worker takes each priority at once"
    assert len(asked) >= 5
    assert not Job.objects.filter(type="t", state="available").exists()


def test_a_job_that_was_scheduled_is_taken_beside_jobs_of_other_types(transactional_db, fronts, take):
    growth.fill_waiting(1, 3_000)
    fronts.until = 0
    fronts.look(QUEUES, ["t"])
    wanted = [waiting(2), waiting(queue="new", age=3600)]  # due shortly before the look; in a queue of a later call
    where = [*QUEUES, "new"]
    claimed = take(9, queues=where, types=["t"], with_rules=frozenset(), fronts=fronts.of(where))
    assert set(ids(claimed)) == set(wanted)


def test_a_paused_queue_gives_nothing(old_transaction, claims):
    waiting()
    Queue.objects.create(name="q0", paused_at=timezone.now())
    assert claims() == []


def test_the_fronts_are_left_when_the_transaction_has_ended(fronts):
    with growth.open_transaction():
        look_again(fronts)
        assert fronts.are_used
    growth.raw(f"VACUUM (INDEX_CLEANUP ON) {growth.TABLE}")
    look_again(fronts)
    assert not fronts.are_used


def test_too_many_fronts_are_not_used(old_transaction, fronts, monkeypatch):
    monkeypatch.setattr(module, "MOST_FRONTS", len(QUEUES))
    look_again(fronts)
    assert fronts.are_used
    waiting(priority=1)
    look_again(fronts)
    assert (fronts.are_used, fronts.of(QUEUES)) == (False, [])


def test_the_front_moves_behind_what_was_claimed(old_transaction, fronts, claims):
    waiting(5)
    look_again(fronts)
    ((job,), front) = claims(), fronts.of(["q0"])
    assert front == [Front("q0", 0, job.enqueued_at)]


def test_a_worker_begins_at_the_fronts_and_does_not_ask_which_queues_have_jobs(old_transaction, handlers, monkeypatch):
    begun, asked = [], []
    claim, ask = claimer.claim, queues.waiting_queues
    monkeypatch.setattr(claimer, "claim", lambda *a, **k: begun.append((k["types"], k["fronts"])) or claim(*a, **k))
    monkeypatch.setattr(queues, "waiting_queues", lambda jobs: asked.append(jobs) or ask(jobs))
    job("t")(lambda: None)
    claiming = Claiming(concurrency=1)
    for number in range(6):
        waiting(number)
    for _ in range(8):  # the last two in vain
        claiming.claim()
        claiming.poller.exhausted()
        claiming.threads.runs = 0
    since = [[front.since for front in fronts if front.queue == "q0"] for types, fronts in begun if "t" in types]
    assert [len(moments) for moments in since] == [0, 1, 1, 1, 1, 1, 1, 1]
    assert since == sorted(since)
    assert since[1] < since[-1], "the fronts move with the claims"
    assert len(asked) == 2
    assert not Job.objects.filter(type="t", state="available").exists()


@pytest.mark.slow
def test_a_worker_does_all_jobs_from_their_fronts(old_transaction, handlers, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_SECONDS", 0.2)
    monkeypatch.setattr(module, "CHECK_SECONDS", 0.2)
    job("t")(lambda: None)
    enqueue = partial(Job.objects.enqueue, "t")
    with working():
        for number in range(40):
            enqueue(queue=f"q{number % 5}", priority=number % 7)
            if number % 10 == 0:
                waiting(60, priority=number)
        until(lambda: not Job.objects.filter(type="t", finished_at=None).exists(), "all jobs are done")
    assert Job.objects.filter(type="t", state="completed").count() == 44
