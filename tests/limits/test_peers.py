"""The examples that other job systems document for their limits, said with this one's."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_ojs_unique import Limit, UniquePolicy, job, presets
from django_ojs_unique.execution.leases import requeue
from django_ojs_unique.models import Job, Queue
from tests.support.limits import done, fail, ids, lose, take

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("handlers", "no_time_passes")]


def enqueue(handler: Any, count: int = 1, **args: Any) -> list[Any]:
    return [result.job.id for result in Job.objects.enqueue_many(handler.item(**args) for _ in range(count))]


def started(seconds: float, since: Any, count: int = 200) -> int:
    """Claim at some time; the jobs end at once. Return how many there were."""
    taken = take(count, now=since + timedelta(seconds=seconds))
    done(*taken)
    return len(taken)


# Solid Queue: README, "Concurrency controls"


def announcements() -> Any:
    """``to: 2``, with the contact's account as the key. The class is a part of the key unless a group is named."""

    @job("announcement.deliver", limit=Limit(key=["type", "args.account_id"], running=2))
    def deliver(contact_id, account_id):
        pass

    return deliver


def test_solid_queue_runs_two_jobs_of_an_account_at_once():
    deliver = announcements()
    first, second, third = (enqueue(deliver, contact_id=n, account_id=7)[0] for n in range(3))
    other = enqueue(deliver, contact_id=4, account_id=8)
    running = take()
    assert ids(running) == [first, second, *other]
    done(running[1])
    assert ids(take()) == [third]


def test_solid_queues_duration_is_the_lease_which_a_living_worker_renews():
    deliver = announcements()
    jobs = enqueue(deliver, 3, contact_id=1, account_id=7)
    assert ids(take()) == jobs[:2]
    assert take(now=timezone.now() + timedelta(hours=1)) == []  # slow jobs keep their slots
    lose(jobs[0])
    assert len(take()) == 1


def test_solid_queues_group_is_a_name_that_two_types_share():
    contact = Limit(name="contact_actions", key=["args.contact_id"], running=1)

    @job("box.move_postings", limit=contact)
    def move(contact_id):
        pass

    @job("bundle.rebundle", limit=contact)
    def rebundle(bundle_id, contact_id):
        pass

    moves = enqueue(move, contact_id=123)
    rebundles = enqueue(rebundle, bundle_id=5, contact_id=123)
    running = take()
    assert ids(running) == moves
    assert take() == []
    done(*running)
    assert ids(take()) == rebundles


def test_solid_queues_blocked_jobs_go_by_priority():
    deliver = announcements()
    first, second, third = enqueue(deliver, 3, contact_id=1, account_id=7)
    urgent = deliver.using(priority=9).enqueue(contact_id=2, account_id=7).job.id
    running = take()
    assert ids(running) == [urgent, first]
    done(*running)
    assert ids(take()) == [second, third]


def test_a_failed_job_of_solid_queue_has_to_find_a_slot_again():
    deliver = announcements()
    jobs = enqueue(deliver, 3, contact_id=1, account_id=7)
    failing, _ = take()
    fail(failing)
    assert ids(take()) == [jobs[2]]
    assert Job.objects.filter(pk=jobs[0]).retry().changed == [jobs[0]]
    assert take() == []


def test_solid_queues_on_conflict_discard_is_a_policy():
    @job("scan.run", unique=UniquePolicy(keys=["type"], on_conflict="ignore"))
    def scan():
        pass

    assert scan.enqueue().created
    running = take()
    assert scan.enqueue().deduplicated
    done(*running)
    assert scan.enqueue().created


# GoodJob: README, "Concurrency controls"


