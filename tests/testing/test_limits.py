"""Limits in tests: `run_jobs` and eager mode run jobs one at a time, so that only rates make them wait."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from django_ojs_unique import Limit, chain, group, job
from django_ojs_unique.models import Job, Slot
from django_ojs_unique.testing import capture_jobs, run_jobs, run_one, travel

ONE = Limit(key=["args.n"], running=1)


@pytest.fixture
def ran(handlers: Any) -> list[Any]:
    found: list[Any] = []

    @job("count", limit=ONE)
    def count(n: int, tenant: str = "a") -> None:
        found.append((n, tenant))

    return found


def test_all_jobs_of_a_key_run_in_their_order(database, ran):
    for tenant in "abc":
        Job.objects.enqueue("count", {"n": 1, "tenant": tenant})
    Job.objects.enqueue("count", {"n": 2})
    assert len(run_jobs()) == 4
    assert ran == [(1, "a"), (1, "b"), (1, "c"), (2, "a")]
    assert not Job.objects.exclude(state="completed").exists()


@pytest.mark.slow
def test_a_fair_queue_is_drained_in_turns(database, ran, settings):
    settings.OJS_UNIQUE = {"FAIR_QUEUES": {"default": ["args.tenant"]}}
    for tenant in "aaabbc":
        Job.objects.enqueue("count", {"n": 1, "tenant": tenant})
    assert len(run_jobs()) == 6
    tenants = [tenant for _, tenant in ran]
    assert sorted(tenants) == list("aaabbc")
    assert sorted(tenants[:3]) == list("abc")


def test_a_job_that_failed_frees_its_slot(database, handlers):
    @job("fail", limit=Limit(key=["type"], running=1), retry={"max_attempts": 1})
    def fail() -> None:
        raise ValueError("no")

    for _ in range(3):
        fail.enqueue()
    with pytest.raises(ValueError, match="no"):
        run_one()
    assert len(run_jobs(raise_errors=False)) == 2


@pytest.mark.slow
def test_jobs_beyond_a_rate_run_when_its_time_has_passed(database, ran):
    rate = Limit(name="mails", per_minute=2)
    Job.objects.enqueue_many([{"type": "count", "args": {"n": n}, "limit": rate} for n in range(5)])
    assert len(run_jobs()) == 2
    assert run_one() is None
    with travel("PT61S"):
        assert len(run_jobs()) == 2
        with travel("PT61S"):
            assert len(run_jobs()) == 1
    assert [n for n, _ in ran] == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_workflows_whose_jobs_have_limits_complete(database, ran, handlers):
    items = [{"type": "count", "args": {"n": 1, "tenant": tenant}} for tenant in "abc"]
    workflow = chain(group(items), items[0]).enqueue()
    run_jobs()
    workflow.refresh_from_db()
    assert (workflow.state, len(ran)) == ("completed", 4)


def test_a_captured_job_has_its_limits(database, ran):
    with capture_jobs() as captured:
        Job.objects.enqueue("count", {"n": 7})
        Job.objects.enqueue("count", {"n": 7}, limit=None)
    limited = captured.assert_enqueued("count", count=2)
    assert [one["key"] for one in limited.limits] == [{"args.n": 7}]
    assert captured[1].limits is None


@pytest.fixture
def eager(database, settings, django_capture_on_commit_callbacks):
    """Enqueue and commit; in a `TestCase`, Django's way is to call the callbacks."""
    settings.OJS_UNIQUE = {"EAGER": True}

    def enqueue(*args: Any, **options: Any) -> Any:
        if database == "TransactionTestCase":
            return Job.objects.enqueue(*args, **options).job
        with django_capture_on_commit_callbacks(execute=True):
            result = Job.objects.enqueue(*args, **options)
        return result.job

    return enqueue


def test_eager_mode_runs_each_job_of_a_key(eager, ran, settings):
    for tenant in "ab":
        eager("count", {"n": 1, "tenant": tenant})
    settings.OJS_UNIQUE = {"EAGER": True, "FAIR_QUEUES": {"default": ["args.tenant"]}}
    for tenant in "ab":
        eager("count", {"n": 1, "tenant": tenant})
    assert ran == [(1, "a"), (1, "b")] * 2
    assert Slot.objects.filter(job_id__in=Job.objects.filter(state="active").values("pk")).count() == 0
    assert set(Job.objects.values_list("state", flat=True)) == {"completed"}


def test_in_eager_mode_a_job_that_enqueues_one_of_its_key_does_not_block_it(eager, handlers):
    seen = []

    @job("again", limit=Limit(key=["type"], running=1))
    def again(left: int) -> None:
        seen.append(left)
        if left:
            again.enqueue(left - 1)

    eager("again", {"left": 2})
    if Job.objects.filter(state="available").exists():
        run_jobs()  # in a `TestCase`, the commit of the inner enqueue does not come by itself
    assert seen == [2, 1, 0]


def test_in_eager_mode_a_job_beyond_a_rate_waits_for_a_worker(eager, ran, caplog):
    rate = Limit(name="mails", per_minute=1)
    eager("count", {"n": 1}, limit=rate)
    with caplog.at_level(logging.INFO, "django_ojs_unique.worker"):
        waiting = eager("count", {"n": 2}, limit=rate)
    assert [n for n, _ in ran] == [1]
    assert f"Job {waiting.pk} (count) waits" in caplog.text
    with travel("PT61S"):
        eager("count", {"n": 3}, limit=rate)
        assert [n for n, _ in ran] == [1, 3]
        with travel("PT61S"):
            run_jobs()
    assert [n for n, _ in ran] == [1, 3, 2]
