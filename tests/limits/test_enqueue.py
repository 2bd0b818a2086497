"""Each way to enqueue a job takes limits, and gives the job those of its handler."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import override_settings
from django.utils import timezone

from django_ojs_unique import Cron, InvalidRequest, Limit, UniquePolicy, batch, chain, group, job
from django_ojs_unique.execution.claim import claim
from django_ojs_unique.idempotency import Heal, scan
from django_ojs_unique.models import CronJob, Job, Workflow
from django_ojs_unique.ojs.blocking import FAIR, LIMITED, UNBLOCKED
from django_ojs_unique.testing import run_jobs, tick, travel
from tests.support.refusals import refused

pytestmark = pytest.mark.django_db

ONE = Limit(key=["args.n"], running=1)
THREE = Limit(key=["args.n"], running=3)
RATE = Limit(name="mails", per_minute=9, weight=2)


@pytest.fixture
def count(handlers: Any) -> Any:
    @job("count", limit=ONE)
    def count(n: int) -> int:
        return n

    return count


def limits_of(row: Any) -> list[Limit]:
    row.refresh_from_db()
    assert row.blocked_by == (LIMITED if row.limits else UNBLOCKED)
    return [Limit.of_stored(one) for one in row.limits or ()]


def keys_of(row: Any) -> list[Any]:
    row.refresh_from_db()
    return [one["key"] for one in row.limits]


@pytest.mark.parametrize(
    ("limit", "stored"),
    [
        (THREE, [THREE]),
        ({"key": ["args.n"], "running": 3}, [THREE]),
        ([THREE, RATE], [THREE, RATE]),
        ([{"key": ("args.n",), "running": 3}, RATE], [THREE, RATE]),
        (None, []),
        ([], []),
    ],
)
def test_an_enqueue_takes_one_limit_or_several_or_none(count, limit, stored):
    assert limits_of(count.enqueue(1).job) == [ONE]
    assert limits_of(count.using(limit=limit).enqueue(1).job) == stored
    assert limits_of(Job.objects.enqueue("count", {"n": 1}, limit=limit).job) == stored
    results = Job.objects.enqueue_many([count.item(1), count.using(limit=limit).item(1)])
    assert [limits_of(result.job) for result in results] == [[ONE], stored]


@pytest.mark.django_db(transaction=True)
def test_an_enqueue_on_commit_takes_limits(count):
    with transaction.atomic():
        count.enqueue_on_commit(1)
        count.using(limit=THREE).enqueue_on_commit(1)
        with refused(InvalidRequest, "limit.key", value='"m"'):
            count.using(limit=Limit(key=["args.m"], running=1)).enqueue_on_commit(1)
    assert [limits_of(row) for row in Job.objects.order_by("pk")] == [[ONE], [THREE]]


def test_an_error_about_one_of_several_limits_says_which(count):
    with refused(InvalidRequest, "limit[1].running"):
        count.using(limit=[RATE, {"running": 0, "key": ["type"]}]).enqueue(1)
    with refused(InvalidRequest, "limit[1].key", value='"tenant"'):
        count.using(limit=[RATE, Limit(key=["meta.tenant"], running=1)]).enqueue(1)
    wrong = {**count.item(1), "limit": Limit(key=["meta.tenant"], running=1)}
    with refused(InvalidRequest, "limit.key", index=1):
        Job.objects.enqueue_many([count.item(1), wrong], mode="atomic")


@pytest.mark.slow
def test_the_members_of_workflows_have_limits(count):
    flow = chain(count.item(1), group([count.using(limit=[]).item(2), count.using(limit=[THREE, RATE]).item(3)]))
    flow.enqueue()
    batch([count.item(4)], on_complete=count.using(limit=THREE).item(5)).enqueue()
    Workflow.objects.enqueue(
        {"type": "chain", "steps": [{"type": "a"}, {"type": "a", "args": {"n": 6}}], "options": {"limit": RATE}}
    )
    run_jobs(types=["count"])
    job("a")(lambda n=None: None)
    run_jobs()
    stored = {str(row.args.get("n")): row for row in Job.objects.all()}
    assert {n: [Limit.of_stored(one) for one in row.limits or ()] for n, row in stored.items()} == {
        "1": [ONE],
        "2": [],
        "3": [THREE, RATE],
        "4": [ONE],
        "5": [THREE],
        "None": [RATE],
        "6": [RATE],
    }
    assert stored["3"].limits[0]["key"] == {"args.n": 3}


def test_each_occurrence_of_a_periodic_job_has_limits(count):
    entry = CronJob.objects.define("every", "@daily", "count", {"n": 1})
    with_limits = CronJob.objects.define("limited", "@daily", "count", {"n": 2}, limit=[THREE, RATE])
    assert with_limits.options == {"limit": [THREE.to_dict(), RATE.to_dict()]}
    CronJob.objects.define("free", "@daily", "count", {"n": 3}, limit=None)
    with refused(InvalidRequest, "limit.running"):
        CronJob.objects.define("bad", "@daily", "count", {"n": 3}, limit={"running": 0, "key": ["type"]})
    with travel("P1D"):
        enqueued = {row.args["n"]: limits_of(row) for row in tick()}
    assert enqueued == {1: [ONE], 2: [THREE, RATE], 3: []}
    assert entry.options == {}


def test_a_periodic_job_that_a_handler_declares_has_its_limits(handlers):
    job("daily", cron=Cron("@daily", args={"n": 1}), limit=ONE)(lambda n: None)
    tick()
    with travel("P1D"):
        assert [limits_of(row) for row in tick()] == [[ONE]]


def test_the_jobs_of_a_scan_have_the_limits_of_the_handler(handlers):
    job(
        "finalize",
        unique=UniquePolicy(keys=["type", "args"], on_conflict="ignore"),
        heal=Heal(pending=User.objects.all(), args={"n": "pk"}),
        limit=ONE,
    )(lambda n: None)
    user = User.objects.create_user("a")
    assert scan("finalize").created == 1
    row = Job.objects.get(type="finalize")
    assert (limits_of(row), keys_of(row)) == ([ONE], [{"args.n": user.pk}])


@pytest.mark.parametrize("delay", [None, "PT1H"])
def test_an_enqueue_by_key_gives_the_waiting_job_the_limits_of_the_newest(count, delay):
    def enqueue(n: int, **options: Any) -> Any:
        return count.using(key="k", delay=delay, **options).enqueue(n)

    first = enqueue(1).job
    assert keys_of(enqueue(2).job) == [{"args.n": 2}]
    assert limits_of(enqueue(2, limit=[THREE, RATE]).job) == [THREE, RATE]
    assert limits_of(enqueue(2, limit=None).job) == []
    assert limits_of(enqueue(3).job) == [ONE]
    (many,) = Job.objects.enqueue_many([count.using(key="k", limit=THREE).item(4)])
    assert (limits_of(many.job), keys_of(many.job), many.job.pk) == ([THREE], [{"args.n": 4}], first.pk)
    assert Job.objects.get().revision == 5


def test_a_job_that_waits_for_a_slot_and_is_rewritten_runs_under_its_new_limits(count):
    count.enqueue(1)
    waiting = count.using(key="k").enqueue(1).job
    (held,) = list(claim_all())
    assert claim_all() == []
    waiting.refresh_from_db()
    assert waiting.blocked_by not in (LIMITED, UNBLOCKED)
    count.using(key="k").enqueue(2)
    assert [row.pk for row in claim_all()] == [waiting.pk]
    assert held.pk != waiting.pk


def test_a_job_that_is_replaced_hands_no_limits_on(count):
    newest = UniquePolicy(keys=["type"], on_conflict="replace")
    count.using(unique=newest).enqueue(1)
    assert limits_of(count.using(unique=newest, limit=RATE).enqueue(2).job) == [RATE]


@pytest.mark.slow
def test_a_job_that_is_enqueued_again_has_its_own_limits_and_not_those_of_the_handler_now(count):
    done = [count.using(limit=limit).enqueue(n).job for n, limit in enumerate(([THREE, RATE], None))]
    run_jobs()
    with override_settings(OJS_UNIQUE={"FAIR_QUEUES": {"default": ["args.n"]}}):
        result = Job.objects.filter(pk__in=[row.pk for row in done]).enqueue_again()
    again = [Job.objects.get(pk=result.new[row.pk]) for row in done]
    assert [[Limit.of_stored(one) for one in row.limits or ()] for row in again] == [[THREE, RATE], []]
    assert [row.blocked_by[0] for row in again] == [FAIR, FAIR]
    assert len(run_jobs()) == 2


def test_a_retried_job_waits_behind_its_limits_again(count):
    first, second = count.enqueue(1).job, count.enqueue(1).job
    first.cancel()
    first.retry()
    assert limits_of(first) == [ONE]
    later = count.using(delay="PT1H").enqueue(1).job
    later.retry()
    assert limits_of(later) == [ONE]
    assert [row.pk for row in claim_all()] == [second.pk]
    Job.objects.filter(pk=first.pk).cancel()
    assert Job.objects.filter(pk=first.pk).retry(state="cancelled").changed == [first.pk]
    assert limits_of(first) == [ONE]


def test_an_explanation_has_the_limits_that_the_job_would_have(count):
    explained = Job.objects.explain("count", {"n": 1})
    assert [Limit.of_stored(one) for one in explained.limits] == [ONE]
    assert "\nlimit:          args.n 1: running 1" in str(explained)
    named = Limit(key=["type"], name="mails", per_minute=9, weight=2)
    said = str(Job.objects.explain("count", {"n": 1}, limit=[named, Limit(name="all", running=2)], key="k")).split("\n")
    assert said[1:3] == [
        "limit:          mails, type 'count': per_minute 9, weight 2",
        "limit:          all: running 2",
    ]
    assert Job.objects.explain("count", {"n": 1}, limit=None).limits == ()


@override_settings(OJS_UNIQUE={"FAIR_QUEUES": {"default": "meta.tenant"}})
def test_a_fair_queue_that_is_declared_wrongly_has_one_partition():
    rows = [Job.objects.enqueue("t", {"n": n}).job for n in range(2)]
    assert len({row.fair_partition for row in rows}) == 1


def claim_all() -> list[Any]:
    rules: Any = {"queues": ["default"], "types": None, "limit": 10, "worker_id": "w", "lease": timedelta(minutes=1)}
    return list(claim(Job.objects.all(), **rules, now=timezone.now()))
