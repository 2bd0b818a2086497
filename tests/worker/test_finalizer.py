"""One run that cannot be finalized holds up no other, and none ends the worker."""

import pytest

from django_ojs_unique import job
from django_ojs_unique.execution.finalize import finalize
from django_ojs_unique.maintenance import timers
from django_ojs_unique.models import Job
from django_ojs_unique.signals import job_completed, job_discarded
from django_ojs_unique.worker import Worker, finalizer

pytestmark = pytest.mark.django_db(transaction=True)


def nothing(**args):
    """Do nothing."""


def fail(**args):
    raise ValueError


@pytest.fixture
def discarded():
    """Collect the jobs whose discarding was announced."""
    heard = []

    def receive(job, **arguments):
        heard.append(job.pk)

    job_discarded.connect(receive)
    yield heard
    job_discarded.disconnect(receive)


def test_a_retry_policy_that_was_made_invalid_in_the_row_allows_no_further_attempt(handlers, discarded, caplog):
    job("t")(fail)
    row = Job.objects.enqueue("t").job
    Job.objects.update(retry_options={"max_attempts": -1})
    assert Worker().run(drain=True).discarded == 1
    assert discarded == [row.pk]
    assert "invalid retry policy" in caplog.text


def test_the_discarding_of_a_job_whose_last_lease_ran_out_is_announced(take, discarded):
    from datetime import timedelta

    from django.utils import timezone

    row = Job.objects.enqueue("t", retry={"max_attempts": 1}).job
    take(lease=timedelta(seconds=-1))
    assert timers.rescue(Job.objects.all(), timezone.now()) == 1
    assert discarded == [row.pk]


def test_a_run_that_cannot_be_finalized_is_left_to_its_lease_and_the_others_are_finalized(
    handlers, monkeypatch, caplog
):
    job("t")(nothing)
    jobs = [Job.objects.enqueue("t", {"n": number}).job for number in range(4)]

    def finalize_all_but_one(rows, finished, doubtful):
        if any(run.job.pk == jobs[2].pk for run in finished):
            raise ZeroDivisionError
        return finalize(rows, finished, doubtful)

    monkeypatch.setattr(finalizer, "finalize", finalize_all_but_one)
    summary = Worker().run(drain=True)
    assert (summary.completed, summary.refused) == (3, 1)
    assert Job.objects.get(state="active").pk == jobs[2].pk
    assert f"Cannot finalize job {jobs[2].pk}" in caplog.text


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_a_receiver_cannot_end_the_worker(handlers, error):
    job("t")(nothing)
    for _ in range(3):
        Job.objects.enqueue("t")

    def receive(**arguments):
        raise error

    job_completed.connect(receive)
    try:
        assert Worker().run(drain=True).completed == 3
    finally:
        job_completed.disconnect(receive)


def test_a_result_that_is_too_large_is_lost_but_the_work_counts(handlers, settings, caplog):
    settings.OJS_UNIQUE = {"MAX_RESULT_BYTES": 10}
    job("t")(lambda: "x" * 9)
    Job.objects.enqueue("t")
    assert Worker().run(drain=True).completed == 1
    assert Job.objects.get().result is None
    assert "OJS_UNIQUE['MAX_RESULT_BYTES']" in caplog.text


def test_the_worker_says_so_and_ends_when_nothing_can_be_finalized_any_more(handlers, monkeypatch):
    job("t")(nothing)
    Job.objects.enqueue("t")
    monkeypatch.setattr(finalizer.Finalizer, "is_alive", False)
    with pytest.raises(RuntimeError, match="finalizes died"):
        Worker().run(drain=True)
