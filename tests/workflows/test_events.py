"""What is told of workflows: each thing once, in its order, with the change (OJS events, "Workflow Events")."""

from collections import Counter
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ojs_unique import DuplicateJob, batch, chain, group
from django_ojs_unique.execution.leases import Lease
from django_ojs_unique.models import Event, Job, Workflow
from django_ojs_unique.testing import run_jobs, run_one
from django_ojs_unique.worker import Worker, remote
from django_ojs_unique.worker.remote_worker import RemoteWorker, new_token
from django_ojs_unique.workflows.advance import advance_due
from tests.support.processes import together

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def on(settings):
    settings.OJS_UNIQUE = {"EVENTS": True}


def told(about=None):
    """Return the type and the data of each event of a workflow, or of all workflows, without what is in all."""
    events = [each.to_dict() for each in Event.objects.follow(limit=1000).events]
    return [
        (event["type"], event["data"])
        for event in events
        if event["type"].startswith("workflow.") and about in (None, event["subject"])
    ]


def of(workflow):
    """Return what each event of a workflow says of it."""
    root = {} if workflow.root_id is None else {"root_workflow_id": str(workflow.root_id)}
    return {
        "workflow_id": str(workflow.pk),
        "workflow_name": workflow.name,
        "workflow_type": workflow.type,
        **root,
    }


def without(data, *names):
    return {name: value for name, value in data.items() if name not in names}


def fetch(count=1):
    options = {"worker_id": "w", "token": new_token("1"), "lease": Lease(timedelta(minutes=1))}
    return remote.fetch(Job.objects.all(), {"default": None}, count=count, now=timezone.now(), **options)


def ack(job):
    return remote.ack(Job.objects.all(), job.pk, holder=RemoteWorker("1", worker_id="w"), now=timezone.now())


@pytest.mark.slow
def test_a_chain_is_told_from_start_to_end(log, do):
    workflow = chain(
        do("a"),
        do(
            "b",
        ),
        name="ab",
    ).enqueue()
    Worker().run(drain=True)
    workflow.refresh_from_db()
    ids = [str(member.job_id) for member in workflow.members]
    events = told()
    assert [type for type, _ in events] == [
        "workflow.created",
        "workflow.started",
        "workflow.step_completed",
        "workflow.step_completed",
        "workflow.completed",
    ]
    (_, created), (_, started), (_, first), (_, second), (_, completed) = events
    assert created == {**of(workflow), "total_steps": 2, "total_jobs": 2}
    assert started == {**of(workflow), "total_steps": 2}
    for at, step, left in ((0, first, 1), (1, second, 0)):
        assert step.pop("duration_ms") >= 0
        assert step == {
            **of(workflow), "step_id": str(at), "step_index": at, "step_type": "do", "job_id": ids[at],
            "steps_remaining": left, "remaining_steps": left,
        }  # fmt: skip
    took = round((workflow.finished_at - workflow.created_at) / timedelta(milliseconds=1))
    assert completed == {**of(workflow), "total_steps": 2, "duration_ms": took}
    stored = Event.objects.filter(type="workflow.step_completed").first()
    assert (stored.subject, stored.job_type) == (str(workflow.pk), "do")


@pytest.mark.slow
def test_the_order_is_the_jobs_event_the_members_and_then_the_next_job(log, do):
    chain(do("a"), do("b")).enqueue()
    for _ in range(2):
        ack(fetch()[0])
    assert [event.type for event in Event.objects.follow().events] == [
        "job.enqueued",
        "workflow.created",
        "job.started",
        "workflow.started",
        "job.completed",
        "workflow.step_completed",
        "job.enqueued",
        "job.started",
        "job.completed",
        "workflow.step_completed",
        "workflow.completed",
    ]


