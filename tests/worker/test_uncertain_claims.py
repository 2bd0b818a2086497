"""A claim that the database committed, and whose answer was lost, costs its jobs neither an attempt nor a lease."""

from __future__ import annotations

from datetime import timedelta
from threading import Event

import pytest
from django.db import OperationalError, connection

from django_ojs_unique import job
from django_ojs_unique.execution.claim import Claimed, claim
from django_ojs_unique.models import Job
from django_ojs_unique.worker import claimer, outages
from django_ojs_unique.worker import loop as loop_module
from django_ojs_unique.worker.claimer import UncertainClaims
from tests.support.background import working
from tests.support.processes import PATIENCE, until

pytestmark = pytest.mark.django_db(transaction=True)

LONG = timedelta(hours=1)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(outages, "LONGEST_PAUSE", 0.001)


def hang_up():
    connection.close()
    raise OperationalError("server closed the connection unexpectedly")


@pytest.mark.slow
def test_three_claims_whose_answers_are_lost_cost_a_job_no_attempt(handlers, monkeypatch):
    attempts, cut = [], []

    @job("t", retry={"max_attempts": 3}, takes_context=True)
    def handler(context):
        attempts.append(context.attempt)

    def claim_and_hang_up(*args, **options):
        claimed = claim(*args, **options)
        if claimed and len(cut) < 3:
            cut.append([each.attempt for each in claimed])
            hang_up()
        return claimed

    monkeypatch.setattr(claimer, "claim", claim_and_hang_up)
    monkeypatch.setattr(loop_module, "WATCH_SECONDS", 0.02)
    row = Job.objects.enqueue("t").job
    with working(lease=LONG) as worker:
        until(lambda: Job.objects.get().state == "completed", "the job ran")
    row.refresh_from_db()
    assert (cut, attempts, row.attempt, row.errors) == ([[1]] * 3, [1], 1, [])
    assert worker.summary.requeued == 3


@pytest.mark.slow
def test_a_claim_that_is_committed_long_after_its_connection_broke_is_requeued_too(handlers, monkeypatch):
    asked, may_go_on, attempts = [], Event(), []

    @job("t", takes_context=True)
    def handler(context):
        attempts.append(context.attempt)

    def hang_up_first(*args, **options):
        if not asked:
            asked.append((args, options))
            hang_up()
        return claim(*args, **options) if may_go_on.is_set() else Claimed([], {})

    monkeypatch.setattr(claimer, "claim", hang_up_first)
    monkeypatch.setattr(loop_module, "WATCH_SECONDS", 0.02)
    Job.objects.enqueue("t")
    looks = []
    real = UncertainClaims.requeue
    monkeypatch.setattr(UncertainClaims, "requeue", lambda self: looks.append(real(self)) or looks[-1])
    with working(lease=LONG):
        until(lambda: asked, "the worker claimed")
        seen = len(looks)
        until(lambda: len(looks) > seen + 3, "it looked, and found nothing")
        ((args, options),) = asked
        assert len(claim(*args, **options)) == 1
        until(lambda: Job.objects.get().state == "available", "the job was requeued")
        assert Job.objects.get().attempt == 0
        may_go_on.set()
        until(lambda: Job.objects.get().state == "completed", "the job ran")
    assert attempts == [1]


def test_a_worker_that_ends_requeues_what_it_does_not_know_to_hold(handlers, monkeypatch):
    claimed = Event()

    def claim_and_hang_up(*args, **options):
        if not claimed.is_set() and claim(*args, **options):
            claimed.set()
            hang_up()
        return Claimed([], {})

    job("t")(lambda: None)
    monkeypatch.setattr(claimer, "claim", claim_and_hang_up)
    monkeypatch.setattr(loop_module, "WATCH_SECONDS", 1e6)
    Job.objects.enqueue("t")
    with working(lease=LONG):
        assert claimed.wait(PATIENCE)
    assert list(Job.objects.values_list("state", "attempt")) == [("available", 0)]


def test_what_was_answered_is_never_requeued_and_a_token_is_forgotten_with_its_lease(take):
    Job.objects.enqueue("t")
    uncertain_claims = UncertainClaims(Job.objects.all(), timedelta(0))
    with uncertain_claims.claiming() as answered:
        take(token=answered)
    assert uncertain_claims.requeue() == 0
    with pytest.raises(OperationalError), uncertain_claims.claiming() as token:
        hang_up()
    assert uncertain_claims.requeue() == 0
    Job._base_manager.update(lease_token=token)
    assert uncertain_claims.requeue() == 0
    assert Job.objects.get().state == "active"
