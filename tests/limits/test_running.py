"""How many jobs of a partition run at once."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ojs_unique import Limit, job
from django_ojs_unique.exceptions import InvalidRequest
from django_ojs_unique.execution import claim_limited
from django_ojs_unique.execution.leases import requeue
from django_ojs_unique.lifecycle import write
from django_ojs_unique.limits import blocks, waiting
from django_ojs_unique.limits.waiting import LEAST_NEW, RoundRobin
from django_ojs_unique.models import Job, LimitOverride, LimitPartition, Queue, Slot
from django_ojs_unique.ojs.blocking import PARTITIONS
from django_ojs_unique.worker import Worker
from tests.support.limits import ONE, done, enqueue, fail, ids, lose, take
from tests.support.processes import Parent
from tests.support.refusals import refused

pytestmark = pytest.mark.django_db(transaction=True)


def test_one_job_of_a_partition_runs_at_a_time_and_the_others_wait_their_turn():
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


def test_a_later_job_of_the_partition_does_not_go_before_one_that_waits():
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


@pytest.mark.parametrize("move", ["cancel", "rescue", "delete", "requeue", "retry"])
def test_the_end_of_a_lease_is_the_end_of_its_slot(move):
    first, second = enqueue(1), enqueue(1)
    (running,) = take()
    assert take() == []
    if move == "cancel":
        Job.objects.get(pk=first).cancel()
        assert take() == []
        done(running)  # its result is refused
    elif move == "delete":
        Job.objects.filter(pk=first).delete()
    elif move == "requeue":
        requeue(Job.objects.all(), [running])
    elif move == "rescue":
        lose(first)
    else:
        fail(running)
    expected = first if move == "requeue" else second  # a rescued job goes to the end of its line
    assert ids(take()) == [expected]
    assert take() == []


def test_a_job_that_runs_again_after_it_lost_its_lease_takes_its_slots_once():
    limits = [Limit(key=["args.n"], running=1), Limit(name="all", running=2)]
    first, second = enqueue(1, limits), enqueue(2, limits)
    assert ids(take(1)) == [first]
    lose(first)
    running = take()
    assert ids(running) == [second, first]
    third = enqueue(3, limits)
    assert take() == []
    Job.objects.get(pk=second).cancel()
    assert take() == []
    done(running[0])  # its result is refused
    assert ids(take()) == [third]


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


@pytest.mark.parametrize("how", ["cancel", "expire", "pause"])
def test_a_heavy_job_that_stops_waiting_keeps_no_light_one_waiting(how):
    light, heavy = Limit(key=["args.n"], running=3), Limit(key=["args.n"], running=3, weight=3)
    options = {"expires_at": timezone.now() + timedelta(seconds=30)} if how == "expire" else {}
    enqueue(1, light)
    waits = enqueue(1, heavy, queue="other", **options)
    queues = ["default", "other"]
    assert len(take(queues=queues)) == 1
    behind = enqueue(1, light)
    now = timezone.now()
    assert take(queues=queues, now=now) == []
    assert take(queues=queues, now=now + timedelta(seconds=2)) == []
    if how == "cancel":
        Job.objects.get(pk=waits).cancel()
    if how == "pause":
        Queue.objects.pause("other")
    assert take(queues=queues, now=now + timedelta(seconds=2.5)) == []
    assert ids(take(queues=queues, now=now + timedelta(minutes=1))) == [behind]


def test_a_heavy_job_is_looked_at_once_a_second_and_no_other_that_waits():
    heavy, light = (Limit(key=["args.n"], running=3, weight=weight) for weight in (3, 1))
    enqueue(1, light), enqueue(1, heavy)
    enqueue(2, heavy), enqueue(2, heavy)
    now = timezone.now() + timedelta(seconds=1)
    assert len(take(now=now)) == 2
    opens = {key.key["args.n"]: key.opens_at for key in LimitPartition.objects.all()}
    assert opens == {1: now + timedelta(seconds=1), 2: None}


def test_many_partitions_that_must_be_looked_at_again_keep_no_other_job_waiting():
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


def test_a_later_job_passes_one_that_waits_for_another_partition_by_now():
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
def test_a_partition_that_another_claim_has_locked_is_left_to_it(start):
    enqueue(1), enqueue(1)
    running = take()
    assert take() == []
    done(*running)
    other = enqueue(2)

    def hold(parent: Parent) -> None:
        with transaction.atomic():
            list(LimitPartition.objects.exclude(full_since=None).select_for_update())
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
    with refused(InvalidRequest, "name"):
        LimitOverride.objects.set(name, running=1)


@pytest.mark.usefixtures("no_time_passes")
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


def test_jobs_of_two_deploys_share_a_partition_and_each_keeps_its_own_rate():
    old, new = Limit(key=["args.n"], per_minute=1), Limit(key=["args.n"], per_hour=2)
    first, second, third = enqueue(1, new), enqueue(1, old), enqueue(1, new)
    plain = enqueue(1, Limit(key=["args.n"], running=9))
    start = timezone.now()
    taken = [ids(take(now=start + timedelta(seconds=seconds))) for seconds in (0, 59, 61, 3599, 3662)]
    assert taken == [[first], [], [second], [], [third, plain]]


@pytest.mark.parametrize("weight", [1, 2])
@pytest.mark.parametrize("count", [1, 2])
def test_a_job_without_a_rate_counts_for_no_rate_of_its_partition(weight, count):
    plain, rated = enqueue(1, Limit(key=["args.n"], running=9, weight=weight)), Limit(key=["args.n"], per_hour=1)
    first, _ = enqueue(1, rated), enqueue(1, rated)
    assert [*ids(take(count)), *ids(take(count))] == [plain, first]


def test_a_job_that_becomes_available_again_is_looked_at_again():
    _, second = enqueue(1), enqueue(1)
    (running,) = take()
    take()
    assert Job.objects.get(pk=second).blocked_by.startswith("k")
    Job.objects.get(pk=second).cancel()
    done(running)
    Job.objects.get(pk=second).retry()
    assert ids(take()) == [second]


def test_a_paused_queue_keeps_no_slot():
    enqueue(1, queue="paused")
    second = enqueue(1)
    Queue.objects.pause("paused")
    assert ids(take(queues=["paused", "default"])) == [second]


@pytest.mark.slow
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
    assert not LimitPartition.objects.exists()


@pytest.mark.slow
def test_a_claim_costs_the_same_whatever_waits_for_a_full_partition():
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
    assert Job.objects.filter(blocked_by="0", state="available").count() == 0


@pytest.mark.slow
def test_claims_go_round_more_full_partitions_than_one_claim_asks(monkeypatch):
    monkeypatch.setattr(blocks, "MOST_WALKED", 4)
    first, waits = ([enqueue(n) for n in range(10)] for _ in range(2))
    running = {run.id: run for run in take(20)}
    assert [*running] == first
    assert take(20) == []
    for left, freed, next_one in zip(range(10, 0, -1), first, waits, strict=True):
        done(running[freed])
        said: list[bool] = []
        claims = [ids(take(passed_over=lambda said=said: said.append(True))) for _ in range(4)]
        assert sorted(claims) == [[], [], [], [next_one]]
        if left > 5:
            assert len(said) == 4  # so that a worker looks again soon


@pytest.mark.slow
def test_a_small_claim_of_many_open_partitions_goes_by_priority_and_then_by_age(monkeypatch):
    monkeypatch.setattr(waiting, "LEAST_NEW", 2)
    first = [enqueue(n) for n in range(12)]
    waits = [enqueue(n) for n in range(12)]
    running = take(20)
    assert ids(running) == first
    assert take(20) == []
    done(*running)
    enqueue(3), enqueue(11)  # behind those that wait for their keys
    urgent = enqueue(11, priority=1)
    assert [one for _ in waits for one in ids(take(1))] == [urgent, *waits[:11]]
    assert take(1) == []


def test_partitions_whose_jobs_a_worker_does_not_run_hide_no_other(monkeypatch):
    monkeypatch.setattr(blocks, "MOST_PARTITIONS", 3)
    running = [*map(enqueue, range(10))]
    claimed = take(20)
    assert ids(claimed) == running
    waits = [enqueue(n) for n in range(10)]
    assert take(20) == []
    done(*claimed)
    last = Job.objects.filter(pk__in=waits).order_by("-blocked_by")[0]
    write(Job.objects.filter(pk=last.pk), type="other")
    assert [last.pk] in [ids(take(types=["other"])) for _ in range(4)]


@pytest.mark.parametrize("is_followed", [True, False])
def test_a_small_claim_reads_on_behind_jobs_that_must_wait(is_followed, monkeypatch):
    monkeypatch.setattr(waiting, "LEAST_NEW", 2)
    both = [ONE, Limit(name="all", running=1)]
    holders = [enqueue(n) for n in (1, 2, 3)]
    enqueue(0, [Limit(name="all", running=1)])
    running = take(10)
    assert len(running) == 4
    first, second, third = enqueue(1, both), enqueue(2, both), enqueue(3)
    assert take() == []
    done(*running[:3])
    if is_followed:
        enqueue(3)  # it does not pass the one of its key that is read later
    assert ids(take(1)) == [third]
    assert {*holders, first, second}.isdisjoint(ids(take()))


@pytest.mark.slow
def test_a_job_whose_partitions_must_be_read_apart_is_taken_and_keeps_no_other_waiting(monkeypatch):
    monkeypatch.setattr(blocks, "MOST_WALKED", 3)
    monkeypatch.setattr(claim_limited, "_turns", defaultdict(RoundRobin))
    two = Limit(key=["args.n"], running=2)
    holders = [enqueue(n, two) for n in range(20) for _ in range(2)]
    running = take(40)
    assert ids(running) == holders
    for n in range(20):
        enqueue(n, two)
    while Job.objects.filter(blocked_by="0", state="available").exists():
        take(40)
    first, *_, last = Job.objects.filter(state="available").order_by("blocked_by")
    done(*(run for run in running if run.limits[0]["id"] in (first.blocked_by, last.blocked_by)))
    both = enqueue(first.args["n"], two)
    write(Job.objects.filter(pk=both), limits=[first.limits[0], last.limits[0]])
    other = enqueue("another", two)
    taken = {id for _ in range(10) for id in ids(take())}
    assert taken == {first.pk, last.pk, both, other}


def test_a_new_job_of_a_higher_priority_is_not_passed_because_many_new_ones_must_wait():
    enqueue(2)
    free = enqueue(1)
    running = {run.id: run for run in take()}
    enqueue(1)
    assert take() == []
    for _ in range(LEAST_NEW):
        enqueue(2, priority=5)
    urgent = enqueue(1, priority=5)
    done(running[free])
    assert ids(take(1)) == [urgent]


def test_a_job_without_limits_does_not_wait_until_many_new_ones_were_looked_at():
    enqueue(1)
    assert len(take()) == 1
    for _ in range(4 * LEAST_NEW):
        enqueue(1, priority=5)
    plain = enqueue(1, None)
    assert ids(take(1)) == [plain]
    assert Job.objects.filter(blocked_by="0", state="available").count() == 3 * LEAST_NEW


def test_a_job_of_another_queue_does_not_pass_one_that_a_claim_has_not_read():
    three = Limit(key=["args.n"], running=3)
    holders = [enqueue(1, three) for _ in range(3)] + [enqueue(n) for n in range(2, 11)]
    running = take(20)
    assert ids(running) == holders
    waits = [enqueue(1, three) for _ in range(3)]
    later = enqueue(1, three, queue="other")
    others = [enqueue(n) for n in range(2, 11)]
    queues = ["default", "other"]
    assert take(20, queues=queues) == []
    done(*running)
    found = ids(take(10, queues=queues)) + ids(take(10, queues=queues))
    assert sorted(found) == sorted([*waits, *others])
    assert later not in found


@pytest.mark.slow
def test_a_claim_reads_on_where_one_partition_has_many_slots():
    many = Limit(key=["args.n"], running=50)
    holders = [enqueue(0, many) for _ in range(50)] + [enqueue(n) for n in range(1, 31)]
    running = take(100)
    assert ids(running) == holders
    waits = [enqueue(0, many) for _ in range(60)] + [enqueue(n) for n in range(1, 31)]
    assert take(100) == []
    done(*running)
    assert sorted(ids(take(70))) == sorted([*waits[:40], *waits[60:]])


def test_a_partition_is_full_until_nothing_waits_for_it():
    enqueue(1)
    running = take()
    waits = [enqueue(1) for _ in range(2)]
    assert take() == []
    for each, is_full in zip(waits, (True, False), strict=True):
        done(*running)
        running = take()
        assert ids(running) == [each]
        take()
        assert (LimitPartition.objects.get().full_since is not None) is is_full
    done(*running)
    many = Limit(key=["args.n"], running=3)
    running = [take(1)[0] for _ in map(enqueue, [1] * 3, [many] * 3)]
    waits = [enqueue(1, many) for _ in range(5)]
    assert take() == []
    done(*running)
    running = take(1)  # it reads some of them only
    assert LimitPartition.objects.get().full_since is not None
    running += take()
    assert ids(running) == waits[:3]
    Job.objects.filter(pk__in=waits[3:]).delete()
    enqueue(2, Limit(key=["args.n"], per_hour=1)), enqueue(2, Limit(key=["args.n"], per_hour=1))
    (started,) = take()
    take()
    key = LimitPartition.objects.get(pk=started.limits[0]["id"])
    assert (key.full_at, key.opens_at) == (None, started.started_at + timedelta(hours=1))


@pytest.mark.parametrize("count", [0, 1, 2])
def test_what_is_to_be_done_meanwhile_is_done_once(count):
    called: list[int] = []
    for _ in range(count):
        enqueue(1)
    take(overlap=lambda: called.append(1))
    assert called == [1]


WRITTEN = {"id": "k" * 33, "name": "n", "key": {}, "running": 1}


@pytest.mark.parametrize(
    "limits",
    [
        *({"a": 1}, "x", 5, [1], [{}], [{"id": "k"}]),
        [{**WRITTEN, "running": None}],
        [{**WRITTEN, "running": 10**12}],
        [{**WRITTEN, "weight": 10**12}],
        [{**WRITTEN, "weight": True}],
        [{**WRITTEN, "name": "n" * 101}],
        [{**WRITTEN, "name": ""}],
        [{**WRITTEN, "seconds": 60}],
        [{**WRITTEN, "rate": 1}],
        [{**WRITTEN, "rate": 1, "seconds": 10**15}],
        [{name: value for name, value in WRITTEN.items() if name != "running"}],
    ],
)
def test_a_job_whose_limits_were_broken_manually_keeps_no_other_job_waiting(limits):
    broken = enqueue(1)
    write(Job.objects.filter(pk=broken), limits=limits)
    assert ids(take()) == []
    other = enqueue(2)
    assert ids(take()) == [other]


def test_jobs_whose_limits_were_broken_while_they_waited_keep_no_other_job_waiting():
    enqueue(1)
    waits = [enqueue(1) for _ in range(5)]
    running = take(1)
    assert take() == []
    write(Job.objects.filter(pk__in=waits[:3]), limits="x")
    done(*running)
    assert ids(take(1)) == [waits[3]]


def test_jobs_that_must_wait_for_one_partition_are_blocked_together():
    for _ in range(30):
        enqueue(1)
    with CaptureQueriesContext(connection) as queries:
        assert len(take(20)) == 1
    assert Job.objects.filter(blocked_by__startswith=PARTITIONS, state="available").count() > 1
    one_by_one = [int(query["sql"].split()[0]) for query in queries if " times: UPDATE" in query["sql"]]
    assert max(one_by_one, default=0) <= 1
