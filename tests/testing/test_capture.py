"""`capture_jobs`: what a block enqueued, and what uniqueness held back."""

from contextlib import suppress

import pytest
from django.db import transaction

from django_ojs_unique import DuplicateJob, UniquePolicy, job
from django_ojs_unique.models import Job
from django_ojs_unique.signals import job_cancelled, job_enqueued, job_suppressed, job_updated
from django_ojs_unique.testing import capture_jobs

pytestmark = pytest.mark.django_db

IGNORE, REJECT = UniquePolicy(on_conflict="ignore"), UniquePolicy()
REPLACE = UniquePolicy(on_conflict="replace")


def enqueue(type, policy=IGNORE, **options):
    with suppress(DuplicateJob):
        return Job.objects.enqueue(type, {"n": 1}, unique=policy, **options).job


def test_jobs_are_captured_in_order():
    enqueue("before")
    with capture_jobs() as jobs:
        first, second = enqueue("first"), enqueue("second")
        Job.objects.enqueue_many([{"type": "third"}, {"type": "fourth"}])
    enqueue("after")
    assert [each.type for each in jobs] == ["first", "second", "third", "fourth"]
    assert (jobs[0], jobs[1:2], len(jobs), second in jobs) == (first, [second], 4, True)
    assert jobs.enqueued == list(jobs)


def test_what_uniqueness_held_back_is_captured_with_what_it_met(database):
    there = {name: enqueue(name) for name in ("deduplicated", "rejected", "replaced")}
    with capture_jobs() as jobs:
        enqueue("deduplicated")
        enqueue("rejected", REJECT)
        new = enqueue("replaced", REPLACE)
    assert [(each.outcome, each.existing_job) for each in jobs.suppressed] == list(there.items())
    assert [(each.type, each.args) for each in jobs.suppressed] == [(name, {"n": 1}) for name in there]
    assert (jobs.enqueued, jobs.replaced) == ([new], [there["replaced"]])


@pytest.mark.slow
def test_a_rewrite_by_key_is_captured():
    row = Job.objects.enqueue("t", [1], key="k").job
    with capture_jobs() as jobs:
        Job.objects.enqueue("t", [2], key="k")
    assert (jobs.updated, jobs.enqueued) == ([row], [])
    assert jobs.updated[0].args == [1, 2]


def test_what_is_rolled_back_stays_captured():
    with capture_jobs() as jobs, suppress(ZeroDivisionError), transaction.atomic():
        enqueue("t")
        enqueue("t")
        1 / 0  # noqa: B018
    assert (len(jobs), len(jobs.suppressed), Job.objects.count()) == (1, 1, 0)


@pytest.mark.django_db(databases=["default", "other"])
def test_one_database_or_all_can_be_listened_to():
    with capture_jobs() as both, capture_jobs(using="other") as other:
        enqueue("here")
        Job.objects.using("other").enqueue("there")
    assert [each.type for each in both] == ["here", "there"]
    assert [each.type for each in other] == ["there"]


def test_captures_can_be_nested_and_cleared():
    with capture_jobs() as outer:
        enqueue("first")
        with capture_jobs() as inner:
            enqueue("second")
        assert (len(outer), len(inner)) == (2, 1)
        outer.clear()
        enqueue("third")
    assert [each.type for each in outer] == ["third"]


def test_a_block_that_fails_leaves_no_receiver():
    signals = job_enqueued, job_updated, job_suppressed, job_cancelled
    before = [list(signal.receivers) for signal in signals]
    with suppress(ZeroDivisionError), capture_jobs() as jobs:
        1 / 0  # noqa: B018
    assert [list(signal.receivers) for signal in signals] == before
    enqueue("t")
    assert not jobs


def test_a_capture_tells_what_it_has():
    with capture_jobs() as jobs:
        assert repr(jobs) == "<captured nothing>"
        row = enqueue("t", queue="slow")
        enqueue("t")
    assert repr(jobs) == (
        f"<captured enqueued: t {{'n': 1}} in queue slow, available ({row.pk});"
        f" suppressed: t {{'n': 1}} in queue default, deduplicated: met job {row.pk}>"
    )


def test_a_capture_asserts_what_it_has(handlers):
    @job("t", unique=IGNORE)
    def handler(n):
        """Do nothing."""

    row = handler.enqueue(1).job
    with capture_jobs() as jobs:
        jobs.assert_not_enqueued(handler)
        handler.enqueue(2)
        jobs.assert_not_enqueued(handler)
        assert jobs.assert_deduplicated(handler, args={"n": 2}).existing_job == row
        jobs.assert_deduplicated(row, outcome="deduplicated", count=1)
        other = Job.objects.enqueue("u").job
        assert jobs.assert_enqueued("u", count=1) == other
        with pytest.raises(AssertionError, match="enqueued: t"):
            jobs.assert_enqueued("t")
        with pytest.raises(AssertionError, match="2 suppressed: t"):
            jobs.assert_deduplicated("t", count=2)
