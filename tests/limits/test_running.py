"""How many jobs of a key run at once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ojs_unique import Limit, job
from django_ojs_unique.exceptions import InvalidRequest
from django_ojs_unique.execution.leases import give_back
from django_ojs_unique.lifecycle import write
from django_ojs_unique.models import Job, LimitKey, LimitOverride, Queue, Slot
from django_ojs_unique.worker import Worker
from tests.support.limits import done, enqueue, fail, ids, lose, take
from tests.support.processes import Parent

pytestmark = pytest.mark.django_db(transaction=True)


def test_one_job_of_a_key_runs_at_a_time_and_the_others_wait_their_turn():
    first, other, second, third = enqueue(1), enqueue(2), enqueue(1), enqueue(1)
    running = take()
    assert ids(running) == [first, other]
    assert take() == []
    done(running[1])
    assert take() == []
    done(running[0])
    running = take()
    assert ids(running) == [second]
    done(*running)
    assert ids(take()) == [third]


def test_a_job_without_a_limit_passes_those_that_wait():
    enqueue(1), enqueue(1)
    plain = Job.objects.enqueue("t", {"n": 1}).job.id
    assert len(take(1)) == 1
    assert ids(take()) == [plain]


def test_a_later_job_of_the_key_does_not_go_before_one_that_waits():
    first, second = enqueue(1), enqueue(1)
    running = take()
    assert take() == []
    urgent, third = enqueue(1, priority=5), enqueue(1)
    done(*running)
    order = []
    for _ in range(3):
        running = take()
        order += ids(running)
        done(*running)
    assert order == [urgent, second, third]
    assert first not in order


@pytest.mark.parametrize("move", ["cancel", "rescue", "delete", "give back", "retry"])
def test_the_end_of_a_lease_is_the_end_of_its_slot(move):
    first, second = enqueue(1), enqueue(1)
    (running,) = take()
    assert take() == []
    if move == "cancel":
        Job.objects.get(pk=first).cancel()
    elif move == "delete":
        Job.objects.filter(pk=first).delete()
    elif move == "give back":
        give_back(Job.objects.all(), [running])
    elif move == "rescue":
        lose(first)
    else:
        fail(running)
    expected = first if move == "give back" else second  # a rescued job goes to the end of its line
    assert ids(take()) == [expected]
    assert take() == []


def test_several_limits_hold_together():
    limits = [Limit(key=["args.n"], running=1), Limit(key=["meta.tenant"], running=2), Limit(name="all", running=3)]
    jobs = [
        enqueue(n, limits, meta={"tenant": tenant})
        for n, tenant in [(1, "a"), (1, "a"), (2, "a"), (3, "a"), (4, "b"), (5, "b")]
    ]
    running = take()
    assert ids(running) == [jobs[0], jobs[2], jobs[4]]
    done(running[0])
    running = [*running[1:], *take()]
    assert ids(running) == [jobs[2], jobs[4], jobs[1]]
    done(running[0])
    assert ids(take()) == [jobs[3]]


def test_weights_count_and_a_heavy_job_is_not_passed_by_light_ones():
    heavy, light = Limit(key=["args.n"], running=3, weight=2), Limit(key=["args.n"], running=3)
    first, second, third = enqueue(1, heavy), enqueue(1, heavy), enqueue(1, light)
    running = take()
    assert ids(running) == [first]
    assert take() == []
    done(*running)
    assert ids(take()) == [second, third]


def test_a_light_job_that_comes_later_does_not_pass_a_heavy_one_that_waits():
    heavy, light = Limit(key=["args.n"], running=3, weight=2), Limit(key=["args.n"], running=3)
    enqueue(1, heavy)
    second = enqueue(1, heavy)
    running = take()
    third = enqueue(1, light)
    assert take() == []
    done(*running)
    assert ids(take()) == [second, third]


def test_many_keys_that_must_be_looked_at_again_keep_no_other_job_waiting():
    light, heavy = (Limit(key=["args.n"], running=2, weight=weight) for weight in (1, 2))
    running = [enqueue(n, light) for n in range(20)]
    assert ids(take(20)) == running
    for n in range(20):
        enqueue(n, heavy)
    assert take() == []
    for n in range(20):
        enqueue(n, light)
    plain = enqueue(1, None)
    assert ids(take()) == [plain]


def test_a_later_job_passes_one_that_waits_for_another_key_by_now():
    one, two = Limit(key=["args.n"], running=1), Limit(name="all", running=3, weight=2)
    first = enqueue(1, [one, two])
    waits = enqueue(2, [one, two])
    running = take()
    assert ids(running) == [first]
    urgent = enqueue(2, one, priority=1)
    assert ids(take()) == [urgent]
    light = enqueue(3, [one, Limit(name="all", running=3)])
    assert ids(take()) == [light]
    assert Job.objects.get(pk=waits).state == "available"


@pytest.mark.skipif("connection.vendor == 'sqlite'", reason="SQLite has no locks of rows")
def test_a_key_that_another_claim_has_locked_is_left_to_it(start):
    enqueue(1), enqueue(1)
    running = take()
    assert take() == []
    done(*running)
    other = enqueue(2)

    def hold(parent: Parent) -> None:
        with transaction.atomic():
            list(LimitKey.objects.exclude(full_since=None).select_for_update())
            parent.tell()
            parent.hear()

    child = start(hold)
    child.hear()
    skipped: list[bool] = []
    assert ids(take(passed_over=lambda: skipped.append(True))) == [other]
    assert skipped
    child.tell()
    child.result()
    assert len(take()) == 1


def test_an_operators_number_counts_for_the_jobs_that_wait():
    jobs = [enqueue(1) for _ in range(4)]
    running = take()
    assert len(running) == 1
    assert LimitOverride.objects.set("args.n", running=3)
    assert not LimitOverride.objects.set("args.n", running=3)
    running += take()
    assert ids(running) == jobs[:3]
    assert LimitOverride.objects.set("args.n")
    done(running[0])
    assert take() == []
    done(*running[1:])
    assert ids(take()) == jobs[3:]


@pytest.mark.parametrize("name", ["", "a" * 101, "a\0", "a\n", "\ud800", 1])
def test_an_operator_names_a_limit_in_printable_text(name):
    with pytest.raises(InvalidRequest, match=r"^name: must be printable text of 1 to 100 characters"):
        LimitOverride.objects.set(name, running=1)


def test_a_rate_counts_what_started_in_any_such_time():
    limit = Limit(key=["args.n"], per_minute=2)
    jobs = [enqueue(1, limit) for _ in range(5)]
    start = timezone.now()

    def take_at(seconds: float) -> list[Any]:
        taken = take(now=start + timedelta(seconds=seconds))
        done(*taken)
        return ids(taken)

    assert take_at(0) == jobs[:2]
    assert take_at(59.9) == []
    assert take_at(60.1) == jobs[2:4]
    assert take_at(119) == []
    assert take_at(120.2) == jobs[4:]


def test_jobs_of_two_deploys_share_a_key_and_each_keeps_its_own_rate():
    old, new = Limit(key=["args.n"], per_minute=1), Limit(key=["args.n"], per_hour=2)
    first, second, third = enqueue(1, new), enqueue(1, old), enqueue(1, new)
    plain = enqueue(1, Limit(key=["args.n"], running=9))
    start = timezone.now()
    taken = [ids(take(now=start + timedelta(seconds=seconds))) for seconds in (0, 59, 61, 3599, 3662)]
    assert taken == [[first], [], [second], [], [third, plain]]


@pytest.mark.parametrize("weight", [1, 2])
@pytest.mark.parametrize("count", [1, 2])
def test_a_job_without_a_rate_counts_for_no_rate_of_its_key(weight, count):
    plain, rated = enqueue(1, Limit(key=["args.n"], running=9, weight=weight)), Limit(key=["args.n"], per_hour=1)
    first, _ = enqueue(1, rated), enqueue(1, rated)
    assert [*ids(take(count)), *ids(take(count))] == [plain, first]


def test_a_job_that_becomes_available_again_is_looked_at_again():
    _, second = enqueue(1), enqueue(1)
    (running,) = take()
    take()
    assert Job.objects.get(pk=second).gate.startswith("k")
    Job.objects.get(pk=second).cancel()
    done(running)
    Job.objects.get(pk=second).revive()
    assert ids(take()) == [second]


def test_a_paused_queue_keeps_no_slot():
    enqueue(1, queue="paused")
    second = enqueue(1)
    Queue.objects.pause("paused")
    assert ids(take(queues=["paused", "default"])) == [second]


def test_a_worker_drains_them_all(handlers):
    ran = []
    job("t")(lambda n: ran.append(n))
    for n in range(30):
        enqueue(n % 3)
    Worker(concurrency=4).run(drain=True)
    assert sorted(ran) == sorted(n % 3 for n in range(30))


def test_jobs_without_limits_leave_nothing():
    Job.objects.enqueue("t")
    done(*take())
    assert not Slot.objects.exists()
    assert not LimitKey.objects.exists()


def test_a_claim_costs_the_same_whatever_waits_at_a_full_key():
    for _ in range(5):
        enqueue(1)
    take(), take()
    with CaptureQueriesContext(
        connection,
    ) as few:
        take()
    for _ in range(300):
        enqueue(1)
    take(), take(), take()
    with CaptureQueriesContext(connection) as many:
        take()
    assert len(few) == len(many)
    assert Job.objects.filter(gate="0", state="available").count() == 0


@pytest.mark.parametrize("limits", [{"a": 1}, "x", 5, [1], [{}], [{"id": "k"}]])
def test_a_job_whose_limits_were_broken_by_hand_keeps_no_other_job_waiting(limits):
    broken = enqueue(1)
    write(Job.objects.filter(pk=broken), limits=limits)
    assert ids(take()) == []
    other = enqueue(2)
    assert ids(take()) == [other]