def test_good_jobs_total_limit_is_a_policy():
    @job("my.job", unique=UniquePolicy(keys=["type", "args"], args_keys=["first_name"], on_conflict="ignore"))
    def my_job(first_name):
        pass

    assert my_job.enqueue(first_name="Alice").created
    assert my_job.enqueue(first_name="Alice").deduplicated
    assert my_job.enqueue(first_name="Bob").created
    running = take()
    assert my_job.enqueue(first_name="Alice").deduplicated
    done(*running)
    assert my_job.enqueue(first_name="Alice").created


def test_good_jobs_perform_limit_keeps_the_order_and_uses_no_attempt_here():
    @job("my.job", limit=Limit(key=["type"], running=1))
    def my_job():
        pass

    jobs = enqueue(my_job, 3)
    order = []
    for _ in jobs:
        running = take()
        assert take() == []
        order += ids(running)
        done(*running)
    assert order == jobs
    assert {each.attempt for each in Job.objects.all()} == {1}


def test_good_jobs_enqueue_limit_beside_a_perform_limit_is_a_policy_beside_a_limit():
    waits = UniquePolicy(keys=["type"], states=list(presets.WAITING), on_conflict="ignore")

    @job("my.job", unique=waits, limit=Limit(key=["type"], running=1))
    def my_job():
        pass

    assert my_job.enqueue().created
    running = take()
    assert my_job.enqueue().created
    assert my_job.enqueue().deduplicated
    assert take() == []
    done(*running)
    assert len(take()) == 1


def test_good_jobs_perform_throttle_is_a_rate():
    @job("my.job", limit=Limit(key=["type"], per_hour=100))
    def my_job():
        pass

    enqueue(my_job, 102)
    begin = timezone.now()
    assert started(0, begin) == 100
    assert started(3599, begin) == 0
    assert started(3601, begin) == 2


def test_good_jobs_key_of_class_queue_and_arguments_is_a_list_of_parts():
    limit = Limit(key=["type", "queue", "args.first_name", "args.version"], running=1)

    @job("my.job", limit=limit)
    def my_job(first_name, version):
        pass

    first, same, newer = (enqueue(my_job, first_name="Alice", version=version)[0] for version in ("v1", "v1", "v2"))
    elsewhere = my_job.using(queue="other").enqueue(first_name="Alice", version="v1").job.id
    without_a_key = my_job.using(limit=None).enqueue(first_name="Alice", version="v1").job.id
    assert set(ids(take(queues=["default", "other"]))) == {first, newer, elsewhere, without_a_key}
    assert Job.objects.get(pk=same).state == "available"


# Oban Pro: "Oban.Pro.Engines.Smart"


@pytest.mark.parametrize("by", ["a limit", "an operator"])
def test_obans_global_limit_holds_over_nodes_beside_their_local_limits(by):
    @job("report.build", limit=Limit(key=["queue"], running=10) if by == "a limit" else None)
    def build():
        pass

    if by == "an operator":
        Queue.objects.limit("default", 10)
    enqueue(build, 12)
    nodes = [len(take(3)) for _ in range(5)]
    assert nodes == [3, 3, 3, 1, 0]


@pytest.mark.parametrize(
    ("key", "same", "other"),
    [
        (["queue", "type"], {}, {"type": "b"}),
        (["queue", "args.account_id"], {"type": "b"}, {"args": {"account_id": 2}}),
        (["queue", "meta.tenant"], {"args": {"account_id": 2}}, {"meta": {"tenant": "globex"}}),
    ],
    ids=["worker", "args", "meta"],
)
def test_obans_partition_is_a_key(key, same, other):
    def add(type: str = "a", args: Any = None, meta: Any = None) -> Any:
        args, meta = args or {"account_id": 1}, meta or {"tenant": "acme"}
        return Job.objects.enqueue(type, args, meta=meta, limit=Limit(key=key, running=1)).job.id

    first, waits, runs = add(), add(**same), add(**other)
    running = take()
    assert ids(running) == [first, runs]
    done(*running)
    assert ids(take()) == [waits]


