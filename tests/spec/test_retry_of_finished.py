"""Retries that make way, and the other manual moves: what they take, what they refuse, what they return."""

from datetime import timedelta

import pytest
from django.db import transaction
from django.test import override_settings

from django_ojs_unique import DuplicateJob, lifecycle
from django_ojs_unique.exceptions import InvalidRequest, InvalidTransition
from django_ojs_unique.models import Job, SuppressedEnqueue
from django_ojs_unique.signals import job_cancelled
from tests.support.jobs import attempt, claim, columns, enqueue, fresh, row, stored
from tests.support.refusals import refused

pytestmark = pytest.mark.django_db

LIVE = ["available", "active", "scheduled", "retryable", "pending"]


@pytest.fixture
def cancelled():
    """Collect what is announced as cancelled: the job, its state and what replaced it."""
    heard = []

    def hear(job, replaced_by, **_):
        heard.append((job.pk, job.state, replaced_by))

    job_cancelled.connect(hear)
    yield heard
    job_cancelled.disconnect(hear)


@pytest.mark.parametrize("state", LIVE)
def test_a_replacing_retry_cancels_the_live_duplicate_for_the_job(state, cancelled):
    dead, live = stored("discarded"), stored(state)
    (replaced,) = dead.retry(replace=True)
    assert (replaced, replaced.state, replaced.replaced_by_id) == (live, "cancelled", dead.pk)
    assert (dead.state, dead.attempt) == ("available", 0)
    assert cancelled == [(live.pk, "cancelled", dead.pk)]
    assert attempt() == ("rejected", dead)


@pytest.mark.parametrize("states", [["available"], ["active", "completed"], ["scheduled", "discarded"]])
def test_a_retried_job_holds_its_unique_key_as_at_its_enqueue(states):
    dead = stored("discarded", unique={"states": states})
    held = enqueue("other", unique={"states": states}).job.unique_states
    dead.retry()
    assert (dead.unique_states, dead.holds_unique_key) == (held, True)


def test_a_job_that_was_retried_by_force_does_not_hold_its_unique_key():
    dead, live = stored("discarded"), stored("available")
    dead.retry(force=True)
    assert (fresh(dead).holds_unique_key, fresh(live).holds_unique_key) == (False, True)


def test_a_retried_job_with_a_key_keeps_its_unique_key():
    dead = stored("discarded", unique=None, key="a")
    held = dead.unique_states
    dead.retry()
    assert held
    assert (dead.unique_states, dead.holds_unique_key) == (held, True)


def test_a_retried_job_with_a_key_that_lost_its_unique_key_gets_it_back():
    dead = stored("discarded", unique=None, key="a")
    held = dead.unique_states
    lifecycle.release_unique_keys(row(dead))
    dead.retry()
    assert (dead.unique_states, dead.holds_unique_key) == (held, True)


def test_a_job_outside_of_uniqueness_is_retried_without_a_unique_key():
    dead = stored("discarded", unique=None)
    dead.retry()
    assert (dead.state, dead.unique_states) == ("available", frozenset())


def test_a_job_that_leaves_uniqueness_while_it_is_retried_gets_no_unique_key(monkeypatch):
    def after_its_release(jobs, *told):
        lifecycle.leave_uniqueness(jobs)
        return move(jobs, *told)

    dead, move = stored("discarded"), lifecycle.retry_finished
    monkeypatch.setattr(lifecycle, "retry_finished", after_its_release)
    dead.retry()
    assert (dead.state, dead.fingerprint, dead.unique_states) == ("available", None, frozenset())


@pytest.mark.parametrize("state", ["active", "completed"])
def test_a_retry_takes_the_unique_key_from_a_job_that_its_policy_does_not_count(state):
    dead = stored("discarded", unique={"states": ["available"]})
    other = stored(state, unique={"states": ["available", state]})
    assert other.holds_unique_key
    assert dead.retry() == []
    assert (dead.holds_unique_key, fresh(other).state, fresh(other).holds_unique_key) == (True, state, False)


def test_a_retry_takes_the_unique_key_from_a_job_whose_period_has_elapsed():
    policy = {"period": "PT1H"}
    dead, other = stored("discarded", unique=policy), stored("available", unique=policy, age=timedelta(hours=2))
    assert dead.retry() == []
    assert (dead.holds_unique_key, fresh(other).state, fresh(other).holds_unique_key) == (True, "available", False)


