"""Whatever a handler leaves behind, its attempt fails, and each kind of worker goes on and ends."""

import pytest

from django_ojs_unique.models import Job

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

PACKAGE = "django_ojs_unique.exceptions"
ENDS = {
    "end.late": "timeout",
    "end.transaction": f"{PACKAGE}.TransactionLeftOpen",
    "end.exit": "SystemExit",
    "end.promise": f"{PACKAGE}.HandlerError",
}


@pytest.mark.parametrize("options", [[], ["--processes", "2"], ["--drain"]], ids=" ".join)
@pytest.mark.parametrize("kind", ["", ".async"])
def test_a_handler_fails_by_what_it_leaves_behind_and_its_worker_runs_the_next(place, options, kind):
    left = {error: Job.objects.enqueue(f"{type}{kind}").job for type, error in ENDS.items()}
    following = [Job.objects.enqueue("quick", priority=-1).job for _ in range(3)]
    worker = place.runworker("--concurrency", "2", "--shutdown-timeout", "0.5", *options, OJS_TEST_WRITE_OFF="0.5")
    for error, job in left.items():
        assert place.wait_for_state(job, state="discarded").errors[0]["type"] == error
    for job in following:
        assert place.wait_for_state(job, state="completed").progress_note == ""
    assert (worker.wait() if options == ["--drain"] else worker.stop()) == 0


@pytest.mark.parametrize("options", [[], ["--processes", "2"]], ids=" ".join)
def test_a_job_whose_handler_does_not_end_is_requeued_and_its_worker_ends(place, options):
    job = Job.objects.enqueue("leave.handler").job
    worker = place.runworker("--shutdown-timeout", "0.1", *options)
    place.wait_for("began")
    assert worker.stop() == 0
    row = place.wait_for_state(job, state="available")
    assert (row.attempt, row.errors, row.lease_token) == (0, [], None)
