"""Claims and drains beside the claims of others, whose transactions are still open."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from django_ojs_unique import job as handler
from django_ojs_unique.execution.claim import claim
from django_ojs_unique.models import Job
from django_ojs_unique.worker import Worker
from tests.support.processes import Parent, nursery

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor == "sqlite", reason="whoever claims on SQLite has locked all of it"),
]

QUEUES = ["a", "b", "c", "d"]


def take(limit: int, **options: Any) -> list[Any]:
    given = {"types": None, "worker_id": "w", "lease": timedelta(seconds=30), "now": timezone.now(), "with_rules": ()}
    return [*claim(Job.objects.all(), queues=QUEUES, limit=limit, **{**given, **options})]


def claim_and_wait(limit: int, parent: Parent) -> None:
    with transaction.atomic():
        parent.tell([job.args["n"] for job in take(limit)])
        parent.hear()
        transaction.set_rollback(True)


def lockable() -> int:
    with transaction.atomic():
        return len(Job.objects.filter(state="available").select_for_update(skip_locked=True))


def test_a_claim_from_many_queues_locks_what_it_takes_and_few_others():
    for number in range(40):
        Job.objects.enqueue("t", {"n": number}, queue=QUEUES[number % 4])
    with nursery() as start:
        other = start(partial(claim_and_wait, 5))
        assert other.hear() == [0, 1, 2, 3, 4]
        free = lockable()
        assert 40 - free <= 5 + len(QUEUES)  # one more of each queue
        assert 5 <= len({job.args["n"] for job in take(40)} - {0, 1, 2, 3, 4}) <= free
        other.tell()
        other.result()


def test_a_claim_passes_by_the_jobs_that_another_one_has_locked_or_says_so():
    for number in range(5):
        Job.objects.enqueue("t", {"n": number}, queue="a", priority=9)
        Job.objects.enqueue("t", {"n": 5 + number}, queue="b")
    told: list[bool] = []
    with nursery() as start:
        other = start(partial(claim_and_wait, 5))
        assert other.hear() == [0, 1, 2, 3, 4]
        found = [job.args["n"] for job in take(5, passed_over=lambda: told.append(True))]
        assert found or told
        assert {5, 6, 7, 8, 9}.issuperset(found)
        other.tell()
        other.result()
    rest = [job.args["n"] for _ in range(5) for job in take(5)]
    assert sorted([*found, *rest]) == [*range(10)]


@pytest.fixture
def locked_by_another(handlers):
    """A job that another process has claimed in a transaction, the process, and a list of what has run."""
    ran: list[int] = []
    handler("t")(lambda n: ran.append(n))
    Job.objects.enqueue("t", {"n": 0}, queue="a")
    with nursery() as start:
        other = start(partial(claim_and_wait, 1))
        assert other.hear() == [0]
        yield other, ran


def test_a_drain_waits_for_jobs_that_another_worker_has_locked(locked_by_another, monkeypatch):
    other, ran = locked_by_another
    worker = Worker()
    misses = worker._claimer.has_missed_jobs

    def release_then_look() -> bool:
        missed = misses()
        if other.process.is_alive():
            assert missed
            other.tell()
            other.result()
        return missed

    monkeypatch.setattr(worker._claimer, "has_missed_jobs", release_then_look)
    assert worker.run(drain=True).completed == 1
    assert ran == [0]


def test_a_drain_leaves_a_job_that_stays_locked(locked_by_another):
    _, ran = locked_by_another
    assert Worker(lease=timedelta(seconds=1)).run(drain=True).completed == 0
    assert ran == []
    assert Job.objects.get().state == "available"
