"""A job that may not start any more is a duplicate of nothing, whether or not a worker has discarded it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_ojs_unique import DuplicateJob, OnConflict
from django_ojs_unique.maintenance.timers import expire
from django_ojs_unique.models import Job, SuppressedEnqueue
from django_ojs_unique.operations.integrity.verify import verify
from django_ojs_unique.reporting.duplicates import groups_after, holders
from django_ojs_unique.reporting.preview import live_duplicates
from django_ojs_unique.reporting.uniqueness import uniqueness
from django_ojs_unique.testing import run_jobs
from tests.support.processes import together

pytestmark = pytest.mark.django_db
UNIQUE = {"keys": ["type", "args"]}


def expired(**options: Any) -> Job:
    """Store a job that waits, and whose time to start is over."""
    job = Job.objects.enqueue("t", {"n": 1}, expires_at=timezone.now() + timedelta(hours=1), **options).job
    Job._base_manager.filter(pk=job.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    job.refresh_from_db()
    return job


@pytest.fixture(params=OnConflict)
def policy(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {**UNIQUE, "on_conflict": request.param}


@pytest.mark.parametrize("options", [{}, {"delay": 60}], ids=["available", "scheduled"])
def test_an_enqueue_is_admitted_and_nothing_is_recorded(policy, options):
    job = expired(unique=policy, **options)
    result = Job.objects.enqueue("t", {"n": 1}, unique=policy)
    assert (result.outcome, result.job.holds_unique_key) == ("created", True)
    assert not SuppressedEnqueue.objects.exists()
    job.refresh_from_db()
    assert (job.holds_unique_key, job.finished_at) == (False, None)
    assert expire(Job.objects.all(), timezone.now()) == 1


def test_the_new_job_is_the_duplicate_of_the_next_one(policy):
    expired(unique=policy)
    second = Job.objects.enqueue("t", {"n": 1}, unique=policy).job
    if policy["on_conflict"] == "reject":
        with pytest.raises(DuplicateJob) as caught:
            Job.objects.enqueue("t", {"n": 1}, unique=policy)
        assert caught.value.existing_job_id == second.pk
    else:
        third = Job.objects.enqueue("t", {"n": 1}, unique=policy)
        assert second in (third.job, *third.replaced)
    expire(Job.objects.all(), timezone.now())
    assert Job.objects.filter(state="available").count() == 1


def test_many_are_admitted(policy):
    expired(unique=policy)
    items = [{"type": "t", "args": {"n": number}, "unique": policy} for number in range(3)]
    assert Job.objects.enqueue_many(items).counts == {"created": 3}
    assert not SuppressedEnqueue.objects.exists()


def test_two_items_whose_time_is_over_are_both_stored():
    over = timezone.now() - timedelta(hours=1)
    item = {"type": "t", "args": {}, "unique": UNIQUE, "expires_at": over}
    assert Job.objects.enqueue_many([item, item]).counts == {"created": 2}
    assert expire(Job.objects.all(), timezone.now()) == 2


@pytest.mark.parametrize("is_swept", [False, True], ids=["waits", "discarded"])
@pytest.mark.parametrize("mode", ["replace", "preserve_run_at", "unsafe_dedupe"])
def test_a_key_is_used_again(mode, is_swept):
    job = expired(key="k")
    if is_swept:
        expire(Job.objects.all(), timezone.now())
    result = Job.objects.enqueue("t", {"n": 2}, key="k", key_mode=mode)
    assert (result.outcome, result.job.pk, result.job.args) == ("replaced", job.pk, {"n": 2})
    assert [ran.job.pk for ran in run_jobs(raise_errors=False)] == []  # no handler
    assert Job.objects.get().state == "available"


def test_a_job_that_has_started_counts_although_it_expired(policy):
    job = expired(unique=policy)
    Job._base_manager.filter(pk=job.pk).update(started_at=timezone.now(), attempt=1)
    if policy["on_conflict"] == "reject":
        with pytest.raises(DuplicateJob):
            Job.objects.enqueue("t", {"n": 1}, unique=policy)
    else:
        assert Job.objects.enqueue("t", {"n": 1}, unique=policy).outcome != "created"
    assert SuppressedEnqueue.objects.count() == 1


def test_explanations_and_reports_do_not_count_it(policy):
    job = expired(unique=policy)
    assert Job.objects.explain("t", {"n": 1}, unique=policy).action == "create"
    assert not Job.objects.duplicates_of(job).exclude(pk=job.pk).exists()
    assert job not in Job.objects.duplicates_of(job)
    dead = Job.objects.enqueue("t", {"n": 1}, unique=policy).job
    dead.cancel()
    assert live_duplicates(Job.objects.all(), [Job.objects.get(pk=dead.pk)], timezone.now()) == {dead.pk: []}
    assert Job.objects.explain("t", key="k", key_mode="unsafe_dedupe").action == "create"
    expired(key="k")
    assert Job.objects.explain("t", key="k", key_mode="unsafe_dedupe").action == "replace"


def test_a_job_is_retried_beside_it():
    dead = Job.objects.enqueue("t", {"n": 1}, unique=UNIQUE).job
    dead.cancel()
    expired(unique=UNIQUE)
    dead.retry()
    dead.refresh_from_db()
    assert (dead.state, dead.holds_unique_key) == ("available", True)


def test_of_two_dead_jobs_that_had_expired_one_is_retried():
    dead = []
    for _ in range(2):
        dead.append(expired(unique=UNIQUE).pk)
        expire(Job.objects.all(), timezone.now())
    result = Job.objects.filter(pk__in=dead).retry()
    assert (len(result.changed), len(result.refused)) == (1, 1)


@pytest.mark.parametrize("mode", ["replace", "preserve_run_at", "unsafe_dedupe"])
@pytest.mark.parametrize("is_swept", [False, True], ids=["waits", "discarded"])
def test_neither_the_time_nor_the_array_of_an_expired_job_is_kept_for_its_key(mode, is_swept):
    job = Job.objects.enqueue("t", [1], key="k", delay=60, expires_at=timezone.now() + timedelta(hours=1)).job
    Job._base_manager.filter(pk=job.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    if is_swept:
        expire(Job.objects.all(), timezone.now())
    again = Job.objects.enqueue("t", [2], key="k", key_mode=mode).job
    assert (again.pk, again.state, again.args) == (job.pk, "available", [2])


def test_lists_of_duplicates_leave_it_out():
    job = expired(unique=UNIQUE)
    job.refresh_from_db()
    newer = Job.objects.enqueue("t", {"n": 1}, unique=UNIQUE).job
    assert groups_after(Job.objects.all(), "").groups == []
    assert holders(Job.objects.all(), [job.fingerprint], timezone.now()) == {job.fingerprint: newer}
    told = uniqueness(job, timezone.now())
    assert not told.counts
    assert "may not start any more" in told.sentences[0]


def test_verify_finds_nothing_wrong():
    expired(unique=UNIQUE)
    Job.objects.enqueue("t", {"n": 1}, unique=UNIQUE)
    assert not verify(Job.objects.all())


@pytest.mark.torture
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("strategy", OnConflict)
def test_of_many_enqueues_at_once_one_is_admitted(strategy):
    rounds = 8
    for number in range(rounds):
        expired(unique={"keys": ["type", "meta"], "meta_keys": ["n"]}, meta={"n": number})

    def enqueue(number: int) -> str:
        policy = {"keys": ["type", "meta"], "meta_keys": ["n"], "on_conflict": strategy}
        try:
            return str(Job.objects.enqueue("t", {"n": 1}, meta={"n": number}, unique=policy).outcome)
        except DuplicateJob:
            return "rejected"

    for outcomes in together([enqueue] * 6, rounds=rounds):
        assert outcomes.count("created") == 1
    expire(Job.objects.all(), timezone.now())
    live = Job.objects.filter(finished_at=None)
    assert sorted(live.values_list("meta__n", flat=True)) == list(range(rounds))