def test_obans_rate_limit_slides():
    @job("api.call", limit=Limit(key=["queue"], per_minute=60))
    def call():
        pass

    enqueue(call, 130)
    begin = timezone.now()
    assert started(0, begin, count=40) == 40
    assert started(50, begin) == 20
    assert started(59, begin) == 0
    assert started(61, begin) == 40
    assert started(109, begin) == 0
    assert started(111, begin) == 20


def test_obans_partitioned_rate_limit_counts_each_account():
    @job("api.call", limit=Limit(key=["queue", "args.account_id"], per_second=2))
    def call(account_id):
        pass

    for account_id in (1, 2):
        enqueue(call, 3, account_id=account_id)
    begin = timezone.now()
    assert [started(seconds, begin) for seconds in (0, 0.9, 1.1)] == [4, 0, 2]


def test_obans_rate_counts_each_start_whatever_becomes_of_it():
    @job("api.call", limit=Limit(key=["queue"], per_minute=2))
    def call():
        pass

    enqueue(call, 3)
    begin = timezone.now()
    back, failing = take(now=begin)
    requeue(Job.objects.all(), [back])
    fail(failing)
    assert started(59, begin) == 0
    assert started(61, begin) == 2


# Sidekiq Enterprise: wiki, "Ent Rate Limiting"


def test_sidekiqs_concurrent_limiter_is_a_name_for_all():
    erp = Limit(name="erp", running=50)

    @job("order.export", limit=erp)
    def export():
        pass

    @job("stock.read", limit=erp)
    def read():
        pass

    enqueue(export, 30)
    waiting = enqueue(read, 21)
    running = take(100)
    assert len(running) == 50
    done(running[0])
    assert ids(take(100)) == waiting[-1:]


def test_sidekiqs_limiter_that_is_named_by_a_user_is_a_name_with_a_key():
    @job("card.charge", limit=Limit(name="stripe", key=["args.user_id"], running=1))
    def charge(user_id):
        pass

    first, second = enqueue(charge, 2, user_id=1)
    other = enqueue(charge, user_id=2)
    running = take()
    assert ids(running) == [first, *other]
    lose(first)  # where Sidekiq has a `lock_timeout`
    assert len(take()) == 1
    assert Job.objects.filter(pk__in=[first, second], state="active").count() == 1


def test_sidekiqs_bucket_does_not_hand_out_twice_as_many_at_the_turn_of_a_second():
    @job("card.charge", limit=Limit(name="stripe", per_second=30))
    def charge():
        pass

    enqueue(charge, 70)
    begin = timezone.now().replace(microsecond=999_000)
    assert started(0, begin) == 30
    assert started(0.002, begin) == 0  # the next second of the clock
    assert started(1.001, begin) == 30


def test_sidekiqs_window_slides():
    @job("card.charge", limit=Limit(name="stripe", key=["args.user_id"], per_minute=5))
    def charge(user_id):
        pass

    enqueue(charge, 9, user_id=1)
    begin = timezone.now()
    assert [started(seconds, begin, count=3) for seconds in (0, 30, 59, 61, 89, 91)] == [3, 2, 0, 3, 0, 1]


def test_sidekiqs_points_are_weights():
    def query(points: int) -> Any:
        limit = Limit(name="graphql", key=["args.shop"], per_minute=1000, weight=points)
        return Job.objects.enqueue("graphql.query", {"shop": "a"}, limit=limit).job.id

    for points in (600, 300, 200):
        query(points)
    begin = timezone.now()
    assert [started(seconds, begin) for seconds in (0, 59, 61)] == [2, 0, 1]


def test_sidekiqs_unlimited_limiter_is_no_limit():
    @job("card.charge", limit=Limit(name="stripe", running=1))
    def charge(user_id):
        pass

    first, _ = enqueue(charge, 2, user_id=1)
    admin = charge.using(limit=None).enqueue(user_id=0).job.id
    assert set(ids(take())) == {first, admin}