@pytest.mark.slow
def test_a_failed_step_is_told_with_its_error(log, do, fail):
    workflow = chain(do("a"), {**fail("b"), "name": "second"}, do("c")).enqueue()
    run_jobs()
    failed, ended = told()[-2:]
    error = {"code": "handler_error", "message": "b fails"}
    assert (failed[0], failed[1]["error"], failed[1]["step_id"]) == ("workflow.step_failed", error, "second")
    assert failed[1]["steps_remaining"] == 1
    assert ended[0] == "workflow.failed"
    assert without(ended[1], "duration_ms") == {
        **of(workflow), "failed_step_id": "second", "failed_step_type": "fail", "error": error,
    }  # fmt: skip


@pytest.mark.slow
def test_the_jobs_of_a_group_are_told_each_once(log, do, fail):
    workflow = group([do("a"), fail("b"), do("c")]).enqueue()
    run_jobs()
    events = told()
    types = [type for type, _ in events]
    ends = ["workflow.job_completed", "workflow.job_failed", "workflow.job_completed"]
    assert types == ["workflow.created", "workflow.started", *ends, "workflow.failed"]
    assert [data["step_index"] for type, data in events if type.startswith("workflow.job_")] == [0, 1, 2]
    assert events[-1][1]["failed_step_id"] == "1"
    assert told(about=str(workflow.pk)) == events


@pytest.mark.slow
def test_callbacks_are_told_when_they_are_enqueued(log, do, fail):
    workflow = batch([do("a")], on_success=fail("s"), on_complete=do("c"), on_failure=do("f")).enqueue()
    run_jobs()
    events = told()
    assert [type for type, _ in events[2:]] == [
        "workflow.job_completed",
        "workflow.callback_fired",
        "workflow.callback_fired",
        "workflow.failed",
    ]
    fired = [(data["callback"], data["job_id"]) for type, data in events if type == "workflow.callback_fired"]
    ids = {member.role: str(member.job_id) for member in workflow.callbacks}
    assert fired == [("on_complete", ids["on_complete"]), ("on_success", ids["on_success"])]
    failed = events[-1][1]
    assert (failed["failed_callback"], failed["failed_step_type"]) == ("on_success", "fail")
    assert "failed_step_id" not in failed


def test_a_callback_that_is_refused_is_not_told_as_enqueued(log, do):
    Job.objects.enqueue("do", {"name": "s"}, unique={}, queue="other")
    batch([do("a")], on_success=do("s", unique={})).enqueue()
    run_one(queues="default")
    advance_due("default")
    assert [type for type, _ in told()][2:] == ["workflow.job_completed", "workflow.failed"]
    assert told()[-1][1]["error"]["code"] == "duplicate"


def test_a_cancellation_is_told(log, do):
    workflow = chain(do("a"), do("b"), do("c")).enqueue()
    run_one()
    workflow.cancel()
    assert told()[-1] == ("workflow.cancelled", {**of(workflow), "steps_cancelled": 2})
    assert Counter(type for type, _ in told())["workflow.step_completed"] == 1


@pytest.mark.slow
def test_nested_workflows_are_told_with_their_root(log, do):
    root = chain(group([do("a"), do("b")], name="inner"), do("c")).enqueue()
    run_jobs()
    inner = Workflow.objects.get(root=root)
    assert [type for type, _ in told(about=str(inner.pk))] == [
        "workflow.created",
        "workflow.started",
        "workflow.job_completed",
        "workflow.job_completed",
        "workflow.completed",
    ]
    assert all(of(inner).items() <= data.items() for _, data in told(about=str(inner.pk)))
    types = [type for type, _ in told(about=str(root.pk))]
    assert types == [
        "workflow.created",
        "workflow.started",
        "workflow.step_completed",
        "workflow.step_completed",
        "workflow.completed",
    ]
    first = told(about=str(root.pk))[2][1]
    assert told()[:2] == [
        ("workflow.created", {**of(root), "total_steps": 2, "total_jobs": 2}),
        ("workflow.created", {**of(inner), "total_steps": 2, "total_jobs": 2}),
    ]
    assert (first["step_id"], first["step_type"]) == ("inner", "group")
    assert "job_id" not in first


