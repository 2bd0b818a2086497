"""Workflows together with eager mode, workers and asynchronous code."""

from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.utils import timezone

from django_ojs_unique import batch, chain, group
from django_ojs_unique.enqueue.request import Request
from django_ojs_unique.lifecycle import write
from django_ojs_unique.models import Job, Workflow
from django_ojs_unique.testing import assert_workflow_enqueued, run_jobs
from django_ojs_unique.worker import Worker
from tests.support.workflows import audit

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.slow
def test_eager_mode_runs_the_whole_workflow_when_it_commits(log, do, settings):
    settings.OJS_UNIQUE = {"EAGER": True}
    with transaction.atomic():
        workflow = chain(do("a"), group([do("b"), do("c")]), do("d")).enqueue()
        assert log == []
    assert log == [("a", []), ("b", ["a"]), ("c", ["a"]), ("d", ["a", ["b", "c"]])]
    workflow.refresh_from_db()
    assert workflow.state == "completed"


def test_eager_mode_goes_on_after_a_duplicate_that_has_ended(log, do, settings):
    settings.OJS_UNIQUE = {"EAGER": True}
    done = do("a", unique={"keys": ["type", "args"], "states": ["completed"], "on_conflict": "ignore"})
    Job.objects.enqueue(**done)
    chain(done, do("b")).enqueue()
    assert log == [("a", []), ("b", ["a"])]


def test_a_rolled_back_workflow_leaves_nothing(log, do):
    with transaction.atomic():
        chain(do("a")).enqueue()
        transaction.set_rollback(True)
    assert not Workflow.objects.exists()
    assert not Job.objects.exists()


@pytest.mark.slow
def test_a_worker_goes_through_a_workflow(log, do):
    workflow = chain(do("a"), group([do(str(number)) for number in range(5)]), do("z")).enqueue()
    worker = Worker(on_finalized=lambda summary: summary.finalized == 7 and worker.stop())
    worker.run()
    assert log.names[0] == "a"
    assert log.names[-1] == "z"
    run_jobs()  # the last end
    workflow.refresh_from_db()
    assert workflow.state == "completed"
    audit()


@pytest.mark.slow
def test_a_draining_worker_ends_the_workflows_that_it_begins(log, do):
    chain(do("a"), group([do("b"), do("c")]), do("d")).enqueue()
    Worker().run(drain=True)
    assert log.names[-1] == "d"
    assert {workflow.state for workflow in audit()} == {"completed"}


def test_a_draining_worker_counts_the_last_end_that_another_left(log, do):
    workflow = chain(do("a")).enqueue()
    write(Job.objects.all(), state="completed", finished_at=timezone.now())
    Worker().run(drain=True)
    workflow.refresh_from_db()
    assert workflow.state == "completed"


@pytest.mark.skipif(connection.vendor == "sqlite", reason="workers wait for a locked workflow here")
def test_a_draining_worker_waits_for_a_workflow_that_another_process_advances(log, do, start):
    """That process may have looked before the last end."""
    workflow = chain(do("a")).enqueue()
    other = start(lock, workflow.pk)
    other.hear()
    looks = []

    def look(execute, sql, *arguments):
        if "SKIP LOCKED" in sql and "django_ojs_unique_workflow" in sql:
            looks.append(sql)
            if len(looks) == 2:
                other.tell()
                other.result()
        return execute(sql, *arguments)

    with connection.execute_wrapper(look):
        Worker().run(drain=True)
    workflow.refresh_from_db()
    assert workflow.state == "completed"


def lock(parent, id):
    with transaction.atomic():
        Workflow.objects.select_for_update().get(pk=id)
        parent.tell()
        parent.hear()


def test_a_worker_lets_members_fail_whose_jobs_were_deleted(log, do):
    workflow = batch([do("a")], on_failure=do("f")).enqueue()
    Job.objects.get().remove()
    Worker().run(drain=True)
    assert log.names == ["f"]
    workflow.refresh_from_db()
    assert workflow.state == "completed"


@pytest.mark.slow
def test_a_worker_prunes_workflows(log, do):
    old, new = chain(do("a")).enqueue(), chain(do("b")).enqueue()
    run_jobs()
    Workflow.objects.filter(pk=old.pk).update(finished_at=timezone.now() - timedelta(days=31))
    Job.objects.enqueue(**do("c"))
    Worker().run(drain=True)
    assert list(Workflow.objects.all()) == [new]


def test_asynchronous_code(log, do):
    workflow = async_to_sync(chain(do("a"), name="x").aenqueue)()
    assert workflow.name == "x"
    assert Job.objects.count() == 1


def test_a_request_is_not_changed(log):
    request = Request(type="do", args={"name": "a"})
    chain(request).enqueue()
    assert request.workflow_id is None


def test_the_assertion(log, do):
    with pytest.raises(AssertionError, match=r"type='chain'.*\n  none"):
        assert_workflow_enqueued("chain")
    workflow = chain(do("a"), group([do("b"), do("c")]), name="x").enqueue()
    assert assert_workflow_enqueued("chain", name="x", steps=["do", "group"]) == workflow
    assert assert_workflow_enqueued(steps=["do", "do"]).root == workflow
    with pytest.raises(AssertionError, match=r"chain 'x' steps=\['do', 'group'\]"):
        assert_workflow_enqueued("batch", name="x", steps=["do"])
