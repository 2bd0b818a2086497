"""The other jobs of a job's fingerprint, also where very many have finished."""

from datetime import timedelta

import pytest
from django.utils import timezone

from django_ojs_unique import UniquePolicy
from django_ojs_unique.models import Job
from django_ojs_unique.reporting.duplicates import MOST_IN_HISTORY, MOST_RELATIVES, history, relations
from tests.support.past import job

pytestmark = pytest.mark.django_db

REPLACE = UniquePolicy(on_conflict="replace")


def enqueue():
    return Job.objects.enqueue("email.send", unique=REPLACE).job


def finish(fingerprint, number):
    """Store a job that finished ``number`` hours later."""
    return job(timezone.now() + timedelta(hours=number), state="completed", fingerprint=fingerprint)


def test_what_a_job_replaced_is_found_behind_all_that_finished_later():
    old, new = enqueue(), enqueue()
    later = [finish(new.fingerprint, number) for number in range(1, MOST_RELATIVES + 5)]
    found = relations(new)
    assert [row.pk for row in found.replaces] == [old.pk]
    assert [row.pk for row in found.family] == [new.pk, *(row.pk for row in later[-MOST_RELATIVES:])]
    assert found.more


@pytest.mark.slow
def test_a_history_has_the_live_jobs_and_those_that_finished_last():
    live = enqueue()
    later = [finish(live.fingerprint, number) for number in range(1, MOST_IN_HISTORY + 5)]
    found = history(Job.objects.all(), live.fingerprint)
    assert [row.pk for row in found.jobs] == [live.pk, *(row.pk for row in later[5:])]
    assert found.is_cut
    assert found.newest == later[-1]


def test_a_finished_job_that_has_the_unique_key_is_in_the_history():
    policy = UniquePolicy(states=["available", "active", "completed"])
    holder = Job.objects.enqueue("email.send", unique=policy).job
    Job._base_manager.filter(pk=holder.pk).update(state="completed", finished_at=timezone.now())
    others = [finish(holder.fingerprint, number) for number in range(3)]
    assert Job.objects.get(pk=holder.pk).holds_unique_key
    found = history(Job.objects.all(), holder.fingerprint)
    assert {row.pk for row in found.jobs} == {holder.pk, *(row.pk for row in others)}
