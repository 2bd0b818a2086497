"""A run that was stopped is shown as one that runs, wherever runs are shown or counted."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.core.management import call_command
from django.urls import reverse

from django_ojs_unique import Limit
from django_ojs_unique.models import Job, Queue, WorkerProcess
from django_ojs_unique.reporting import limits
from django_ojs_unique.reporting.limit_waits import would_meet
from django_ojs_unique.reporting.queues import queues
from django_ojs_unique.reporting.stopped import still_runs
from django_ojs_unique.reporting.workers import claimed_by, running
from tests.support.limits import ONE, done, enqueue, take
from tests.support.past import worker

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def run() -> Any:
    """A run whose job was cancelled."""
    enqueue(1)
    (run,) = take()
    Job.objects.get(pk=run.pk).cancel()
    return run


def test_the_limit_and_its_partition_count_it(run):
    def counts() -> list[int]:
        return [one.running for one in (*limits.limits("default"), *limits.partitions_of("default", "args.n", 9))]

    assert counts() == [1, 1]
    done(run)
    assert counts() == [0]


@pytest.mark.parametrize("limit", [ONE, Limit(key=["args.n"], running=1, per_hour=9)])
def test_the_preview_of_an_enqueue_says_that_it_would_wait(limit):
    enqueue(1, limit)
    (run,) = take()
    Job.objects.get(pk=run.pk).cancel()
    explained = Job.objects.explain("t", {"n": 1}, limit=limit)
    assert would_meet(explained, "default")[0].startswith("Would wait for a slot of args.n 1: 1 of 1 in use")
    done(run)
    assert would_meet(explained, "default")[0].startswith("Would have a slot of args.n 1: 0 of 1 in use")


def test_a_job_that_runs_again_beside_its_old_run_counts_twice_under_a_limit_of_two():
    two = Limit(key=["args.n"], running=2)
    enqueue(1, two)
    (old,) = take()
    Job.objects.get(pk=old.pk).cancel()
    Job.objects.get(pk=old.pk).retry()
    assert len(take()) == 1
    assert limits.limits("default")[0].running == 2
    explained = Job.objects.explain("t", {"n": 1}, limit=two)
    assert would_meet(explained, "default")[0].startswith("Would wait for a slot of args.n 1: 2 of 2 in use")


def test_its_queue_counts_it_for_the_limit(run):
    Queue.objects.limit("default", 1)
    assert [(queue.running, queue.unfinished) for queue in queues("default")] == [(1, 0)]
    done(run)
    assert [queue.running for queue in queues("default")] == [0]


def test_its_worker_has_it(run):
    row = worker("w")
    assert (claimed_by(Job.objects.all(), row, 9), running("default")) == ([run], {"w": [run]})
    done(run)
    assert (claimed_by(Job.objects.all(), row, 9), running("default")) == ([], {})
    assert WorkerProcess.objects.count() == 1


def test_the_job_says_it_on_its_page_and_in_the_command(run, admin_client):
    page = reverse("admin:django_ojs_unique_job_change", args=[run.pk])

    def texts() -> list[str]:
        out = io.StringIO()
        call_command("jobs", "show", str(run.pk), stdout=out)
        return [str(still_runs(Job.objects.get(pk=run.pk), "default")), admin_client.get(page).text, out.getvalue()]

    assert ["A run that was stopped goes on" in text for text in texts()] == [True] * 3
    done(run)
    assert ["A run that was stopped goes on" in text for text in texts()] == [False] * 3


def test_a_job_that_has_never_run_asks_nothing(django_assert_num_queries):
    job = Job.objects.get(pk=enqueue(1))
    with django_assert_num_queries(0):
        assert still_runs(job, "default") == ""
