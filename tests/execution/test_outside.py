"""What the HTTP API does for workers outside, under concurrency and while others hold locks."""

from datetime import timedelta
from functools import partial
from uuid import uuid4

import pytest
from django.db import connection, transaction
from django.test import Client
from django.utils import timezone

from django_ojs_unique.exceptions import InvalidTransition
from django_ojs_unique.execution.leases import Lease
from django_ojs_unique.maintenance.on_demand import is_overdue, run_maintenance
from django_ojs_unique.models import Job
from django_ojs_unique.ojs.states import TERMINAL
from django_ojs_unique.worker import remote
from django_ojs_unique.worker.remote_worker import RemoteWorker, new_token
from tests.support.processes import together, wait_until_blocked

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = timedelta(hours=1)
ROUNDS = 12
ANYBODY = RemoteWorker("None", worker_id="w")
"""A worker that calls without an account."""
FATAL = remote.Failure({"type": "e", "code": "e", "message": ""}, ("e",), retryable=False)


@pytest.fixture
def anybody(settings):
    """Let anybody call."""
    settings.OJS_UNIQUE = {"API": {"PERMISSIONS": {"workers": ["rest_framework.permissions.AllowAny"]}}}


def fetch(*queues, count=1, now=None):
    options = {"count": count, "worker_id": "w", "lease": Lease(HOUR), "token": new_token(ANYBODY.account)}
    return remote.fetch(Job.objects.all(), dict.fromkeys(queues or ("default",)), **options, now=now or timezone.now())


def post(path, body):
    answer = Client().post(f"/ojs/v1/workers/{path}", body, content_type="application/json")
    return answer.status_code, answer.json()


def assert_whole(job):
    """What must hold of every row, whatever raced."""
    assert (job.state in TERMINAL) == (job.finished_at is not None)
    assert (job.state == "active") == (job.lease_token is not None) == (job.lease_expires_at is not None)
    assert (job.state == "retryable") == (job.run_at is not None)
    assert job.result is None or job.state == "completed"


# Races


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 8])
def test_of_simultaneous_fetches_for_one_job_exactly_one_has_it_and_none_fails(anybody, processes):
    jobs = [Job.objects.enqueue("t", queue=f"q{number}").job for number in range(ROUNDS)]

    def one(number):
        return post("fetch", {"queues": [f"q{number}"], "worker_id": "w"})

    for job, answers in zip(jobs, together([one] * processes, rounds=ROUNDS), strict=True):
        assert {status for status, _ in answers} == {200}
        assert [found["id"] for _, answer in answers for found in answer["jobs"]] == [str(job.pk)]
    assert set(Job.objects.values_list("state", "attempt")) == {("active", 1)}


