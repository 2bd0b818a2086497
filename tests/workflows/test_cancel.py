"""Cancel a workflow: what waits is cancelled, what runs ends by itself, and no callback comes."""

import pytest
from django.db import OperationalError, connection, transaction
from django.utils import timezone

from django_ojs_unique import batch, chain, group, lifecycle
from django_ojs_unique.exceptions import InvalidTransition
from django_ojs_unique.models import Job, Workflow, WorkflowMember
from django_ojs_unique.testing import run_jobs, run_one
from django_ojs_unique.workflows.advance import advance_due
from django_ojs_unique.workflows.cancel import Cancelled
from tests.support.refusals import refused
from tests.support.workflows import audit

pytestmark = pytest.mark.django_db

F = {"type": "do", "args": {"name": "handled"}}
IGNORE = {"keys": ["type", "args"], "on_conflict": "ignore"}


@pytest.mark.slow
def test_what_waits_is_cancelled_and_no_callback_comes(log, do):
    workflow = batch([do("a"), do("b"), do("c", delay=60)], on_complete=do("f")).enqueue()
    run_one()
    assert workflow.cancel() == Cancelled(jobs=2, running=0)
    assert (workflow.state, workflow.finished_at is not None) == ("cancelled", True)
    run_jobs()
    assert log.names == ["a"]
    outcomes = [member.outcome for member in workflow.all_members.order_by("role", "position")]
    assert outcomes == ["completed", "cancelled", "cancelled", "cancelled"]
    assert not Job.objects.filter(awaited=True).exists()


def test_a_waiting_step_is_never_enqueued(log, do):
    workflow = chain(do("a"), group([do("b")])).enqueue()
    workflow.cancel()
    run_jobs()
    assert log == []
    assert set(Workflow.objects.values_list("state", flat=True)) == {"cancelled"}


@pytest.mark.slow
@pytest.mark.parametrize("active", [False, True])
def test_a_running_job_ends_by_itself_or_is_cancelled_too(log, do, fail, take, active):
    workflow = group([do("a", retry={"max_attempts": 5}), do("b")]).enqueue()
    take(limit=1, types=("do",))
    done = workflow.cancel(active=active)
    assert done == Cancelled(jobs=2 if active else 1, running=0 if active else 1)
    job = Job.objects.get(args__name="a")
    assert job.state == ("cancelled" if active else "active")
    assert job.most_attempts == (5 if active else 1)
    if not active:
        lifecycle.complete(Job.objects.filter(pk=job.pk), timezone.now(), token=job.lease_token, result="late")
        run_jobs()
        member = workflow.members.get(position=0)
        assert (member.outcome, member.result) == ("completed", "late")
    workflow.refresh_from_db()
    assert workflow.state == "cancelled"
    assert not Job.objects.filter(awaited=True).exists()


@pytest.mark.slow
def test_an_ended_workflow_cannot_be_cancelled(log, do):
    workflow = chain(do("a")).enqueue()
    run_jobs()
    with refused(InvalidTransition, current_state="completed", expected_state="running"):
        workflow.cancel()
    with pytest.raises(InvalidTransition):
        workflow.cancel()
    deleted = chain(do("b")).enqueue()
    Workflow.objects.filter(pk=deleted.pk).delete()
    with refused(InvalidTransition, names="exist"):
        deleted.cancel()


@pytest.mark.slow
def test_an_end_before_the_cancellation_counts(log, do):
    workflow = chain(do("a")).enqueue()
    run_one()
    with pytest.raises(InvalidTransition):
        workflow.cancel()
    run_jobs()
    workflow.refresh_from_db()
    assert workflow.state == "completed"


@pytest.mark.slow
def test_a_nested_workflow_that_is_cancelled_has_failed_for_the_outer_one(log, do):
    workflow = batch([group([do("a"), do("b")]), do("c")], on_failure=do("f")).enqueue()
    inner = Workflow.objects.get(root=workflow)
    assert inner.cancel() == Cancelled(jobs=2, running=0)
    run_jobs()
    assert log.names == ["c", "f"]
    workflow.refresh_from_db()
    assert workflow.state == "completed"
    assert workflow.members.get(position=0).outcome == "failed"


