"""The ways by which a running job comes back to its queue, and what closes all of them (docs: job keys)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_ojs_unique import chain
from django_ojs_unique.exceptions import InvalidTransition
from django_ojs_unique.execution.errors import error_record
from django_ojs_unique.execution.finalize import Finalized, finalize
from django_ojs_unique.execution.leases import requeue, requeue_claims
from django_ojs_unique.execution.run_result import RunResult
from django_ojs_unique.maintenance import timers
from django_ojs_unique.models import Job
from django_ojs_unique.unique.presets import resque_uniqueue
from django_ojs_unique.worker import remote
from django_ojs_unique.worker.remote_worker import RemoteWorker, new_token
from tests.support.covering import covering
from tests.support.jobs import fresh, row

pytestmark = pytest.mark.django_db

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
HOLDER = RemoteWorker("a")
FIVE = {"max_attempts": 5}
NEW = {"type": "t", "args": {"new": True}, "retry": FIVE}


def rescued(job: Any, **columns: Any) -> None:
    """Let the lease of a job end."""
    row(job).update(started_at=timezone.now() - DAY, lease_expires_at=timezone.now() - HOUR)
    row(job).update(**columns)
    timers.rescue(Job.objects.all(), timezone.now())


def rescued_from(job: Any, lease: timedelta, **columns: Any) -> None:
    began = timezone.now() - DAY
    rescued(job, started_at=began, lease_expires_at=began + lease, **columns)


def failed(job: Any) -> RunResult:
    return RunResult(job, error=error_record(job, now=timezone.now()), error_types=("x",), at=timezone.now())


WAYS: dict[str, Callable[[Any], Any]] = {
    "its worker stops": lambda job: requeue(Job.objects.all(), [job]),
    "the answer to its claim is lost": lambda job: requeue_claims(Job.objects.all(), [job.lease_token]),
    "its worker is killed": rescued,
    "its worker is killed before it begins": lambda job: rescued(job, unconfirmed=True),
    "its client is silent until its time limit": lambda job: rescued_from(job, HOUR, timeout_ms=3_600_000),
    "its client requeues it": lambda job: remote.requeue(Job.objects.all(), job.pk, holder=HOLDER, now=timezone.now()),
    "its client reports a failure": lambda job: remote.nack(
        Job.objects.all(), job.pk, holder=HOLDER, now=timezone.now(), failure=remote.Failure({}, ("x",))
    ),
    "its handler fails": lambda job: finalize(Job.objects.all(), [failed(job)]),
}

with_key: dict[str, Any] = {"key": "k", "retry": FIVE}
VERBS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], str]] = {
    "its key is removed": (
        lambda: Job.objects.enqueue("t", **with_key).job,
        lambda it: Job.objects.remove(key="k"),
        "discarded",
    ),
    "its key is taken": (
        lambda: Job.objects.enqueue("t", **with_key).job,
        lambda it: Job.objects.enqueue(**NEW, key="k"),
        "discarded",
    ),
    "its key is taken, but for the time": (
        lambda: Job.objects.enqueue("t", **with_key).job,
        lambda it: Job.objects.enqueue(**NEW, key="k", key_mode="preserve_run_at"),
        "discarded",
    ),
    "its key is taken in bulk": (
        lambda: Job.objects.enqueue("t", **with_key).job,
        lambda it: Job.objects.enqueue_many([{**NEW, "key": "k"}] * 2),
        "discarded",
    ),
    "its workflow is cancelled": (
        lambda: chain({"type": "t", "retry": FIVE}).enqueue(),
        lambda it: it.cancel(),
        "discarded",
    ),
    "its workflow is cancelled, after its key was taken": (
        lambda: chain({"type": "t", **with_key}).enqueue(),
        lambda it: (Job.objects.enqueue(**NEW, key="k"), it.cancel()),
        "discarded",
    ),
    "its workflow and its jobs are cancelled": (
        lambda: chain({"type": "t", "retry": FIVE}).enqueue(),
        lambda it: it.cancel(active=True),
        "cancelled",
    ),
    "it is cancelled": (lambda: Job.objects.enqueue("t", retry=FIVE).job, lambda it: it.cancel(), "cancelled"),
    "it is replaced": (
        lambda: Job.objects.enqueue("t", unique={}, retry=FIVE).job,
        lambda it: Job.objects.enqueue("t", unique={"on_conflict": "replace"}),
        "cancelled",
    ),
    "nothing happens to it": (lambda: Job.objects.enqueue("t", retry=FIVE).job, lambda it: None, ""),
    "its key is met by unsafe_dedupe": (
        lambda: Job.objects.enqueue("t", **with_key).job,
        lambda it: Job.objects.enqueue(**NEW, key="k", key_mode="unsafe_dedupe"),
        "",
    ),
}
"""What is done to a running job: how it is enqueued, what is done, and the state in which it must end, if any."""


@pytest.fixture
def claim(take: Any) -> Callable[[], list[Any]]:
    """Claim all jobs, as a client does that is known by its account."""
    return lambda: take(limit=100, token=new_token("a"))


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "way", "attempt"), covering(VERBS, WAYS, [1, 3]))
def test_no_further_run_holds_through_every_way_back(verb: str, way: str, attempt: int, claim: Any) -> None:
    enqueue, act, state = VERBS[verb]
    it = enqueue()
    Job._base_manager.update(attempt=attempt - 1)
    (running,) = claim()
    token = running.lease_token
    act(it)
    with suppress(InvalidTransition):
        WAYS[way](running)
    later = timezone.now() + DAY
    timers.rescue(Job.objects.all(), later)
    timers.promote(Job.objects.all(), later)
    runs_again = running.pk in {job.pk for job in claim()}
    assert runs_again is (state == "")
    if state:
        assert fresh(running).state == state
        assert not fresh(running).dead_letter
        codes = [error["code"] for error in fresh(running).errors]
        ended_by_itself = way in ("its client reports a failure", "its handler fails")
        assert codes == (["no_further_run"] if state == "discarded" and not ended_by_itself else codes[:1])
        running.lease_token = token
        ((_, finalized),) = finalize(Job.objects.all(), [RunResult(running, at=later)])
        assert finalized is Finalized.REFUSED


@pytest.mark.parametrize("verb", [verb for verb, (_, _, state) in VERBS.items() if state == "discarded"])
def test_a_run_that_ends_by_itself_completes(verb: str, claim: Any) -> None:
    enqueue, act, _ = VERBS[verb]
    it = enqueue()
    (running,) = claim()
    act(it)
    ((_, finalized),) = finalize(Job.objects.all(), [RunResult(running, at=timezone.now())])
    assert (finalized, fresh(running).state) == (Finalized.COMPLETED, "completed")


def test_a_job_that_may_not_run_again_is_retried_with_all_its_attempts(claim: Any) -> None:
    Job.objects.enqueue("t", **with_key)
    (running,) = claim()
    Job.objects.remove(key="k")
    requeue(Job.objects.all(), [running])
    timers.rescue(Job.objects.all(), timezone.now())
    ended = fresh(running)
    assert (ended.attempt, ended.most_attempts, ended.may_run_again) == (1, 1, False)
    assert ended.errors[-1]["code"] == "no_further_run"
    ended.retry()
    assert (ended.attempt, ended.most_attempts, ended.retry_policy.max_attempts) == (0, 5, 5)
    assert [job.pk for job in claim()] == [running.pk]


# Of a policy with on_retry="discard"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("has_twin", [False, True])
def test_a_job_does_not_come_back_beside_its_twin(way: str, has_twin: bool, claim: Any) -> None:
    first = Job.objects.enqueue("t", unique=resque_uniqueue(), retry=FIVE).job
    (running,) = claim()
    if has_twin:
        assert Job.objects.enqueue("t", unique=resque_uniqueue()).created
    WAYS[way](running)
    timers.promote(Job.objects.all(), timezone.now() + DAY)
    assert fresh(first).state == ("discarded" if has_twin else "available")
    assert len(claim()) == 1
    if has_twin:
        assert fresh(first).errors[-1]["code"] == "superseded"


def test_a_job_that_is_requeued_without_a_twin_keeps_its_place(claim: Any) -> None:
    first = Job.objects.enqueue("t", unique=resque_uniqueue()).job
    (running,) = claim()
    assert requeue(Job.objects.all(), [running]) == (1, set())
    timers.promote(Job.objects.all(), timezone.now())
    stored = fresh(first)
    assert (stored.state, stored.attempt, stored.started_at, stored.enqueued_at) == (
        "available",
        0,
        None,
        first.enqueued_at,
    )


# Of a job with an `expires_at`

BEGUN = {
    "its worker stops": lambda job: requeue(Job.objects.all(), [job], {job.pk}),
    "its worker is killed": rescued,
    "its client requeues it": WAYS["its client requeues it"],
    "its handler fails": WAYS["its handler fails"],
}
CLAIMED_ONLY = {
    "its worker stops": WAYS["its worker stops"],
    "the answer to its claim is lost": WAYS["the answer to its claim is lost"],
    "its worker is killed before it begins": WAYS["its worker is killed before it begins"],
}


@pytest.fixture
def comes_back(claim: Any) -> Callable[..., str]:
    """Enqueue a job that expires in an hour, and let it come back in some ways; return its state a day later."""

    def comes_back(*ways: Callable[[Any], Any]) -> str:
        job = Job.objects.enqueue("t", expires_at=timezone.now() + HOUR, retry=FIVE).job
        for way in ways:
            (running,) = claim()
            way(running)
            timers.promote(Job.objects.all(), timezone.now() + DAY)
        timers.expire(Job.objects.all(), timezone.now() + DAY)
        return fresh(job).state

    return comes_back


@pytest.mark.parametrize(("way", "before", "after"), covering(BEGUN, [None, *CLAIMED_ONLY], [None, *CLAIMED_ONLY]))
def test_a_job_that_has_begun_expires_no_more_however_often_it_comes_back(
    way: str, before: str, after: str, comes_back: Any
) -> None:
    unbegun = [[CLAIMED_ONLY[each]] if each else [] for each in (before, after)]
    assert comes_back(*unbegun[0], BEGUN[way], *unbegun[1]) == "available"


@pytest.mark.parametrize("way", CLAIMED_ONLY)
def test_a_job_that_was_only_claimed_expires(way: str, comes_back: Any) -> None:
    assert comes_back(CLAIMED_ONLY[way], CLAIMED_ONLY[way]) == "discarded"
