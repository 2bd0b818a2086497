"""A job with limits wakes an idle worker as any other job does."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from django_ojs_unique import job
from django_ojs_unique.execution.claim import claim
from django_ojs_unique.models import Job
from tests.support.claiming import Claiming
from tests.support.limits import done, enqueue

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_claim_that_finds_nothing_else_looks_at_blocked_jobs_of_which_it_was_not_told():
    first, _ = enqueue(1), enqueue(1)
    options = {"types": None, "worker_id": "w", "lease": timedelta(minutes=1), "with_rules": []}
    claimed = claim(Job.objects.all(), queues=["default"], limit=5, now=timezone.now(), **options)
    assert [job.pk for job in claimed] == [first]
    assert claimed.is_limited


def test_the_end_of_a_run_lets_its_worker_look_in_all_queues(handlers):
    job("t")(lambda n: None)
    enqueue(1, queue="f")
    waits = enqueue(1, queue="g")
    claiming = Claiming()
    claiming.claim(ask_for_rules=True)
    claiming.claim(ask_for_rules=True)
    (run,) = Job.objects.filter(state="active")
    assert run.queue == "f"
    done(run)
    claiming.made_room("f")
    assert claiming.poller.due == 0
    claiming.claim()
    assert Job.objects.get(pk=waits).state == "active"
