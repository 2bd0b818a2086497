"""Unique jobs in workflows: a member stands for work, and who does the work does not matter."""

import pytest

from django_ojs_unique import DuplicateJob, batch, chain, group, job
from django_ojs_unique.exceptions import JobIdTaken
from django_ojs_unique.models import Job, Workflow, WorkflowMember
from django_ojs_unique.testing import run_jobs, run_one
from django_ojs_unique.workflows.results import parent_results, places_of
from tests.support.refusals import refused

pytestmark = pytest.mark.django_db

UNIQUE = {"keys": ["type", "args"]}
IGNORE = {**UNIQUE, "on_conflict": "ignore"}
REPLACE = {**UNIQUE, "on_conflict": "replace"}


def test_a_rejected_duplicate_refuses_the_whole_workflow(log, do):
    existing = Job.objects.enqueue(**do("b", unique=UNIQUE)).job
    flow = chain(group([do("a"), do("b", unique=UNIQUE)]), do("c"))
    with refused(DuplicateJob, "steps[0].jobs[1]") as caught:
        flow.enqueue()
    assert caught.value.existing_job_id == existing.pk
    assert Job.objects.count() == 1
    assert not Workflow.objects.exists()
    assert not WorkflowMember.objects.exists()


@pytest.mark.slow
def test_an_ignored_duplicate_stands_in_and_the_workflow_waits_for_it(log, do):
    existing = Job.objects.enqueue(**do("x", unique=IGNORE, delay=3600)).job
    workflow = batch([do("a"), do("x", unique=IGNORE)], on_success=do("s")).enqueue()
    run_jobs()
    assert log.names == ["a"]
    workflow.refresh_from_db()
    assert workflow.state == "running"
    existing.retry()
    run_jobs()
    assert log == [("a", []), ("x", []), ("s", ["a", "x"])]
    existing.refresh_from_db()
    assert existing.workflow_id is None
    assert existing.awaited is None


@pytest.mark.slow
def test_a_running_stand_in(log, do, take):
    @job("slow")
    def slow():
        return "done"

    Job.objects.enqueue("slow", unique=IGNORE)
    chain({"type": "slow", "unique": IGNORE}, do("next")).enqueue()
    assert Job.objects.count() == 1
    run_jobs()
    assert log == [("next", ["done"])]


@pytest.mark.slow
def test_a_stand_in_that_has_ended_counts_at_once(log, do):
    everything = {**IGNORE, "states": ["available", "active", "completed"]}
    Job.objects.enqueue(**do("x", unique=everything))
    run_jobs()
    chain(do("x", unique=everything), do("next")).enqueue()
    run_jobs()
    assert log == [("x", []), ("next", ["x"])]


@pytest.mark.slow
def test_one_job_stands_in_for_members_of_several_workflows(log, do):
    workflows = [chain(do("x", unique=IGNORE), do(name)).enqueue() for name in "abc"]
    assert Job.objects.count() == 1
    run_jobs()
    assert log.names == ["x", "a", "b", "c"]
    for workflow in workflows:
        workflow.refresh_from_db()
        assert workflow.state == "completed"
    assert not Job.objects.filter(awaited=True).exists()


@pytest.mark.slow
@pytest.mark.parametrize("unique", [IGNORE, REPLACE], ids=["ignore", "replace"])
def test_duplicates_inside_one_workflow_share_a_job(log, do, unique):
    workflow = group([do("x", unique=unique), do("x", unique=unique)]).enqueue()
    run_jobs()
    assert log.names == ["x"]
    workflow.refresh_from_db()
    assert (workflow.state, workflow.result) == ("completed", ["x", "x"])
    assert len(set(workflow.members.values_list("job_id", flat=True))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("many", [False, True], ids=["enqueue", "enqueue_many"])
def test_a_job_that_replaces_a_members_takes_its_place(log, do, many):
    workflow = chain(do("first"), do("x", unique=REPLACE), do("next")).enqueue()
    run_one()
    run_one(types=[])
    for _ in range(2):  # several in a row
        if many:
            Job.objects.enqueue_many([do("x", unique=REPLACE)])
        else:
            Job.objects.enqueue(**do("x", unique=REPLACE))
    run_jobs()
    assert log == [("first", []), ("x", ["first"]), ("next", ["first", "x"])]
    workflow.refresh_from_db()
    assert workflow.state == "completed"


@pytest.mark.slow
def test_a_job_that_replaces_a_members_has_its_results_before_the_next_advance(log, do):
    chain(do("first"), do("x", unique=REPLACE)).enqueue()
    run_one()
    run_one(types=[])
    for _ in range(2):
        Job.objects.enqueue(**do("x", unique=REPLACE))
    (job,) = Job.objects.filter(finished_at=None)
    assert parent_results(job) == ["first"]


@pytest.mark.slow
def test_a_later_step_that_is_rejected_fails(log, do):
    existing = Job.objects.enqueue(**do("x", unique=UNIQUE, delay=3600)).job
    workflow = chain(do("a"), do("x", unique=UNIQUE), do("c")).enqueue()
    run_jobs()
    workflow.refresh_from_db()
    assert workflow.state == "failed"
    error = workflow.members.get(position=1).error
    assert (error["code"], error["job_id"]) == ("duplicate", str(existing.pk))
    assert log.names == ["a"]


@pytest.mark.slow
def test_a_later_step_that_cannot_be_enqueued_at_all_fails(log, do, settings, handlers):
    workflow = chain(do("a"), do("b")).enqueue()
    run_one()
    workflow.members.filter(position=1).update(request={"type": "do", "args": {}, "queue": "NOT A QUEUE"})
    run_jobs()
    workflow.refresh_from_db()
    assert workflow.state == "failed"
    assert workflow.members.get(position=1).error["code"] == "invalid_request"


@pytest.mark.slow
def test_a_job_that_is_rewritten_by_its_key_is_still_the_member(log, do):
    workflow = chain(do("a"), do("x", key="k"), do("next")).enqueue()
    run_one()
    run_one(types=[])
    Job.objects.enqueue(**do("y", key="k"))
    run_jobs()
    assert log.names == ["a", "y", "next"]
    workflow.refresh_from_db()
    assert workflow.state == "completed"


@pytest.mark.slow
def test_a_step_that_rewrites_a_job_by_its_key_gets_its_results(log, do):
    Job.objects.enqueue(**do("old", key="k", delay=3600))
    chain(do("a"), do("b", key="k"), do("next")).enqueue()
    run_jobs()
    assert log == [("a", []), ("b", ["a"]), ("next", ["a", "b"])]


def test_an_id_makes_the_creation_idempotent(log, do):
    id = "01a2132c-1337-77c1-b75b-43c0880a8d72"
    chain(do("a")).enqueue(id=id)
    with refused(JobIdTaken, "id", workflow_id=id):
        chain(do("a")).enqueue(id=id)
    assert Job.objects.count() == 1


@pytest.mark.slow
def test_the_place_of_a_stand_in_is_where_it_was_enqueued(log, do):
    chain(do("x"), do("a", unique=IGNORE)).enqueue()
    second = group([do("a", unique=IGNORE)]).enqueue()
    run_one()
    run_one(types=[])
    shared = Job.objects.get(args__name="a")
    assert WorkflowMember.objects.filter(job_id=shared.pk).count() == 2
    assert places_of(list(Job.objects.all()))[shared.pk].workflow_id == second.pk
