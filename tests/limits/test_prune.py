"""What limits leave behind goes away, and a key whose row is gone is stored again."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from django_ojs_unique import Limit
from django_ojs_unique.limits import slots
from django_ojs_unique.maintenance.prune import prune
from django_ojs_unique.models import Job, LimitPartition, Slot
from tests.support.limits import done, enqueue, ids, take

pytestmark = pytest.mark.django_db(transaction=True)

TWO = [Limit(key=["args.n"], running=1), Limit(name="all", running=9)]


def prune_after(**time: float) -> None:
    prune(Job.objects.all(), timezone.now() + timedelta(**time))


def test_the_slots_of_ended_runs_are_deleted_and_those_of_running_ones_stay():
    enqueue(1, TWO), enqueue(2, TWO)
    first, second = take()
    done(first)
    prune_after(seconds=1)
    assert list(Slot.objects.values_list("job_id", flat=True)) == [second.pk]
    enqueue(2, TWO)
    assert take() == []


def test_a_slot_that_a_rate_counts_stays_until_its_time_is_over():
    enqueue(1, Limit(key=["args.n"], per_minute=1))
    done(*take())
    prune_after(seconds=59)
    assert Slot.objects.count() == 1
    prune_after(seconds=61)
    assert Slot.objects.count() == 0


def test_a_claim_deletes_the_slots_of_many_ended_runs(monkeypatch):
    monkeypatch.setattr(slots, "MOST_STALE", 3)
    for _ in range(6):
        enqueue(1, TWO)
        done(*take())
    assert Slot.objects.count() < 6


def test_a_partition_without_claims_for_a_day_is_deleted_and_comes_back():
    enqueue(1), enqueue(1)
    running = take()
    assert take() == []
    prune_after(hours=23)
    assert LimitPartition.objects.count() == 1
    prune_after(hours=25)
    assert LimitPartition.objects.count() == 0
    assert take() == []
    done(*running)
    waits = Job.objects.get(state="available")
    assert ids(take()) == [waits.pk]
