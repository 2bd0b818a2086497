"""What is decided outside of a workflow, by settings, operators and retention, and what the workflow keeps to."""

import pytest
from django.utils import timezone

from django_ojs_unique import batch, chain, job
from django_ojs_unique.enqueue.request import Request
from django_ojs_unique.exceptions import InvalidTransition, UnknownJobType
from django_ojs_unique.handlers.registry import registry
from django_ojs_unique.maintenance.prune import prune
from django_ojs_unique.models import Job, Workflow
from django_ojs_unique.signals import job_completed
from django_ojs_unique.testing import run_jobs, travel
from django_ojs_unique.workflows.advance import BATCH
from tests.support.workflows import advance

pytestmark = pytest.mark.django_db


# Accepted once


def test_a_worker_without_the_handler_of_the_next_step_enqueues_it(log, do, settings):
    settings.OJS_UNIQUE = {"REQUIRE_HANDLER": True}

    @job("newer")
    def newer():
        """Do nothing."""

    workflow = batch([chain(do("a"), newer.item()), do("b")], on_complete=newer.item()).enqueue()
    registry.unregister("newer")
    run_jobs()
    (step,) = Job.objects.filter(type="newer")
    assert (step.state, step.workflow_id) == ("available", workflow.nested.get().pk)
    step.cancel()
    advance()
    assert [job.state for job in Job.objects.filter(type="newer").order_by("pk")] == ["cancelled", "available"]


def test_what_was_accepted_lets_nothing_else_pass(log, do, settings):
    settings.OJS_UNIQUE = {"REQUIRE_HANDLER": True}

    @job("newer")
    def newer():
        """Do nothing."""

    chain(do("a"), newer.item()).enqueue()
    registry.unregister("newer")
    run_jobs()
    with pytest.raises(UnknownJobType):
        Job.objects.enqueue_request(Request("newer", elsewhere=True))
    with pytest.raises(UnknownJobType):
        chain(do("a"), {"type": "newer"}).enqueue()


# Many ends at once


def test_run_jobs_runs_the_callback_of_more_members_than_one_look_finds(log, do):
    batch([do("a")] * (BATCH + 1), on_complete=do("called")).enqueue()
    Job.objects.all().cancel()
    assert [ran.job.state for ran in run_jobs()] == ["completed"]
    assert log.names == ["called"]


def test_run_jobs_runs_the_callback_of_more_deleted_members_than_one_look_finds(log, do):
    batch([do("a")] * (BATCH + 1), on_complete=do("called")).enqueue()
    Job.objects.all().delete()
    run_jobs()
    assert log.names == ["called"]


# After the end


def prune_all():
    prune(Job.objects.all(), timezone.now())
    Workflow.objects.prune(timezone.now())


@pytest.fixture
def unlucky(log):
    """A workflow whose second step and callback fail for good, as dead letters, until they are retried."""
    retry = {"max_attempts": 1, "on_exhaustion": "dead_letter"}
    broken = {"b", "called"}

    @job("moody", takes_context=True, retry=retry)
    def moody(context, name):
        log.append((name, context.parent_results))
        if name in broken:
            broken.remove(name)
            raise ValueError(name)

    def item(name):
        return {"type": "moody", "args": {"name": name}}

    workflow = batch([chain(item("a"), item("b"))], on_failure=item("called")).enqueue()
    run_jobs(raise_errors=False)
    return workflow


@pytest.mark.parametrize("name", ["b", "called"])
def test_a_dead_letter_that_is_retried_after_the_retention_of_its_workflow_has_its_results(log, unlucky, name):
    before = dict(log)
    assert before["b"] == [None]
    log.clear()
    Job.objects.exclude(args__name=name).delete()
    with travel("P40D"):
        prune_all()
        Job.objects.get().retry()
        prune_all()
        run_jobs()
    assert log == [(name, before[name])]


def test_a_workflow_goes_when_none_of_its_jobs_can_run_again(unlucky):
    with travel("P40D"):
        prune_all()
        assert Workflow.objects.count() == 2
        Job.objects.filter(state="discarded").delete()
        prune_all()
        assert not Workflow.objects.exists()


def test_a_completed_workflow_goes_even_if_its_jobs_stay(log, do, settings):
    settings.OJS_UNIQUE = {"RETENTION": {"completed": None}}
    chain(do("a"), do("b")).enqueue()
    run_jobs()
    with travel("P40D"):
        prune_all()
    assert (Job.objects.count(), Workflow.objects.count()) == (2, 0)


def test_a_job_with_results_of_others_is_not_enqueued_again(log, do):
    workflow = chain(do("a"), batch([do("b")], on_success=do("called"))).enqueue()
    run_jobs()
    first, *others = sorted(Job.objects.all(), key=lambda job: job.args["name"])
    assert first.enqueue_again().created
    for one in others:
        with pytest.raises(InvalidTransition, match="would not get the results"):
            one.enqueue_again()
    result = Job.objects.filter(pk__in=[first.pk, *(one.pk for one in others)]).enqueue_again()
    assert (result.changed, set(result.refused)) == ([first.pk], {one.pk for one in others})
    workflow.delete()  # and nobody knows whether the first one had any
    with pytest.raises(InvalidTransition):
        first.enqueue_again()


def test_a_callback_that_is_retried_is_not_counted_again(log, do, fail):
    """Nor is a job after the callbacks were enqueued."""
    workflow = batch([fail("x")], on_failure=fail("f"), on_complete={"type": "elsewhere"}).enqueue()
    run_jobs()
    for one in Job.objects.filter(state="discarded"):
        one.retry()
        Job.objects.filter(pk=one.pk).update(type="do")
    run_jobs()
    assert Job.objects.filter(state="completed").count() == 2
    workflow.refresh_from_db()
    assert workflow.state == "running"
    Job.objects.filter(type="elsewhere").update(type="do")
    run_jobs()
    workflow.refresh_from_db()
    assert workflow.state == "failed"


# From within


@pytest.mark.parametrize(
    ("active", "ends"), [(False, ("cancelled", "completed")), (True, ("failed", "discarded"))], ids=["cancel", "active"]
)
def test_an_atomic_handler_completes_when_it_cancels_its_own_workflow_but_not_itself(handlers, active, ends):
    @job("stop", atomic=True, retry={"max_attempts": 1})
    def stop():
        Workflow.objects.get().cancel(active=active)

    workflow = chain(stop.item(), stop.item()).enqueue()
    run_jobs(raise_errors=False)
    workflow.refresh_from_db()
    assert (workflow.state, Job.objects.get().state) == ends


def test_a_receiver_that_deletes_a_completed_job_fails_its_member(log, do):
    def delete(job, **more):
        job.remove()

    job_completed.connect(delete)
    try:
        workflow = chain(do("a"), do("b")).enqueue()
        run_jobs()
    finally:
        job_completed.disconnect(delete)
    workflow.refresh_from_db()
    assert (workflow.state, log.names) == ("failed", ["a"])
    assert workflow.members.get(position=0).error["code"] == "deleted"
