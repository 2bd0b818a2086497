"""What the page about limits promises, beyond one key and its slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from django.utils import timezone

from django_ojs_unique import Limit, job, presets
from django_ojs_unique.execution import claim_limited
from django_ojs_unique.limits import waiting
from django_ojs_unique.maintenance import superseded
from django_ojs_unique.models import Job, LimitOverride
from tests.support.limits import done, enqueue, fail, ids, lose, take

pytestmark = pytest.mark.django_db(transaction=True)


# A deploy, and what operators change


def test_a_waiting_job_keeps_the_number_that_it_was_enqueued_with():
    first, second = enqueue(1), enqueue(1)
    third = enqueue(1, Limit(key=["args.n"], running=3))
    running = take()
    assert ids(running) == [first]
    done(*running)
    assert ids(take()) == [second, third]


def test_a_limit_of_another_name_has_slots_of_its_own():
    first = enqueue(1)
    second = enqueue(1, Limit(name="other", key=["args.n"], running=1))
    assert ids(take()) == [first, second]


def test_types_share_the_slots_of_a_partition_unless_the_type_is_a_part_of_it():
    def add(type: str, key: list[str]) -> Any:
        return Job.objects.enqueue(type, {"n": 1}, limit=Limit(key=key, running=1)).job.id

    shared = add("a", ["args.n"])
    add("b", ["args.n"])
    own = add("a", ["args.n", "type"]), add("b", ["args.n", "type"])
    assert ids(take()) == [shared, *own]


def test_an_operator_changes_a_rate_and_adds_a_number_to_it():
    limit = Limit(key=["args.n"], per_minute=1)
    jobs = [enqueue(1, limit) for _ in range(6)]
    begin = timezone.now()
    assert ids(take(now=begin)) == jobs[:1]
    LimitOverride.objects.set("args.n", rate=3)
    running = take(now=begin)
    assert ids(running) == jobs[1:3]
    LimitOverride.objects.set("args.n", rate=9, running=4)
    assert ids(take(now=begin)) == jobs[3:4]


# One running plus one waiting


@pytest.fixture
def rebuild(handlers: Any) -> Any:
    @job(
        "search.rebuild",
        unique=presets.newest_waits(args=["document_id"]),
        limit=Limit(key=["args.document_id"], running=1),
    )
    def rebuild(document_id, revision):
        pass

    return rebuild


def test_one_runs_and_only_the_newest_waits(rebuild):
    rebuild.enqueue(8, 1)
    running = take()
    assert rebuild.enqueue(8, 2).created
    assert take() == []
    assert rebuild.enqueue(8, 3).replaced
    assert take() == []
    done(*running)
    assert [each.args["revision"] for each in take()] == [3]


def test_a_failed_one_is_not_tried_again_while_a_newer_one_waits(rebuild):
    failing = rebuild.enqueue(8, 1).job
    (running,) = take()
    newer = rebuild.enqueue(8, 2).job
    fail(running)
    assert ids(take()) == [newer.id]
    assert Job.objects.get(pk=failing.pk).state == "retryable"


def test_one_that_comes_back_from_a_dead_worker_gives_way_to_a_newer_one(rebuild):
    lost = rebuild.enqueue(8, 1).job
    take()
    newer = rebuild.enqueue(8, 2).job
    lose(lost.id)
    superseded.promote(Job.objects.all(), timezone.now())
    assert ids(take()) == [newer.id]
    assert take() == []
    lost.refresh_from_db()
    assert (lost.state, lost.errors[-1]["code"]) == ("discarded", "superseded")


# Fair queues


@pytest.fixture
def fair(settings: Any) -> Iterator[None]:
    claim_limited._turns.clear()
    settings.OJS_UNIQUE = {"FAIR_QUEUES": {"imports": ["meta.tenant"]}}
    yield
    claim_limited._turns.clear()


def add(tenant: str, count: int = 1, **options: Any) -> list[Any]:
    options = {"limit": None, "queue": "imports", "meta": {"tenant": tenant}, **options}
    return [enqueue(1, **options) for _ in range(count)]


def tenants(jobs: Any) -> list[str]:
    return [each.meta["tenant"] for each in jobs]


def test_the_partitions_of_a_fair_queue_take_turns(fair):
    add("big", 50)
    add("small", 2)
    add("tiny", 1)
    taken = [take(1, queues=["imports"])[0] for _ in range(5)]
    assert Counter(tenants(taken)) == {"big": 2, "small": 2, "tiny": 1}
    assert Counter(tenants(take(4, queues=["imports"]))) == {"big": 4}


def test_no_partition_has_two_turns_while_another_one_waits(fair):
    add("a", 3)
    add("b", 3)
    order = [tenant for _ in range(4) for tenant in tenants(take(1, queues=["imports"]))]
    assert sorted(order[:2]) == ["a", "b"]
    assert order[2:] == order[:2]


def test_a_large_claim_takes_of_each_partition(fair):
    add("big", 50)
    add("small", 3)
    assert Counter(tenants(take(6, queues=["imports"]))) == {"big": 3, "small": 3}


def test_priority_and_then_age_decide_within_a_partition_only(fair):
    old, new = add("a"), add("a")
    urgent = add("a", priority=5)
    other = add("b", priority=-5)
    taken = ids(take(queues=["imports"]))
    assert [id for id in taken if id not in other] == urgent + old + new
    assert other[0] in taken[:2]


def test_jobs_from_before_the_setting_go_first(settings):
    before = add("big", 3)
    claim_limited._turns.clear()
    settings.OJS_UNIQUE = {"FAIR_QUEUES": {"imports": ["meta.tenant"]}}
    after = add("small")
    assert ids(take(queues=["imports"])) == [*before, *after]


def test_jobs_without_the_member_share_a_partition(fair):
    enqueue(1, None, queue="imports"), enqueue(2, None, queue="imports")
    add("a", 2)
    partitions = [each.fair_partition for each in take(4, queues=["imports"])]
    assert partitions == [partitions[0], partitions[1]] * 2
    assert partitions[0] != partitions[1]


def test_partitions_without_a_job_for_a_worker_keep_no_other_waiting(fair, monkeypatch):
    for n in range(9):
        add(f"tenant {n}")
    one = Job.objects.order_by("fair_partition")[4].pk
    Job.objects.filter(pk=one).update(type="served")
    monkeypatch.setattr(waiting, "LEAST_NEW", 1)  # a fair partition for each look, and one look for each claim
    monkeypatch.setattr(claim_limited, "MOST_ROUNDS", 1)
    found = [take(1, queues=["imports"], types=["served"]) for _ in range(5)]
    assert [ids(each) for each in found] == [[], [], [], [], [one]]


def test_a_partition_whose_limit_is_full_loses_its_turn(fair):
    limit = Limit(key=["meta.tenant"], running=1)
    big, small = add("big", 4, limit=limit), add("small", 2, limit=limit)
    running = take(queues=["imports"])
    assert sorted(ids(running)) == sorted([big[0], small[0]])
    done(*running)
    assert sorted(ids(take(queues=["imports"]))) == sorted([big[1], small[1]])


def test_the_partitions_of_a_fair_queue_take_turns_for_the_slots_of_a_limit_that_they_share(fair):
    one = Limit(name="all", running=1)
    add("big", 50, limit=one)
    running = take(queues=["imports"])
    assert take(queues=["imports"]) == []
    add("small", 1, limit=one)
    order: list[str] = []
    while running and "small" not in order:
        done(*running)
        running = take(queues=["imports"])
        order += tenants(running)
    assert order.index("small") <= 2
