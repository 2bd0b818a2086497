"""Tasks of Django as members of workflows."""

import pytest

from .framework import work  # isort: skip - it skips this module where there are no tasks
from django_ojs_unique import InvalidRequest, chain, group
from django_ojs_unique.models import Job
from django_ojs_unique.tasks.framework import Task, TaskContext
from tests.app import tasks
from tests.support.refusals import refused

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.slow
def test_tasks_are_members():
    flow = chain(group([tasks.add.item(1, b=2), tasks.add.item(3)]), tasks.add.using(priority=5).item(4))
    for _ in range(2):  # the same items again
        workflow = flow.enqueue()
        assert work().completed == 3
        workflow.refresh_from_db()
        assert (workflow.state, workflow.result) == ("completed", 4)
        (result,) = [tasks.add.get_result(str(member.job_id)) for member in workflow.members if member.job_id]
        assert (result.status, result.return_value) == ("SUCCESSFUL", 4)


def test_a_task_of_another_backend_is_no_member(settings):
    settings.TASKS = {
        "default": {"BACKEND": "django_ojs_unique.tasks.OJSBackend"},
        "other": {"BACKEND": f"{Task.__module__.split('.base')[0]}.backends.dummy.DummyBackend"},
    }
    with refused(InvalidRequest, "backend", value='"other"'):
        tasks.add.using(backend="other").item(1)


@pytest.mark.django_db(databases=["default", "other"])
@pytest.mark.parametrize("backend", ["other", "default"])
def test_a_workflow_is_stored_where_the_backend_of_its_tasks_stores_jobs(backend):
    flow = chain({"type": "plain"}, group([tasks.add.using(backend=backend).item(1)]))
    workflow = flow.enqueue()
    assert workflow._state.db == backend
    assert Job.objects.using(backend).get().type == "plain"
    assert flow.enqueue(using=backend)._state.db == backend


@pytest.mark.django_db(databases=["default", "other"])
def test_a_task_goes_to_no_other_database_than_its_backends():
    there, here = tasks.add.using(backend="other").item(1), tasks.add.item(1)
    with refused(InvalidRequest, "steps[1].type", names="database other"):
        chain(here, there).enqueue(using="default")
    (answer,) = Job.objects.enqueue_many([there])
    assert answer.error.details["field"] == "type"
    assert Job.objects.using("other").enqueue_many([there, here]).counts["created"] == 2
    assert not Job.objects.exists()


def test_a_task_gets_no_results_of_the_steps_before_it():
    workflow = chain(tasks.add.item(1), tasks.attempt_of.item("x")).enqueue()
    assert work().completed == 2
    workflow.refresh_from_db()
    word, _, _, given, _ = workflow.result
    assert (word, given) == ("x", {})
    assert not hasattr(TaskContext, "parent_results")
