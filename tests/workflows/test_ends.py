"""However a job ends, its workflow counts the end once."""

from datetime import timedelta

import pytest
from django.db.models import RestrictedError
from django.utils import timezone

from django_ojs_unique import batch, chain, group, job
from django_ojs_unique.handlers.registry import registry
from django_ojs_unique.lifecycle import write
from django_ojs_unique.maintenance.prune import prune
from django_ojs_unique.models import Job, Workflow, WorkflowMember
from django_ojs_unique.ojs.states import MOVES, TERMINAL
from django_ojs_unique.signals import workflow_member_ended
from django_ojs_unique.testing import run_jobs, travel
from django_ojs_unique.workflows.advance import BATCH, advance_due
from tests.support.workflows import advance

pytestmark = pytest.mark.django_db

IGNORE = {"keys": ["type", "args"], "on_conflict": "ignore"}


def by_method(jobs):
    jobs.get().cancel()


def by_bulk(jobs):
    jobs.cancel()


def by_update(jobs):
    write(jobs, state="discarded", finished_at=timezone.now())


def by_deletion(jobs):
    jobs.get().remove()


def by_expiry(jobs):
    write(jobs, expires_at=timezone.now() - timedelta(seconds=1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "code"),
    [
        (by_method, "cancelled"),
        (by_bulk, "cancelled"),
        (by_expiry, "expired"),
        (by_deletion, "deleted"),
        (by_update, "expired"),
    ],
)
def test_an_end_that_is_no_completion_fails_the_member(log, do, end, code):
    workflow = batch([do("a"), do("b")], on_failure=do("f")).enqueue()
    end(Job.objects.filter(pk=workflow.members.get(position=1).job_id))
    run_jobs()
    assert log.names == ["a", "f"]
    member = workflow.members.get(position=1)
    assert (member.outcome, member.error["code"]) == ("failed", code)
    workflow.refresh_from_db()
    assert workflow.state == "completed"


@pytest.mark.slow
def test_a_lost_lease_after_the_last_attempt(log, do, take):
    workflow = chain({"type": "t", "retry": {"max_attempts": 1}}, do("b")).enqueue()
    take()
    write(Job.objects.all(), lease_expires_at=timezone.now() - timedelta(hours=1))
    run_jobs()
    workflow.refresh_from_db()
    assert workflow.state == "failed"
    assert workflow.members.get(position=0).error["code"] == "visibility_timeout"


def test_every_move_into_a_final_state_is_known_here():
    """A new one needs a test above; `advance` reads the row, so that it needs no other code."""
    assert {source for source, targets in MOVES.items() if targets & TERMINAL} == {
        "scheduled", "pending", "available", "active", "retryable",
    }  # fmt: skip


@pytest.mark.slow
def test_advancing_again_changes_nothing(log, do):
    workflow = group([do("a"), do("b")]).enqueue()
    run_jobs()
    before = list(workflow.all_members.values())
    write(Job.objects.all(), awaited=True)
    assert advance_due("default") == (0, False)
    assert list(workflow.all_members.values()) == before
    assert not Job.objects.filter(awaited=True).exists()


@pytest.mark.slow
def test_more_ends_than_one_look_finds(log):
    Job.objects.enqueue_many([{"type": "do"}] * (BATCH + 1))
    write(Job.objects.all(), state="completed", finished_at=timezone.now(), awaited=True)
    assert advance_due("default") == (0, True)
    assert Job.objects.filter(awaited=True).count() == 1
    assert advance_due("default") == (0, False)


def hint(type):
    """Let a type do what ``do`` does."""
    registry.unregister(type)
    job(type, takes_context=True)(registry.get("do").function)


@pytest.mark.slow
def test_a_retried_job_of_a_running_group_counts_anew(log, do, fail):
    workflow = batch([fail("b"), do("a", delay=60)], on_success=do("s"), on_failure=do("f")).enqueue()
    run_jobs()
    member = workflow.members.get(position=0)
    assert member.outcome == "failed"
    Job.objects.get(pk=member.job_id).retry()
    hint("fail")
    with travel(timedelta(seconds=61)):
        run_jobs()
    assert log.names == ["b", "b", "a", "s"]
    workflow.refresh_from_db()
    assert (workflow.state, workflow.result) == ("completed", ["b", "a"])


@pytest.mark.slow
def test_a_retried_job_that_still_runs_keeps_the_group_open(log, do, fail, take):
    workflow = group([fail("b"), do("a", delay=60)]).enqueue()
    run_jobs()
    Job.objects.get(pk=workflow.members.get(position=0).job_id).retry()
    take(types=("fail",))
    with travel(timedelta(seconds=10)):
        Job.objects.get(pk=workflow.members.get(position=1).job_id).retry()
        run_jobs(types="do")
    workflow.refresh_from_db()
    assert workflow.state == "running"
    assert workflow.counts()["open"] == 1


