"""What a periodic entry means beside other features: the second table of docs/unique-and-features.md."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_ojs_unique import InvalidRequest, batch, chain, job
from django_ojs_unique.execution.leases import requeue
from django_ojs_unique.maintenance import cron
from django_ojs_unique.maintenance.prune import prune
from django_ojs_unique.models import CronJob, Job, Queue, Workflow
from django_ojs_unique.testing import run_jobs, tick, travel
from django_ojs_unique.worker import Worker
from tests.support.limits import done, fail, ids, lose, take

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


@pytest.fixture
def ran(handlers: Any) -> list[Any]:
    """Declare ``t``; return the args that it gets."""
    ran: list[Any] = []
    job("t")(lambda n: ran.append(n))
    return ran


def define(name: str = "p", n: int = 1, **options: Any) -> CronJob:
    return CronJob.objects.define(name, "@every PT10S", "t", {"n": n}, **options)


def outcome() -> str:
    return str(CronJob.objects.get(name="p").last_outcome)


def test_several_queues():
    """Each entry names its queue; the worker that ticks may take other ones."""
    define("p", queue="a")
    define("q", queue="b")
    with travel("PT11S"):
        assert sorted(row.queue for row in tick()) == ["a", "b"]
        assert [run.queue for run in take(queues=["b"])] == ["b"]


@pytest.mark.parametrize(("overlap", "jobs"), [("skip", 1), ("enqueue", 1), ("cancel_previous", 1), ("allow", 3)])
def test_a_paused_queue(overlap, jobs):
    """Occurrences go on; one job waits, unless the entry allows more."""
    Queue.objects.pause("default")
    define(overlap_policy=overlap)
    for seconds in (11, 21, 31):
        with travel(f"PT{seconds}S"):
            tick()
            assert take() == []
    Queue.objects.resume("default")
    with travel("PT32S"):
        assert len(take()) == jobs


def test_a_queue_with_a_limit_of_its_own():
    """The job waits as others do, so the default policy skips the next occurrence."""
    Queue.objects.limit("default", 1)
    Job.objects.enqueue("t")
    (runs,) = take()
    define()
    with travel("PT11S"):
        (waits,) = tick()
        assert take() == []
    with travel("PT21S"):
        assert tick() == []
        assert outcome() == "skipped"
        done(runs)
        assert ids(take()) == [waits.pk]


def test_a_fair_queue(settings):
    """The meta of the entry decides whose turn it is."""
    settings.OJS_UNIQUE = {"FAIR_QUEUES": {"default": ["meta.tenant"]}}
    for _ in range(5):
        Job.objects.enqueue("t", {"n": 0}, meta={"tenant": "big"})
    define(meta={"tenant": "small"})
    with travel("PT11S"):
        tick()
        assert {run.meta["tenant"] for run in take(2)} == {"big", "small"}


def test_plain_and_async_handlers(handlers):
    ran = []

    @job("plain", cron="@every PT1H")
    def plain() -> None:
        ran.append("plain")

    @job("async", cron="@every PT1H")
    async def coroutine() -> None:
        ran.append("async")

    tick()
    with travel("PT61M"):  # the next occurrence is far away, however long the drain takes
        Worker().run(drain=True)
    assert sorted(ran) == ["async", "plain"]


def test_cancel():
    """It ends one occurrence; the entry goes on."""
    define()
    with travel("PT11S"):
        tick()[0].cancel()
    with travel("PT21S"):
        assert len(tick()) == 1


def test_retry_by_hand():
    """A retried job is unfinished again; after a newer one, it is an ordinary job."""
    define(retry={"max_attempts": 1})
    with travel("PT11S"):
        (first,) = tick()
        fail(*take())
        Job.objects.get(pk=first.pk).retry()
    with travel("PT21S"):
        assert tick() == []
        fail(*take())
    with travel("PT31S"):
        (second,) = tick()
        done(*take())
        Job.objects.get(pk=first.pk).retry()
    with travel("PT41S"):
        assert len(tick()) == 1
        assert Job.objects.get(pk=second.pk).state == "completed"


def test_expires_at():
    """An entry has none: it would be the same moment for all occurrences."""
    with pytest.raises(InvalidRequest, match="expires_at"):
        define(expires_at=timezone.now())


def test_priority():
    define(priority=5)
    Job.objects.enqueue("t")
    with travel("PT11S"):
        (urgent,) = tick()
        assert ids(take(1)) == [urgent.pk]


def test_a_second_database():
    """An entry enqueues where it is stored."""
    CronJob.objects.using("other").define("p", "@every PT10S", "t", {"n": 1})
    with travel("PT11S"):
        cron.tick("default", timezone.now())
        assert not Job.objects.using("default").exists()
        cron.tick("other", timezone.now())
    assert Job.objects.using("other").count() == 1
    assert not Job.objects.using("default").exists()


def test_a_drain(ran):
    """It enqueues what is due once, runs it, and does not wait for the next occurrence."""
    CronJob.objects.define("p", "@every PT1H", "t", {"n": 1})
    with travel("PT61M"):
        assert Worker().run(drain=True).completed == 1
        assert Worker().run(drain=True).completed == 0
    assert ran == [1]


@pytest.mark.parametrize("end", ["requeued", "killed"])
def test_a_stopping_or_killed_worker(end):
    """The job of the occurrence is unfinished until another worker has run it."""
    define()
    with travel("PT11S"):
        (fired,) = tick()
        runs = take()
        if end == "requeued":
            requeue(Job.objects.all(), runs)
        else:
            lose(fired.pk)
    with travel("PT21S"):
        assert tick() == []
        runs = take()
        assert ids(runs) == [fired.pk]
        done(*runs)
    with travel("PT31S"):
        assert len(tick()) == 1


def test_pruning():
    """An entry stays, also when its last job is gone; the same occurrence does not come back."""
    define()
    with travel("PT11S"):
        tick()
        done(*take())
        prune(Job.objects.all(), timezone.now() + timedelta(days=400))
        assert not Job.objects.exists()
        assert tick() == []
    with travel("PT21S"):
        assert len(tick()) == 1


def test_run_jobs(ran):
    """It enqueues nothing: `tick` does."""
    define()
    with travel("PT11S"):
        assert run_jobs() == []
        tick()
        assert len(run_jobs()) == 1


@pytest.mark.parametrize("flow", ["chain", "batch"])
def test_a_workflow(handlers, flow):
    """A handler starts it; its end is not the end of the entry's job, so the next occurrence starts another one."""
    job("step")(lambda: None)

    @job("begin")
    def begin() -> None:
        steps = [{"type": "step", "queue": "later"}] * 2
        (chain(*steps) if flow == "chain" else batch(steps, on_success=steps[0])).enqueue()

    CronJob.objects.define("p", "@every PT10S", "begin")
    for seconds in (11, 21):
        with travel(f"PT{seconds}S"):
            tick()
            run_jobs(queues="default")
            assert outcome() == "created"
    assert Workflow.objects.running().count() == 2
    with travel("PT22S"):
        run_jobs()
    assert {workflow.state for workflow in Workflow.objects.all()} == {"completed"}