@pytest.mark.slow
def test_simultaneous_fetches_share_what_there_is_and_no_job_is_handed_out_twice(anybody):
    for number in range(ROUNDS * 6):
        Job.objects.enqueue("t", queue=f"q{number % 2}")

    def one(number):
        return post("fetch", {"queues": ["q0", "q1"], "count": 3})

    answers = [answer for round in together([one] * 4, rounds=ROUNDS // 2) for answer in round]
    handed_out = [job["id"] for status, answer in answers if status == 200 for job in answer["jobs"]]
    assert {status for status, _ in answers} == {200}
    assert len(handed_out) == len(set(handed_out)) == Job.objects.filter(state="active", attempt=1).count() > 0


@pytest.mark.slow
def test_of_ack_nack_cancellation_and_rescue_the_last_word_is_said_once():
    jobs = []
    for number in range(ROUNDS):
        Job.objects.enqueue("t", {"n": number})
        jobs += fetch()
    # The lease has ended, and nobody has noticed yet: a settlement that began before may still win.
    Job._base_manager.update(lease_expires_at=timezone.now() - HOUR)
    before, everything = timezone.now() - 2 * HOUR, Job.objects.all()

    def wins(act, number):
        try:
            act(jobs[number])
        except InvalidTransition:
            return False
        return True

    acts = {
        "completed": lambda job: remote.ack(everything, job.pk, holder=ANYBODY, now=before, result=1),
        "discarded": lambda job: remote.nack(everything, job.pk, holder=ANYBODY, now=before, failure=FATAL),
        "cancelled": lambda job: job.cancel(),
    }

    def rescue(number):
        run_maintenance(everything, timezone.now(), only=jobs[number].pk)

    rounds = together([*(partial(wins, act) for act in acts.values()), rescue], rounds=ROUNDS)
    for job, results in zip(jobs, rounds, strict=True):
        job.refresh_from_db()
        assert_whole(job)
        won = [state for state, result in zip(acts, results, strict=False) if result]
        rescued = any(error["type"] == "visibility_timeout" for error in job.errors)
        assert won == ([] if job.state == "available" else [job.state])
        assert rescued or job.state != "available"
        assert not (rescued and job.state in ("completed", "discarded"))
        assert job.attempt == 1


@pytest.mark.slow
def test_an_ack_twice_at_once_is_an_ack_once(anybody):
    for _ in range(ROUNDS):
        Job.objects.enqueue("t")
    jobs = fetch(count=ROUNDS)

    def one(number):
        return post("ack", {"job_id": str(jobs[number].pk), "result": number})[0]

    for statuses in together([one] * 2, rounds=ROUNDS):
        assert sorted(statuses) == [200, 409]
    assert sorted(Job.objects.values_list("result", flat=True)) == list(range(ROUNDS))


@pytest.mark.slow
def test_heartbeats_and_acks_of_the_same_jobs_go_by_turns(anybody):
    for _ in range(ROUNDS):
        Job.objects.enqueue("t")
    jobs = fetch(count=ROUNDS)
    ids = [str(job.pk) for job in jobs]

    def beat(number):
        return post("heartbeat", {"worker_id": "w", "active_jobs": ids[:: 1 if number % 2 else -1]})[0]

    def ack(number):
        return post("ack", {"job_id": ids[number], "worker_id": "w"})[0]

    for statuses in together([beat, beat, ack], rounds=ROUNDS):
        assert statuses == [200, 200, 200]
    for job in Job.objects.all():
        assert_whole(job)


# Locks of others


def hold_lock(parent, pk):
    """Lock a row, and let go when the parent says so."""
    with transaction.atomic():
        Job.objects.filter(pk=pk).update(priority=1)
        parent.tell("locked")
        parent.hear()


@pytest.mark.slow
def test_an_ack_waits_for_a_row_that_somebody_has_locked(start, anybody):
    Job.objects.enqueue("t")
    (job,) = fetch()
    holder = start(hold_lock, job.pk)
    assert holder.hear() == "locked"
    worker = start(lambda parent: post("ack", {"job_id": str(job.pk)}))
    wait_until_blocked(1)
    holder.tell()
    assert worker.result()[0] == 200
    job.refresh_from_db()
    assert (job.state, job.priority) == ("completed", 1)


@pytest.mark.slow
def test_a_reader_is_not_held_up_by_a_row_that_somebody_has_locked(start):
    job = Job.objects.enqueue("t", scheduled_at=timezone.now() + HOUR).job
    Job._base_manager.update(run_at=timezone.now() - HOUR)
    holder = start(hold_lock, job.pk)
    assert holder.hear() == "locked"
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout = 0")
    run_maintenance(Job.objects.all(), timezone.now(), only=job.pk)
    assert fetch() == []
    job.refresh_from_db()
    assert job.state == "scheduled"
    holder.tell()
    holder.result()
    assert [one.pk for one in fetch()] == [job.pk]


# Time


def test_time_passes_for_the_one_job_that_is_asked_for():
    late = timezone.now() - HOUR
    changes = [
        {"state": "scheduled", "run_at": late},
        {"state": "retryable", "run_at": late, "attempt": 1, "started_at": late},
        {"expires_at": late},
        {"state": "active", "lease_expires_at": late, "lease_token": uuid4(), "started_at": late, "attempt": 1},
    ]
    after = ["available", "available", "discarded", "available"]
    for change, state in zip(changes, after, strict=True):
        twins = [Job.objects.enqueue("t").job for _ in range(2)]
        Job._base_manager.filter(pk__in=[job.pk for job in twins]).update(**change)
        for job in twins:
            job.refresh_from_db()
            assert is_overdue(job, timezone.now())
        run_maintenance(Job.objects.all(), timezone.now(), only=twins[0].pk)
        for job in twins:
            job.refresh_from_db()
        assert (twins[0].state, twins[1].state) == (state, change.get("state", "available"))
        assert not is_overdue(twins[0], timezone.now())
        Job.objects.all().delete()


def test_what_is_not_overdue_is_known_from_the_row():
    later = timezone.now() + HOUR
    for change in (
        {"scheduled_at": later},
        {"expires_at": later},
        {"pending": True},
        {},
    ):
        job = Job.objects.enqueue("t", **change).job if "pending" not in change else Job(state="pending")
        assert not is_overdue(job, timezone.now())
    (job,) = fetch(count=1)
    assert not is_overdue(job, timezone.now())
    job.cancel()
    job.expires_at = job.run_at = timezone.now() - HOUR
    assert not is_overdue(job, timezone.now())


def test_a_superseded_retry_is_discarded_when_only_it_is_asked_for():
    unique = {"states": ["available", "active"], "on_retry": "discard"}
    older = Job.objects.enqueue("t", unique=unique).job
    (held,) = fetch()
    remote.nack(Job.objects.all(), held.pk, holder=ANYBODY, now=timezone.now(), failure=remote.Failure({}, ()))
    newer = Job.objects.enqueue("t", unique=unique).job
    Job._base_manager.filter(pk=older.pk).update(run_at=timezone.now() - HOUR)
    run_maintenance(Job.objects.all(), timezone.now(), only=older.pk)
    states = dict(Job.objects.values_list("pk", "state"))
    assert states == {older.pk: "discarded", newer.pk: "available"}