@pytest.mark.slow
def test_jobs_of_others_go_on(log, do):
    """A stand-in that it has not enqueued, and its own job while another workflow waits for it."""
    Job.objects.enqueue(**do("x", unique=IGNORE))
    first = group([do("x", unique=IGNORE), do("y", unique=IGNORE)]).enqueue()
    second = chain(do("y", unique=IGNORE), do("z")).enqueue()
    assert first.cancel() == Cancelled(jobs=0, running=0)
    run_jobs()
    assert log.names == ["x", "y", "z"]
    second.refresh_from_db()
    assert second.state == "completed"
    assert {member.outcome for member in first.members} == {"cancelled"}


@pytest.mark.slow
def test_a_workflow_still_waits_for_a_replacement_that_a_cancelled_one_has_left(log, do):
    """The cancellation comes before the advance that makes the replacement a member's job."""
    replace = {**IGNORE, "on_conflict": "replace"}
    workflow = chain(do("x", unique=replace), do("next")).enqueue()
    Job.objects.enqueue(**do("x", unique=replace))
    group([do("x", unique=IGNORE)]).enqueue().cancel()
    run_jobs()
    assert log.names == ["x", "next"]
    workflow.refresh_from_db()
    assert workflow.state == "completed"


@pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL refuses to write over a newer row")
@pytest.mark.django_db(transaction=True)
def test_a_snapshot_that_is_older_than_an_advance_cancels_nothing(log, do, start):
    """The outer group would seem to wait for the job whose end was counted since."""
    workflow = group([do("a"), do("b"), group([do("c", delay=60)])]).enqueue()
    run_one()
    advance_due("default")
    other = start(run_one_elsewhere)
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        inner = Workflow.objects.get(root=workflow)
        other.tell()
        other.result()
        with pytest.raises(OperationalError, match="serialize"):
            inner.cancel()
    inner.cancel()
    workflow.refresh_from_db()
    assert workflow.state == "failed"


def run_one_elsewhere(parent):
    parent.hear()
    run_one()
    advance_due("default")


@pytest.mark.slow
def test_a_nested_workflow_is_cancelled_and_has_not_failed(log, do):
    """Whether it has begun or not: only the one that is cancelled by its own id fails for the outer one."""
    workflow = chain(group([do("a"), chain(do("b"), do("c"))]), group([do("d")]), do("e")).enqueue()
    workflow.cancel()
    assert workflow.counts() == {"total": 3, "open": 0, "completed": 0, "failed": 0, "cancelled": 3, "skipped": 0}
    assert set(WorkflowMember.objects.values_list("outcome", flat=True)) == {"cancelled"}
    audit()


@pytest.mark.slow
def test_a_part_that_is_cancelled_before_its_turn_starts_nothing(log, do):
    later = chain(chain(do("b"), group([do("c")], name="part")), do("d"))
    workflow = chain(do("a"), group([later, do("e")]), do("f")).enqueue()
    Workflow.objects.get(name="part").cancel()
    assert Job.objects.count() == 1
    run_jobs()
    assert log.names == ["a", "b", "e"]
    workflow.refresh_from_db()
    assert workflow.state == "failed"
    audit()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [chain, lambda *jobs: group(jobs), lambda *jobs: batch(jobs, on_failure=F)])
def test_a_workflow_whose_parts_were_all_cancelled_before_its_turn_has_failed_when_it_comes(log, do, kind):
    workflow = chain(do("a"), kind(group([do("b")], name="part"))).enqueue()
    Workflow.objects.get(name="part").cancel()
    run_jobs()
    workflow.refresh_from_db()
    assert workflow.state == ("completed" if log.names == ["a", "handled"] else "failed")
    assert "b" not in log.names
    audit()
