"""``replace_in_place``, beyond the specification: the new job keeps the place in line of the one that it replaces."""

from datetime import timedelta

import pytest
from django.utils import timezone

from django_ojs_unique import UniquePolicy
from django_ojs_unique.execution.claim import claim
from django_ojs_unique.execution.finalize import finalize
from django_ojs_unique.execution.run_result import RunResult
from django_ojs_unique.models import Job
from tests.support.jobs import HOUR, LEASE, fresh, put, row

pytestmark = pytest.mark.django_db(transaction=True)

IN_PLACE = UniquePolicy(on_conflict="replace_in_place")


def enqueue(unique=IN_PLACE, **options):
    return Job.objects.enqueue("t", unique=unique, **options)


def run_next():
    """Do the next job, as a worker with one place would; return its type."""
    jobs, options = Job.objects.all(), {"types": None, "worker_id": "w", "lease": LEASE}
    (running,) = claim(jobs, queues=["default"], limit=1, now=timezone.now(), **options)
    finalize(jobs, [RunResult(running)])
    return running.type


@pytest.mark.parametrize(("strategy", "runs"), [("replace", 0), ("replace_in_place", 5)])
def test_a_record_that_is_edited_often_is_worked_on_in_a_steady_backlog(strategy, runs):
    """Ten jobs wait, and one comes for each that is done; the record is edited once per five of them."""
    for number in range(10):
        Job.objects.enqueue("other", {"n": number})
    done = []
    for number in range(90):
        if number % 5 == 0:
            enqueue({"on_conflict": strategy})
        done.append(run_next())
        Job.objects.enqueue("other", {"n": number})
    assert done.count("t") == runs


def test_it_takes_the_place_of_the_newest_duplicate_but_keeps_its_own_priority():
    first = enqueue().job
    result = enqueue(priority=7)
    assert (result.outcome, result.replaced[0]) == ("replaced", first)
    assert fresh(result.job).enqueued_at == fresh(first).enqueued_at < fresh(result.job).created_at
    assert fresh(result.job).priority == 7
    again = enqueue().job
    assert fresh(again).enqueued_at == fresh(first).enqueued_at


def test_it_takes_the_time_of_a_scheduled_duplicate():
    at = timezone.now() + HOUR
    enqueue(scheduled_at=at)
    assert fresh(enqueue().job).scheduled_at == at


def test_a_job_that_is_due_later_takes_no_place():
    enqueue()
    later = fresh(enqueue(scheduled_at=timezone.now() + HOUR).job)
    assert (later.state, later.enqueued_at) == ("scheduled", None)


def test_a_finished_duplicate_has_no_place():
    unique = {"on_conflict": "replace_in_place", "states": [*UniquePolicy().states, "completed"]}
    done = put(enqueue(unique).job, "completed")
    row(done).update(enqueued_at=timezone.now() - timedelta(days=1))
    assert fresh(enqueue(unique).job).enqueued_at > fresh(done).created_at


def test_items_of_a_batch_take_the_place_of_earlier_ones():
    first = enqueue().job
    *_, last = Job.objects.enqueue_many([{"type": "t", "unique": IN_PLACE}] * 3)
    assert fresh(last.job).enqueued_at == fresh(first).enqueued_at