@pytest.mark.parametrize("on_conflict", ["reject", "ignore"])
@pytest.mark.parametrize("force", [False, True])
def test_of_several_duplicates_each_enqueue_and_explain_name_the_newest(on_conflict, force):
    old = stored("cancelled", unique={"states": ["available"]})
    new = enqueue(delay=60).job
    old.retry(force=force)
    assert {fresh(old).holds_unique_key, fresh(new).holds_unique_key} == {True, False}
    again = {"unique": {"on_conflict": on_conflict}}
    for _ in range(2):  # it inserts before it looks, and the other way round
        assert attempt(**again)[1] == new
    (answer,) = Job.objects.enqueue_many([{"type": "t", **again}])
    named = answer.error.existing_job_id if answer.error else answer.job.pk
    assert named == new.pk
    assert [one.job for one in Job.objects.explain("t", **again).duplicates] == [new, old]
    assert SuppressedEnqueue.objects.exclude(existing_job=new).count() == 0


@pytest.mark.slow
def test_a_replacing_retry_cancels_every_live_duplicate():
    dead, other = stored("discarded"), stored("discarded")
    live = enqueue().job
    other.retry(force=True)
    assert {job.pk for job in dead.retry(replace=True)} == {live.pk, other.pk}
    assert [fresh(job).state for job in (dead, live, other)] == ["available", "cancelled", "cancelled"]


def test_a_replacing_retry_without_a_live_duplicate_is_a_retry(cancelled):
    dead = stored("discarded")
    stored("completed")
    assert dead.retry(replace=True) == []
    assert (dead.state, cancelled) == ("available", [])


@override_settings(OJS_UNIQUE={"REPLACE_ACTIVE": False})
def test_a_running_duplicate_that_may_not_be_replaced_refuses_the_retry(cancelled):
    dead, live = stored("discarded"), stored("active")
    before = columns(dead), columns(live)
    with pytest.raises(DuplicateJob) as caught:
        dead.retry(replace=True)
    assert caught.value.existing_job_id == live.pk
    assert (columns(dead), columns(live), cancelled) == (*before, [])


def test_to_replace_and_to_force_at_once_is_refused():
    dead, live = stored("discarded"), stored("available")
    with refused(InvalidRequest, "replace", names="force"):
        dead.retry(replace=True, force=True)
    assert (fresh(dead).state, fresh(live).state) == ("discarded", "available")
    with refused(InvalidRequest, "replace", names="force"):
        stored("scheduled", type="other").retry(replace=True, force=True)


def test_a_replacing_retry_rolls_back_with_the_callers_transaction():
    dead, live = stored("discarded"), stored("available")
    with transaction.atomic():
        dead.retry(replace=True)
        transaction.set_rollback(True)
    assert (fresh(dead).state, fresh(live).state, fresh(live).holds_unique_key) == ("discarded", "available", True)


@pytest.mark.parametrize("state", ["available", "active", "completed"])
def test_a_job_that_needs_no_retry_or_has_done_its_work_is_not_retried(state):
    job = stored(state)
    before = columns(job)
    with refused(InvalidTransition, job_id=str(job.pk), current_state=state):
        job.retry(replace=True)
    assert columns(job) == before


@pytest.mark.parametrize("state", ["scheduled", "retryable", "pending"])
@pytest.mark.parametrize("options", [{}, {"replace": True}, {"force": True}])
def test_a_waiting_job_becomes_available_whatever_the_options(state, options):
    job = stored(state)
    assert job.retry(**options) == []
    assert job.state == "available"


@pytest.mark.parametrize(
    "state", ["available", "scheduled", "retryable", "pending", "completed", "cancelled", "discarded"]
)
def test_a_removed_job_leaves_no_row_and_frees_its_key(state):
    job = stored(state, unique={"states": [state]})
    job.remove()
    assert not Job.objects.filter(pk=job.pk).exists()
    assert enqueue(unique={"states": [state]}).created


def test_a_running_job_is_not_removed():
    job = enqueue().job
    claim(job)
    with refused(InvalidTransition, current_state="active", names="Cancel"):
        job.remove()
    assert fresh(job).state == "active"