@pytest.mark.slow
def test_a_nested_workflow_that_is_cancelled_before_its_turn_was_created(log, do):
    root = chain(do("a"), group([do("b")])).enqueue()
    inner = Workflow.objects.get(root=root)
    root.cancel()
    assert [type for type, _ in told(about=str(inner.pk))] == ["workflow.created", "workflow.cancelled"]


def test_a_fetch_tells_that_the_workflow_has_started(do):
    workflow = chain(group([do("a"), do("b")])).enqueue()
    inner = Workflow.objects.get(root=workflow)
    first, second = fetch(), fetch()
    assert Counter((type, data["workflow_id"]) for type, data in told() if type == "workflow.started") == {
        ("workflow.started", str(inner.pk)): 1,
        ("workflow.started", str(workflow.pk)): 1,
    }
    inner.refresh_from_db()
    workflow.refresh_from_db()
    assert inner.started_at == workflow.started_at == first[0].started_at
    ack(second[0])
    ack(first[0])
    assert Counter(type for type, _ in told())["workflow.started"] == 2


def test_a_start_that_nobody_told_is_told_before_the_first_end(do, settings):
    workflow = group([do("a"), do("b")]).enqueue()
    settings.OJS_UNIQUE = {"EVENTS": False}
    jobs = fetch(2)
    settings.OJS_UNIQUE = {"EVENTS": True}
    for job in jobs:
        ack(job)
    assert [type for type, _ in told()] == [
        "workflow.created",
        "workflow.started",
        "workflow.job_completed",
        "workflow.job_completed",
        "workflow.completed",
    ]
    workflow.refresh_from_db()
    assert workflow.started_at == jobs[0].started_at


def test_a_start_is_told_once_though_an_earlier_one_is_counted_later(do, settings):
    workflow = group([do("a"), do("b"), do("c")]).enqueue()
    settings.OJS_UNIQUE = {"EVENTS": False}
    (first,), (second,) = fetch(), fetch()
    settings.OJS_UNIQUE = {"EVENTS": True}
    for job in (second, first):
        ack(job)
    assert Counter(type for type, _ in told())["workflow.started"] == 1
    workflow.refresh_from_db()
    assert workflow.started_at == first.started_at


def test_a_workflow_whose_job_never_started_is_not_told_as_started(do):
    group([do("a")]).enqueue()
    Job.objects.get().cancel()
    advance_due("default")
    assert [type for type, _ in told()] == ["workflow.created", "workflow.job_failed", "workflow.failed"]


def test_a_refused_or_undone_workflow_leaves_no_event(do):
    Job.objects.enqueue("do", {"name": "b"}, unique={})
    before = Event.objects.count()
    with pytest.raises(DuplicateJob):
        group([do("a"), do("b", unique={})]).enqueue()
    with transaction.atomic():
        group([do("a")]).enqueue()
        transaction.set_rollback(True)
    assert told() == []
    assert Event.objects.filter(type="job.enqueued").count() == before


def test_the_start_of_an_ordinary_job_looks_for_no_workflow(log, do):
    Job.objects.enqueue("do")
    with CaptureQueriesContext(connection) as queries:
        run_one()
    told = [query["sql"] for query in queries if "ojs_unique_workflow" in query["sql"]]
    assert all("member" in sql for sql in told), told  # which jobs were deleted is asked for all


@pytest.mark.slow
def test_many_that_end_at_once_are_told_each_once(do):
    for _ in range(5):
        Event.objects.all().delete()
        group([do(str(number)) for number in range(4)]).enqueue()
        jobs = fetch(4)
        together([lambda number, job=job: ack(job) for job in jobs])
        advance_due("default")
        assert Counter(type for type, _ in told()) == {
            "workflow.created": 1,
            "workflow.started": 1,
            "workflow.job_completed": 4,
            "workflow.completed": 1,
        }
