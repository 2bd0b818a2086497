"""A worker confirms an attempt before it begins if it must not begin twice: then it counts, whatever becomes of it."""

import time
from datetime import timedelta

import pytest
from django.db import OperationalError

from django_ojs_unique import JobContext, job
from django_ojs_unique.execution import leases
from django_ojs_unique.execution.errors import LEASE_LOST
from django_ojs_unique.execution.run import Run
from django_ojs_unique.maintenance import timers
from django_ojs_unique.models import Job
from django_ojs_unique.worker import Worker, pools
from django_ojs_unique.worker import loop as loop_module

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.every_database]

ONE = {"max_attempts": 1}
LOST, OTHER = [{"code": LEASE_LOST, "attempt": 1}], [{"code": "handler_error", "attempt": 1}]


@pytest.fixture(params=["plain", "async"])
def seen(request, handlers):
    """Return what each run of a job saw in the column ``unconfirmed`` when it began."""
    seen = []

    def look(context: JobContext):
        seen.append(Job.objects.get(pk=context.job_id).unconfirmed)

    async def alook(context: JobContext):
        seen.append((await Job.objects.aget(pk=context.job_id)).unconfirmed)

    job("t", takes_context=True)(look if request.param == "plain" else alook)
    return seen


@pytest.fixture(autouse=True)
def all_fresh(monkeypatch):
    """Let no run be confirmed only because this machine is slow."""
    monkeypatch.setattr(pools, "LONGEST_UNSEEN", 1e6)


def work(**options):
    return Worker(concurrency=1, async_concurrency=1, **options).run(drain=True)


@pytest.mark.parametrize(
    ("short", "retry", "columns", "expected"),
    [
        (0, {}, {}, [True] * 3),
        (0, {}, {"attempt": 1, "errors": OTHER}, [True] * 3),
        (0, {}, {"errors": LOST}, [None] * 3),
        (1e6, {}, {"errors": LOST}, [None] * 3),
        (0, {}, {"attempt": 2, "errors": OTHER}, [None] * 3),
        (0, ONE, {}, [None] * 3),
        (1e6, ONE, {}, [None, True, True]),
    ],
    ids=["first", "second", "lost a lease", "lost a lease, short", "third of three", "one attempt", "short"],
)
def test_which_attempts_are_confirmed_before_they_begin(seen, monkeypatch, short, retry, columns, expected):
    monkeypatch.setattr(pools, "SHORT_SECONDS", short)
    for number in range(3):
        Job.objects.enqueue("t", tags=[str(number)], retry=retry)
    Job._base_manager.update(**columns)
    assert work().completed == 3
    assert seen == expected
    assert set(Job.objects.values_list("unconfirmed", flat=True)) == {None}


def confirm_with(monkeypatch, act):
    """Call ``act`` before the first confirmation."""
    calls = []

    def confirm(jobs, held):
        calls.append(held)
        if len(calls) == 1:
            act()
        return leases.confirm(jobs, held)

    monkeypatch.setattr(loop_module, "confirm", confirm)
    return calls


@pytest.mark.parametrize("error", [OperationalError("the line was cut"), ValueError("of a receiver")])
def test_a_job_that_cannot_be_confirmed_does_not_begin_and_runs_later(seen, monkeypatch, error):
    def fail():
        raise error

    calls = confirm_with(monkeypatch, fail)
    Job.objects.enqueue("t", retry=ONE)
    assert work().completed == 1
    assert (len(calls), seen, Job.objects.get().attempt) == (2, [None], 1)


def test_a_job_that_another_worker_holds_meanwhile_does_not_begin(seen, monkeypatch):
    def lose():
        Job._base_manager.update(lease_expires_at=Job.objects.get().started_at)
        assert timers.rescue(Job.objects.all(), Job.objects.get().started_at) == 1

    calls = confirm_with(monkeypatch, lose)
    Job.objects.enqueue("t", retry=ONE)
    assert work().completed == 1
    assert (len(calls), seen, Job.objects.get().attempt) == (2, [None], 1)


def test_a_run_that_has_waited_is_confirmed(seen, monkeypatch):
    monkeypatch.setattr(pools, "LONGEST_UNSEEN", -1)
    Job.objects.enqueue("t")
    assert work().completed == 1
    assert seen == [None]


@pytest.mark.parametrize(("ago", "confirmed"), [(50, False), (150, True)])
def test_a_run_has_waited_since_its_lease_was_last_seen(monkeypatch, ago, confirmed):
    monkeypatch.setattr(pools, "LONGEST_UNSEEN", 100)
    pool = pools.Pool(1, print, print)
    lease = timedelta(seconds=1000)
    run = Run(Job(attempt=1), lease=lease, lease_until=time.monotonic() + lease.total_seconds() - ago)
    assert pool._must_confirm(run) is confirmed
