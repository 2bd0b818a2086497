from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ojs_unique import lifecycle
from django_ojs_unique.models import Job
from django_ojs_unique.worker.queues import waiting_queues

pytestmark = pytest.mark.django_db


def test_a_claim_makes_jobs_active_under_a_lease_with_a_token_and_counts_the_attempt(take):
    job = Job.objects.enqueue("t").job
    (claimed,) = take()
    job.refresh_from_db()
    assert (job.state, job.attempt, job.worker_id) == ("active", 1, "w1")
    assert job.lease_token == claimed.lease_token is not None
    assert job.lease_expires_at is not None
    assert (claimed.state, claimed.attempt, claimed.started_at) == (job.state, job.attempt, job.started_at)


def test_jobs_come_by_priority_then_first_in_first_out(take):
    for number, priority in enumerate([0, 10, 0, 10, -5]):
        Job.objects.enqueue("t", {"n": number}, priority=priority)
    claims = [take(2), take(2), take(2)]
    assert [[job.args["n"] for job in claimed] for claimed in claims] == [[1, 3], [0, 2], [4]]


def test_a_claim_takes_the_best_jobs_of_all_its_queues_together(take):
    for number, (queue, priority) in enumerate([("a", 0), ("b", 5), ("a", 5), ("b", 0), ("c", 9)]):
        Job.objects.enqueue("t", {"n": number}, queue=queue, priority=priority)
    assert [job.args["n"] for job in take(3, queues=("a", "b"))] == [1, 2, 0]
    assert [job.args["n"] for job in take(3, queues=("a", "b"))] == [3]


def test_jobs_of_unknown_types_are_left_for_other_workers(take):
    Job.objects.enqueue("elsewhere")
    assert not take()
    assert Job.objects.get().attempt == 0


def test_an_expired_job_is_not_claimed_even_before_the_scan(take):
    Job.objects.enqueue("t", expires_at=timezone.now() - timedelta(seconds=1))
    assert not take()


def test_a_job_that_has_started_once_may_run_again_after_its_expiry(take):
    now = timezone.now()
    job = Job.objects.enqueue("t", expires_at=now + timedelta(hours=1)).job
    lifecycle.schedule_retry(Job.objects.all(), now, token=take()[0].lease_token, errors=[])
    lifecycle.promote(Job.objects.all(), now)
    assert [again.pk for again in take(now=now + timedelta(hours=2))] == [job.pk]


def test_a_claimed_job_is_not_claimed_again(take):
    Job.objects.enqueue("t")
    assert len(take()) == 1
    assert not take()


def test_the_queues_that_have_work_are_found_by_one_statement():
    for queue in ("b", "a", "b", "c"):
        Job.objects.enqueue("t", queue=queue)
    Job._base_manager.filter(queue="c").update(state="active")
    with CaptureQueriesContext(connection) as queries:
        assert list(waiting_queues(Job.objects.all())) == ["a", "b"]
    assert len(queries) == 1


def test_an_idle_claim_takes_no_write_lock_on_sqlite(take):
    if connection.vendor != "sqlite":
        pytest.skip("other databases have no single write lock")
    with CaptureQueriesContext(connection) as queries:
        take()
    assert not [query for query in queries if "UPDATE" in query["sql"]]
