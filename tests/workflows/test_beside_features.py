"""What a chain, a group and a batch mean beside other features: the second table of docs/unique-and-features.md."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings
from django.utils import timezone

from django_ojs_unique import batch, chain, group, job
from django_ojs_unique.execution.leases import requeue
from django_ojs_unique.maintenance.prune import prune
from django_ojs_unique.models import CronJob, Job, Queue, Workflow
from django_ojs_unique.testing import run_jobs, tick, travel
from django_ojs_unique.worker import Worker
from tests.support.limits import done, ids, lose, take
from tests.support.workflows import advance

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

KINDS = ["chain", "group", "batch"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def flow(kind: str, do: Any, **options: Any) -> Any:
    """Compose a and b; a batch goes on with c."""
    steps = [do("a", **options), do("b", **options)]
    if kind == "chain":
        return chain(*steps)
    return group(steps) if kind == "group" else batch(steps, on_success=do("c", **options))


def names(kind: str) -> list[str]:
    return ["a", "b", "c"] if kind == "batch" else ["a", "b"]


def state(workflow: Workflow) -> str:
    workflow.refresh_from_db()
    return str(workflow.state)


def test_several_queues(kind, log, do):
    """Each member has a queue, and whoever runs one enqueues the next, also for a queue that it does not take."""
    steps = [do("a", queue="one"), do("b", queue="two")]
    made = {"chain": chain(*steps), "group": group(steps), "batch": batch(steps, on_success=do("c", queue="one"))}
    workflow = made[kind].enqueue()
    for queue in ("one", "two", "one"):
        run_jobs(queues=queue)
    assert (state(workflow), log.names) == ("completed", names(kind))


def test_a_paused_queue(kind, log, do):
    """The workflow waits; the members of other queues go on."""
    Queue.objects.pause("two")
    steps = [do("a"), do("b", queue="two")]
    made = {"chain": chain(*steps), "group": group(steps), "batch": batch(steps, on_success=do("c"))}
    workflow = made[kind].enqueue()
    run_jobs()
    assert (state(workflow), log.names) == ("running", ["a"])
    Queue.objects.resume("two")
    run_jobs()
    assert (state(workflow), log.names) == ("completed", names(kind))


def test_a_queue_with_a_limit_of_its_own(kind, log, do):
    Queue.objects.limit("default", 1)
    workflow = flow(kind, do).enqueue()
    for _ in names(kind):
        (run,) = take()
        assert take() == []
        done(run)
        advance()
    assert state(workflow) == "completed"


def test_a_fair_queue(kind, log, do, settings):
    """Later steps and callbacks take their turn by their own meta."""
    settings.OJS_UNIQUE = {"FAIR_QUEUES": {"default": ["meta.tenant"]}}
    for _ in range(5):
        Job.objects.enqueue("do", meta={"tenant": "big"})
    workflow = flow(kind, do, meta={"tenant": "small"}).enqueue()
    for _ in range(3):
        runs = take(2)
        if "small" in {run.meta["tenant"] for run in runs}:
            done(*runs)
            advance()
    assert state(workflow) == "completed"


def test_plain_and_async_handlers(kind, handlers):
    @job("plain")
    def plain() -> str:
        return "plain"

    @job("async")
    async def coroutine() -> str:
        return "async"

    steps = [plain.item(), coroutine.item()]
    made = {"chain": chain(*steps), "group": group(steps), "batch": batch(steps, on_success=plain.item())}
    workflow = made[kind].enqueue()
    Worker().run(drain=True)
    assert state(workflow) == "completed"


def test_cancel(kind, log, do):
    """A member that is cancelled alone has failed."""
    workflow = flow(kind, do).enqueue()
    Job.objects.earliest("created_at", "id").cancel()
    run_jobs()
    assert state(workflow) == "failed"
    assert log.names == ([] if kind == "chain" else ["b"])


def test_retry_by_hand(kind, log, do):
    """While a group or a batch runs, the new end of its job counts; a chain has failed at once."""
    workflow = flow(kind, do).enqueue()
    first = Job.objects.earliest("created_at", "id")
    first.cancel()
    advance()
    first.retry()
    run_jobs()
    assert state(workflow) == ("failed" if kind == "chain" else "completed")
    assert sorted(log.names) == (["a"] if kind == "chain" else names(kind))


def test_expires_at(kind, log, do):
    """A member that expired has failed; all of them share the moment that the definition says."""
    workflow = flow(kind, do, expires_at=timezone.now() + timedelta(minutes=1)).enqueue()
    with travel("PT2M"):
        run_jobs()
    assert (state(workflow), log.names) == ("failed", [])


def test_priority(kind, log, do):
    """The steps of a chain have that of the first; other members their own."""
    steps = [do("a", priority=5), do("b")]
    made = {"chain": chain(*steps), "group": group(steps), "batch": batch(steps, on_success=do("c"))}
    made[kind].enqueue()
    Job.objects.enqueue("do", {"name": "other"}, priority=1)
    run_jobs()
    assert log.names.index("b") == (1 if kind == "chain" else 2)


def test_a_second_database(kind, log, do):
    """All of its jobs are stored where it is."""
    workflow = flow(kind, do).enqueue(using="other")
    run_jobs(using="other")
    assert state(workflow) == "completed"
    assert Job.objects.using("other").count() == len(names(kind))
    assert not Job.objects.using("default").exists()


def test_a_drain(kind, log, do):
    """It ends what it begins, and does not wait for a member that is due later."""
    workflow = flow(kind, do).enqueue()
    waits = group([do("later", delay="PT1H")]).enqueue()
    assert Worker().run(drain=True).completed == len(names(kind))
    assert (state(workflow), state(waits)) == ("completed", "running")


@pytest.mark.parametrize("end", ["requeued", "killed"])
def test_a_stopping_or_killed_worker(kind, end, log, do):
    """The member is open until another worker has run it."""
    workflow = flow(kind, do).enqueue()
    runs = take(1)
    if end == "requeued":
        requeue(Job.objects.all(), runs)
    else:
        lose(runs[0].pk)
    advance()
    assert [member.outcome for member in workflow.members] == ["open", "open"]
    run_jobs()
    assert state(workflow) == "completed"
    assert sorted(log.names) == names(kind)


def test_pruning(kind, log, do):
    """A running workflow keeps the results of jobs that are gone; an ended one goes."""
    steps = [do("a"), do("b", delay="P200D")]
    made = {"chain": chain(*steps), "group": group(steps), "batch": batch(steps, on_success=do("c"))}
    workflow = made[kind].enqueue()
    run_jobs()
    with travel("P100D"):
        prune(Job.objects.all(), timezone.now())
        assert Job.objects.filter(state="completed").count() == 0
        assert state(workflow) == "running"
    with travel("P301D"):
        run_jobs()
        assert state(workflow) == "completed"
    if kind != "group":
        results = dict(log)["b" if kind == "chain" else "c"]
        assert results == (["a"] if kind == "chain" else ["a", "b"])
    with travel("P400D"):
        Workflow.objects.prune(timezone.now())
    assert not Workflow.objects.exists()


def test_run_jobs(kind, log, do):
    workflow = flow(kind, do).enqueue()
    assert len(run_jobs()) == len(names(kind))
    assert (state(workflow), log.names) == ("completed", names(kind))


@override_settings(OJS_UNIQUE={"EAGER": True})
def test_eager_mode(kind, log, do):
    workflow = flow(kind, do).enqueue()
    assert (state(workflow), log.names) == ("completed", names(kind))


def test_a_periodic_entry(kind, log, do):
    """Its job is a member only of the workflow that meets it as a duplicate."""
    unique: Any = {"keys": ["type"], "on_conflict": "ignore"}
    CronJob.objects.define("p", "@every PT10S", "do", {"name": "a"}, unique=unique)
    with travel("PT11S"):
        (occurrence,) = tick()
        workflow = flow(kind, do, unique=unique).enqueue()
        assert ids(take()) == [occurrence.pk]
        done(Job.objects.get(pk=occurrence.pk))
        run_jobs()
    assert state(workflow) == "completed"
