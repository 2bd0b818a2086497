"""Tasks that are not queued twice."""

from __future__ import annotations

import logging

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.http import HttpResponse
from django.test import Client, override_settings
from django.urls import path

from .framework import listening, work  # isort: skip - it skips this module where there are no tasks
from django_ojs_unique import DuplicateJob, InvalidPolicy, InvalidRequest, UniquePolicy
from django_ojs_unique.exceptions import JobCancelled
from django_ojs_unique.models import Job
from tests.app.tasks import add, fail, welcome
from tests.support.processes import together
from tests.support.refusals import refused

pytestmark = pytest.mark.django_db(transaction=True)

REJECT = UniquePolicy(keys=["type", "args"], args_keys=["user_id"])
REPLACE = UniquePolicy(keys=["type", "args"], args_keys=["user_id"], on_conflict="replace")


def test_an_ignored_duplicate_has_the_result_of_the_task_that_is_there():
    first = welcome.enqueue(42)
    with listening() as told:
        second = welcome.enqueue(locale="de", user_id=42)
    assert second == first
    assert (second.args, second.kwargs, told) == ([42], {}, [])
    assert welcome.enqueue(43).id != first.id


def test_a_duplicate_of_a_running_task_has_its_result():
    first = welcome.enqueue(42)
    Job._base_manager.filter(pk=first.id).update(
        state="active", attempt=1, worker_id="w", started_at="2026-01-01T00:00Z"
    )
    second = welcome.enqueue(42)
    assert (second.id, second.status, second.worker_ids) == (first.id, "RUNNING", ["w"])


@pytest.mark.slow
def test_tasks_that_race_have_one_result():
    (ids,) = together([lambda round: welcome.enqueue(42).id] * 4)
    assert set(ids) == {str(Job.objects.get().pk)}


def test_a_finished_task_is_no_duplicate():
    first = welcome.enqueue(42)
    work()
    assert welcome.enqueue(42).id != first.id


def test_a_rejected_duplicate_is_named():
    first = welcome.enqueue(42)
    with pytest.raises(DuplicateJob) as refusal:
        welcome.using(unique=REJECT).enqueue(42)
    assert str(refusal.value.existing_job_id) == first.id


def test_a_replaced_task_has_failed_and_the_result_is_the_new_ones(caplog):
    first = welcome.enqueue(42)
    with listening() as told, caplog.at_level(logging.ERROR, "django.tasks"):
        second = welcome.using(unique=REPLACE).enqueue(42)
    first.refresh()
    assert (second.status, first.status) == ("READY", "FAILED")
    assert first.errors[0].exception_class is JobCancelled
    assert second.id in first.errors[0].traceback
    assert [line[:1] + line[2:4] for line in told] == [("enqueued", second.id, "READY")]
    assert not caplog.records


def test_a_batch_tells_of_no_task_that_it_replaces_before_it_starts():
    welcome.enqueue(42)
    batch = [{"type": "task.tests.app.tasks.welcome", "args": {"user_id": 42}, "unique": REPLACE}] * 2
    with listening() as told:
        Job.objects.enqueue_many(batch)
    assert Job.objects.filter(state="cancelled").count() == 2
    assert [line[0] for line in told] == []


@pytest.mark.parametrize("state", ["active", "retryable"])
def test_a_task_that_is_replaced_after_it_started_has_finished(state):
    first = welcome.enqueue(42)
    Job._base_manager.filter(pk=first.id).update(state=state, attempt=1, worker_id="w", started_at="2026-01-01T00:00Z")
    with listening() as told:
        second = welcome.using(unique=REPLACE).enqueue(42)
    assert [line[:1] + line[2:4] for line in told] == [
        ("finished", first.id, "FAILED"),
        ("enqueued", second.id, "READY"),
    ]


def test_a_task_that_is_cancelled_manually_has_finished_even_before_it_started():
    first, second = welcome.enqueue(42), welcome.enqueue(43)
    with listening() as told:
        Job.objects.get(pk=first.id).cancel()
        Job.objects.filter(pk=second.id).cancel()
    assert [line[:1] + line[2:4] for line in told] == [
        ("finished", first.id, "FAILED"),
        ("finished", second.id, "FAILED"),
    ]


def test_a_call_may_have_a_policy_of_its_own_or_none():
    first = welcome.enqueue(42)
    assert welcome.using(unique=None).enqueue(42).id != first.id
    once = {"keys": ["type", "args"], "on_conflict": "ignore"}
    assert add.using(unique=once, priority=3).enqueue(1, 2).id == add.using(unique=once).enqueue(b=2, a=1).id
    assert add.enqueue(1, 2).id != add.enqueue(1, 2).id
    assert welcome.using(priority=9).unique == welcome.unique


def test_a_policy_that_does_not_fit_is_refused():
    with refused(InvalidPolicy, "unique.args_keys", value='"b"'):
        add.using(unique={"keys": ["type", "args"], "args_keys": ["b"]}).enqueue(1)
    with refused(InvalidPolicy, "unique.on_conflict"):
        add.using(unique={"on_conflict": "sometimes"})


def test_a_key_rewrites_the_task_that_waits():
    first = add.using(key="sum").enqueue(1)
    second = add.using(key="sum").enqueue(2, b=3)
    assert (second.id, second.args, second.kwargs) == (first.id, [2], {"b": 3})
    assert add.using(key="sum", key_mode="unsafe_dedupe").enqueue(5).args == [2]
    assert welcome.using(key="sum").unique is None
    assert add.using(key="sum").using(unique={}).key is None
    with refused(InvalidRequest, "key_mode"):
        add.using(key="sum", key_mode="sometimes").enqueue(1)


@pytest.mark.parametrize("policy", [welcome.unique, REJECT, REPLACE], ids=lambda policy: policy.on_conflict)
def test_a_duplicate_leaves_the_callers_transaction_usable(policy):
    with transaction.atomic():
        welcome.using(unique=policy).enqueue(42)
        try:
            welcome.using(unique=policy).enqueue(42)
        except DuplicateJob:
            assert policy is REJECT
        Group.objects.create(name="after")
    assert Group.objects.filter(name="after").exists()
    assert Job.objects.exclude(state="cancelled").count() == 1


def test_a_task_is_enqueued_and_rolled_back_with_its_caller():
    def sign_up():
        with transaction.atomic():
            result = welcome.enqueue(42)
            Group.objects.create(name="never")
            transaction.set_rollback(True)
        return result

    assert sign_up().id != welcome.enqueue(42).id
    assert Job.objects.count() == 1
    assert not Group.objects.exists()


def sign_up(request):
    Group.objects.create(name="before")
    fail.using(unique={"on_conflict": "ignore"}).enqueue("x")
    try:
        fail.using(unique={}).enqueue("x")
    except DuplicateJob:
        Group.objects.create(name="after")
    return HttpResponse(status=409)


urlpatterns = [path("signup", sign_up)]


def test_a_request_that_meets_a_duplicate_commits_what_else_it_wrote(monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    with override_settings(ROOT_URLCONF=__name__):
        assert Client().get("/signup").status_code == 409
    assert set(Group.objects.values_list("name", flat=True)) == {"before", "after"}
    assert Job.objects.count() == 1
