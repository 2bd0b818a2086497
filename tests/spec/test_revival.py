"""Revivals that make way, and the other moves by hand: what they take, what they refuse, what they return."""

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
def test_a_replacing_revival_cancels_the_live_duplicate_for_the_job(state, cancelled):
    dead, live = stored("discarded"), stored(state)
    (replaced,) = dead.revive(replace=True)
    assert (replaced, replaced.state, replaced.replaced_by_id) == (live, "cancelled", dead.pk)
    assert (dead.state, dead.attempt) == ("available", 0)
    assert cancelled == [(live.pk, "cancelled", dead.pk)]
    assert attempt() == ("rejected", dead)


@pytest.mark.parametrize("states", [["available"], ["active", "completed"], ["scheduled", "discarded"]])
def test_a_revived_job_guards_its_fingerprint_as_at_its_enqueue(states):
    dead = stored("discarded", unique={"states": states})
    guarded = enqueue("other", unique={"states": states}).job.guarded_states
    dead.revive()
    assert (dead.guarded_states, dead.is_guarding) == (guarded, True)


def test_a_job_that_was_revived_by_force_does_not_guard_its_fingerprint():
    dead, live = stored("discarded"), stored("available")
    dead.revive(force=True)
    assert (fresh(dead).is_guarding, fresh(live).is_guarding) == (False, True)


def test_a_revived_job_with_a_key_keeps_its_guard():
    dead = stored("discarded", unique=None, key="a")
    guarded = dead.guarded_states
    dead.revive()
    assert guarded
    assert (dead.guarded_states, dead.is_guarding) == (guarded, True)


def test_a_revived_job_with_a_key_that_lost_its_guard_gets_it_back():
    dead = stored("discarded", unique=None, key="a")
    guarded = dead.guarded_states
    lifecycle.drop_guards(row(dead))
    dead.revive()
    assert (dead.guarded_states, dead.is_guarding) == (guarded, True)


def test_a_job_outside_of_uniqueness_is_revived_without_a_guard():
    dead = stored("discarded", unique=None)
    dead.revive()
    assert (dead.state, dead.guarded_states) == ("available", frozenset())


def test_a_job_that_leaves_uniqueness_while_it_is_revived_gets_no_guard(monkeypatch):
    def after_its_release(jobs, *told):
        lifecycle.leave_uniqueness(jobs)
        return move(jobs, *told)

    dead, move = stored("discarded"), lifecycle.revive
    monkeypatch.setattr(lifecycle, "revive", after_its_release)
    dead.revive()
    assert (dead.state, dead.fingerprint, dead.guarded_states) == ("available", None, frozenset())


@pytest.mark.parametrize("state", ["active", "completed"])
def test_a_revival_takes_the_guard_from_a_job_that_its_policy_does_not_count(state):
    dead = stored("discarded", unique={"states": ["available"]})
    other = stored(state, unique={"states": ["available", state]})
    assert other.is_guarding
    assert dead.revive() == []
    assert (dead.is_guarding, fresh(other).state, fresh(other).is_guarding) == (True, state, False)


def test_a_revival_takes_the_guard_from_a_job_whose_period_has_elapsed():
    policy = {"period": "PT1H"}
    dead, other = stored("discarded", unique=policy), stored("available", unique=policy, age=timedelta(hours=2))
    assert dead.revive() == []
    assert (dead.is_guarding, fresh(other).state, fresh(other).is_guarding) == (True, "available", False)


@pytest.mark.parametrize("on_conflict", ["reject", "ignore"])
@pytest.mark.parametrize("force", [False, True])
def test_of_several_duplicates_each_enqueue_and_explain_name_the_newest(on_conflict, force):
    old = stored("cancelled", unique={"states": ["available"]})
    new = enqueue(delay=60).job
    old.revive(force=force)
    assert {fresh(old).is_guarding, fresh(new).is_guarding} == {True, False}
    again = {"unique": {"on_conflict": on_conflict}}
    for _ in range(2):  # it inserts before it looks, and the other way round
        assert attempt(**again)[1] == new
    (answer,) = Job.objects.enqueue_many([{"type": "t", **again}])
    named = answer.error.existing_job_id if answer.error else answer.job.pk
    assert named == new.pk
    assert [one.job for one in Job.objects.explain("t", **again).duplicates] == [new, old]
    assert SuppressedEnqueue.objects.exclude(existing_job=new).count() == 0


@pytest.mark.slow
def test_a_replacing_revival_cancels_every_live_duplicate():
    dead, other = stored("discarded"), stored("discarded")
    live = enqueue().job
    other.revive(force=True)
    assert {job.pk for job in dead.revive(replace=True)} == {live.pk, other.pk}
    assert [fresh(job).state for job in (dead, live, other)] == ["available", "cancelled", "cancelled"]


def test_a_replacing_revival_without_a_live_duplicate_is_a_revival(cancelled):
    dead = stored("discarded")
    stored("completed")
    assert dead.revive(replace=True) == []
    assert (dead.state, cancelled) == ("available", [])


@override_settings(OJS_UNIQUE={"REPLACE_ACTIVE": False})
def test_a_running_duplicate_that_may_not_be_replaced_refuses_the_revival(cancelled):
    dead, live = stored("discarded"), stored("active")
    before = columns(dead), columns(live)
    with pytest.raises(DuplicateJob) as caught:
        dead.revive(replace=True)
    assert caught.value.existing_job_id == live.pk
    assert (columns(dead), columns(live), cancelled) == (*before, [])


def test_to_replace_and_to_force_at_once_is_refused():
    dead, live = stored("discarded"), stored("available")
    with refused(InvalidRequest, "replace", names="force"):
        dead.revive(replace=True, force=True)
    assert (fresh(dead).state, fresh(live).state) == ("discarded", "available")


def test_a_replacing_revival_rolls_back_with_the_callers_transaction():
    dead, live = stored("discarded"), stored("available")
    with transaction.atomic():
        dead.revive(replace=True)
        transaction.set_rollback(True)
    assert (fresh(dead).state, fresh(live).state, fresh(live).is_guarding) == ("discarded", "available", True)


@pytest.mark.parametrize("state", [*LIVE, "completed"])
def test_a_job_that_is_live_or_has_done_its_work_is_not_revived(state):
    job = stored(state)
    before = columns(job)
    with refused(InvalidTransition, job_id=str(job.pk), current_state=state):
        job.revive(replace=True)
    assert columns(job) == before


@pytest.mark.parametrize("state", ["scheduled", "retryable", "pending"])
def test_a_waiting_job_is_retried_now(state):
    job = stored(state)
    job.retry_now()
    assert job.state == "available"


def test_a_discarded_job_is_not_retried_now_but_told_how_to_revive_it():
    dead = stored("discarded")
    with refused(InvalidTransition, current_state="discarded", names="Revive"):
        dead.retry_now()
    assert fresh(dead).state == "discarded"


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
