"""Chains, groups and batches: what runs when, and what becomes of the workflow (OJS workflows)."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_ojs_unique import Retry, batch, chain, group, job
from django_ojs_unique.models import Job, Workflow
from django_ojs_unique.testing import run_jobs, run_one, travel
from django_ojs_unique.workflows.results import parent_results

pytestmark = pytest.mark.django_db


def states(workflow):
    workflow.refresh_from_db()
    return workflow.state, [member.outcome for member in workflow.all_members.order_by("role", "position")]


DISCARD = "django_ojs_unique.handlers.control.Discard"


def failed_as(code, job_id):
    return {"error": {"job_id": str(job_id), "code": code, "type": DISCARD, "message": "b fails", "attempt": 1}}


@pytest.mark.slow
def test_a_chain_enqueues_each_step_when_the_one_before_has_completed(log, do):
    workflow = chain(do("a"), do("b"), do("c"), name="abc").enqueue()
    assert (workflow.type, workflow.name, workflow.state) == ("chain", "abc", "running")
    assert Job.objects.count() == 1
    run_jobs()
    assert log == [("a", []), ("b", ["a"]), ("c", ["a", "b"])]
    assert states(workflow) == ("completed", ["completed"] * 3)
    assert workflow.finished_at is not None
    assert workflow.started_at is not None
    assert workflow.result == "c"
    assert workflow.progress == 1.0


@pytest.mark.slow
def test_a_chain_of_one_step(log, do):
    workflow = chain(do("a")).enqueue()
    run_jobs()
    assert states(workflow) == ("completed", ["completed"])


@pytest.mark.slow
def test_a_failed_step_ends_the_chain(log, do, fail):
    workflow = chain(do("a"), fail("b"), do("c"), group([do("d")])).enqueue()
    run_jobs()
    assert log.names == ["a", "b"]
    assert states(workflow) == ("failed", ["completed", "failed", "cancelled", "cancelled"])
    assert workflow.all_members.get(position=1).error["message"] == "b fails"
    assert Workflow.objects.get(root=workflow).state == "cancelled"
    assert workflow.counts() == {"total": 4, "open": 0, "completed": 1, "failed": 1, "cancelled": 2, "skipped": 0}


@pytest.mark.slow
def test_a_retry_is_no_failure(log, do, handlers):
    attempts = []

    @job("flaky")
    def flaky():
        attempts.append(1)
        if len(attempts) == 1:
            raise Retry(after=60)

    workflow = chain({"type": "flaky"}, do("b")).enqueue()
    run_jobs()
    assert states(workflow)[0] == "running"
    with travel(timedelta(seconds=61)):
        run_jobs()
    assert states(workflow) == ("completed", ["completed"] * 2)
    assert log == [("b", [None])]


@pytest.mark.slow
def test_a_group_enqueues_all_jobs_at_once_in_order(log, do):
    workflow = group([do(name) for name in "abc"]).enqueue()
    jobs = Job.objects.order_by("enqueued_at", "id")
    assert [job.args["name"] for job in jobs] == ["a", "b", "c"]
    run_jobs()
    assert log.names == ["a", "b", "c"]
    assert states(workflow) == ("completed", ["completed"] * 3)
    assert workflow.result == ["a", "b", "c"]


@pytest.mark.slow
def test_a_group_fails_when_all_have_ended_and_one_has_failed(log, do, fail):
    workflow = group([do("a"), fail("b"), do("c")]).enqueue()
    run_jobs(limit=10)
    assert log.names == ["a", "b", "c"]
    assert states(workflow) == ("failed", ["completed", "failed", "completed"])


@pytest.mark.slow
@pytest.mark.parametrize("is_failed", [False, True])
def test_a_batch_enqueues_the_callbacks_that_fit(log, do, fail, is_failed):
    second = fail("b") if is_failed else do("b")
    workflow = batch(
        [do("a"), second], on_success=do("s"), on_failure=do("f"), on_complete=do("c"), name="all"
    ).enqueue()
    run_jobs()
    job_id = workflow.members.get(position=1).job_id
    results = ["a", failed_as("handler_error", job_id) if is_failed else "b"]
    assert log[2:] == [("c", results), ("f" if is_failed else "s", results)]
    skipped = {member.role for member in workflow.callbacks if member.outcome == "skipped"}
    assert skipped == {"on_success" if is_failed else "on_failure"}
    assert states(workflow)[0] == "completed"


@pytest.mark.slow
def test_no_callback_comes_before_the_end_of_the_last_job(log, do, fail):
    workflow = batch([fail("b"), do("a")], on_failure=do("f")).enqueue()
    run_one()
    assert Job.objects.count() == 2
    run_jobs()
    assert log.names == ["b", "a", "f"]
    assert states(workflow)[0] == "completed"


@pytest.mark.slow
def test_a_failed_batch_without_a_callback_for_it_has_failed(log, do, fail):
    workflow = batch([fail("b")], on_success=do("s")).enqueue()
    run_jobs()
    assert log.names == ["b"]
    assert states(workflow) == ("failed", ["failed", "skipped"])


@pytest.mark.slow
def test_a_failed_callback_fails_the_batch(log, do, fail):
    workflow = batch([do("a")], on_success=fail("s")).enqueue()
    run_jobs()
    assert states(workflow) == ("failed", ["completed", "failed"])


@pytest.mark.slow
@pytest.mark.parametrize("value", [None, False, 0, "", [], {"a": [1]}])
def test_each_result_arrives_as_it_was_returned(log, handlers, value):
    @job("returns")
    def returns():
        return value

    chain({"type": "returns"}, {"type": "do", "args": {"name": "next"}}).enqueue()
    run_jobs()
    assert log == [("next", [value])]


@pytest.mark.slow
def test_nested_workflows(log, do, fail):
    workflow = chain(
        do("a"),
        group([do("b"), chain(do("c"), do("d"), name="inner"), batch([do("e")], on_success=do("f"))]),
        do("g"),
        name="outer",
    ).enqueue()
    run_jobs()
    assert dict(log) == {
        "a": [], "b": ["a"], "c": ["a"], "d": ["c"], "e": ["a"], "f": ["e"], "g": ["a", ["b", "d", ["e"]]],
    }  # fmt: skip
    assert states(workflow) == ("completed", ["completed"] * 3)
    assert set(Workflow.objects.values_list("state", flat=True)) == {"completed"}
    assert Workflow.objects.roots().count() == 1


@pytest.mark.slow
def test_a_nested_failure_ends_the_chain_around_it(log, do, fail):
    workflow = chain(group([do("a"), fail("b")]), do("c")).enqueue()
    run_jobs()
    assert log.names == ["a", "b"]
    assert states(workflow) == ("failed", ["failed", "cancelled"])


@pytest.mark.slow
def test_a_handled_failure_lets_the_chain_go_on(log, do, fail):
    workflow = chain(batch([fail("b")], on_failure=do("f")), do("c")).enqueue()
    run_jobs()
    assert log.names == ["b", "f", "c"]
    assert states(workflow)[0] == "completed"


@pytest.mark.slow
def test_a_member_keeps_all_options_of_its_enqueue(log, do):
    later = do(
        "b",
        queue="mail",
        priority=7,
        tags=["x"],
        meta={"tenant": 1},
        delay="PT5M",
        unique={"keys": ["type", "args"], "on_conflict": "ignore"},
        retry={"max_attempts": 9},
        timeout=30,
    )
    chain(do("a"), later).enqueue()
    run_jobs()
    job = Job.objects.get(queue="mail")
    assert (job.priority, job.tags, job.meta, job.state) == (7, ["x"], {"tenant": 1}, "scheduled")
    assert (job.max_attempts, job.timeout_ms, job.unique["on_conflict"]) == (9, 30_000, "ignore")
    assert job.run_at == job.created_at + timedelta(minutes=5)


def test_options_of_the_workflow_are_defaults(log, do):
    definition = {"type": "group", "jobs": [do("a"), do("b", queue="own")], "options": {"queue": "shared"}}
    Workflow.objects.enqueue(definition)
    assert set(Job.objects.values_list("queue", flat=True)) == {"shared", "own"}


@pytest.mark.slow
def test_the_results_of_many_nested_workflows_take_few_queries(log, do):
    nested = [group([do("a"), chain(do("b"), do("c"))]) for _ in range(10)]
    workflow = chain(group(nested), do("end")).enqueue()
    run_jobs()
    assert log[-1] == ("end", [[["a", "c"]] * 10])
    job = Job.objects.get(args__name="end")
    with CaptureQueriesContext(connection) as queries:
        assert parent_results(job) == [[["a", "c"]] * 10]
    assert len(queries) < 10
    with CaptureQueriesContext(connection) as queries:
        assert workflow.members.get(position=0).child.result == [["a", "c"]] * 10
    assert len(queries) < 10


@pytest.mark.slow
def test_the_priority_of_the_first_step_holds_for_a_chain(log, do):
    inner = chain(do("c", priority=3), do("d"))
    flow = chain(do("a", priority=7), group([do("b", priority=-1), inner, do("e")]), do("f"))
    flow.enqueue()
    chain(do("g"), do("h")).enqueue()
    run_jobs()
    found = {job.args["name"]: job.priority for job in Job.objects.all()}
    assert found == {"a": 7, "b": -1, "c": 3, "d": 3, "e": 7, "f": 7, "g": 0, "h": 0}


def test_a_nested_group_that_failed_gives_the_results_that_it_has(log, do, fail):
    flow = [group([do("a"), fail("x")]), chain(do("b"), fail("y")), chain(do("c"), group([do("d"), fail("z")]))]
    batch(flow, on_failure=do("f")).enqueue()
    run_jobs()
    (side, step, last) = dict(log)["f"]
    assert (side[0], side[1]["error"]["message"]) == ("a", "x fails")
    assert [one["error"]["code"] for one in (step, last)] == ["workflow_failed"] * 2
