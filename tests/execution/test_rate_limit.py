"""How many jobs of a queue are handed out in a second. Time is what the claim is told."""

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_ojs_unique import job
from django_ojs_unique.exceptions import InvalidRequest
from django_ojs_unique.execution import claim as claiming
from django_ojs_unique.models import Job, Queue
from django_ojs_unique.worker import Worker
from tests.support.processes import together
from tests.support.refusals import refused

pytestmark = pytest.mark.django_db

START = datetime(2026, 2, 12, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def enqueue(count, queue="default", **options):
    for number in range(count):
        Job.objects.enqueue("t", {"n": number}, queue=queue, **options)


def at(seconds):
    return {"now": START + seconds * SECOND}


def test_no_more_than_the_limit_is_handed_out_in_one_window_over_all_workers(take):
    Queue.objects.rate_limit("default", 3)
    enqueue(8)
    assert len(take(2, **at(0))) == 2
    assert len(take(2, worker_id="other", **at(0.5))) == 1
    assert not take(**at(0.999))
    assert Job.objects.filter(state="available").count() == 5


@pytest.mark.usefixtures("no_time_passes")
def test_a_new_window_begins_with_the_first_job_after_the_last_one(take):
    Queue.objects.rate_limit("default", 2)
    enqueue(6)
    assert [row.args["n"] for row in take(**at(0))] == [0, 1]
    assert [row.args["n"] for row in take(1, **at(1.7))] == [2]
    assert [row.args["n"] for row in take(**at(2.6))] == [3]
    assert not take(**at(2.69))
    assert [row.args["n"] for row in take(**at(2.7))] == [4, 5]


@pytest.mark.usefixtures("no_time_passes")
def test_a_look_that_finds_nothing_begins_no_window(take):
    Queue.objects.rate_limit("default", 1)
    assert not take(**at(0))
    assert Queue.objects.get().window_started_at is None
    enqueue(1)
    assert len(take(**at(0.5))) == 1
    assert Queue.objects.get().window_started_at == START + SECOND / 2


def test_other_queues_are_not_held_back(take):
    Queue.objects.rate_limit("slow", 1)
    enqueue(3, "slow", priority=9)
    enqueue(3, "fast")
    assert [row.queue for row in take(queues=("slow", "fast"), **at(0))] == ["slow", "fast", "fast", "fast"]


def test_the_narrower_of_two_limits_holds(take):
    Queue.objects.limit("default", 2)
    Queue.objects.rate_limit("default", 3)
    enqueue(9)
    assert len(take(**at(0))) == 2
    assert not take(**at(5))
    Job._base_manager.filter(state="active").update(state="completed", finished_at=START, lease_expires_at=None)
    Queue.objects.limit("default", 5)
    assert len(take(**at(5))) == 3


def test_a_new_limit_counts_what_the_window_has_handed_out(take):
    Queue.objects.rate_limit("default", 1)
    enqueue(9)
    assert len(take(**at(0))) == 1
    Queue.objects.rate_limit("default", 3)
    assert len(take(**at(0.5))) == 2
    Queue.objects.rate_limit("default", None)
    assert len(take(**at(0.6))) == 6


def test_a_window_of_a_clock_that_was_far_ahead_holds_nothing_back(take):
    Queue.objects.rate_limit("default", 1)
    enqueue(3)
    assert len(take(**at(3600))) == 1
    assert len(take(**at(0))) == 1
    assert not take(**at(-30))


def test_a_spent_window_costs_one_look_and_no_write(take):
    Queue.objects.rate_limit("default", 1)
    enqueue(2)
    take(**at(0))
    with CaptureQueriesContext(connection) as queries:
        assert not take(**at(0.5))
    assert len(queries) == 1


def test_saying_the_same_limit_again_writes_nothing():
    assert Queue.objects.rate_limit("emails", 5)
    with CaptureQueriesContext(connection) as queries:
        assert not Queue.objects.rate_limit("emails", 5)
        assert not Queue.objects.rate_limit("others", None)
    assert [query["sql"][:6] for query in queries] == ["SELECT"] * 2
    assert Queue.objects.rate_limit("emails", 6)
    assert Queue.objects.rate_limit("emails", None)
    assert Queue.objects.get().max_per_second is None


@pytest.mark.parametrize("limit", [0, -1, 0.5, "3", True, 2**31])
def test_a_limit_that_is_no_whole_number_from_one_up_is_refused(limit):
    with refused(InvalidRequest, "max_per_second"):
        Queue.objects.rate_limit("emails", limit)
    assert not Queue.objects.exists()


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_worker_comes_back_for_what_the_limit_held_back(handlers):
    """Without a call: what waited was enqueued long before."""
    ran = []

    @job("t")
    def handler(n):
        ran.append(n)
        if len(ran) == 5:
            worker.stop()

    Queue.objects.rate_limit("default", 4)
    enqueue(5)
    worker = Worker(concurrency=1)
    worker.run()
    assert ran == [0, 1, 2, 3, 4]


@pytest.mark.torture
@pytest.mark.django_db(transaction=True)
def test_no_window_hands_out_more_than_its_limit_however_many_processes_claim_at_once():
    rounds, most = 40, 3
    Queue.objects.rate_limit("default", most)
    enqueue(rounds * most)

    def claim(worker, number):
        """Claim in the window of this round, as soon as no other process has the queue; the clocks differ a little."""
        while True:
            passed_over = []
            claimed = claiming.claim(
                Job.objects.all(),
                queues=["default"],
                types=["t"],
                limit=2,
                worker_id="w",
                lease=30 * SECOND,
                now=START + (10 * number + worker / 5) * SECOND,
                passed_over=partial(passed_over.append, True),
            )
            if not passed_over:
                return len(claimed)

    handed_out = together([partial(claim, worker) for worker in range(4)], rounds=rounds)
    assert {sum(results) for results in handed_out} == {most}
