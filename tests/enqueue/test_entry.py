"""What an entry remembers of a decision that was undone."""

from __future__ import annotations

from uuid import uuid4

from django.utils import timezone

from django_ojs_unique.enqueue.entry import Entry
from django_ojs_unique.enqueue.look import Look
from django_ojs_unique.enqueue.new_job import read
from django_ojs_unique.enqueue.request import Request
from django_ojs_unique.models import Job
from django_ojs_unique.ojs.states import INCOMPLETE
from django_ojs_unique.unique.plan import Family, Plan


def entry() -> Entry:
    return Entry(None, read(Request("t", unique={"on_conflict": "replace"}), Job, timezone.now()))


def test_after_a_lost_race_a_job_does_not_belong_to_the_workflow_of_one_that_it_does_not_replace_any_more():
    one, now = entry(), timezone.now()
    awaited = Job(state="available", unique_states=INCOMPLETE, created_at=now, workflow_id=uuid4(), awaited=True)
    one.decide(Plan(now), Family([awaited]))
    assert (one.job.workflow_id, one.job.awaited) == (awaited.workflow_id, True)
    one.decide(Plan(now), Family())
    assert (one.job.workflow_id, one.job.awaited, one.outcome) == (None, None, "created")


def test_a_job_without_a_workflow_adopts_nothing_also_when_it_is_decided_again():
    one = entry()
    one.decide(Plan(timezone.now()), Family())
    assert not Look(Job.objects.all(), [one])._adopting