@pytest.mark.slow
def test_a_retried_job_of_an_ended_workflow_is_an_ordinary_job(log, do, fail):
    workflow = chain(fail("b"), do("c")).enqueue()
    run_jobs()
    job = Job.objects.get()
    job.retry()
    run_jobs()
    workflow.refresh_from_db()
    assert workflow.state == "failed"
    assert log.names == ["b", "b"]
    job.refresh_from_db()
    assert job.awaited is None


@pytest.mark.slow
def test_results_outlive_the_jobs_of_a_running_workflow(log, do):
    chain(do("a"), do("b", delay="P30D"), do("c")).enqueue()
    run_jobs()
    with travel(timedelta(days=20)):
        prune(Job.objects.all(), timezone.now())
        assert Job.objects.filter(args__name="a").count() == 0
    with travel(timedelta(days=31)):
        run_jobs()
    assert log == [("a", []), ("b", ["a"]), ("c", ["a", "b"])]


def test_an_end_that_is_not_counted_yet_is_not_pruned(log, do):
    group([do("a")]).enqueue()
    write(Job.objects.all(), state="completed", finished_at=timezone.now() - timedelta(days=365))
    prune(Job.objects.all(), timezone.now())
    assert Job.objects.count() == 1


@pytest.mark.slow
def test_ended_workflows_are_pruned_with_their_members(log, do):
    old = chain(do("a"), group([do("b")])).enqueue()
    run_jobs()
    new = chain(do("c", delay=60)).enqueue()
    with travel(timedelta(days=29)):
        assert Workflow.objects.prune(timezone.now()) == 0
    with travel(timedelta(days=31)):
        assert Workflow.objects.prune(timezone.now()) == 1
    assert list(Workflow.objects.all()) == [new]
    assert old.all_members.count() == 0


@pytest.mark.slow
def test_a_shared_job_ends_once_in_each_workflow(log, do, fail):
    """Also if one of them counts the end long before the other."""
    first = group([fail("x", unique=IGNORE), do("a", delay=60), group([do("b", delay=60)])]).enqueue()
    second = group([fail("x", unique=IGNORE), do("c", delay=60)]).enqueue()
    Job.objects.get(type="fail").cancel()
    ended = []

    def hear(workflow, member, **_):
        ended.append((workflow.pk, member.position))

    workflow_member_ended.connect(hear)
    Workflow.objects.get(root=first).cancel()
    advance()
    assert [workflow for workflow, position in ended if position == 0 and workflow in (first.pk, second.pk)] == [
        first.pk,
        second.pk,
    ]


@pytest.mark.slow
def test_a_retried_job_that_another_workflow_waits_for_too_counts_anew(log, do, fail):
    flow = group([fail("x", unique=IGNORE), do("a", delay=60)])
    flow.enqueue(id="ffffffff-0000-7000-8000-000000000000")
    run_jobs()
    Job.objects.get(type="fail").retry()
    flow.enqueue(id="00000000-0000-7000-8000-000000000000")
    hint("fail")
    run_jobs()
    outcomes = WorkflowMember.objects.filter(position=0).values_list("outcome", flat=True)
    assert list(outcomes) == ["completed", "completed"]
    assert not Job.objects.filter(awaited=True, finished_at__isnull=False).exists()


def test_a_workflow_that_cannot_be_advanced_does_not_stop_the_others(log, do):
    """Such as one whose next job was stored by a newer version of this package."""
    for name in "ab":
        chain(do(name), do(name)).enqueue()
    first = Workflow.objects.earliest("id")
    first.members.filter(position=1).update(request={"type": "do", "args": {}, "of_another_version": 1})
    write(Job.objects.all(), state="completed", finished_at=timezone.now())
    with pytest.raises(TypeError, match="of_another_version"):
        advance_due("default")
    assert Job.objects.filter(args__name="b").count() == 2


@pytest.mark.slow
def test_a_nested_workflow_is_not_deleted_alone(log, do):
    """The outer one would wait for ever for a member that is gone."""
    workflow = group([do("a"), group([do("b")])]).enqueue()
    with pytest.raises(RestrictedError):
        Workflow.objects.get(root=workflow).delete()
    workflow.delete()
    assert not WorkflowMember.objects.exists()
    run_jobs()
    assert not Job.objects.filter(awaited=True).exists()


@pytest.mark.slow
def test_a_step_that_has_expired_before_its_turn_fails(log, do):
    workflow = chain(do("a"), do("b", expires_at=timezone.now() + timedelta(minutes=1)), do("c")).enqueue()
    with travel(timedelta(minutes=2)):
        run_jobs()
    workflow.refresh_from_db()
    assert workflow.state == "failed"
    assert workflow.members.get(position=1).error["code"] == "expired"
